"""The root of the error tree, and what belongs to no family."""

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar

__all__ = ["ConfigError", "EngineUnavailable", "Retry", "TailerError"]


class Retry(Enum):
    """What the pipeline does after an error."""

    NEVER = "never"  # trying again can only do harm
    MANUAL = "manual"  # a person must act first
    TIMED = "timed"  # wait, then try again
    ASK = "ask"  # wait, read progress back from the sink, then try again


def _rebuild(cls: type["TailerError"], values: dict[str, Any]) -> "TailerError":
    return cls(**values)


@dataclass(eq=False)
class TailerError(Exception):
    """Root of the tree. `exit_code` is what a command ends with when nobody handles the error."""

    retry: ClassVar[Retry] = Retry.MANUAL
    exit_code: ClassVar[int] = 3
    sentence: ClassVar[str] = "lake-tailer stopped"
    next_step: ClassVar[str] = ""

    def __str__(self) -> str:
        return self.sentence.format(**self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """The error's facts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def hint(self) -> str:
        """The operator's next step; empty where there is none."""
        return self.next_step.format(**self.fields)


@dataclass(eq=False)
class ConfigError(TailerError):
    """The configuration or the command line is wrong; nothing was read or written."""

    where: str
    reason: str
    remedy: str = ""
    exit_code: ClassVar[int] = 2
    sentence: ClassVar[str] = "{where}: {reason}"
    next_step: ClassVar[str] = "{remedy}"


@dataclass(eq=False)
class EngineUnavailable(TailerError):
    """Spark, called `engine`, could not be had or gave work up; nothing is wrong with the work itself."""

    engine: str
    reason: str
    remedy: str = "Check that its cluster is up, can be reached from this machine and has free cores."
    retry: ClassVar[Retry] = Retry.TIMED
    exit_code: ClassVar[int] = 4
    sentence: ClassVar[str] = "{engine}: {reason}"
    next_step: ClassVar[str] = "{remedy}"

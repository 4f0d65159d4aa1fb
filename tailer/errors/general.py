"""The root of the error tree, errors without a family of their own, and words that many errors need."""

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from typing_extensions import override
else:  # every command imports errors, and that library takes 4 ms

    def override(method: object) -> object:
        return method


__all__ = [
    "ConfigError",
    "EngineUnavailable",
    "ExpressionFailed",
    "Retry",
    "TailerError",
    "brief_errors",
    "did_you_mean",
    "duration",
    "how_to_install",
    "missing_client",
    "one_line",
    "override",
]

AFTER_LOSS: Final = (
    "`tailer resnapshot PIPELINE` delivers all rows of the newest version in place of the lost changes, and `tailer "
    "skip PIPELINE` leaves them out, but not in a mirror. on_data_loss of the pipeline does either by itself"
)
_COMMAND: Final = re.compile(r"`tailer [^`]*`")
_SEPARATORS: Final = str.maketrans("", "", "-_. ")  # of words in a name
_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60))


class Retry(Enum):
    """Retry behaviour of the pipeline after an error."""

    ONCE = "once"  # read progress back and try again once, if this run has just begun and committed nothing
    MANUAL = "manual"  # an operator must act first
    BRIEF = "brief"  # wait and try again for some seconds: a secret may just be replaced
    TIMED = "timed"  # wait, then try again
    ASK = "ask"  # wait, read progress back from the sink, then try again


def printable(text: str) -> str:
    """Return the text with escapes for what does not print, such as a terminal's control characters."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def one_line(text: str) -> str:
    """Return `text` in one line: messages of other libraries may have several."""
    return " ".join(filter(None, map(str.strip, text.splitlines())))


def duration(seconds: float) -> str:
    """Return a length of time in its largest unit that is not below 2: `7 d`, `36 h`, `90 s`, `0.4 s`."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{max(seconds * 1000, 1):.0f} ms"


def _rebuild(cls: type["TailerError"], values: dict[str, Any]) -> "TailerError":
    return cls(**values)


@dataclass(eq=False)
class TailerError(Exception):
    """Root of the tree. `exit_code` is the exit status of a command that fails with the error."""

    retry: ClassVar[Retry] = Retry.MANUAL
    exit_code: ClassVar[int] = 3
    sentence: ClassVar[str] = "lake-tailer stopped"
    next_step: ClassVar[str] = ""

    def __str__(self) -> str:
        return one_line(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """Values of the error's fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def message(self) -> str:
        """The problem; the text of the error is the same in one line."""
        return self.sentence.format(**self.fields)

    @property
    def hint(self) -> str:
        """The operator's next step; empty where there is none."""
        return self.next_step.format(**self.fields)

    def hint_for(self, pipeline: str) -> str:
        """Return the next step with the commands for `pipeline`, as a shell takes them; empty: it is not known."""
        if not pipeline:
            return self.hint
        name = shlex.quote(pipeline)
        return _COMMAND.sub(lambda command: command[0].replace(" PIPELINE", f" {name}"), self.hint)


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
    """Spark, named `engine`, is unreachable or failed; the work itself is not at fault."""

    engine: str
    reason: str
    remedy: str = "Check that its cluster is up, reachable from this machine and has free cores."
    retry: ClassVar[Retry] = Retry.TIMED
    exit_code: ClassVar[int] = 4
    sentence: ClassVar[str] = "{engine}: {reason}"
    next_step: ClassVar[str] = "{remedy}"


@dataclass(eq=False)
class ExpressionFailed(TailerError):
    """An expression of SQL fails for a row, as it does in Spark: a number overflows, or is divided by zero."""

    expression: str
    reason: str
    place: str = ""
    sentence: ClassVar[str] = "{expression}: it fails for a row{place}: {reason}"
    next_step: ClassVar[str] = (
        "Write the expression so that it has a value for every row, such as CASE WHEN b <> 0 THEN a / b END. No row "
        "was delivered without it."
    )

    def of_file(self, table: str, version: int, path: str) -> "ExpressionFailed":
        """Return the error with the place of the row."""
        return ExpressionFailed(self.expression, self.reason, f" of {path}, version {version} of {table}")


def how_to_install(*extras: str, package: str = "lake-tailer") -> str:
    """Return the command that installs `package` with its `extras`, as a sentence."""
    wanted = f"'{package}[{','.join(extras)}]'" if extras else package
    return f"Install it: pip install {wanted}."


def missing_client(extra: str, store: str, error: ImportError) -> ConfigError:
    """Return the error where the client of a store at the location `store`, which comes with `extra`, is missing."""
    remedy = f"{how_to_install(extra)} Executors of Spark need it, too."
    return ConfigError(store, f"its client is not installed: {error}", remedy)


class brief_errors:  # noqa: N801 - used like a function; a generator would bring the frames back
    """End the traceback of a `TailerError` with its next step, and drop the frames below the caller.

    Where it was raised helps nobody who has to act on it. Its cause stays, without frames as well. `next_step`: the
    error's own hint, if nothing else is given.
    """

    def __init__(self, next_step: Callable[[TailerError], str] = attrgetter("hint")) -> None:
        self._next_step = next_step

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, TailerError):
            return
        step = self._next_step(error)
        if step and step not in getattr(error, "__notes__", ()):
            error.add_note(step)
        error.__suppress_context__ = True
        cause: BaseException | None = error
        while cause is not None:
            cause.__traceback__ = None
            cause = cause.__cause__


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` with the closest of `names`, ignoring case and separators; empty: none is close."""
    folded = {_fold(name): name for name in names}
    near = get_close_matches(_fold(word), folded, n=1)
    return f"Did you mean {folded[near[0]]!r}?" if near else ""


def _fold(name: str) -> str:
    return name.lower().translate(_SEPARATORS)

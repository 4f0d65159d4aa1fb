"""The states of a pipeline, its errors, and who is active where several instances run it.

=============  =======================================================================================
state          meaning
=============  =======================================================================================
`starting`     asks the sink for its progress; nothing has been read yet
`waiting`      there is no table at its location yet, or it is not whole; it begins when one is there
`snapshot`     delivers all rows of one version
`catching_up`  delivers a backlog
`streaming`    is at the newest version, or less than `BEHIND_AFTER_S` behind it
`idle`         is at the newest version, which is older than `IDLE_AFTER_S`
`standby`      another instance is active; it takes over if that one is silent
`retrying`     the last attempt failed; the next one follows by itself
`paused`       an operator paused it
`stopped`      has ended; `why` and `retry_at_s` say whether it begins again by itself
=============  =======================================================================================
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from tailer.errors import TailerError

__all__ = ["Active", "Fault", "PipelineState"]


class PipelineState(StrEnum):
    """The state of a pipeline; see the module."""

    STARTING = "starting"
    WAITING = "waiting"
    SNAPSHOT = "snapshot"
    CATCHING_UP = "catching_up"
    STREAMING = "streaming"
    IDLE = "idle"
    STANDBY = "standby"
    RETRYING = "retrying"
    PAUSED = "paused"
    STOPPED = "stopped"

    @property
    def delivers(self) -> bool:
        """Return whether the pipeline works normally."""
        return self in (self.SNAPSHOT, self.CATCHING_UP, self.STREAMING, self.IDLE)

    @property
    def works(self) -> bool:
        """Return whether the pipeline delivers, or waits for its table or for its turn."""
        return self.delivers or self in (self.WAITING, self.STANDBY)


@dataclass(frozen=True, slots=True)
class Active:
    """The active instance of a pipeline, as this process knows it. Times in seconds since 1970, by its own clock.

    `is_here`: whether it is this process. `since_s`: since when it is known to be active. `heartbeat_s`: when its last
    heartbeat was sent or seen.
    """

    instance: str
    is_here: bool
    since_s: float
    heartbeat_s: float

    @classmethod
    def after(cls, before: "Active | None", instance: str, *, is_here: bool, now_s: float) -> "Active":
        """Return the active instance after a new heartbeat of `instance`."""
        is_same = before is not None and (before.instance, before.is_here) == (instance, is_here)
        return cls(instance, is_here, before.since_s if before is not None and is_same else now_s, now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error as operators see it: its name, its text without secrets, the next step, and when it came.

    `since_s`: when the first error came after which nothing has succeeded. `is_over`: whether something has since.
    """

    name: str
    text: str
    hint: str
    at_s: float
    since_s: float
    is_over: bool = False

    @classmethod
    def of(cls, error: BaseException, at_s: float, pipeline: str) -> "Fault":
        """Describe an error of `pipeline`. The text of a foreign one may hold anything, and is left to the log."""
        text, hint = (
            "an unexpected error",
            "This is a bug in lake-tailer: please report it with the traceback in the log.",
        )
        if isinstance(error, TailerError):
            text, hint = str(error), error.hint_for(pipeline)
        return cls(name=type(error).__name__, text=text, hint=hint, at_s=at_s, since_s=at_s)

    @classmethod
    def after(cls, before: "Fault | None", error: BaseException, at_s: float, pipeline: str) -> "Fault":
        """Describe an error of `pipeline`, which comes after `before`."""
        fault = cls.of(error, at_s, pipeline)
        return fault if before is None or before.is_over else replace(fault, since_s=before.since_s)

    def __str__(self) -> str:
        return self.text

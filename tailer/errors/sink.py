"""Errors of sinks."""

from dataclasses import dataclass
from typing import ClassVar

from tailer.errors.general import Retry, TailerError, override

__all__ = ["CommitUnknown", "SinkAccessRefused", "SinkError", "SinkFenced", "SinkRejected", "SinkUnavailable"]


@dataclass(eq=False)
class SinkError(TailerError):
    """The sink named `sink` failed."""

    sink: str
    reason: str
    exit_code: ClassVar[int] = 4
    sentence: ClassVar[str] = "sink {sink}: {reason}"


@dataclass(eq=False)
class SinkUnavailable(SinkError):
    """The destination did not answer."""

    retry: ClassVar[Retry] = Retry.ASK
    next_step: ClassVar[str] = "Check that the destination is up and reachable, and that its disk is not full."


@dataclass(eq=False)
class CommitUnknown(SinkError):
    """A commit was sent, but its answer was lost."""

    retry: ClassVar[Retry] = Retry.ASK
    sentence: ClassVar[str] = "sink {sink}: it is unknown whether the commit took effect: {reason}"


@dataclass(eq=False)
class SinkRejected(SinkError):
    """The destination refuses the request, and would refuse it again."""

    remedy: str = ""
    next_step: ClassVar[str] = "{remedy}"


@dataclass(eq=False)
class SinkAccessRefused(SinkRejected):
    """The destination, or what it needs such as a schema registry, refuses the login or lacks a permission for it."""

    retry: ClassVar[Retry] = Retry.BRIEF


@dataclass(eq=False)
class SinkFenced(SinkError):
    """Another instance writes for the same app_id. `other`: its process and host, where the destination tells them.

    A run that has just begun tries once more: the last request of a killed instance may arrive after the next one has
    read the progress.
    """

    other: str = ""
    retry: ClassVar[Retry] = Retry.ONCE
    sentence: ClassVar[str] = "sink {sink}: another instance took over: {reason}"
    next_step: ClassVar[str] = (
        "Run one instance per pipeline. If the error does not name the process and host of the other one, look for a "
        "daemon that has a pipeline of this name with this target. If it is to go on, end this one; if not, end it, "
        "and run `tailer resume PIPELINE` here."
    )

    @property
    @override
    def message(self) -> str:
        by = f" ({self.other})" if self.other else ""
        return f"sink {self.sink}: another instance took over{by}: {self.reason}"

"""Errors of the ends of a pipeline: of sinks, and of stores with the folder for temporary files."""

from dataclasses import dataclass
from typing import ClassVar

from tailer.errors.general import Retry, TailerError, override

__all__ = [
    "CommitIncomplete",
    "CommitUnknown",
    "ObjectAlreadyExists",
    "ObjectNotFound",
    "ScratchUnavailable",
    "SinkAccessRefused",
    "SinkError",
    "SinkFenced",
    "SinkRejected",
    "SinkUnavailable",
    "StorageAccessRefused",
    "StorageError",
    "StorageRefused",
    "StorageUnavailable",
]


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


@dataclass(eq=False)
class StorageError(TailerError):
    """An operation on `path` failed in the store."""

    path: str
    reason: str = ""
    exit_code: ClassVar[int] = 4
    sentence: ClassVar[str] = "{path}: {reason}"


@dataclass(eq=False)
class StorageUnavailable(StorageError):
    """The store did not answer, or refused temporarily."""

    retry: ClassVar[Retry] = Retry.TIMED
    sentence: ClassVar[str] = "{path}: the store does not answer: {reason}"
    next_step: ClassVar[str] = "Check that the location is reachable and readable from this machine."


@dataclass(eq=False)
class CommitIncomplete(StorageUnavailable):
    """The commit file at `path` grew while its rows were read; it is read again."""

    sentence: ClassVar[str] = "{path}: the commit file grew while its rows were read: it is not written atomically"
    next_step: ClassVar[str] = "Check which program writes this table: Delta requires commit files that appear whole."


@dataclass(eq=False)
class ScratchUnavailable(StorageUnavailable):
    """Temporary files cannot be written: the disk of `path` is full, or the folder cannot be used."""

    sentence: ClassVar[str] = "{path}: cannot write temporary files: {reason}"
    next_step: ClassVar[str] = "Free space there, or set TMPDIR to a folder on a disk with free space."


@dataclass(eq=False)
class StorageRefused(StorageError):
    """The store refused: a permission is missing, or the path is of the wrong kind."""

    next_step: ClassVar[str] = (
        "Check the path, its symbolic links, and that this user may read it, and write to it where lake-tailer stores "
        "files."
    )


@dataclass(eq=False)
class StorageAccessRefused(StorageRefused):
    """An object store or a catalog refused: a bucket, credentials, a permission or a setting is wrong."""

    remedy: str = ""
    retry: ClassVar[Retry] = Retry.BRIEF
    next_step: ClassVar[str] = "{remedy}"


@dataclass(eq=False)
class ObjectNotFound(StorageError):
    """The object does not exist."""

    sentence: ClassVar[str] = "{path}: not found"
    next_step: ClassVar[str] = "Check the path."


@dataclass(eq=False)
class ObjectAlreadyExists(StorageError):
    """Put-if-absent found the object: another writer was first."""

    retry: ClassVar[Retry] = Retry.ASK
    sentence: ClassVar[str] = "{path}: already exists"

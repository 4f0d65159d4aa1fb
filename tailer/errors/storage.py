"""Errors of stores, and of the folder for temporary files."""

from dataclasses import dataclass
from typing import ClassVar

from tailer.errors.general import Retry, TailerError

__all__ = [
    "ObjectAlreadyExists",
    "ObjectNotFound",
    "ScratchUnavailable",
    "StorageError",
    "StorageRefused",
    "StorageUnavailable",
]


@dataclass(eq=False)
class StorageError(TailerError):
    """A store could not do what was asked of `path`."""

    path: str
    reason: str = ""
    exit_code: ClassVar[int] = 4
    sentence: ClassVar[str] = "{path}: {reason}"


@dataclass(eq=False)
class StorageUnavailable(StorageError):
    """The store did not answer, or refused for now."""

    retry: ClassVar[Retry] = Retry.TIMED
    sentence: ClassVar[str] = "{path}: the store does not answer: {reason}"
    next_step: ClassVar[str] = "Check that the location can be reached and read from this machine."


@dataclass(eq=False)
class ScratchUnavailable(StorageUnavailable):
    """The folder for temporary files, `path`, does not hold them: its disk is full, or it cannot be used."""

    sentence: ClassVar[str] = "{path}: temporary files cannot be kept there: {reason}"
    next_step: ClassVar[str] = "Free space there, or let TMPDIR name a folder of a disk that has some."


@dataclass(eq=False)
class StorageRefused(StorageError):
    """The store answered that it will not: a right is missing, or a path cannot be what it is used for."""

    next_step: ClassVar[str] = (
        "Check the path and the symbolic links in it, and that this user may read it, or write to it where lake-tailer "
        "keeps something."
    )


@dataclass(eq=False)
class ObjectNotFound(StorageError):
    """There is no such object."""

    sentence: ClassVar[str] = "{path}: not found"
    next_step: ClassVar[str] = "Check the path."


@dataclass(eq=False)
class ObjectAlreadyExists(StorageError):
    """Put-if-absent found the object there: another writer was first."""

    retry: ClassVar[Retry] = Retry.ASK
    sentence: ClassVar[str] = "{path}: exists already"

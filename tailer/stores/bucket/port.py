"""The port of the clients of object stores: all that differs between the servers.

A client sends one request at a time, and its library may repeat it. What is asked, and whether to ask again, is decided
by the other modules of this folder. A key is the name of an object in its bucket; the key of a folder ends with a
slash, or is empty for the whole bucket.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum, auto
from mmap import mmap
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from tailer.errors import StorageError
from tailer.stores.port import ObjectMeta
from tailer.stores.traffic import Fault
from tailer.stores.wakeup import TimerWake, Wake

__all__ = ["Answer", "Bucket", "Client", "Failure", "Head", "Page", "Part", "RangeClient", "TornBody", "Upload"]


class TornBody(Exception):
    """The body of an answer ended before the length that the server promised."""


class Failure(Enum):
    """The kind of an error of a client, for the decision whether to ask again."""

    EXPIRED = auto()  # new credentials may help
    LOGIN = auto()  # the credentials are refused
    TORN = auto()
    MISSING = auto()  # the object does not exist
    CONFLICT = auto()  # another write of the object is under way
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """An object whose content is not read yet. `read` raises `TornBody`; `close` is for content that is not wanted.

    `etag`: as `get_range` takes it.
    """

    meta: ObjectMeta
    etag: str
    read: Callable[[], Awaitable[bytes | memoryview]]
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Head:
    """An object without its content. `attributes`: its user metadata."""

    meta: ObjectMeta
    attributes: Mapping[str, str]


class Page(NamedTuple):
    """A part of a listing. `folders`: keys of folders. `token`: continues the listing; None: this is its end."""

    objects: Sequence[ObjectMeta]
    folders: Sequence[str] = ()
    token: str | None = None


class Part(NamedTuple):
    """Bytes of an object from `begin` on. `size_bytes`: of the whole object. `etag`: of its content."""

    size_bytes: int
    begin: int
    data: bytes
    etag: str


class Lent(Protocol):
    """The part that clients of both kinds have in common."""

    def retire(self) -> None:
        """Let the next request make a new client: the credentials of this one are refused."""
        ...

    def translate(self, error: Exception, uri: str) -> StorageError:
        """Make our error from one of the client. `uri`: of the object or the folder."""
        ...


class Client(Lent, Protocol):
    """A client of one bucket for the event loop. The names in metadata are keys."""

    async def get(self, key: str) -> Answer:
        """Request an object."""
        ...

    async def head(self, key: str) -> Head:
        """Request the metadata of an object."""
        ...

    async def list_folder(self, folder: str, after: str, token: str | None) -> Page:
        """List what is directly in a folder, in any order, from a page on.

        `after`: only greater keys are wanted, and no folders. The page may have others, and objects of folders below.
        """
        ...

    async def list_below(self, folder: str, after: str) -> Sequence[str]:
        """List the first keys greater than `after`, up to a thousand, in a folder and all folders in it."""
        ...

    async def put(self, key: str, data: bytes | mmap, attributes: Mapping[str, str], *, if_absent: bool) -> None:
        """Create an object, or replace one. With `if_absent` an existing object is an error."""
        ...

    async def delete(self, key: str) -> None:
        """Delete an object."""
        ...


class RangeClient(Lent, Protocol):
    """A client of one bucket for worker threads."""

    def get_range(self, key: str, offset: int, length: int, etag: str) -> Part | None:
        """Request a part of an object; None where it has no such bytes. Raises `TornBody`.

        `etag`: the content that is wanted, if not empty; another one is an error.
        """
        ...

    def get_end(self, key: str, length: int, etag: str) -> Part | None:
        """Request the last bytes of an object; see `get_range`."""
        ...


class Upload(Protocol):
    """The upload of a file as a new object."""

    @property
    def is_multipart(self) -> bool:
        """Return whether the file is sent in parts."""
        ...

    async def send(self, attributes: Mapping[str, str]) -> None:
        """Create the object if it does not exist. May be called again.

        Raises the errors of `UploadStore`; after one, the object may exist all the same, but no parts of it.
        """
        ...


class Bucket(Protocol):
    """A bucket and the options by which it is reached: a value, equal to another one of the same.

    `failures`: the errors of the clients, of their connections, and of settings. `needs_condition_check`: whether some
    servers of this kind ignore the condition of `Client.put`.
    """

    failures: ClassVar[tuple[type[Exception], ...]]
    needs_condition_check: ClassVar[bool] = False

    @property
    def uri(self) -> str:
        """The location of the bucket."""
        ...

    @property
    def noun(self) -> str:
        """The name of the bucket in messages."""
        ...

    @property
    def store_name(self) -> str:
        """The name of the store in metrics."""
        ...

    def lend(self) -> AbstractAsyncContextManager[Client]:
        """Lend a client for one request and its answer. Raises `failures` where none can be made."""
        ...

    def connect(self) -> RangeClient:
        """Return a client for threads. Raises `failures` where none can be made."""
        ...

    def make_upload(self, key: str, source: Path) -> Upload:
        """Prepare the upload of a file, which does not change any more. Blocks."""
        ...

    def failure_of(self, error: BaseException) -> Failure:
        """Return the kind of an error."""
        ...

    def fault_of(self, error: Exception) -> Fault | None:
        """Return the fault of an attempt that ended with `error`; None where it is counted, or a reader expects it."""
        ...

    def translate(self, error: Exception, uri: str) -> StorageError:
        """Make our error where no client can be made; see `Lent.translate`."""
        ...

    def make_wake(self, folder: str, names: re.Pattern[str]) -> Wake:
        """Make a wake-up for new objects in a folder, whose key is without a slash; see `ObjectStore.make_wake`."""
        return TimerWake()

"""Places for heartbeats: blocking ones, in threads of their own, and small files beside the target.

Heartbeats must not wait for deliveries, which may hold all of anyio's worker threads for long. So each place has a
limiter of its own. A call that is cancelled goes on in its thread; the next one waits for it.

A heartbeat is JSON, wherever it is::

    {"format": 1, "instance": "host-7-0a1b2c3d", "term": 3, "count": 12, "released": false}
"""

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
from anyio import CapacityLimiter, to_thread
from typing_extensions import override

from tailer.errors import ObjectNotFound, SinkRejected, SinkUnavailable
from tailer.sink import Heartbeat, Heartbeats
from tailer.stores.port import ObjectStore
from tailer_sinks.access import store_errors

__all__ = [
    "BlockingHeartbeats",
    "FileHeartbeats",
    "StoreHeartbeats",
    "decode_heartbeat",
    "encode_heartbeat",
    "heartbeat_name",
    "is_heartbeat",
]

T = TypeVar("T")

_FORMAT: Final = 1
_FOLDER: Final = "_lake_tailer/heartbeats"
_LONGEST_NAME: Final = 100  # of a pipeline, encoded


class _Record(msgspec.Struct, frozen=True):
    format: int
    instance: str
    term: int
    count: int
    released: bool


def encode_heartbeat(heartbeat: Heartbeat) -> str:
    """Return a heartbeat as JSON."""
    record = _Record(_FORMAT, heartbeat.instance, heartbeat.term, heartbeat.count, heartbeat.released)
    return msgspec.json.encode(record).decode()


def decode_heartbeat(sink: str, place: str, text: str | bytes) -> Heartbeat:
    """Return the heartbeat of a text at `place`. Raises `SinkRejected` where it is none."""
    try:
        record = msgspec.json.decode(text, type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"{place} is not a heartbeat: {error}"
        raise SinkRejected(sink, reason, "Remove it, and give each pipeline a name of its own.") from None
    if record.format != _FORMAT:
        reason = f"{place} is a heartbeat in format {record.format}, and this release knows {_FORMAT}"
        raise SinkRejected(sink, reason, "Run the same release of lake-tailer everywhere.")
    return Heartbeat(record.instance, record.term, record.count, record.released)


def heartbeat_name(pipeline: str) -> str:
    """Return the name of a pipeline's heartbeat below a target's folder.

    Data files are in no folder that begins with `_` (PROTOCOL.md, "Data Files"), so readers and VACUUM pass it over.
    Some file systems limit names to 255 bytes, or take `Orders` for `orders`: such names have a digest in place of the
    rest.
    """
    name = quote(pipeline, safe="")
    if len(name) > _LONGEST_NAME or pipeline != pipeline.lower():
        # `!` is in no other name: `quote` encodes it.
        name = f"{name[:_LONGEST_NAME].lower()}!{sha256(pipeline.encode()).hexdigest()[:16]}"
    return f"{_FOLDER}/{name}.json"


def is_heartbeat(name: str) -> bool:
    """Return whether a name below a target's folder is one of `heartbeat_name`."""
    return name.startswith(f"{_FOLDER}/")


class BlockingHeartbeats(Heartbeats, ABC):
    """`Heartbeats` whose work blocks."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)
        self._lock = threading.Lock()

    @override
    async def read(self) -> Heartbeat | None:
        return await self._run(self.read_now)

    @override
    async def write(self, heartbeat: Heartbeat) -> None:
        await self._run(lambda: self.write_now(heartbeat))

    @override
    async def aclose(self) -> None:
        await self._run(self.close_now)

    async def _run(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._lock:
                return work()

        return await to_thread.run_sync(alone, limiter=self._limiter, abandon_on_cancel=True)

    @abstractmethod
    def read_now(self) -> Heartbeat | None:
        """Read as `Heartbeats.read` says; blocks."""

    @abstractmethod
    def write_now(self, heartbeat: Heartbeat) -> None:
        """Write as `Heartbeats.write` says; blocks."""

    def close_now(self) -> None:
        """Close; blocks."""


class FileHeartbeats(BlockingHeartbeats):
    """Heartbeats in a file of this machine, replaced as a whole; `sink`: the sink's name in errors."""

    def __init__(self, sink: str, path: Path) -> None:
        super().__init__()
        self._sink = sink
        self._path = path
        self._token: Final = secrets.token_hex(4)  # containers that share the folder have the same process id

    @override
    def read_now(self) -> Heartbeat | None:
        try:
            data = self._path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._failure(error) from error
        # A crash of the machine may leave an empty file: it is not synced to the disk, for nobody is active after that.
        return decode_heartbeat(self._sink, str(self._path), data) if data.strip(b"\0") else None

    @override
    def write_now(self, heartbeat: Heartbeat) -> None:
        written = self._path.with_name(f".{self._path.name}.{self._token}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(encode_heartbeat(heartbeat))
            written.replace(self._path)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> SinkUnavailable:
        return SinkUnavailable(self._sink, f"{self._path}: {error.strerror or error}")


class StoreHeartbeats(Heartbeats):
    """Heartbeats in an object of a store; `sink`: the sink's name in errors."""

    def __init__(self, sink: str, store: ObjectStore, name: str) -> None:
        self._sink = sink
        self._store = store
        self._name = name

    @override
    async def read(self) -> Heartbeat | None:
        place = f"{self._store.uri}/{self._name}"
        with store_errors(self._sink):
            try:
                return await self._store.read(self._name, lambda item: decode_heartbeat(self._sink, place, item.data))
            except ObjectNotFound:
                return None

    @override
    async def write(self, heartbeat: Heartbeat) -> None:
        with store_errors(self._sink):
            await self._store.put(self._name, encode_heartbeat(heartbeat).encode())

    async def aclose(self) -> None:
        """Do nothing: the store's connections are shared."""

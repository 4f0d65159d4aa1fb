"""A bucket of an object store in memory, behind the `Bucket` port: the product's own store runs over it.

Objects appear whole, a PUT with a condition has one winner, and one listing is as the objects are at that moment, but a
listing has pages, between which objects come and go. Clients repeat a request without an answer by themselves, as those
of S3 do, so a PUT may find its own object.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from tailer.errors import ObjectAlreadyExists, ObjectNotFound, StorageError, StorageUnavailable
from tailer.stores.bucket.port import Answer, Failure, Head, Page, Part, TornBody
from tailer.stores.port import ObjectMeta
from tailer.stores.traffic import Fault as StoreFault
from tailer.stores.wakeup import TimerWake, Wake
from tests.simulation.network import Fault, Network, NoAnswer
from tests.simulation.physics import EPOCH_S

__all__ = ["Objects", "SimulatedBucket"]

T = TypeVar("T")

_STALE_S: Final = 20.0
_REPEATS: Final = 2


class Refusal(Exception):
    """The server's answer is an error."""

    def __init__(self, failure: Failure, *, exists: bool = False) -> None:
        super().__init__(failure.name)
        self.failure = failure
        self.exists = exists


@dataclass(frozen=True)
class _Object:
    data: bytes
    etag: str
    modified_ms: int
    attributes: Mapping[str, str]
    since_s: float


@dataclass(eq=False)
class Objects:
    """The server's side of a bucket. `on_put`: called with the key, the content and the attributes of each object."""

    network: Network
    page: int = 1000
    there: dict[str, _Object] = field(default_factory=dict)
    on_put: Callable[[str, bytes, Mapping[str, str]], None] = lambda *_: None
    missed: set[str] = field(default_factory=set)
    _number: int = 0
    _was_torn: bool = False

    def put(
        self, key: str, data: bytes, attributes: Mapping[str, str] | None = None, *, if_absent: bool = False
    ) -> None:
        """Create or replace an object now."""
        if if_absent and key in self.there:
            raise Refusal(Failure.OTHER, exists=True)
        self._number += 1
        now_s = self.network.physics.now_s
        modified_ms = int(EPOCH_S + now_s) * 1000
        self.there[key] = _Object(data, f"e{self._number}", modified_ms, dict(attributes or {}), now_s)
        self.on_put(key, data, attributes or {})

    def get(self, key: str) -> _Object:
        """Return an object."""
        if key not in self.there:
            raise Refusal(Failure.MISSING)
        return self.there[key]

    def delete(self, *keys: str) -> None:
        """Delete objects now."""
        for key in keys:
            self.there.pop(key, None)

    def meta(self, key: str) -> ObjectMeta:
        """Return the metadata of an object."""
        found = self.get(key)
        return ObjectMeta(key, len(found.data), found.modified_ms, found.etag)

    def keys(self, folder: str, after: str, *, stale: bool = False) -> list[str]:
        """Return the keys in a folder and below it, in order."""
        chance, least_s = self.network.chance, self.network.physics.now_s - _STALE_S
        # One that lacks some of the new objects is followed by another one: the next look is right about a gap.
        is_torn = stale and not self._was_torn and chance.random() < 0.5
        self._was_torn = is_torn
        keys = sorted(key for key in self.there if key.startswith(folder) and key > after)
        if not stale:
            return keys
        return [key for key in keys if self.there[key].since_s <= least_s or (is_torn and chance.random() < 0.5)]


@dataclass(eq=False)
class SimulatedBucket:
    """A `Bucket` over `objects`; it is a client, too."""

    objects: Objects
    uri: str = "s3://lake"

    failures: ClassVar[tuple[type[Exception], ...]] = (Refusal, NoAnswer, TornBody)
    needs_condition_check: ClassVar[bool] = False
    noun = "bucket lake"
    store_name = "lake"

    @asynccontextmanager
    async def lend(self) -> AsyncIterator["_Client"]:
        """See `Bucket.lend`."""
        yield _Client(self)

    def connect(self) -> "_Client":
        """See `Bucket.connect`."""
        return _Client(self)

    def make_upload(self, key: str, source: Path) -> "_Upload":
        """See `Bucket.make_upload`."""
        return _Upload(self, key, source.read_bytes())

    def failure_of(self, error: BaseException) -> Failure:
        """See `Bucket.failure_of`."""
        if isinstance(error, TornBody):
            return Failure.TORN
        return error.failure if isinstance(error, Refusal) else Failure.OTHER

    def fault_of(self, error: Exception) -> StoreFault | None:
        """See `Bucket.fault_of`."""
        return StoreFault.TORN_BODY if isinstance(error, TornBody) else None

    def translate(self, error: Exception, uri: str) -> StorageError:
        """See `Bucket.translate`."""
        if isinstance(error, Refusal) and error.exists:
            return ObjectAlreadyExists(uri)
        if isinstance(error, Refusal) and error.failure is Failure.MISSING:
            return ObjectNotFound(uri)
        return StorageUnavailable(uri, str(error))

    def make_wake(self, folder: str, names: re.Pattern[str]) -> Wake:
        """See `Bucket.make_wake`."""
        return TimerWake()


class _Client:
    """See `Client`, `RangeClient`."""

    def __init__(self, bucket: SimulatedBucket) -> None:
        self._bucket = bucket
        self._objects = bucket.objects
        self._network = bucket.objects.network

    def retire(self) -> None:
        """Do nothing: there are no credentials."""

    def translate(self, error: Exception, uri: str) -> StorageError:
        return self._bucket.translate(error, uri)

    async def get(self, key: str) -> Answer:
        found, torn = await self._ask(f"GET {key}", lambda: (self._objects.get(key), self._torn()))

        async def read() -> bytes:
            return found.data[: len(found.data) // 2] if torn else found.data

        return Answer(ObjectMeta(key, len(found.data), found.modified_ms, found.etag), found.etag, read)

    async def head(self, key: str) -> Head:
        found = await self._ask(f"HEAD {key}", lambda: self._objects.get(key))
        return Head(ObjectMeta(key, len(found.data), found.modified_ms, found.etag), found.attributes)

    async def list_folder(self, folder: str, after: str, token: str | None) -> Page:
        return await self._ask(f"LIST {folder} after {token or after}", lambda: self._page(folder, after, token))

    def _page(self, folder: str, after: str, token: str | None) -> Page:
        stale = self._network.draw(Fault.STALE) is not None
        keys = self._objects.keys(folder, max(after, token or ""), stale=stale)
        direct = [key for key in keys if "/" not in key.removeprefix(folder)]
        below = sorted({f"{folder}{key.removeprefix(folder).partition('/')[0]}/" for key in keys} if not after else ())
        folders = [each for each in below if each not in direct and any(key.startswith(each) for key in keys)]
        page = direct[: self._objects.page]
        more = page[-1] if len(direct) > len(page) else None
        return Page([self._objects.meta(key) for key in page], () if token else folders, more)

    async def list_below(self, folder: str, after: str) -> Sequence[str]:
        stale = self._network.draw(Fault.STALE) is not None
        what = f"LIST {folder}** after {after}"
        return await self._ask(what, lambda: self._objects.keys(folder, after, stale=stale)[:1000])

    async def put(self, key: str, data: Any, attributes: Mapping[str, str], *, if_absent: bool) -> None:
        body = bytes(data)
        what = f"PUT {key}{' if absent' if if_absent else ''}"
        await self._ask(what, lambda: self._objects.put(key, body, attributes, if_absent=if_absent))

    async def delete(self, key: str) -> None:
        await self._ask(f"DELETE {key}", lambda: self._objects.delete(key))

    def get_range(self, key: str, offset: int, length: int, etag: str) -> Part | None:
        return self._part(key, etag, lambda size: (offset, min(offset + length, size)))

    def get_end(self, key: str, length: int, etag: str) -> Part | None:
        return self._part(key, etag, lambda size: (max(size - length, 0), size))

    def _part(self, key: str, etag: str, bounds: Callable[[int], tuple[int, int]]) -> Part | None:
        def cut() -> Part | None:
            if key not in self._objects.missed and self._network.draw(Fault.MISS) is not None:
                self._objects.missed.add(key)
                raise Refusal(Failure.MISSING)  # a gateway is wrong, once
            found, torn = self._objects.get(key), self._torn()
            if etag and found.etag != etag:
                raise Refusal(Failure.OTHER, exists=True)
            size = len(found.data)
            begin, end = bounds(size)
            data = found.data[begin:end]
            return Part(size, begin, data[: len(data) // 2] if torn else data, found.etag) if begin < end else None

        for repeats in self._attempts():
            try:
                return self._network.physics.wait(self._network.send(f"GET part of {key}", cut))
            except NoAnswer:
                if not repeats:
                    raise
        raise AssertionError

    async def _ask(self, what: str, effect: Callable[[], T]) -> T:
        for repeats in self._attempts():
            try:
                return await self._network.send(what, effect)
            except NoAnswer:
                if not repeats:
                    raise
        raise AssertionError

    def _attempts(self) -> Iterator[int]:
        return iter(range(self._network.chance.randrange(_REPEATS), -1, -1))

    def _torn(self) -> bool:
        return self._network.draw(Fault.TEAR) is not None


class _Upload:
    """See `Upload`."""

    is_multipart = False

    def __init__(self, bucket: SimulatedBucket, key: str, data: bytes) -> None:
        self._bucket = bucket
        self._key = key
        self._data = data

    async def send(self, attributes: Mapping[str, str]) -> None:
        try:
            await _Client(self._bucket).put(self._key, self._data, attributes, if_absent=True)
        except self._bucket.failures as error:
            raise self._bucket.translate(error, f"{self._bucket.uri}/{self._key}") from error

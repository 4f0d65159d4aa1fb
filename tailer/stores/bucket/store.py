"""A folder of a bucket as an `ObjectStore`.

Put-if-absent is a PUT with a condition, such as `If-None-Match: *`. Its answer may be lost after the object was
created, and clients repeat a PUT by themselves, so even a plain "exists already" is in doubt. Every such PUT therefore
carries an id in the object's metadata, and where it fails, the object is asked whose it is. Uploads of files do the
same. Where servers may ignore the condition, the first such PUT, or completion of a multipart upload, of a bucket finds
that out. Times of modification have whole seconds, because answers about single objects have no more.
"""

import io
import logging
import re
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

from typing_extensions import override

from tailer.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    StorageAccessRefused,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)
from tailer.stores.bucket.port import Answer, Bucket, Client, Failure, Head, Page, Part, RangeClient, TornBody
from tailer.stores.bucket.requests import ask, ask_now, pause
from tailer.stores.port import Folders, ObjectMeta, Objects, OpenObject, StoredObject, in_thread
from tailer.stores.ranges import ObjectEnd, ObjectRanges
from tailer.stores.traffic import FAULTS, READ_BYTES, Fault
from tailer.stores.uploads import UploadStore
from tailer.stores.wakeup import Wake

__all__ = ["BucketRanges", "BucketStore"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Objects up to this size are scanned in memory; larger ones in requests of at least `_BUFFER_BYTES`.
_WHOLE_BYTES: Final = 8 * 2**20
_BUFFER_BYTES: Final = 2**20
_PIECE_BYTES: Final = 8 * 2**20  # of one request of those that read all the rest
_CONFLICTS: Final = 5
_WRITE_ID: Final = "lake-tailer-write"

# Buckets whose server has shown that it knows the condition, in a single PUT (False) or a multipart upload (True).
_CHECKED: Final[set[tuple[Bucket, bool]]] = set()


class _RangeFile(io.RawIOBase):
    """An object of a known size as a seekable file; each read is a request, so put a buffer around it."""

    def __init__(self, ranges: ObjectRanges, size_bytes: int) -> None:
        super().__init__()
        self._ranges = ranges
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readall(self) -> bytes:
        """Read from the position to the end, in few requests. Raises as `ObjectRanges.read`."""
        pieces = []
        while self._at < self._size:
            pieces.append(self._ranges.read(self._at, min(_PIECE_BYTES, self._size - self._at)))
            self._at += len(pieces[-1])
        return b"".join(pieces)

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer from the position on, as far as the object goes. Raises as `ObjectRanges.read`."""
        data = self._ranges.read(self._at, min(len(buffer), self._size - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class BucketRanges(ObjectRanges):
    """`ObjectRanges` over the object `key` of `bucket`. `etag`: of the content to read; by default the first one found.

    All answers are of one content: an object that is replaced meanwhile raises `StorageUnavailable`. A missing object
    is looked for twice, because gateways have answered 404 wrongly.
    """

    def __init__(self, bucket: Bucket, key: str, etag: str = "") -> None:
        self._bucket = bucket
        self._key = key
        self._etag = etag
        self._lock = threading.Lock()

    @property
    @override
    def uri(self) -> str:
        return f"{self._bucket.uri}/{self._key}"

    @override
    def end(self, length: int) -> ObjectEnd:
        part = self._fetch(lambda client: client.get_end(self._key, max(length, 1), self._etag))
        if part is None:
            return ObjectEnd(0, b"")
        return ObjectEnd(part.size_bytes, part.data[-length:] if length > 0 else b"")

    @override
    def read(self, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        part = self._fetch(lambda client: client.get_range(self._key, offset, length, self._etag))
        if part is None:
            return b""
        # A server that ignores ranges sends all of the object.
        data = part.data[offset - part.begin : offset - part.begin + length]
        if len(data) < min(length, part.size_bytes - offset):
            raise StorageUnavailable(self.uri, f"it sent {len(data)} of {length} bytes at {offset}")
        return data

    def _fetch(self, get: Callable[[RangeClient], Part | None]) -> Part | None:
        """Request a part of the content to read; None where the object has no such bytes."""
        try:
            part = ask_now(self._bucket, self._bucket.connect, self.uri, "get", get, missing=1)
        except ObjectAlreadyExists as error:  # a GET has one precondition, the ETag
            raise self._replaced() from error
        if part is None:
            return None
        READ_BYTES.add((self._bucket.store_name,), len(part.data))
        with self._lock:
            self._etag = self._etag or part.etag
        if part.etag != self._etag:
            raise self._replaced()
        return part

    def _replaced(self) -> StorageUnavailable:
        return StorageUnavailable(self.uri, "the object was replaced while it was read")


class BucketStore(UploadStore):
    """Objects of `bucket` whose keys begin with `root` and a slash; all of the bucket if `root` is empty."""

    is_atomic = True

    def __init__(self, bucket: Bucket, root: str) -> None:
        self.bucket = bucket
        self.root = root.rstrip("/")
        self.uri = f"{bucket.uri}/{self.root}".rstrip("/")
        self._above = f"{self.root}/" if self.root else ""

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """See `ObjectStore.read`; one request."""

        async def whole(client: Client) -> tuple[ObjectMeta, bytes | memoryview]:
            answer = await client.get(self._key(name))
            return answer.meta, await self._content(answer)

        meta, data = await self._ask(name, "get", whole)
        return await in_thread(lambda: decode(StoredObject(self._named(meta), bytes(data))))

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """See `ObjectStore.scan`; one request for a small object, and more for a large one."""

        async def open_object(client: Client) -> OpenObject:
            answer = await client.get(self._key(name))
            meta = self._named(answer.meta)
            if meta.size_bytes <= _WHOLE_BYTES:
                return OpenObject(meta, io.BytesIO(await self._content(answer)))
            answer.close()
            ranges = BucketRanges(self.bucket, self._key(name), answer.etag)
            file = io.BufferedReader(_RangeFile(ranges, meta.size_bytes), _BUFFER_BYTES)
            return OpenObject(meta, cast(BinaryIO, file))

        opened = await self._ask(name, "get", open_object)
        return await in_thread(work, opened)

    @override
    def ranges(self, name: str) -> BucketRanges:
        return BucketRanges(self.bucket, self._key(name))

    @override
    async def stat(self, name: str) -> ObjectMeta:
        return self._named((await self._head(name)).meta)

    @override
    async def list(self, prefix: str, start_after: str = "") -> Objects:
        above = f"{prefix}/" if prefix else ""
        objects: Objects = []
        async for page in self._list_pages(prefix, start_after):
            objects += map(self._named, page.objects)
        # An object equal to the prefix is how some tools mark a folder; some servers ignore where to begin.
        direct = (meta for meta in objects if "/" not in meta.name.removeprefix(above) and meta.name != above)
        return sorted((meta for meta in direct if meta.name > start_after), key=lambda meta: meta.name)

    @override
    async def list_folders(self, prefix: str) -> Folders:
        pages = [page async for page in self._list_pages(prefix)]
        names = (folder.removeprefix(self._folder(prefix)).rstrip("/") for page in pages for folder in page.folders)
        return sorted(filter(None, names))

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`. Raises `StorageUnavailable` if it cannot be known who created the object.

        Raises `StorageAccessRefused` where the server does not know put-if-absent.
        """

        async def send(attributes: Mapping[str, str]) -> None:
            await self._ask(name, "put", lambda client: client.put(self._key(name), data, attributes, if_absent=True))

        await self._create(name, send)

    async def upload_if_absent(self, name: str, source: Path, attributes: Mapping[str, str]) -> None:
        """See `UploadStore.upload_if_absent`. Raises as `put_if_absent` does."""
        upload = await in_thread(self.bucket.make_upload, self._key(name), source)

        async def send(identity: Mapping[str, str]) -> None:
            await upload.send({**attributes, **identity})

        await self._create(name, send, multipart=upload.is_multipart)

    @override
    async def attributes(self, name: str) -> Mapping[str, str]:
        return (await self._head(name)).attributes

    async def names_below(self, prefix: str, start_after: str = "") -> Sequence[str]:
        """See `UploadStore.names_below`; one request."""
        folder, after = self._folder(prefix), self._key(start_after) if start_after else ""
        keys = await self._ask_listing(prefix, lambda client: client.list_below(folder, after))
        return sorted(name for key in keys if (name := key.removeprefix(self._above)) > start_after)

    @override
    async def put(self, name: str, data: bytes) -> None:
        await self._ask(name, "put", lambda client: client.put(self._key(name), data, {}, if_absent=False))

    @override
    async def delete(self, name: str) -> None:
        try:
            await self._ask(name, "delete", lambda client: client.delete(self._key(name)))
        except ObjectNotFound:
            return

    @override
    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        return self.bucket.make_wake(self._key(prefix), names)

    def _key(self, name: str) -> str:
        return f"{self._above}{name}"

    def _folder(self, prefix: str) -> str:
        return self._key(f"{prefix}/") if prefix else self._above

    def _uri(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def _named(self, meta: ObjectMeta) -> ObjectMeta:
        """Return metadata with the name of the object in place of its key."""
        return meta._replace(name=meta.name.removeprefix(self._above))

    async def _head(self, name: str) -> Head:
        return await self._ask(name, "head", lambda client: client.head(self._key(name)))

    async def _list_pages(self, prefix: str, start_after: str = "") -> AsyncIterator[Page]:
        """List what is directly in a folder; one request for each page."""
        folder, after = self._folder(prefix), self._key(start_after) if start_after else ""
        token: str | None = None

        async def list_page(client: Client) -> Page:
            return await client.list_folder(folder, after, token)

        while True:
            page = await self._ask_listing(prefix, list_page)
            yield page
            if (token := page.token) is None:
                return

    async def _ask_listing(self, prefix: str, work: Callable[[Client], Awaitable[T]]) -> T:
        try:
            return await ask(self.bucket, self._uri(prefix), "list", work, missing=1)
        except ObjectNotFound as error:
            # An empty folder has an empty listing, and a missing bucket an error of its own.
            reason = f"404 for a listing, as if {self.bucket.noun} did not exist"
            raise StorageUnavailable(error.path, reason) from error

    async def _ask(self, name: str, verb: str, work: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request about an object, and read its answer. Raises the errors of `ObjectStore`."""
        return await ask(self.bucket, self._uri(name), verb, work)

    async def _create(
        self, name: str, attempt: Callable[[Mapping[str, str]], Awaitable[None]], *, multipart: bool = False
    ) -> None:
        """Create an object by `attempt`, which is given the metadata that identify the writer."""
        write_id = uuid.uuid4().hex
        again = partial(attempt, {_WRITE_ID: write_id})
        for left in reversed(range(_CONFLICTS)):
            try:
                await again()
            except StorageError as error:
                if isinstance(error, ObjectAlreadyExists):
                    self._count_put(Fault.CONFLICT)
                if await self._was_written(name, write_id, error):
                    self._count_put(Fault.LOST_ANSWER)
                    return
                if self.bucket.failure_of(error.__cause__ or error) is not Failure.CONFLICT or not left:
                    raise
                await pause()
            else:
                if self.bucket.needs_condition_check:
                    await self._check_condition(name, again, multipart)
                return

    def _count_put(self, fault: Fault) -> None:
        FAULTS.add((self.bucket.store_name, "put", fault), 1)

    async def _check_condition(self, name: str, again: Callable[[], Awaitable[None]], multipart: bool) -> None:
        """Repeat the first PUT that created an object, which must fail: some servers ignore the condition."""
        key = self.bucket, multipart
        if key in _CHECKED:
            return
        try:
            await again()
        except ObjectAlreadyExists:
            _CHECKED.add(key)
        except StorageError as error:
            _log.info("%s: it was not checked that the server knows put-if-absent: %s", self._uri(name), error)
        else:
            reason = "the server ignores If-None-Match, so that two writers could overwrite each other's commits"
            raise StorageAccessRefused(self._uri(name), reason, "Use a server, or a version of it, that supports it.")

    async def _was_written(self, name: str, write_id: str, error: StorageError) -> bool:
        """Return whether a PUT that failed with `error` has created the object after all.

        Raises `ObjectAlreadyExists` where another writer's object may be the reason of the failure, and
        `StorageUnavailable` where an object exists that cannot be asked.
        """
        try:
            written = (await self.attributes(name)).get(_WRITE_ID, "")
        except StorageError as doubt:
            if isinstance(error, ObjectAlreadyExists):
                raise StorageUnavailable(error.path, "it is unknown who created the object") from doubt
            return False
        if written != write_id and not isinstance(error, StorageRefused):
            raise ObjectAlreadyExists(error.path) from error
        return written == write_id

    async def _content(self, answer: Answer) -> bytes | memoryview:
        """Read the content of an object. Raises `TornBody`."""
        data = await answer.read()
        if len(data) != answer.meta.size_bytes:
            raise TornBody
        READ_BYTES.add((self.bucket.store_name,), len(data))
        return data

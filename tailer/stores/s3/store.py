"""A prefix of a bucket as an `ObjectStore`.

Put-if-absent is a PUT with `If-None-Match: *`. Its answer may be lost after the object was created, and connections
repeat a PUT by themselves, so even a plain "exists already" is in doubt. Every such PUT therefore carries an id in the
object's metadata, and where it fails, the object is asked whose it is. Uploads of files do the same. Some servers
ignore the condition, which the first such PUT, or completion of a multipart upload, of a bucket finds out. Times of
modification have whole seconds, because answers about single objects have no more.
"""

import io
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

import aiohttp
import anyio
from botocore.exceptions import BotoCoreError, ClientError

from tailer.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    StorageAccessRefused,
    StorageError,
    StorageRefused,
    StorageUnavailable,
)
from tailer.stores.port import Folders, ObjectMeta, Objects, OpenObject, StoredObject, in_thread
from tailer.stores.ranges import RangeFile
from tailer.stores.s3.attempts import PAUSE_S, Attempts
from tailer.stores.s3.clients import loop_client
from tailer.stores.s3.errors import CONFLICT, Place, TornBody, error_code, is_login_refused, translate
from tailer.stores.s3.notifications import QueueWake
from tailer.stores.s3.options import S3Options
from tailer.stores.s3.ranges import S3Ranges
from tailer.stores.s3.uploads import Upload
from tailer.stores.traffic import FAULTS, READ_BYTES, Fault
from tailer.stores.wakeup import TimerWake, Wake

__all__ = ["S3Store"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = dict[str, Any]

# Objects up to this size are scanned in memory; larger ones in requests of at least `_BUFFER_BYTES`.
_WHOLE_BYTES: Final = 8 * 2**20
_BUFFER_BYTES: Final = 2**20
_CONFLICTS: Final = 5
_LIST: Final = "list_objects_v2"
_WRITE_ID: Final = "lake-tailer-write"

# Buckets whose server has shown that it knows the condition, in a single PUT (False) or a multipart upload (True).
_CHECKED: Final[set[tuple[str, S3Options, bool]]] = set()

_FAILURES: Final = (BotoCoreError, ClientError, aiohttp.ClientError, OSError, ValueError, TornBody)


class S3Store:
    """Objects of `bucket` whose keys begin with `root` and a slash; all of the bucket if `root` is empty."""

    is_atomic = True

    def __init__(self, bucket: str, root: str, options: S3Options) -> None:
        self.bucket = bucket
        self.root = root.rstrip("/")
        self.options = options

    @property
    def uri(self) -> str:
        """The bucket and the root, as a URI."""
        return f"s3://{self.bucket}/{self.root}".rstrip("/")

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """See `ObjectStore.read`; one request."""

        async def whole(answer: Answer) -> StoredObject:
            return StoredObject(_meta(name, answer, "ContentLength"), await self._body(answer))

        return await in_thread(decode, await self._ask(name, "get_object", whole, Key=self._key(name)))

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """See `ObjectStore.scan`; one request for a small object, and more for a large one."""
        opened = await self._ask(name, "get_object", lambda answer: self._open(name, answer), Key=self._key(name))
        return await in_thread(work, opened)

    async def stat(self, name: str) -> ObjectMeta:
        """See `ObjectStore.stat`."""

        async def meta(answer: Answer) -> ObjectMeta:
            return _meta(name, answer, "ContentLength")

        return await self._ask(name, "head_object", meta, Key=self._key(name))

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        """See `ObjectStore.list`; one request for each thousand objects."""
        folder = self._folder(prefix)
        found: Objects = []
        async for page in self._list_pages(prefix, start_after):
            for entry in page.get("Contents", ()):
                # A key equal to the prefix is how some tools mark a folder.
                if entry["Key"] != folder:
                    found.append(_meta(entry["Key"].removeprefix(self._key("")), entry, "Size"))
        return sorted((meta for meta in found if meta.name > start_after), key=lambda meta: meta.name)

    async def list_folders(self, prefix: str) -> Folders:
        """See `ObjectStore.list_folders`; one request for each thousand folders and objects beside them."""
        folder = self._folder(prefix)
        pages = [page async for page in self._list_pages(prefix)]
        found = (entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ()))
        return sorted(name for each in found if (name := each.removeprefix(folder).rstrip("/")))

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`. Raises `StorageUnavailable` if it cannot be known who created the object.

        Raises `StorageAccessRefused` where the server does not know put-if-absent.
        """

        async def put(metadata: Mapping[str, str]) -> None:
            request = {"Body": data, "IfNoneMatch": "*", "Metadata": metadata}
            await self._ask(name, "put_object", _itself, Key=self._key(name), **request)

        await self._create(name, put)

    async def upload_if_absent(self, name: str, source: Path, attributes: Mapping[str, str]) -> None:
        """See `UploadStore.upload_if_absent`. Raises as `put_if_absent` does."""
        upload = await in_thread(Upload, self.bucket, self._key(name), source, self.options)

        async def send(metadata: Mapping[str, str]) -> None:
            await in_thread(upload.send, {**attributes, **metadata})

        await self._create(name, send, multipart=upload.is_multipart)

    async def attributes(self, name: str) -> Mapping[str, str]:
        """See `UploadStore.attributes`."""

        async def metadata(answer: Answer) -> Mapping[str, str]:
            found: Mapping[str, str] = answer.get("Metadata", {})
            return found

        return await self._ask(name, "head_object", metadata, Key=self._key(name))

    async def names_below(self, prefix: str, start_after: str = "") -> Sequence[str]:
        """See `UploadStore.names_below`; one request."""
        folder = self._folder(prefix)
        request = {"StartAfter": self._key(start_after)} if start_after else {}
        page = await self._list_page(prefix, Prefix=folder, **request)
        keys = (entry["Key"] for entry in page.get("Contents", ()))
        names = sorted(key.removeprefix(self._key("")) for key in keys)
        return [name for name in names if name > start_after]

    async def put(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        await self._ask(name, "put_object", _itself, Key=self._key(name), Body=data)

    async def delete(self, name: str) -> None:
        """See `ObjectStore.delete`."""
        try:
            await self._ask(name, "delete_object", _itself, Key=self._key(name))
        except ObjectNotFound:
            return

    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        """See `ObjectStore.make_wake`; notifications come from a queue, if one is configured."""
        if self.options.notifications is None:
            return TimerWake()
        return QueueWake(self.bucket, self._key(prefix), names, self.options)

    def _key(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name

    def _uri(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def _folder(self, prefix: str) -> str:
        """Return what the keys of a folder begin with."""
        return self._key(f"{prefix}/") if prefix else self._key("")

    async def _list_pages(self, prefix: str, start_after: str = "") -> AsyncIterator[Answer]:
        """List what is directly below a folder."""
        request = {"Prefix": self._folder(prefix), "Delimiter": "/"}
        if start_after:
            request["StartAfter"] = self._key(start_after)
        while True:
            page = await self._list_page(prefix, **request)
            yield page
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    async def _list_page(self, prefix: str, **request: str) -> Answer:
        try:
            return await self._ask(prefix, _LIST, _itself, **request)
        except ObjectNotFound as error:
            # An empty folder has an empty listing, and a missing bucket an error code of its own.
            reason = f"404 for a listing, as if the bucket {self.bucket} did not exist"
            raise StorageUnavailable(error.path, reason) from error

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
                if error_code(error.__cause__ or error) not in CONFLICT or not left:
                    raise
                await anyio.sleep(PAUSE_S)
            else:
                await self._check_condition(name, again, multipart)
                return

    @property
    def _label(self) -> str:
        return self.options.store_name(self.bucket)

    def _count_put(self, fault: Fault) -> None:
        FAULTS.add((self._label, "put", fault), 1)

    async def _check_condition(self, name: str, again: Callable[[], Awaitable[None]], multipart: bool) -> None:
        """Repeat the first PUT that created an object, which must fail: some servers ignore the condition."""
        key = self.bucket, self.options, multipart
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

        async def creator(answer: Answer) -> str:
            return str(answer.get("Metadata", {}).get(_WRITE_ID, ""))

        try:
            found = await self._ask(name, "head_object", creator, Key=self._key(name))
        except StorageError as doubt:
            if isinstance(error, ObjectAlreadyExists):
                raise StorageUnavailable(error.path, "it is unknown who created the object") from doubt
            return False
        if found != write_id and not isinstance(error, StorageRefused):
            raise ObjectAlreadyExists(error.path) from error
        return found == write_id

    async def _open(self, name: str, answer: Answer) -> OpenObject:
        meta = _meta(name, answer, "ContentLength")
        if meta.size_bytes <= _WHOLE_BYTES:
            return OpenObject(meta, io.BytesIO(await self._body(answer)))
        answer["Body"].close()
        ranges = S3Ranges(self.bucket, self._key(name), self.options, answer.get("ETag", ""))
        file = io.BufferedReader(RangeFile(ranges, meta.size_bytes), _BUFFER_BYTES)
        return OpenObject(meta, cast(BinaryIO, file))

    async def _body(self, answer: Answer) -> bytes:
        """Read the body of an answer. Raises `TornBody`."""
        try:
            async with answer["Body"] as body:
                data: bytes = await body.read()
        except (BotoCoreError, aiohttp.ClientError, OSError) as error:
            raise TornBody from error
        if len(data) != answer["ContentLength"]:
            raise TornBody
        READ_BYTES.add((self._label,), len(data))
        return data

    async def _ask(self, name: str, operation: str, read: Callable[[Answer], Awaitable[T]], **request: object) -> T:
        """Send a request about an object or a folder, and read its answer. Raises the errors of `ObjectStore`."""
        request["Bucket"] = self.bucket
        if self.options.requester_pays:
            request["RequestPayer"] = "requester"
        attempts = Attempts(self._label, operation, missing=int(operation == _LIST))
        while True:
            place = Place(self.bucket, self.options)
            try:
                async with loop_client(self.options) as lent:
                    place = place.through(lent.client, lent.credentials)
                    try:
                        return await read(await getattr(lent.client, operation)(**request))
                    except (BotoCoreError, ClientError) as error:
                        if is_login_refused(error):
                            lent.retire()
                        raise
            except _FAILURES as error:
                if not attempts.take(error):
                    raise translate(error, self._uri(name), place) from error
            await anyio.sleep(PAUSE_S)


def _meta(name: str, found: Answer, size: str) -> ObjectMeta:
    """Return the metadata of an object from an answer, or from an entry of a listing."""
    return ObjectMeta(name, found[size], int(found["LastModified"].timestamp()) * 1000)


async def _itself(answer: Answer) -> Answer:
    return answer

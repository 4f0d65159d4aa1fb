"""A prefix of a bucket in Google Cloud Storage, or of a container in Azure, as an `ObjectStore`.

Put-if-absent is obstore's `create`: a PUT with `x-goog-if-generation-match: 0`, or `If-None-Match: *`. Its answer may
be lost after the object was created, and obstore repeats a PUT by itself, so even a plain "exists already" is in doubt.
Every such PUT therefore carries an id in the object's metadata, and where it fails, the object is asked whose it is.
Times of modification have whole seconds, because answers about single objects have no more.
"""

import io
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar, cast

import anyio
import obstore

from tailer.errors import ObjectAlreadyExists, ObjectNotFound, StorageError, StorageRefused, StorageUnavailable
from tailer.stores.cloud.clients import Client, find_client
from tailer.stores.cloud.errors import FAILURES, Place, TornBody, fault_of, is_login_refused, translate
from tailer.stores.cloud.options import CloudOptions
from tailer.stores.cloud.ranges import PAUSE_S, CloudRanges
from tailer.stores.port import Folders, ObjectMeta, Objects, OpenObject, StoredObject, in_thread
from tailer.stores.ranges import RangeFile
from tailer.stores.traffic import FAULTS, READ_BYTES, REQUESTS, Fault
from tailer.stores.wakeup import TimerWake, Wake

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore import ObjectMeta as Found

__all__ = ["CloudStore"]

T = TypeVar("T")

# Objects up to this size are scanned in memory; larger ones in requests of at least `_BUFFER_BYTES`.
_WHOLE_BYTES: Final = 8 * 2**20
_BUFFER_BYTES: Final = 2**20
# Azure's names of metadata are identifiers, so `_` stands for `-` in those of sinks.
_WRITE_ID: Final = "laketailerwrite"


class CloudStore:
    """Objects of `bucket` whose keys begin with `root` and a slash; all of the bucket if `root` is empty.

    `bucket`: its location, such as `gs://lake`.
    """

    is_atomic = True

    def __init__(self, bucket: str, root: str, options: CloudOptions) -> None:
        self.bucket = bucket
        self.root = root.rstrip("/")
        self.options = options

    @property
    def uri(self) -> str:
        """The bucket and the root, as a URI."""
        return f"{self.bucket}/{self.root}".rstrip("/")

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """See `ObjectStore.read`; one request."""

        async def whole(client: Client) -> tuple[ObjectMeta, "obstore.Bytes"]:
            answer = await obstore.get_async(client.store, self._key(name))
            return self._meta(answer.meta), await self._body(answer)

        meta, data = await self._ask(name, "get", whole)
        return await in_thread(lambda: decode(StoredObject(meta, bytes(data))))

    async def scan(self, name: str, work: Callable[[OpenObject], T]) -> T:
        """See `ObjectStore.scan`; one request for a small object, and more for a large one."""

        async def opened(client: Client) -> OpenObject:
            answer = await obstore.get_async(client.store, self._key(name))
            meta = self._meta(answer.meta)
            if meta.size_bytes <= _WHOLE_BYTES:
                return OpenObject(meta, io.BytesIO(await self._body(answer)))
            ranges = CloudRanges(self.bucket, self._key(name), self.options, answer.meta["e_tag"] or "")
            file = io.BufferedReader(RangeFile(ranges, meta.size_bytes), _BUFFER_BYTES)
            return OpenObject(meta, cast(BinaryIO, file))

        return await in_thread(work, await self._ask(name, "get", opened))

    async def stat(self, name: str) -> ObjectMeta:
        """See `ObjectStore.stat`."""

        async def meta(client: Client) -> ObjectMeta:
            return self._meta(await obstore.head_async(client.store, self._key(name)))

        return await self._ask(name, "head", meta)

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        """See `ObjectStore.list`.

        A listing from the start is of one folder. One after an object also lists the folders below, because the servers
        know no other, but begins at that object.
        """

        async def found(client: Client) -> "Sequence[Found]":
            folder = self._key(prefix).rstrip("/")
            if not start_after:
                return (await obstore.list_with_delimiter_async(client.store, folder or None))["objects"]
            listing = obstore.list(client.store, folder or None, offset=self._key(start_after))
            return await listing.collect_async()

        above = f"{prefix}/" if prefix else ""
        metas = [self._meta(each) for each in await self._ask_listing(prefix, found)]
        # An object equal to the prefix is how some tools mark a folder; some servers ignore where to begin.
        direct = (meta for meta in metas if "/" not in meta.name.removeprefix(above) and meta.name != above)
        return sorted((meta for meta in direct if meta.name > start_after), key=lambda meta: meta.name)

    async def list_folders(self, prefix: str) -> Folders:
        """See `ObjectStore.list_folders`."""

        async def found(client: Client) -> Sequence[str]:
            folder = self._key(prefix).rstrip("/")
            return (await obstore.list_with_delimiter_async(client.store, folder or None))["common_prefixes"]

        return sorted(each.rstrip("/").rpartition("/")[2] for each in await self._ask_listing(prefix, found))

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`. Raises `StorageUnavailable` if it cannot be known who created the object."""
        await self._create(name, data, {})

    async def upload_if_absent(self, name: str, source: Path, attributes: Mapping[str, str]) -> None:
        """See `UploadStore.upload_if_absent`; one request, whose body is the file as the system maps it into memory.

        Raises as `put_if_absent` does. Azure takes up to 5000 MB in one request.
        """
        await self._create(name, await in_thread(_mapped, source), attributes, for_uploads=True)

    async def attributes(self, name: str) -> Mapping[str, str]:
        """See `UploadStore.attributes`."""

        async def metadata(client: Client) -> Mapping[str, str]:
            answer = await obstore.get_async(client.store, self._key(name), options={"head": True})
            return {key.replace("_", "-"): value for key, value in answer.attributes.items()}

        return await self._ask(name, "head", metadata)

    async def names_below(self, prefix: str, start_after: str = "") -> Sequence[str]:
        """See `UploadStore.names_below`; the servers list in order."""

        async def names(client: Client) -> Sequence[str]:
            offset = self._key(start_after) if start_after else None
            listing = obstore.list(client.store, self._key(prefix).rstrip("/") or None, offset=offset, chunk_size=1000)
            async for page in listing:
                # Some servers ignore where to begin.
                if found := [name for each in page if (name := self._meta(each).name) > start_after]:
                    return sorted(found)
            return []

        return await self._ask(prefix, "list", names)

    async def put(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put`."""

        async def replace(client: Client) -> None:
            await obstore.put_async(client.store, self._key(name), data, use_multipart=False)

        await self._ask(name, "put", replace)

    async def delete(self, name: str) -> None:
        """See `ObjectStore.delete`."""

        async def remove(client: Client) -> None:
            await obstore.delete_async(client.store, self._key(name))

        try:
            await self._ask(name, "delete", remove)
        except ObjectNotFound:
            return

    def make_wake(self, prefix: str, names: re.Pattern[str]) -> Wake:
        """See `ObjectStore.make_wake`."""
        return TimerWake()

    def _key(self, name: str) -> str:
        return f"{self.root}/{name}" if self.root else name

    def _uri(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def _meta(self, found: "Found") -> ObjectMeta:
        name = found["path"].removeprefix(f"{self.root}/" if self.root else "")
        return ObjectMeta(name, found["size"], int(found["last_modified"].timestamp()) * 1000)

    async def _create(
        self, name: str, data: "bytes | mmap", attributes: Mapping[str, str], *, for_uploads: bool = False
    ) -> None:
        """Create an object, whose metadata identify the writer."""
        write_id = uuid.uuid4().hex
        metadata: dict[str, str] = {key.replace("-", "_"): value for key, value in attributes.items()}
        metadata[_WRITE_ID] = write_id

        async def put(client: Client) -> None:
            await obstore.put_async(
                client.store, self._key(name), data, mode="create", attributes=metadata, use_multipart=False
            )

        try:
            await self._ask(name, "put", put, for_uploads=for_uploads)
        except StorageError as error:
            if isinstance(error, ObjectAlreadyExists):
                self._count("put", Fault.CONFLICT)
            if not await self._was_written(name, write_id, error):
                raise
            self._count("put", Fault.LOST_ANSWER)

    def _count(self, verb: str, fault: Fault) -> None:
        FAULTS.add((Place(self.bucket, self.options).store_name, verb, fault), 1)

    async def _was_written(self, name: str, write_id: str, error: StorageError) -> bool:
        """Return whether a PUT that failed with `error` has created the object after all.

        Raises `ObjectAlreadyExists` where another writer's object may be the reason of the failure, and
        `StorageUnavailable` where an object exists that cannot be asked.
        """

        try:
            found = (await self.attributes(name)).get(_WRITE_ID, "")
        except StorageError as doubt:
            if isinstance(error, ObjectAlreadyExists):
                raise StorageUnavailable(error.path, "it is unknown who created the object") from doubt
            return False
        if found != write_id and not isinstance(error, StorageRefused):
            raise ObjectAlreadyExists(error.path) from error
        return found == write_id

    async def _ask_listing(self, prefix: str, work: Callable[[Client], Awaitable[T]]) -> T:
        try:
            return await self._ask(prefix, "list", work)
        except ObjectNotFound as error:
            # An empty folder has an empty listing.
            reason = f"404 for a listing, as if {self.bucket} did not exist"
            raise StorageUnavailable(error.path, reason) from error

    async def _ask(
        self, name: str, verb: str, work: Callable[[Client], Awaitable[T]], *, for_uploads: bool = False
    ) -> T:
        """Send a request about an object or a folder, and read its answer. Raises the errors of `ObjectStore`."""
        for logins in (1, 0):
            place = Place(self.bucket, self.options)
            client = None
            try:
                client = await in_thread(find_client, self.bucket, self.options, for_uploads)
                place = Place(self.bucket, self.options, client.has_answered)
                REQUESTS.add((place.store_name, verb), 1)
                answer = await work(client)
            except FAILURES as error:
                if fault := fault_of(error):
                    self._count(verb, fault)
                if client is None or not logins or not is_login_refused(error):
                    raise translate(error, self._uri(name), place) from error
                client.retire()
            else:
                client.has_answered = True
                return answer
            await anyio.sleep(PAUSE_S)
        raise AssertionError("the last attempt ends with an answer or an error")

    async def _body(self, answer: "GetResult") -> "obstore.Bytes":
        """Read the body of an answer. Raises `TornBody`."""
        data = await answer.bytes_async()
        if len(data) != answer.meta["size"]:
            raise TornBody
        READ_BYTES.add((Place(self.bucket, self.options).store_name,), len(data))
        return data


def _mapped(source: Path) -> bytes | mmap:
    """Map a file into memory: its pages are read when they are sent. A request may hold it longer than we do."""
    with source.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return mmap(file.fileno(), 0, access=ACCESS_READ)

"""A bucket in Google Cloud Storage, or a container in Azure, with obstore.

Put-if-absent is obstore's `create`: a PUT with `x-goog-if-generation-match: 0`, or `If-None-Match: *`. Azure's names of
metadata are identifiers, so `_` stands for `-` in them.
"""

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import obstore
from typing_extensions import override

from tailer.errors import StorageError
from tailer.stores.bucket.port import Answer, Bucket, Client, Failure, Head, Page, Part, RangeClient, TornBody
from tailer.stores.bucket.requests import ask
from tailer.stores.cloud import AzureOptions, CloudOptions
from tailer.stores.cloud.clients import SharedClient, find_client
from tailer.stores.cloud.errors import FAILURES, Place, failure_of, fault_of, is_empty_range, translate
from tailer.stores.port import ObjectMeta, in_thread
from tailer.stores.traffic import REQUESTS, Fault

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore import ObjectMeta as Found

__all__ = ["CloudBucket"]

_PAGE: Final = 1000


@dataclass(frozen=True)
class CloudBucket(Bucket):
    """The bucket at a location, such as `gs://lake`. `for_uploads`: for requests with large bodies, which take long."""

    location: str
    options: CloudOptions
    for_uploads: bool = False
    failures: ClassVar[tuple[type[Exception], ...]] = FAILURES

    @property
    @override
    def uri(self) -> str:
        return self.location

    @property
    @override
    def noun(self) -> str:
        return self.location

    @property
    @override
    def store_name(self) -> str:
        return Place(self.location, self.options).store_name

    @asynccontextmanager
    @override
    async def lend(self) -> AsyncIterator["_CloudClient"]:
        yield await in_thread(self.connect)

    @override
    def connect(self) -> "_CloudClient":
        return _CloudClient(self, find_client(self.location, self.options, self.for_uploads))

    def make_upload(self, key: str, source: Path) -> "_Upload":
        """See `Bucket.make_upload`; the system maps the file into memory, and its pages are read when they are sent."""
        with source.open("rb") as file:
            is_empty = not os.fstat(file.fileno()).st_size
            content = b"" if is_empty else mmap(file.fileno(), 0, access=ACCESS_READ)
        return _Upload(replace(self, for_uploads=True), key, content)

    @override
    def failure_of(self, error: BaseException) -> Failure:
        return failure_of(error)

    @override
    def fault_of(self, error: Exception) -> Fault | None:
        return fault_of(error)

    @override
    def translate(self, error: Exception, uri: str) -> StorageError:
        return translate(error, uri, Place(self.location, self.options))


class _CloudClient(Client, RangeClient):
    """`Client` and `RangeClient`."""

    def __init__(self, bucket: CloudBucket, lent: SharedClient) -> None:
        self._bucket = bucket
        self._lent = lent
        self._store = lent.store

    @override
    def retire(self) -> None:
        self._lent.retire()

    @override
    def translate(self, error: Exception, uri: str) -> StorageError:
        return translate(error, uri, Place(self._bucket.location, self._bucket.options, self._lent.has_answered))

    @override
    async def get(self, key: str) -> Answer:
        with self._request("get"):
            answer = await obstore.get_async(self._store, key)

        async def read() -> memoryview:
            return memoryview(await answer.bytes_async())

        return Answer(_meta(answer.meta), answer.meta["e_tag"] or "", read)

    @override
    async def head(self, key: str) -> Head:
        with self._request("head"):
            answer = await obstore.get_async(self._store, key, options={"head": True})
        return Head(_meta(answer.meta), {name.replace("_", "-"): value for name, value in answer.attributes.items()})

    async def list_folder(self, folder: str, after: str, token: str | None) -> Page:
        """See `Client.list_folder`; all of it.

        A listing from the start is of one folder. One after an object also lists the folders below, because the servers
        know no other, but begins at that object.
        """
        prefix = folder.rstrip("/") or None
        with self._request("list"):
            if after:
                return Page(
                    [_meta(entry) for entry in await obstore.list(self._store, prefix, offset=after).collect_async()]
                )
            listing = await obstore.list_with_delimiter_async(self._store, prefix)
        return Page([_meta(entry) for entry in listing["objects"]], listing["common_prefixes"])

    async def list_below(self, folder: str, after: str) -> Sequence[str]:
        """See `Client.list_below`; the servers list in order."""
        with self._request("list"):
            listing = obstore.list(self._store, folder.rstrip("/") or None, offset=after or None, chunk_size=_PAGE)
            async for page in listing:
                # Some servers ignore where to begin.
                if keys := [key for entry in page if (key := entry["path"]) > after]:
                    return keys
        return []

    @override
    async def put(self, key: str, data: bytes | mmap, attributes: Mapping[str, str], *, if_absent: bool) -> None:
        names = {name.replace("-", "_"): value for name, value in attributes.items()}
        mode: Final = "create" if if_absent else "overwrite"
        with self._request("put"):
            await obstore.put_async(self._store, key, data, mode=mode, attributes=names, use_multipart=False)

    @override
    async def delete(self, key: str) -> None:
        with self._request("delete"):
            await obstore.delete_async(self._store, key)

    @override
    def get_range(self, key: str, offset: int, length: int, etag: str) -> Part | None:
        return self._get(key, {"range": (offset, offset + length)}, etag)

    def get_end(self, key: str, length: int, etag: str) -> Part | None:
        """See `RangeClient.get_end`. Azure knows no ranges from the end, so two requests are needed there."""
        if not isinstance(self._bucket.options, AzureOptions):
            return self._get(key, {"range": {"suffix": length}}, etag)
        # The answer to a HEAD request would not name what is wrong.
        first = self._get(key, {"range": (0, 1)}, etag)
        if first is None:
            return None
        size = first.size_bytes
        return self._get(key, {"range": (max(size - length, 0), size)}, first.etag)

    def _get(self, key: str, options: "GetOptions", etag: str) -> Part | None:
        pinned: GetOptions = {**options, "if_match": etag} if etag else options
        try:
            with self._request("get"):
                answer = obstore.get(self._store, key, options=pinned)
                data = bytes(answer.bytes())
        except FAILURES as error:
            if is_empty_range(error):
                return None
            raise
        begin, end = answer.range
        if len(data) != end - begin:
            raise TornBody
        return Part(answer.meta["size"], begin, data, answer.meta["e_tag"] or "")

    @contextmanager
    def _request(self, verb: str) -> Iterator[None]:
        """Count a request, and note whether it was answered as asked."""
        REQUESTS.add((self._bucket.store_name, verb), 1)
        yield
        self._lent.has_answered = True


@dataclass(frozen=True)
class _Upload:
    """`Upload` in one request, which may hold the content longer than we do. Azure takes up to 5000 MB in one."""

    bucket: CloudBucket
    key: str
    content: bytes | mmap
    is_multipart: bool = False

    async def send(self, attributes: Mapping[str, str]) -> None:
        """See `Upload.send`."""

        async def put(client: Client) -> None:
            await client.put(self.key, self.content, attributes, if_absent=True)

        await ask(self.bucket, f"{self.bucket.uri}/{self.key}", "put", put)


def _meta(attributes: "Found") -> ObjectMeta:
    modified_ms = int(attributes["last_modified"].timestamp()) * 1000
    return ObjectMeta(attributes["path"], attributes["size"], modified_ms, (attributes["e_tag"] or "").strip('"'))

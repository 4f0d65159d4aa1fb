"""A bucket with the protocol of S3: the log with aiobotocore, ranges and uploads with botocore on worker threads.

The condition of put-if-absent is `If-None-Match: *`, which some servers ignore.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from io import BufferedReader
from mmap import mmap
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError
from typing_extensions import override
from urllib3.exceptions import HTTPError

from tailer.errors import StorageError
from tailer.stores.bucket.port import Answer, Bucket, Client, Failure, Head, Page, Part, RangeClient, TornBody, Upload
from tailer.stores.bucket.requests import ask_now
from tailer.stores.port import ObjectMeta, in_thread
from tailer.stores.s3 import S3Options
from tailer.stores.s3.clients import LoopClient, loop_client
from tailer.stores.s3.errors import EMPTY_RANGE, Place, error_code, failure_of, translate
from tailer.stores.s3.notifications import QueueWake
from tailer.stores.s3.thread_clients import ThreadClient, thread_client
from tailer.stores.s3.traffic import unseen_fault, verb_of
from tailer.stores.traffic import Fault
from tailer.stores.wakeup import TimerWake, Wake

__all__ = ["S3Bucket"]

L = TypeVar("L", LoopClient, ThreadClient)
_Found = dict[str, Any]

_FAILURES: Final = (
    BotoCoreError,
    ClientError,
    aiohttp.ClientError,
    HTTPError,
    HTTPException,
    OSError,
    ValueError,
    TornBody,
)
# A PUT may have 5 GB, but a failure repeats all of it.
_WHOLE_BYTES: Final = 64 * 2**20
# An upload may have 10,000 parts; one part is in memory.
_PART_BYTES: Final = 16 * 2**20
_MOST_PARTS: Final = 9_000


@dataclass(frozen=True)
class S3Bucket(Bucket):
    """The bucket `name`."""

    name: str
    options: S3Options
    failures: ClassVar[tuple[type[Exception], ...]] = _FAILURES
    needs_condition_check: ClassVar[bool] = True

    @property
    @override
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    @override
    def noun(self) -> str:
        return f"the bucket {self.name}"

    @property
    @override
    def store_name(self) -> str:
        return self.options.store_name(self.name)

    @asynccontextmanager
    @override
    async def lend(self) -> AsyncIterator["_LogClient"]:
        async with loop_client(self.options) as lent:
            yield _LogClient(self, lent)

    @override
    def connect(self) -> "S3RangeClient":
        return S3RangeClient(self, thread_client(self.options))

    @override
    def make_upload(self, key: str, source: Path) -> Upload:
        return S3Upload(self, key, source)

    @override
    def failure_of(self, error: BaseException) -> Failure:
        return failure_of(error)

    @override
    def fault_of(self, error: Exception) -> Fault | None:
        return unseen_fault(error)

    @override
    def translate(self, error: Exception, uri: str) -> StorageError:
        return translate(error, uri, Place(self.noun, self.options))

    def make_wake(self, folder: str, names: re.Pattern[str]) -> Wake:
        """See `Bucket.make_wake`; notifications come from a queue, if one is configured."""
        if self.options.notifications is None:
            return TimerWake()
        return QueueWake(self.name, folder, names, self.options)


class _S3Client(Generic[L]):
    """The common part of the clients for the event loop and for threads."""

    def __init__(self, bucket: S3Bucket, lent: L) -> None:
        self._bucket = bucket
        self._lent: L = lent
        self._client = lent.client
        self._request = {"Bucket": bucket.name}
        if bucket.options.requester_pays:
            self._request["RequestPayer"] = "requester"

    def retire(self) -> None:
        """See `Lent.retire`."""
        self._lent.retire()

    def translate(self, error: Exception, uri: str) -> StorageError:
        """See `Lent.translate`."""
        place = Place(self._bucket.noun, self._bucket.options)
        return translate(error, uri, place.through(self._client, self._lent.credentials))


class _LogClient(_S3Client[LoopClient], Client):
    """`Client` with aiobotocore."""

    @override
    async def get(self, key: str) -> Answer:
        answer = await self._lent.templates.send("GetObject", Key=key, **self._request)

        async def read() -> bytes:
            try:
                async with answer["Body"] as body:
                    data: bytes = await body.read()
            except (BotoCoreError, aiohttp.ClientError, OSError) as error:
                raise TornBody from error
            return data

        return Answer(_meta(key, answer, "ContentLength"), answer.get("ETag", ""), read, answer["Body"].close)

    @override
    async def head(self, key: str) -> Head:
        answer = await self._lent.templates.send("HeadObject", Key=key, **self._request)
        return Head(_meta(key, answer, "ContentLength"), answer.get("Metadata", {}))

    async def list_folder(self, folder: str, after: str, token: str | None) -> Page:
        """See `Client.list_folder`; up to a thousand objects and folders."""
        page = await self._list(folder, after, {"Delimiter": "/"} | ({"ContinuationToken": token} if token else {}))
        objects = [_meta(entry["Key"], entry, "Size") for entry in page.get("Contents", ())]
        folders = [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
        return Page(objects, folders, page["NextContinuationToken"] if page.get("IsTruncated") else None)

    @override
    async def list_below(self, folder: str, after: str) -> Sequence[str]:
        page = await self._list(folder, after, {})
        return [entry["Key"] for entry in page.get("Contents", ())]

    @override
    async def put(self, key: str, data: bytes | mmap, attributes: Mapping[str, str], *, if_absent: bool) -> None:
        more: dict[str, Any] = {"Metadata": dict(attributes)} if attributes else {}
        if if_absent:
            more["IfNoneMatch"] = "*"
        await self._client.put_object(Key=key, Body=data, **more, **self._request)

    @override
    async def delete(self, key: str) -> None:
        await self._client.delete_object(Key=key, **self._request)

    async def _list(self, folder: str, after: str, more: Mapping[str, str]) -> _Found:
        start = {"StartAfter": after} if after else {}
        page: _Found = await self._client.list_objects_v2(Prefix=folder, **start, **more, **self._request)
        return page


class S3RangeClient(_S3Client[ThreadClient], RangeClient):
    """`RangeClient` with botocore, also for the requests of uploads."""

    @override
    def get_range(self, key: str, offset: int, length: int, etag: str) -> Part | None:
        return self._get(key, f"{offset}-{offset + length - 1}", etag, offset)

    @override
    def get_end(self, key: str, length: int, etag: str) -> Part | None:
        return self._get(key, f"-{length}", etag, None)

    def send(self, operation: str, **request: Any) -> _Found:
        """Send a request of the API, for which the port has no method."""
        answer: _Found = getattr(self._client, operation)(**request, **self._request)
        return answer

    def _get(self, key: str, span: str, etag: str, begin: int | None) -> Part | None:
        """Request a part. `begin`: its first byte, if it is known."""
        condition = {"IfMatch": etag} if etag else {}
        try:
            answer = self._lent.templates.send(
                "GetObject", Key=key, Range=f"bytes={span}", **condition, **self._request
            )
        except ClientError as error:
            if error_code(error) in EMPTY_RANGE:
                return None
            raise
        try:
            with answer["Body"] as body:
                data: bytes = body.read()
        except (BotoCoreError, HTTPError, HTTPException, OSError) as error:
            raise TornBody from error
        if len(data) != answer["ContentLength"]:
            raise TornBody
        # A server that ignores ranges sends all of the object.
        total = answer.get("ContentRange", "").rpartition("/")[2]
        size = int(total) if total else len(data)
        first = size - len(data) if begin is None else begin
        return Part(size, first if total else 0, data, answer.get("ETag", ""))


def _meta(key: str, attributes: _Found, size: str) -> ObjectMeta:
    """Return the metadata of an object from an answer, or from an entry of a listing."""
    modified_ms = int(attributes["LastModified"].timestamp()) * 1000
    return ObjectMeta(key, attributes[size], modified_ms, attributes.get("ETag", "").strip('"'))


class S3Upload(Upload):
    """An upload of the file `source` by worker threads: in one PUT, or in parts if it is large.

    The condition `If-None-Match: *` is on the request that makes the object appear: the PUT, or the completion of the
    upload. An upload that fails is aborted, because its parts are stored, and paid for, until then. One of a killed
    process stays until a lifecycle rule of the bucket removes it.
    """

    def __init__(self, bucket: S3Bucket, key: str, source: Path) -> None:
        self._bucket = bucket
        self._key = key
        self._source = source
        self._size = source.stat().st_size

    @property
    @override
    def is_multipart(self) -> bool:
        return self._size > _WHOLE_BYTES

    @override
    async def send(self, attributes: Mapping[str, str]) -> None:
        await in_thread(self._send_now, dict(attributes))

    def _send_now(self, attributes: dict[str, str]) -> None:
        if not self.is_multipart:
            with self._source.open("rb") as body:
                self._ask("put_object", Body=body, IfNoneMatch="*", Metadata=attributes)
            return
        upload = self._ask("create_multipart_upload", Metadata=attributes)["UploadId"]
        try:
            part_bytes, parts = max(_PART_BYTES, -(-self._size // _MOST_PARTS)), list[_Found]()
            with self._source.open("rb") as file:
                while part := file.read(part_bytes):
                    number = len(parts) + 1
                    answer = self._ask("upload_part", UploadId=upload, PartNumber=number, Body=part)
                    parts.append({"PartNumber": number, "ETag": str(answer["ETag"])})
            self._ask("complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
        except BaseException:
            with suppress(StorageError):
                self._ask("abort_multipart_upload", UploadId=upload)
            raise

    def _ask(self, operation: str, **request: Any) -> _Found:
        """Send a request of the API about the object, and repeat it where that may help. Raises `StorageError`."""

        def send(client: S3RangeClient) -> _Found:
            if isinstance(body := request.get("Body"), BufferedReader):
                body.seek(0)
            return client.send(operation, Key=self._key, **request)

        bucket = self._bucket
        return ask_now(bucket, bucket.connect, f"{bucket.uri}/{self._key}", verb_of(operation), send)

"""Parts of one object of a bucket, read by worker threads."""

import threading
from collections.abc import Callable

from typing_extensions import override

from tailer.errors import ObjectAlreadyExists, StorageUnavailable
from tailer.stores.bucket.port import Bucket, Part, RangeClient
from tailer.stores.bucket.requests import ask_now
from tailer.stores.ranges import ObjectEnd, ObjectRanges
from tailer.stores.traffic import READ_BYTES

__all__ = ["BucketRanges"]


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

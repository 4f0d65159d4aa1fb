"""Parts of one object on S3, read by worker threads."""

import threading
import time
from http.client import HTTPException
from typing import Any, Final, NoReturn

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from tailer.errors import ObjectAlreadyExists, StorageUnavailable
from tailer.stores.ranges import ObjectEnd
from tailer.stores.s3.attempts import PAUSE_S, Attempts
from tailer.stores.s3.errors import EMPTY_RANGE, Place, TornBody, error_code, is_login_refused, translate
from tailer.stores.s3.options import S3Options
from tailer.stores.s3.thread_clients import thread_client
from tailer.stores.traffic import READ_BYTES

__all__ = ["S3Ranges"]

# Errors of a client, of its connections, and of settings.
_FAILURES: Final = (BotoCoreError, ClientError, HTTPError, HTTPException, OSError, ValueError, TornBody)


class S3Ranges:
    """`ObjectRanges` over the object `key` of `bucket`. `etag`: of the content to read; by default the first one found.

    All answers are of one content: an object that is replaced meanwhile raises `StorageUnavailable`. A missing object
    is looked for twice, because gateways have answered 404 wrongly.
    """

    def __init__(self, bucket: str, key: str, options: S3Options, etag: str = "") -> None:
        self._bucket = bucket
        self._key = key
        self._options = options
        self._etag = etag
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """See `ObjectRanges.uri`."""
        return f"s3://{self._bucket}/{self._key}"

    def end(self, length: int) -> ObjectEnd:
        """See `ObjectRanges.end`."""
        part = self._fetch(f"bytes=-{max(length, 1)}")
        if part is None:
            return ObjectEnd(0, b"")
        return ObjectEnd(part.size_bytes, part.data[-length:] if length > 0 else b"")

    def read(self, offset: int, length: int) -> bytes:
        """See `ObjectRanges.read`."""
        part = self._fetch(f"bytes={offset}-{offset + length - 1}") if length > 0 else None
        if part is None:
            return b""
        data = part.data[offset : offset + length] if part.is_all else part.data
        if len(data) < min(length, part.size_bytes - offset):
            raise StorageUnavailable(self.uri, f"it sent {len(data)} of {length} bytes at {offset}")
        return data

    def _fetch(self, part: str) -> "_Part | None":
        """Request a part; None where the object has no such bytes."""
        store = self._options.store_name(self._bucket)
        attempts = Attempts(store, "get_object", missing=1)
        while True:
            place = Place(self._bucket, self._options)
            lent = None
            try:
                lent = thread_client(self._options)
                place = place.through(lent.client, lent.credentials)
                found = _Part(lent.client.get_object(**self._request(part)))
                READ_BYTES.add((store,), len(found.data))
                return self._same(found)
            except _FAILURES as error:
                if error_code(error) in EMPTY_RANGE:
                    return None
                if lent is not None and is_login_refused(error):
                    lent.retire()
                if not attempts.take(error):
                    self._raise(error, place)
            time.sleep(PAUSE_S)

    def _same(self, part: "_Part") -> "_Part":
        """Return a part if it is one of the content to read."""
        with self._lock:
            self._etag = self._etag or part.etag
        if part.etag != self._etag:
            raise self._replaced()
        return part

    def _request(self, part: str) -> dict[str, str]:
        request = {"Bucket": self._bucket, "Key": self._key, "Range": part}
        if self._etag:
            request["IfMatch"] = self._etag
        if self._options.requester_pays:
            request["RequestPayer"] = "requester"
        return request

    def _raise(self, error: Exception, place: Place) -> NoReturn:
        translated = translate(error, self.uri, place)
        # A GET has one precondition, the ETag.
        raise (self._replaced() if isinstance(translated, ObjectAlreadyExists) else translated) from error

    def _replaced(self) -> StorageUnavailable:
        return StorageUnavailable(self.uri, "the object was replaced while it was read")


class _Part:
    """A part of an object, read from an answer. Raises `TornBody`."""

    def __init__(self, answer: dict[str, Any]) -> None:
        try:
            with answer["Body"] as body:
                self.data: bytes = body.read()
        except (BotoCoreError, HTTPError, HTTPException, OSError) as error:
            raise TornBody from error
        if len(self.data) != answer["ContentLength"]:
            raise TornBody
        self.etag: str = answer.get("ETag", "")
        total = answer.get("ContentRange", "").rpartition("/")[2]
        # A server that ignores ranges sends all of the object.
        self.is_all = not total
        self.size_bytes = int(total) if total else len(self.data)

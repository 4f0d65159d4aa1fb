"""Parts of one object in Google Cloud Storage or Azure, read by worker threads."""

import threading
import time
from typing import TYPE_CHECKING, Final, NoReturn

import obstore

from tailer.errors import ObjectAlreadyExists, StorageUnavailable
from tailer.stores.cloud.clients import Client, find_client
from tailer.stores.cloud.errors import (
    FAILURES,
    Place,
    TornBody,
    fault_of,
    is_empty_range,
    is_login_refused,
    is_missing,
    translate,
)
from tailer.stores.cloud.options import AzureOptions, CloudOptions
from tailer.stores.ranges import ObjectEnd
from tailer.stores.traffic import FAULTS, READ_BYTES, REQUESTS, Fault

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

__all__ = ["PAUSE_S", "CloudRanges"]

PAUSE_S: Final = 0.2


class CloudRanges:
    """`ObjectRanges` over the object `key` of a bucket, given by its location.

    `etag`: of the content to read; by default the first one found. All answers are of one content: an object that is
    replaced meanwhile raises `StorageUnavailable`. A missing object is looked for twice.
    """

    def __init__(self, bucket: str, key: str, options: CloudOptions, etag: str = "") -> None:
        self._bucket = bucket
        self._key = key
        self._options = options
        self._etag = etag
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """See `ObjectRanges.uri`."""
        return f"{self._bucket}/{self._key}"

    def end(self, length: int) -> ObjectEnd:
        """See `ObjectRanges.end`. Azure knows no ranges from the end, so two requests are needed there."""
        if isinstance(self._options, AzureOptions):
            # The answer to a HEAD request would not name what is wrong.
            first = self._ask({"range": (0, 1)})
            size = 0 if first is None else first[0]["size"]
            return ObjectEnd(size, self.read(max(size - length, 0), min(length, size)))
        answer = self._ask({"range": {"suffix": max(length, 1)}})
        if answer is None:
            return ObjectEnd(0, b"")
        meta, data = answer
        return ObjectEnd(meta["size"], data[-length:] if length > 0 else b"")

    def read(self, offset: int, length: int) -> bytes:
        """See `ObjectRanges.read`."""
        answer = self._ask({"range": (offset, offset + length)}) if length > 0 else None
        if answer is None:
            return b""
        meta, data = answer
        if len(data) < min(length, meta["size"] - offset):
            raise StorageUnavailable(self.uri, f"it sent {len(data)} of {length} bytes at {offset}")
        return data

    def _ask(self, request: "GetOptions") -> "tuple[ObjectMeta, bytes] | None":
        """Request a part; None where the object has no such bytes."""
        try:
            return self._fetch(request)
        except _EmptyRange:
            return None

    def _fetch(self, request: "GetOptions") -> "tuple[ObjectMeta, bytes]":
        """Request a part. Raises `_EmptyRange`."""
        logins, looks = 1, 1
        while True:
            place = Place(self._bucket, self._options)
            client = None
            try:
                client = find_client(self._bucket, self._options)
                place = Place(self._bucket, self._options, client.has_answered)
                answer = self._get(client, request)
            except FAILURES as error:
                missing = is_missing(error)
                if fault := Fault.NOT_FOUND_ONCE if missing and looks else fault_of(error):
                    FAULTS.add((place.store_name, "get", fault), 1)
                if is_empty_range(error):
                    raise _EmptyRange from None
                if client is not None and is_login_refused(error) and logins:
                    logins -= 1
                    client.retire()
                elif missing and looks:
                    looks -= 1
                else:
                    self._raise(error, place)
            else:
                client.has_answered = True
                return answer
            time.sleep(PAUSE_S)

    def _get(self, client: Client, request: "GetOptions") -> "tuple[ObjectMeta, bytes]":
        """Request a part of the content to read."""
        pinned: GetOptions = {**request, "if_match": self._etag} if self._etag else request
        name = Place(self._bucket, self._options).store_name
        REQUESTS.add((name, "get"), 1)
        answer = obstore.get(client.store, self._key, options=pinned)
        found = answer.meta["e_tag"] or ""
        with self._lock:
            self._etag = self._etag or found
        if found != self._etag:
            raise self._replaced()
        data = bytes(answer.bytes())
        begin, end = answer.range
        if len(data) != end - begin:
            raise TornBody
        READ_BYTES.add((name,), len(data))
        return answer.meta, data

    def _raise(self, error: Exception, place: Place) -> NoReturn:
        translated = translate(error, self.uri, place)
        # A GET has one precondition, the ETag.
        raise (self._replaced() if isinstance(translated, ObjectAlreadyExists) else translated) from error

    def _replaced(self) -> StorageUnavailable:
        return StorageUnavailable(self.uri, "the object was replaced while it was read")


class _EmptyRange(Exception):
    """The object has no such bytes."""

"""Uploads of files as new objects, by worker threads: in one PUT, or in parts if they are large.

The condition `If-None-Match: *` is on the request that makes the object appear: the PUT, or the completion of the
upload. An upload that fails is aborted, because its parts are stored, and paid for, until then. One of a killed process
stays until a lifecycle rule of the bucket removes it.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from tailer.errors import StorageError
from tailer.stores.s3.attempts import PAUSE_S, Attempts
from tailer.stores.s3.errors import Place, is_login_refused, translate
from tailer.stores.s3.options import S3Options
from tailer.stores.s3.thread_clients import thread_client

__all__ = ["Upload"]

# A PUT may have 5 GB, but a failure repeats all of it.
_WHOLE_BYTES: Final = 64 * 2**20
# An upload may have 10,000 parts; one part is in memory.
_PART_BYTES: Final = 16 * 2**20
_MOST_PARTS: Final = 9_000
_FAILURES: Final = (BotoCoreError, ClientError, HTTPError, HTTPException, OSError, ValueError)


class Upload:
    """The upload of the file `source`, which does not change any more, as the object `key` of `bucket`. Blocking."""

    def __init__(self, bucket: str, key: str, source: Path, options: S3Options) -> None:
        self._bucket = bucket
        self._key = key
        self._source = source
        self._options = options
        self._size = source.stat().st_size

    @property
    def is_multipart(self) -> bool:
        """Return whether the file is sent in parts."""
        return self._size > _WHOLE_BYTES

    def send(self, metadata: Mapping[str, str]) -> None:
        """Create the object if it does not exist. May be called again.

        Raises the errors of `UploadStore`; after one, the object may exist all the same, but no parts of it.
        """
        if not self.is_multipart:
            with self._source.open("rb") as body:
                self._ask("put_object", Body=body, IfNoneMatch="*", Metadata=dict(metadata))
            return
        upload = self._ask("create_multipart_upload", Metadata=dict(metadata))["UploadId"]
        try:
            parts = [
                {"PartNumber": number, "ETag": self._part(upload, number, part)}
                for number, part in enumerate(self._parts(), 1)
            ]
            self._ask("complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
        except BaseException:
            with suppress(StorageError):
                self._ask("abort_multipart_upload", UploadId=upload)
            raise

    def _parts(self) -> Iterator[bytes]:
        size = max(_PART_BYTES, -(-self._size // _MOST_PARTS))
        with self._source.open("rb") as file:
            while part := file.read(size):
                yield part

    def _part(self, upload: str, number: int, part: bytes) -> str:
        return str(self._ask("upload_part", UploadId=upload, PartNumber=number, Body=part)["ETag"])

    def _ask(self, operation: str, **request: Any) -> dict[str, Any]:
        request |= {"Bucket": self._bucket, "Key": self._key}
        if self._options.requester_pays:
            request["RequestPayer"] = "requester"
        attempts = Attempts(self._options.store_name(self._bucket), operation)
        while True:
            place, lent = Place(self._bucket, self._options), None
            try:
                lent = thread_client(self._options)
                place = place.through(lent.client, lent.credentials)
                if hasattr(request.get("Body"), "seek"):
                    request["Body"].seek(0)
                answer: dict[str, Any] = getattr(lent.client, operation)(**request)
            except _FAILURES as error:
                if lent is not None and is_login_refused(error):
                    lent.retire()
                if not attempts.take(error):
                    raise translate(error, f"s3://{self._bucket}/{self._key}", place) from error
                time.sleep(PAUSE_S)
            else:
                return answer

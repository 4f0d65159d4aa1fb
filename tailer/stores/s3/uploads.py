"""Uploads of files as new objects, by worker threads: in one PUT, or in parts if they are large.

The condition `If-None-Match: *` is on the request that makes the object appear: the PUT, or the completion of the
upload. An upload that fails is aborted, because its parts are stored, and paid for, until then. One of a killed process
stays until a lifecycle rule of the bucket removes it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailer.errors import StorageError
from tailer.stores.bucket.requests import ask_now
from tailer.stores.port import in_thread
from tailer.stores.s3.traffic import verb_of

if TYPE_CHECKING:
    from tailer.stores.s3.bucket import S3Bucket, S3RangeClient

__all__ = ["S3Upload"]

# A PUT may have 5 GB, but a failure repeats all of it.
_WHOLE_BYTES: Final = 64 * 2**20
# An upload may have 10,000 parts; one part is in memory.
_PART_BYTES: Final = 16 * 2**20
_MOST_PARTS: Final = 9_000


class S3Upload:
    """`Upload` of the file `source` as the object `key` of `bucket`."""

    def __init__(self, bucket: "S3Bucket", key: str, source: Path) -> None:
        self._bucket = bucket
        self._key = key
        self._source = source
        self._size = source.stat().st_size

    @property
    def is_multipart(self) -> bool:
        """See `Upload.is_multipart`."""
        return self._size > _WHOLE_BYTES

    async def send(self, attributes: Mapping[str, str]) -> None:
        """See `Upload.send`."""
        await in_thread(self._send_parts if self.is_multipart else self._send_whole, attributes)

    def _send_whole(self, attributes: Mapping[str, str]) -> None:
        with self._source.open("rb") as body:
            self._ask("put_object", Body=body, IfNoneMatch="*", Metadata=dict(attributes))

    def _send_parts(self, attributes: Mapping[str, str]) -> None:
        upload = self._ask("create_multipart_upload", Metadata=dict(attributes))["UploadId"]
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
        def send(client: "S3RangeClient") -> dict[str, Any]:
            if isinstance(body := request.get("Body"), BufferedReader):
                body.seek(0)
            return client.send(operation, Key=self._key, **request)

        uri = f"{self._bucket.uri}/{self._key}"
        return ask_now(self._bucket, self._bucket.connect, uri, verb_of(operation), send)

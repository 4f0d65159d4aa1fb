"""Uploads of files as new objects, by worker threads: in one PUT, or in parts if they are large.

The condition `If-None-Match: *` is on the request that makes the object appear: the PUT, or the completion of the
upload. An upload that fails is aborted, because its parts are stored, and paid for, until then. One of a killed process
stays until a lifecycle rule of the bucket removes it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from typing_extensions import override

from tailer.errors import StorageError
from tailer.stores.bucket.port import Upload
from tailer.stores.port import in_thread

__all__ = [
    "S3Upload",
]

# A PUT may have 5 GB, but a failure repeats all of it.
_WHOLE_BYTES: Final = 64 * 2**20
# An upload may have 10,000 parts; one part is in memory.
_PART_BYTES: Final = 16 * 2**20
_MOST_PARTS: Final = 9_000


class SendNow(Protocol):
    """Sends a request of the API about one object, and repeats it where that may help. Raises `StorageError`."""

    def __call__(self, operation: str, **request: Any) -> dict[str, Any]: ...


class S3Upload(Upload):
    """An upload of the file `source` as the object that `ask` is about."""

    def __init__(self, ask: SendNow, source: Path) -> None:
        self._ask = ask
        self._source = source
        self._size = source.stat().st_size

    @property
    @override
    def is_multipart(self) -> bool:
        return self._size > _WHOLE_BYTES

    @override
    async def send(self, attributes: Mapping[str, str]) -> None:
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

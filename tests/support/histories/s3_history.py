"""A long history whose table is in a store: its files are there from the start, its commits as they are published."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from tests.support.histories.long_history import LongHistory
from tests.support.s3.server import S3Server

__all__ = ["S3History", "StoredHistory", "StoredTable", "upload"]

_CHECKPOINT_EACH: Final = 10


def upload(server: S3Server, bucket: str, prefix: str, folder: Path) -> None:
    """Put the files of a folder below a prefix, those of the log last and in order."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in sorted(files, key=lambda file: file.parent.name == "_delta_log"):
        server.client.put_object(Bucket=bucket, Key=f"{prefix}/{file.relative_to(folder)}", Body=file.read_bytes())


class StoredTable:
    """The Delta table in the folder `path`, put to a store with checkpoints; `put`: stores a file by its name."""

    def __init__(self, path: Path, put: Callable[[str, bytes], None]) -> None:
        self._path = path
        self._put_bytes = put
        log = path / "_delta_log"
        for file in sorted(path.rglob("*")):
            if file.is_file() and file.parent != log:
                self._put(str(file.relative_to(path)))
        self.put_version(0)

    def put_version(self, version: int) -> None:
        """Put the commit of a version, which is the newest in the folder."""
        self._put(f"_delta_log/{version:020d}.json")
        if version and version % _CHECKPOINT_EACH == 0:
            DeltaTable(self._path).create_checkpoint()
            self._put(f"_delta_log/{version:020d}.checkpoint.parquet")
            self._put("_delta_log/_last_checkpoint")

    def _put(self, name: str) -> None:
        self._put_bytes(name, (self._path / name).read_bytes())


class StoredHistory:
    """`history` at `location` in a store, with checkpoints; `put`: stores a file by its name in the table."""

    def __init__(self, history: LongHistory, location: str, put: Callable[[str, bytes], None]) -> None:
        self.history = history
        self.location = location
        self._table = StoredTable(history.path, put)

    def publish(self, commits: int = 1) -> None:
        """Publish the next commits, or fewer if fewer are left."""
        for _ in range(commits):
            version = self.history.published
            if version <= self.history.last:
                self.history.publish()
                self._table.put_version(version)


class S3History(StoredHistory):
    """`history` in a bucket of its own of `server`, below the prefix `lake/orders`."""

    def __init__(self, history: LongHistory, server: S3Server) -> None:
        self.bucket = server.new_bucket()

        def put(name: str, body: bytes) -> None:
            server.client.put_object(Bucket=self.bucket, Key=f"lake/orders/{name}", Body=body)

        super().__init__(history, f"s3://{self.bucket}/lake/orders", put)

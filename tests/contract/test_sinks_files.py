"""The contract of a sink, kept by `files` in both formats, on this machine and in stores.

On every landing: Azure, and the Delta sink in S3, take the place of S3; Parquet on disk, and JSON Lines in stores, that
of Parquet in a store. Files in S3 are under faults in `faults/test_s3_sinks.py`.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from pyarrow import parquet

from tailer.stores.bucket.store import BucketStore
from tailer.stores.cloud.bucket import CloudBucket
from tailer.stores.s3 import S3Options
from tailer.stores.s3.bucket import S3Bucket
from tailer.stores.uploads import UploadStore
from tailer_sinks.files.in_store import StoreFolders
from tailer_sinks.files.sink import FilesSink, Format
from tailer_sinks.testing import SinkTests, flat_rows
from tests.support.cloud.memory_store import MemoryStore
from tests.support.cloud.servers import CloudServer
from tests.support.s3.server import S3Server, close_thread_clients


class FilesTests(SinkTests):
    joins_tables = False

    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.path = tmp_path / "out"

    def files(self, app_id: str, suffix: str) -> list[Path]:
        return sorted((self.path / app_id).glob(f"*.{suffix}"))


@pytest.mark.sampled(20)
class TestJsonLines(FilesTests):
    def make_sink(self) -> FilesSink:
        return FilesSink("files", self.path, "jsonl")

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return await to_thread.run_sync(self._read, app_id)

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        return [json.loads(line) for file in self.files(app_id, "jsonl") for line in file.read_bytes().splitlines()]


@pytest.mark.sampled(3)
class TestParquet(FilesTests):
    reports_schema_changes = False  # it shows in the schema of the files

    def make_sink(self) -> FilesSink:
        return FilesSink("files", self.path, "parquet")

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return await to_thread.run_sync(self._read, app_id)

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        return [row for file in self.files(app_id, "parquet") for row in flat_rows(parquet.read_table(file))]


def rows_of(content: bytes, form: str) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    if form == "jsonl":
        return [json.loads(line) for line in content.splitlines()]
    return flat_rows(parquet.read_table(io.BytesIO(content)))


@pytest.mark.sampled(20)
class InStoreTests(SinkTests):
    joins_tables = False
    form: Format = "jsonl"
    store: UploadStore

    def make_sink(self) -> FilesSink:
        return FilesSink("files", StoreFolders("files", self.store), self.form)

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        names = [meta.name for meta in await self.store.list(app_id) if meta.name.endswith(self.form)]
        files = [await self.store.read(name, lambda stored: stored.data) for name in names]
        return [row for content in files for row in await to_thread.run_sync(rows_of, content, self.form)]


class TestJsonLinesInMemory(InStoreTests):
    @pytest.fixture(autouse=True)
    def destination(self) -> None:
        self.store = MemoryStore()


@pytest.mark.nightly
class TestParquetInMemory(TestJsonLinesInMemory):
    form = "parquet"
    reports_schema_changes = False


@pytest.mark.nightly
class TestJsonLinesInS3(InStoreTests):
    @pytest.fixture(autouse=True)
    def destination(self, versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name, value in versitygw.environment.items():
            monkeypatch.setenv(name, value)
        self.store = BucketStore(S3Bucket(versitygw.new_bucket(), S3Options()), "out")
        yield
        close_thread_clients()


class TestJsonLinesInAzure(InStoreTests):
    @pytest.fixture(autouse=True)
    def destination(self, azurite: CloudServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with azurite.logged_in(monkeypatch):
            self.store = BucketStore(CloudBucket(azurite.new_bucket(), azurite.options), "out")
            yield

"""The contract of a sink, kept by `files` in both formats."""

import json
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from pyarrow import parquet

from sinks.files.sink import FilesSink
from sinks.testing import SinkTests, flat_rows


class FilesTests(SinkTests):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.path = tmp_path / "out"

    def files(self, app_id: str, suffix: str) -> list[Path]:
        return sorted((self.path / app_id).glob(f"*.{suffix}"))


class TestJsonLines(FilesTests):
    def make_sink(self) -> FilesSink:
        return FilesSink("files", self.path, "jsonl")

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return await to_thread.run_sync(self._read, app_id)

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        return [json.loads(line) for file in self.files(app_id, "jsonl") for line in file.read_bytes().splitlines()]


class TestParquet(FilesTests):
    reports_schema_changes = False  # it shows in the schema of the files

    def make_sink(self) -> FilesSink:
        return FilesSink("files", self.path, "parquet")

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return await to_thread.run_sync(self._read, app_id)

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        return [row for file in self.files(app_id, "parquet") for row in flat_rows(parquet.read_table(file))]

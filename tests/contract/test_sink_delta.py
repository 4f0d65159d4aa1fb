"""The contract of a sink, kept by `delta`, and by a state table for a sink without progress.

On every landing: S3 and Azure take the place of Google, whose server takes longer to build than its tests to run; a
mirror by MERGE that of one that is always written again (both ways: `integration/test_delta_mirror.py`).
"""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable
from pyarrow import parquet

from tailer.events import ChangeBatch, ControlEvent, has_variant
from tailer.progress.recorded import Recorded
from tailer.progress.state_table import StateTable
from tailer.sink import AtLeastOnceSink, Sink
from tailer.stores.local import LocalStore
from tailer.stores.stores import Stores
from tailer_sinks.delta.mirror import table as mirror_table
from tailer_sinks.delta.mirror.sink import DeltaMirror
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.encoding import event_values
from tailer_sinks.testing import SinkTests, flat_rows
from tailer_sinks.testing.rows import DELTA_TYPES
from tests.support.cloud.servers import CloudServer
from tests.support.cloud.tables import download as download_from_cloud
from tests.support.mirrors.contract import METADATA, OfMirrors
from tests.support.mirrors.delta import make_mirror, mirror_rows
from tests.support.s3.server import S3Server, close_thread_clients, download


@pytest.mark.sampled(4)
class TestDeltaSink(SinkTests):
    keeps_order = False  # rows of a Delta table have no order
    reports_schema_changes = False  # they show in the table's schema

    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.path = tmp_path / "target"

    def make_sink(self) -> Sink:
        return DeltaSink("delta", str(self.path))

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return await to_thread.run_sync(self._read, app_id)

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        """Streams share a table; the log tells which stream committed a file."""
        if not self.path.exists():
            return []
        schema = pa.schema(DeltaTable(str(self.path)).schema().to_arrow())
        rows = []
        for commit in sorted((self.path / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            if app_id in [action["txn"]["appId"] for action in actions if "txn" in action]:
                for name in (unquote(action["add"]["path"]) for action in actions if "add" in action):
                    rows += flat_rows(_columns(parquet.read_table(self.path / name, partitioning=None), schema))
        return rows


@pytest.mark.sampled(20)
class TestDeltaSinkInS3(TestDeltaSink):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path, versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name, value in versitygw.environment.items():
            monkeypatch.setenv(name, value)
        self.server, self.bucket = versitygw, versitygw.new_bucket()
        self.copies = tmp_path / "copies"
        self.path = tmp_path / "none"
        yield
        close_thread_clients()

    def make_sink(self) -> DeltaSink:
        return DeltaSink("delta", f"s3://{self.bucket}/some/target")

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        self.path = self.copies / uuid.uuid4().hex
        download(self.server, self.bucket, "some/target", self.path)
        return super()._read(app_id)


@pytest.mark.nightly
class TestDeltaSinkInGcs(TestDeltaSink):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path, fake_gcs: CloudServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        yield from self._in_cloud(fake_gcs, tmp_path, monkeypatch)

    def _in_cloud(self, server: CloudServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with server.logged_in(monkeypatch):
            self.server, self.bucket = server, server.new_bucket()
            self.copies = folder / "copies"
            self.path = folder / "none"
            yield

    def make_sink(self) -> DeltaSink:
        sink = DeltaSink("delta", f"{self.bucket}/some/target")
        sink.use_stores(Stores(((self.bucket, self.server.options),)))
        return sink

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        self.path = self.copies / uuid.uuid4().hex
        download_from_cloud(self.server, f"{self.bucket}/some/target", self.path)
        return super()._read(app_id)


class TestDeltaSinkInAzure(TestDeltaSinkInGcs):
    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path, azurite: CloudServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        yield from self._in_cloud(azurite, tmp_path, monkeypatch)


@pytest.mark.sampled(4)
class TestDeltaMirror(OfMirrors, TestDeltaSink):
    # Another stream would share its table.
    test_it_is_known_whether_a_pipeline_has_delivered = None  # type: ignore[assignment]
    refused_types = frozenset(name for name, (kind, _) in DELTA_TYPES.items() if has_variant(kind))

    def make_sink(self) -> DeltaMirror:
        return make_mirror(self.path)

    def _read(self, app_id: str) -> list[dict[str, Any]]:
        return [{**row, "_change_type": "insert"} for row in flat_rows(mirror_rows(self.path))]


@pytest.mark.nightly
class TestRewrittenDeltaMirror(TestDeltaMirror):
    """Each transaction writes the whole table again, as if a MERGE took too much memory."""

    @pytest.fixture(autouse=True)
    def rewritten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)


def _columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of one file with the table's columns, null for later ones; metadata columns last.

    The table itself has them in the order in which they were added.
    """
    names = sorted(schema.names, key=lambda name: name in METADATA)
    there = set(rows.schema.names)
    kinds = {name: schema.field(name).type for name in names}
    columns = [rows[name].cast(kinds[name]) if name in there else pa.nulls(len(rows), kinds[name]) for name in names]
    return pa.table(columns, names=names)


class ListSink(AtLeastOnceSink):
    """Rows in a list that outlives the instances: the simplest `AtLeastOnceSink`."""

    name = "list"

    def __init__(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        self._rows = rows

    async def write(self, batch: ChangeBatch) -> None:
        self._rows.setdefault(batch.table_id, []).extend(await to_thread.run_sync(flat_rows, batch.rows))

    async def announce(self, event: ControlEvent) -> None:
        self._rows.setdefault(event.table_id, []).append(event_values(event))

    async def flush(self) -> None:
        """Do nothing: no rows are held back."""

    async def aclose(self) -> None:
        """Do nothing: no resources are held."""


@pytest.mark.sampled(20)
class TestRecordedInAStateTable(SinkTests):
    exactly_once = False

    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.state = tmp_path / "state"
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def make_sink(self) -> Recorded:
        return Recorded(ListSink(self.rows), StateTable(LocalStore(self.state)))

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return [row for rows in self.rows.values() for row in rows]

"""Mirrors in Delta between this machine, S3, Google Cloud Storage and Azure, and `tailer verify` of them."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import TableRef, open_files
from tailer.engine.local import LocalEngine
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification.comparison import Rewritten, repair
from tailer.start import Start, StartKind
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.mirror import table as mirror_table
from tests.support.cloud.servers import CloudServer
from tests.support.histories.s3_history import upload
from tests.support.mirrors.delta import make_mirror
from tests.support.s3.link import Fault, Request, S3Link

pytestmark = [pytest.mark.anyio, pytest.mark.stores]


@dataclass(frozen=True)
class Lake:
    """A bucket of S3 and one of a cloud, both with links before them. `put_all` copies a folder into one of them."""

    stores: Stores
    s3: str
    cloud: str
    put_all: Callable[[Path, str], None]

    def at(self, location: str) -> DeltaTable:
        return DeltaTable(location, storage_options=dict(self.stores.delta_rs_settings(location)))

    def ids(self, location: str) -> list[tuple[int, str]]:
        rows = self.at(location).to_pyarrow_table(columns=["id", "name"]).to_pylist()
        return sorted((row["id"], row["name"]) for row in rows)


@pytest.fixture
def lake(link: S3Link, cloud: CloudServer) -> Lake:
    """Two new buckets."""
    bucket, there = link.server.new_bucket(), cloud.new_bucket()
    options = (f"s3://{bucket}", S3Options(endpoint=link.endpoint)), (there, cloud.options)

    def put_all(folder: Path, location: str) -> None:
        if location.startswith("s3://"):
            upload(link.server, bucket, location.removeprefix(f"s3://{bucket}/"), folder)
            return
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        for file in sorted(files, key=lambda file: file.parent.name == "_delta_log"):
            cloud.put(f"{location}/{file.relative_to(folder)}", file.read_bytes())

    return Lake(Stores(options), f"s3://{bucket}", there, put_all)


def write_orders(path: Path) -> None:
    """Write a table of five versions: rows are added, changed and deleted, and a column is added."""
    write_deltalake(path, pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
    DeltaTable(path).update(updates={"name": "'B'"}, predicate="id = 2")
    DeltaTable(path).delete("id = 3")
    rows = pa.table({"id": [4, 5], "name": ["d", "é'"], "note": ["x", None]})
    write_deltalake(path, rows, mode="append", schema_mode="merge")
    DeltaTable(path).update(updates={"id": "id + 10"}, predicate="id > 3")


WANTED = [(1, "a"), (2, "B"), (14, "d"), (15, "é'")]


async def follow(lake: Lake, source: str, target: str, last: int = 4) -> None:
    files = open_files(lake.stores)
    engine = ChangelogEngine(LocalEngine(files=files), PairingRules(), files=files)
    sink = make_mirror(target)
    sink.use_stores(lake.stores)
    start, end = Start(StartKind.EARLIEST), Start(StartKind.VERSION, last)
    async with aclosing(sink):
        await row_pipeline("orders", TableRef(source).open(lake.stores), sink, engine, TimerWake(), start, end).run()


async def check_repair(lake: Lake, source: str, target: str) -> None:
    """Plant two differences, and have them found and repaired."""
    await anyio.to_thread.run_sync(partial(lake.at(target).delete, "id = 1"))
    await anyio.to_thread.run_sync(partial(lake.at(target).update, updates={"note": "'y'"}, predicate="id = 14"))
    sink = make_mirror(target)
    sink.use_stores(lake.stores)
    engine, table = LocalEngine(files=open_files(lake.stores)), TableRef(source).open(lake.stores)
    open_mirror = partial(sink.open_mirror, "orders")
    differs, equal = [each async for each in repair(open_mirror, table, engine, Policy(), 9)]
    assert (list(differs.counts.values()), differs.columns, differs.version) == ([1, 0, 1], {"note": 1}, 4)
    assert (differs.rewritten, equal.is_equal, equal.source_rows) == (Rewritten(keys=2, rows=2), True, 4)


async def test_from_this_machine_and_from_s3_into_a_cloud(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await anyio.to_thread.run_sync(write_orders, tmp_path / "orders")
    await anyio.to_thread.run_sync(lake.put_all, tmp_path / "orders", f"{lake.s3}/lake/orders")
    for source, target in ((str(tmp_path / "orders"), "copy of orders"), (f"{lake.s3}/lake/orders", "in/copy")):
        await follow(lake, source, f"{lake.cloud}/{target}", 2)
        await follow(lake, source, f"{lake.cloud}/{target}")
        assert await anyio.to_thread.run_sync(lake.ids, f"{lake.cloud}/{target}") == WANTED
    await check_repair(lake, f"{lake.s3}/lake/orders", f"{lake.cloud}/in/copy")
    monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)
    await follow(lake, f"{lake.s3}/lake/orders", f"{lake.cloud}/rewritten")
    assert await anyio.to_thread.run_sync(lake.ids, f"{lake.cloud}/rewritten") == WANTED


async def test_from_this_machine_and_from_a_cloud_into_s3(lake: Lake, link: S3Link, tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(write_orders, tmp_path / "orders")
    await anyio.to_thread.run_sync(lake.put_all, tmp_path / "orders", f"{lake.cloud}/lake/orders")
    for source, target in ((str(tmp_path / "orders"), "copy of orders"), (f"{lake.cloud}/lake/orders", "in/copy")):
        await follow(lake, source, f"{lake.s3}/{target}", 2)
        await follow(lake, source, f"{lake.s3}/{target}")
        assert await anyio.to_thread.run_sync(lake.ids, f"{lake.s3}/{target}") == WANTED
    await check_repair(lake, f"{lake.cloud}/lake/orders", f"{lake.s3}/in/copy")

    def is_commit(request: Request) -> bool:
        return request.is_conditional_put and "/_delta_log/" in request.path

    # The answer to the commit of a MERGE is lost: it is found in the table.
    target = f"{lake.s3}/lost"
    await follow(lake, str(tmp_path / "orders"), target, 1)
    link.faults = [Fault(is_commit, times=1, is_lost=True)]
    await follow(lake, str(tmp_path / "orders"), target)
    assert await anyio.to_thread.run_sync(lake.ids, target) == WANTED
    assert not link.faults[0].times

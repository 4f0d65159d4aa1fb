"""The delta sink against real Delta tables: the result is read back by delta-rs and by Spark.

On every landing: the daemon that writes to Delta is killed (`faults/test_kill.py`).
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tailer.errors import CommitUnknown, ConfigError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer.sink import Progress
from tailer_sinks.delta import table as delta_table
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.delta.spool import Spool
from tests.integration.delta_writer import SCHEMA, batch, expected_rows
from tests.support.seeds import repeats

APP = "pipeline/3f2a"

pytestmark = pytest.mark.anyio


async def deliver(sink: DeltaSink, version: int, app: str = APP) -> None:
    async with sink.begin(app, SCHEMA) as transaction:
        await transaction.write(batch(app, version))
        await transaction.commit(Progress(app, Position.end(version)))


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(DeltaTable(str(path)).scan()).to_pylist()
    return found


def delivered(path: Path) -> Counter[tuple[str, int, int]]:
    return Counter((row["app"], row["n"], row["_commit_version"]) for row in rows(path))


def up_to(last: int, app: str = APP) -> Counter[tuple[str, int, int]]:
    return Counter(row for version in range(last + 1) for row in expected_rows(app, version))


def fails(*_: object, **__: object) -> None:
    """Replace a write that never reaches the table."""
    raise OSError("connection reset")


def expect(version: int, app: str = APP) -> Progress:
    return Progress(app, Position.end(version))


async def test_a_path_that_is_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkRejected, match="is a file, not a folder"):
        await DeltaSink("target", str(tmp_path / "file")).progress(APP)


async def test_rows_and_progress_arrive_in_one_commit(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    assert await sink.progress(APP) is None
    async with sink.begin(APP, SCHEMA) as transaction:
        for version in (1, 2, 3):
            await transaction.write(batch(APP, version))
        assert not target.exists()
        await transaction.commit(expect(3))
    assert await sink.progress(APP) == expect(3)
    assert delivered(target) == up_to(3)
    (_, commit) = sorted((target / "_delta_log").glob("*.json"))  # the table's creation, then the rows
    assert '"txn":{"appId":"pipeline/3f2a","version":3,"lastUpdated":' in commit.read_text()
    assert '"add":' in commit.read_text()
    seen = await to_thread.run_sync(lambda: spark.read.format("delta").load(str(target)).collect())
    assert Counter((row.app, row.n, row._commit_version) for row in seen) == up_to(3)
    assert {row._change_type for row in seen} == {"insert"}


async def test_a_transaction_without_rows_moves_progress_and_creates_the_table(tmp_path: Path) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target), ["app"])
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.commit(expect(0))
    assert await sink.progress(APP) == expect(0)
    assert rows(target) == []
    assert DeltaTable(str(target)).metadata().partition_columns == ["app"]
    assert pa.schema(DeltaTable(str(target)).schema().to_arrow()).names == SCHEMA.names


async def test_progress_only_goes_forward(tmp_path: Path) -> None:
    sink = DeltaSink("target", str(tmp_path / "target"))
    await deliver(sink, 3)
    for version in (2, 3):
        with pytest.raises(SinkRejected, match="must continue after"):
            await deliver(sink, version)
    with pytest.raises(SinkRejected, match="middle of a version"):
        async with sink.begin(APP, SCHEMA) as transaction:
            await transaction.commit(Progress(APP, Position(4, 0, 7)))
    assert delivered(tmp_path / "target") == Counter(expected_rows(APP, 3))


async def test_reset_never_delivers_rows_that_are_there_once_more(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    for version in (3, 4):
        await deliver(sink, version)
    with pytest.raises(SinkRejected, match="rows of versions after 3") as caught:
        await sink.reset(expect(3))
    assert await sink.progress(APP) == expect(4)
    await to_thread.run_sync(
        spark.sql, f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    await to_thread.run_sync(spark.sql, caught.value.hint)
    await sink.reset(expect(3))
    await deliver(sink, 4)
    assert delivered(target) == Counter(expected_rows(APP, 3) + expected_rows(APP, 4))


async def test_a_commit_of_another_instance_is_not_mistaken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed commit finds its own version in the table, but with another instance's id."""
    target = tmp_path / "target"
    first, second = DeltaSink("first", str(target)), DeltaSink("second", str(target))
    await deliver(first, 1)
    await second.progress(APP)
    async with second.begin(APP, SCHEMA) as transaction:
        await deliver(first, 2)
        monkeypatch.setattr(delta_table, "write_deltalake", fails)
        with pytest.raises(SinkFenced):
            await transaction.commit(expect(2))


async def test_a_lost_answer_is_found_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    write = write_deltalake

    def fails_after(*args: Any, **options: Any) -> None:
        write(*args, **options)
        raise OSError("connection reset")

    monkeypatch.setattr(delta_table, "write_deltalake", fails_after)
    await deliver(sink, 1)
    await deliver(sink, 2)
    monkeypatch.setattr(delta_table, "write_deltalake", fails)
    with pytest.raises(SinkUnavailable, match="connection reset"):
        await deliver(sink, 3)
    monkeypatch.setattr(delta_table, "write_deltalake", write)
    assert await sink.progress(APP) == expect(2)
    await deliver(sink, 3)
    assert delivered(target) == up_to(3)


async def test_an_unreadable_table_after_a_lost_answer_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    await deliver(sink, 1)
    write = write_deltalake

    def breaks(*args: Any, **options: Any) -> None:
        write(*args, **options)
        (target / "_delta_log" / f"{2:020d}.json").rename(tmp_path / "kept")
        (target / "_delta_log" / f"{2:020d}.json").write_text("torn")
        raise OSError("connection reset")

    monkeypatch.setattr(delta_table, "write_deltalake", breaks)
    with pytest.raises(CommitUnknown):
        await deliver(sink, 2)
    monkeypatch.setattr(delta_table, "write_deltalake", write)
    (tmp_path / "kept").rename(target / "_delta_log" / f"{2:020d}.json")
    with pytest.raises(SinkFenced):  # this instance must read its progress first
        await deliver(sink, 2)
    assert await sink.progress(APP) == expect(2)
    assert delivered(target) == up_to(2)


async def test_a_disk_that_fails_under_the_rows_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    await deliver(sink, 1)

    def torn(_: Spool, schema: pa.Schema) -> pa.RecordBatchReader:
        def batches() -> Any:
            yield batch(APP, 3).rows
            raise OSError("Input/output error")

        return pa.RecordBatchReader.from_batches(schema, batches())

    with monkeypatch.context() as patched:
        patched.setattr(Spool, "reader", torn)
        with pytest.raises(SinkUnavailable, match="Input/output error"):
            await deliver(sink, 3)
    assert await sink.progress(APP) == expect(1)
    await deliver(sink, 3)
    assert delivered(target) == Counter(expected_rows(APP, 1) + expected_rows(APP, 3))


def test_large_transactions_go_through_the_disk() -> None:
    spool = Spool(memory_bytes=1000)
    given = [batch(APP, version).rows for version in range(40)]
    for one in given:
        spool.add(one)
    assert spool.on_disk
    assert pa.Table.from_batches(spool.reader(SCHEMA)).equals(pa.Table.from_batches(given))
    spool.close()
    small = Spool()
    assert not small
    small.add(given[4])
    assert small
    assert not small.on_disk
    assert small.reader(SCHEMA).read_all().equals(pa.Table.from_batches(given[4:5]))
    small.close()


def test_rows_of_several_schemas_go_through_the_disk_in_order() -> None:
    spool = Spool(memory_bytes=1000)
    narrow = [pa.record_batch({"n": pa.array(range(at, at + 50), pa.int32())}) for at in range(0, 500, 50)]
    wide = [pa.record_batch({"m": pa.array([str(at)]), "n": pa.array([at], pa.int64())}) for at in range(500, 600)]
    for one in [*narrow, *wide, *narrow]:
        spool.add(one)
    assert spool.on_disk
    schema = pa.schema([("n", pa.int64()), ("m", pa.string())])
    found = spool.reader(schema).read_all()
    assert found.schema.equals(schema)
    assert found["n"].to_pylist() == [*range(600), *range(500)]
    assert found["m"].to_pylist() == [*[None] * 500, *map(str, range(500, 600)), *[None] * 500]
    spool.close()


def writer(path: Path, app: str, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.delta_writer", str(path), app, str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("apps", [(APP, APP), ("a", "b")])
def test_two_processes_race(tmp_path: Path, apps: tuple[str, str]) -> None:
    target, last = tmp_path / "target", repeats(20)
    with writer(target, apps[0], last) as one, writer(target, apps[1], last) as two:
        answers = [process.communicate()[0].splitlines() for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0)
    if apps[0] == apps[1]:
        assert sum(int(lines[1]) for lines in answers) > 0
    assert delivered(target) == sum((up_to(last, app) for app in set(apps)), Counter())


def test_options_are_checked_without_touching_anything(tmp_path: Path) -> None:
    sink = DeltaSink.configure("copy", {"path": str(tmp_path / "target"), "partition_by": ["app"]})
    assert sink.name == "copy"
    assert not (tmp_path / "target").exists()
    for options in (
        {},
        {"path": ""},
        {"path": 3},
        {"path": "x", "partition_by": "a"},
        {"path": "x", "mode": "overwrite"},
    ):
        with pytest.raises(ConfigError, match="copy"):
            DeltaSink.configure("copy", options)

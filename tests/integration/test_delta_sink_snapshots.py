"""The delta sink with a snapshot in several commits: its txns in the log, fencing, and reading by Spark."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from tailer.errors import SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch
from tailer.plan import END, SNAPSHOT_TASKS, Position
from tailer.sink import Progress
from tailer_sinks.delta import table as delta_table
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.testing.announcements import gap
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.snapshots import inside, part
from tailer_sinks.testing.suite import APP, OTHER, SCHEMA, deliver, up_to

pytestmark = pytest.mark.anyio


FIRST = {"orders/#delivered": 1}  # in the first commit of a pipeline
STREAM = "orders/#stream"  # in every commit


async def take(sink: DeltaSink, batch: ChangeBatch) -> None:
    """Commit a part of a snapshot, and the position after it."""
    await deliver(sink, batch, progress=inside(batch))


def ids(target: Path) -> Counter[int]:
    found: list[int] = pa.table(DeltaTable(str(target)).scan(["id"]))["id"].to_pylist()
    return Counter(found)


def wanted(*batches: ChangeBatch) -> Counter[int]:
    return Counter(each for batch in batches for each in batch.rows["id"].to_pylist())


def txns(target: Path) -> list[dict[str, int]]:
    """Return the txns of each commit that has any, without the prefix `APP` in their names."""
    found = []
    for commit in sorted((target / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        if named := {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}:
            named.pop(STREAM, None)
            found.append({name.removeprefix(APP): version for name, version in named.items()})
    return found


async def test_place_and_rows_are_in_one_commit_and_void_with_the_last(tmp_path: Path) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    await take(sink, part(0, 0))
    await take(sink, part(0, 5, first_row=40))
    await deliver(sink, part(0, 6), progress=up_to(APP, 0))
    await deliver(sink, numbered(1))
    assert txns(target) == [
        {"": -1, "#task": SNAPSHOT_TASKS, "#row": 2} | FIRST,
        {"": -1, "#task": SNAPSHOT_TASKS + 5, "#row": 42},
        {"": 0, "#task": END, "#row": END},
        {"": 1},
    ]
    for commit in sorted((target / "_delta_log").glob("*.json"))[1:]:
        assert '"add":' in commit.read_text()


async def test_a_snapshot_in_one_commit_and_changes_need_one_txn(tmp_path: Path) -> None:
    sink = DeltaSink("target", str(tmp_path / "target"))
    await deliver(sink, part(4, 0), part(4, 1), progress=up_to(APP, 4))
    await deliver(sink, numbered(5))
    assert txns(tmp_path / "target") == [{"": 4} | FIRST, {"": 5}]


async def test_a_snapshot_after_a_gap_closes_the_lost_versions(tmp_path: Path) -> None:
    sink = DeltaSink("target", str(tmp_path / "target"))
    await deliver(sink, numbered(2))
    first, again = part(8, 0), part(9, 0)
    await deliver(sink, gap(3, 8, snapshot=True), first, progress=inside(first))
    await deliver(sink, gap(8, 9, snapshot=True), again, progress=inside(again))
    await deliver(sink, gap(9, 11))
    assert txns(tmp_path / "target") == [
        {"": 2} | FIRST,
        {"": 7, "#task": SNAPSHOT_TASKS, "#row": 2},
        {"": 8, "#task": SNAPSHOT_TASKS, "#row": 2},
        {"": 11, "#task": END, "#row": END},
    ]


async def test_a_table_that_knows_no_places_is_at_the_end_of_a_version(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_deltalake(
        str(target),
        pa.Table.from_batches([numbered(3).rows]),
        commit_properties=CommitProperties(app_transactions=[Transaction(APP, 3)]),
    )
    sink = DeltaSink("target", str(target))
    assert await sink.progress(APP) == up_to(APP, 3)
    await deliver(sink, gap(4, 6, snapshot=True), part(6, 0), progress=inside(part(6, 0)))
    assert await sink.progress(APP) == inside(part(6, 0))


def open_and_read(target: Path, in_between: Callable[[], None]) -> list[Any]:
    """Read the three txns from one `DeltaTable`, with a change of the table between opening and reading."""
    table = DeltaTable(str(target))
    in_between()
    return [table.transaction_version(f"{APP}{suffix}") for suffix in ("", "#task", "#row")]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_txns_of_one_table_object_are_consistent(tmp_path: Path, checkpointed: bool) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    for file in range(3):
        await take(sink, part(5, file))

    def another() -> None:
        transactions = [Transaction(f"{APP}{suffix}", 99) for suffix in ("", "#task", "#row")]
        rows = pa.Table.from_batches([numbered(99).rows])
        properties = CommitProperties(app_transactions=transactions)
        write_deltalake(str(target), rows, mode="append", commit_properties=properties)
        if checkpointed:
            DeltaTable(str(target)).create_checkpoint()

    assert await to_thread.run_sync(open_and_read, target, another) == [4, SNAPSHOT_TASKS + 2, 2]


async def test_a_snapshot_only_goes_forward(tmp_path: Path) -> None:
    sink = DeltaSink("target", str(tmp_path / "target"))
    await deliver(sink, numbered(5))
    await take(sink, part(7, 3))
    for position in (inside(part(7, 3)).position, Position(7, SNAPSHOT_TASKS, 99), Position.end(6)):
        with pytest.raises(SinkRejected, match="must continue after"):
            await deliver(sink, part(7, 4), progress=Progress(APP, position))
    with pytest.raises(SinkRejected, match="middle of a version"):
        await deliver(sink, numbered(8), progress=Progress(APP, Position(8, 2, 1)))
    await deliver(sink, part(7, 4), progress=up_to(APP, 7))
    with pytest.raises(SinkRejected, match="must continue after"):
        await take(sink, part(7, 5))
    assert ids(tmp_path / "target") == wanted(numbered(5), part(7, 3), part(7, 4))


async def test_a_lost_answer_inside_a_snapshot_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    sink, other = DeltaSink("target", str(target)), DeltaSink("other", str(target))
    write = write_deltalake

    def fails_after(*args: Any, **options: Any) -> None:
        write(*args, **options)
        raise OSError("connection reset")

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("connection reset")

    monkeypatch.setattr(delta_table, "write_deltalake", fails_after)
    await take(sink, part(0, 0))
    await take(sink, part(0, 1))
    monkeypatch.setattr(delta_table, "write_deltalake", fails)
    with pytest.raises(SinkUnavailable, match="connection reset"):
        await take(sink, part(0, 2))
    assert await sink.progress(APP) == await other.progress(APP) == inside(part(0, 1))
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.write(part(0, 2))
        monkeypatch.setattr(delta_table, "write_deltalake", write)
        await take(other, part(0, 2))
        monkeypatch.setattr(delta_table, "write_deltalake", fails)
        with pytest.raises(SinkFenced):  # that position is in the table now, but from another instance
            await transaction.commit(inside(part(0, 2)))
    assert ids(target) == wanted(part(0, 0), part(0, 1), part(0, 2))


async def test_reset_to_before_half_a_snapshot_needs_its_rows_gone(tmp_path: Path, spark: SparkSession) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    await deliver(sink, numbered(6))
    await take(sink, part(7, 0))
    with pytest.raises(SinkRejected, match="rows of versions after 6") as caught:
        await sink.reset(up_to(APP, 6))
    with pytest.raises(SinkRejected, match="middle of a version"):
        await sink.reset(inside(part(7, 0)))
    assert await sink.progress(APP) == inside(part(7, 0))
    await to_thread.run_sync(spark.sql, caught.value.hint)
    await sink.reset(up_to(APP, 6))
    assert txns(target)[-1] == {"": 6, "#task": END, "#row": END}
    await deliver(sink, numbered(7))
    assert await DeltaSink("another", str(target)).progress(APP) == up_to(APP, 7)
    assert ids(target) == wanted(numbered(6), numbered(7))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("closed", [False, True])
async def test_spark_keeps_the_place(tmp_path: Path, spark: SparkSession, closed: bool) -> None:
    """Spark's OPTIMIZE, its checkpoint as the only record, and its view of the txns, -1 and END among them."""
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    parts = [part(0, file) for file in range(3)]
    await take(sink, parts[0])
    await deliver(sink, numbered(1), app_id=OTHER)
    assert await sink.progress(APP) == inside(parts[0])
    await deliver(sink, parts[1], progress=up_to(APP, 0) if closed else inside(parts[1]))
    expected = up_to(APP, 0) if closed else inside(parts[1])
    for statement in (
        f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')",
        f"OPTIMIZE delta.`{target}`",
    ):
        await to_thread.run_sync(spark.sql, statement)
    before = await to_thread.run_sync(forget_before_checkpoint, target)
    assert before > 3
    assert await sink.progress(APP) == expected
    assert await sink.progress(OTHER) == up_to(OTHER, 1)
    await deliver(sink, numbered(1) if closed else parts[2], progress=None if closed else up_to(APP, 0))
    assert await DeltaSink("another", str(target)).progress(APP) == up_to(APP, 1 if closed else 0)
    seen = await to_thread.run_sync(lambda: spark.read.format("delta").load(str(target)).collect())
    delivered = [*parts[:2], numbered(1), numbered(1)] if closed else [*parts, numbered(1)]
    assert Counter(row.id for row in seen) == wanted(*delivered)


def forget_before_checkpoint(target: Path) -> int:
    """Delete the commits before the newest checkpoint; return their number."""
    log = target / "_delta_log"
    newest = max(int(file.name[:20]) for file in log.glob("*.checkpoint*.parquet"))
    covered = [file for file in log.glob("*.json") if file.name[0] == "0" and int(file.name[:20]) < newest]
    for file in covered:
        file.unlink()
    return len(covered)

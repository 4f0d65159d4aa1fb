"""Statistics of files in Delta's log: decoded where they are wanted, whatever they are, and nowhere else."""

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.config.tables import TableRef
from tailer.formats.delta.checkpoints.add_columns import ADD_COLUMNS_WITH_STATISTICS, read_columns, read_files
from tailer.formats.delta.log.actions import AddFile, AddWithStatistics, parse_commit
from tailer.formats.delta.log.listing import LOG
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Policy
from tailer.plan import TaskKind
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tests.support.tables.log_files import add, checkpoint, inline_vector, metadata, protocol, remove, write_commit

STATS: Final = '{"numRecords":3}'
HEAD: Final = (protocol(3, ["deletionVectors", "v2Checkpoint"]), metadata())


async def tasks_of(log: DeltaTableLog, start: int) -> list[tuple[str, str | None]]:
    await log.seek(start)
    plan = await log.next_plan()
    assert plan is not None
    return [(task.kind.value, task.stats) for task in plan.tasks]


async def snapshot_of(log: DeltaTableLog) -> dict[str, str | None]:
    return {Path(task.uri).name: task.stats async for plan in log.snapshot_plans(1) for task in plan.tasks}


@pytest.mark.anyio
async def test_commits(tmp_path: Path) -> None:
    before, after = inline_vector([0]), inline_vector([0, 1])
    write_commit(tmp_path, 0, *HEAD, add("f0", stats=STATS), add("f1", before, stats=STATS), add("f2"))
    odd = [add(f"g{number}", stats=value) for number, value in enumerate([7, {"numRecords": 3}, None, "", "{"])]
    changes = [remove("f0", stats="of f0"), remove("f2"), remove("f1", before), add("f1", after, stats="new")]
    write_commit(tmp_path, 1, *changes, *odd)
    for wanted in (True, False):
        log = DeltaTableLog(LocalStore(tmp_path), statistics=wanted)
        assert await tasks_of(log, 0) == [("insert", STATS if wanted and number < 2 else None) for number in range(3)]
        deleted = [("delete", "of f0" if wanted else None), ("delete", None), ("delete", None)]
        inserted = [("insert", text if wanted else None) for text in ("new", None, None, None, "", "{")]
        assert await tasks_of(log, 1) == deleted + inserted


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["commits", "classic", "json"])
async def test_snapshots(tmp_path: Path, kind: str) -> None:
    files = [add("f0", stats=STATS), add("f1"), add("f2", inline_vector([0]), stats="{")]
    write_commit(tmp_path, 0, *HEAD, *files)
    if kind == "classic":
        checkpoint(tmp_path / LOG / f"{0:020d}.checkpoint.parquet", *HEAD, *files)
    elif kind == "json":
        lines = [*HEAD, {"checkpointMetadata": {"version": 0}}, *files, add("f3", stats=7)]
        path = tmp_path / LOG / f"{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
        path.write_text("\n".join(map(json.dumps, lines)))
    write_commit(tmp_path, 1, add("f4", stats=["x"]), add("f5", stats="5"))
    found = {"f0": STATS, "f1": None, "f2": "{", "f4": None, "f5": "5"} | ({"f3": None} if kind == "json" else {})
    assert await snapshot_of(DeltaTableLog(LocalStore(tmp_path), statistics=True)) == found
    assert await snapshot_of(DeltaTableLog(LocalStore(tmp_path))) == dict.fromkeys(found)


@pytest.mark.parametrize("stats", [pa.array(["5"]), pa.array(["5"], pa.large_string()), pa.array([5])], ids=str)
def test_checkpoints_of_other_types(stats: pa.Array) -> None:
    maps = pa.array([[]], pa.map_(pa.string(), pa.string()))
    columns = {"path": pa.array(["f"]), "partitionValues": maps, "size": pa.array([1]), "dataChange": pa.array([True])}
    adds = pa.StructArray.from_arrays([*columns.values(), stats], [*columns, "stats"])
    (found,) = read_files(read_columns(adds, ADD_COLUMNS_WITH_STATISTICS))
    assert found == AddWithStatistics("f", {}, 1, True, stats=None if stats.type == pa.int64() else "5")
    assert read_files(read_columns(adds)) == [AddFile("f", {}, 1, True)]


@pytest.mark.anyio
async def test_opening_a_table(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, *HEAD, add("f0", stats=STATS))
    for wanted, expected in ((True, STATS), (False, None)):
        log = TableRef(str(tmp_path)).open(policy=Policy(where="true" if wanted else None))
        await log.seek((await log.resolve(Start(StartKind.EARLIEST))).version)
        plan = await log.next_plan()
        assert plan is not None
        assert [(task.kind, task.stats) for task in plan.tasks] == [(TaskKind.INSERT, expected)]


def test_files_without_statistics_take_no_more_memory() -> None:
    lines: list[Any] = [*HEAD, add("f0", stats=STATS)]
    (found,) = parse_commit("\n".join(map(json.dumps, lines)).encode(), "t", "p", 0, 0).adds
    assert type(found) is AddFile
    assert not hasattr(found, "stats")

"""Change files that are decoded once: the same rows at the same places, whatever of them is kept."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.engine import local
from tailer.engine.local import LocalEngine
from tailer.errors import DataCorrupt
from tailer.events import ChangeBatch
from tailer.formats.rows import execute
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan, ChangeTask, Position, TaskKind
from tailer.read import decoded_files
from tailer.read.data_files import DataFile, DataFiles
from tailer.read.decoded_files import Budget, DecodedFiles, change_file_tasks
from tests.support.follow import plans
from tests.support.tables.log_files import cdc, metadata, protocol, schema_string, write_commit

TYPES = ("insert", "update_preimage", "update_postimage", "delete")
Row = tuple[int, int, dict[str, Any]]


class Counted(DataFiles):
    """Local files; `opened` are those that were opened, in order."""

    opened: ClassVar[list[str]] = []

    def open(self, uri: str, needed_bytes: int = 0) -> DataFile:
        self.opened.append(Path(uri).name)
        return super().open(uri, needed_bytes)


def rows(batches: Iterator[ChangeBatch] | list[ChangeBatch]) -> list[Row]:
    """Return task, position and values of each row."""
    return [
        (batch.task, position, row)
        for batch in batches
        for position, row in zip(batch.row_index.to_pylist(), batch.rows.to_pylist(), strict=True)
    ]


def read(plan: ChangePlan, after: Position | None = None, files: DataFiles | None = None) -> list[Row]:
    """Read a version alone."""
    found: list[ChangeBatch] = []
    read_until_error([plan], found, after, files)
    return rows(found)


def read_until_error(
    plans: Sequence[ChangePlan],
    found: list[ChangeBatch],
    after: Position | None = None,
    files: DataFiles | None = None,
) -> None:
    async def run() -> None:
        async with LocalEngine(2, files or DataFiles()).run(plans, after) as batches:
            async for batch in batches:
                found.append(batch)  # noqa: PERF401 - those before an error are kept

    anyio.run(run)


def read_together(plan: ChangePlan, files: DataFiles | None = None) -> list[Row]:
    """Read a version as one of several small ones."""
    found: list[ChangeBatch] = []
    read_until_error([plan, replace(plan, version=plan.version + 1, tasks=())], found, files=files)
    return rows(found)


def change_plan(path: Path, seed: int, files: int = 3, most_rows: int = 1200, select: str | None = None) -> ChangePlan:
    """Write change files of random rows, some without deletes, some with nothing else, and plan their version."""
    chosen = random.Random(seed)
    write_commit(path, 0, protocol(), metadata(schema_string(id="long", text="string")))
    actions = []
    for number in range(files):
        count = chosen.randrange(1, most_rows)
        types = chosen.choice([TYPES, TYPES, TYPES[:3], TYPES[3:]])
        table = pa.table(
            {
                "id": pa.array(range(count), pa.int64()),
                "text": [f"{number} {chosen.random()}" for _ in range(count)],
                "_change_type": chosen.choices(types, k=count),
            }
        )
        name = f"cdc-{number}.parquet"
        pq.write_table(table, path / name, row_group_size=chosen.choice([50, 500, 10_000]))
        actions.append(cdc(name, size=(path / name).stat().st_size))
    write_commit(path, 1, *actions)
    _, plan = plans(path)
    return Policy(select=select).shape(plan)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("select", [None, "id * 2 AS twice, *"])
@pytest.mark.parametrize("kept_bytes", [0, 20_000, 2**20])
@pytest.mark.parametrize("seed", range(4))
def test_the_rows_are_those_of_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kept_bytes: int, select: str | None
) -> None:
    plan = change_plan(tmp_path, seed, select=select)
    wanted = [row for task in plan.tasks for row in rows(execute(task))]
    monkeypatch.setattr(decoded_files, "BUDGET_BYTES", kept_bytes)
    assert read_together(plan) == wanted
    monkeypatch.setattr(local, "READ_BYTES", 1)
    monkeypatch.setattr(local, "CHUNK_BYTES", 1)
    assert read(plan) == wanted
    for task, position, _ in random.Random(seed).sample(wanted, 2):
        after = Position(plan.version, task, position)
        assert read(plan, after) == [row for row in wanted if row[:2] > (task, position)]


def test_each_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, files = change_plan(tmp_path, 1), Counted()
    names = [Path(task.uri).name for task in plan.tasks[:3]]
    files.opened.clear()
    read(plan, files=files)
    assert sorted(files.opened) == names
    files.opened.clear()
    read_together(plan, files)
    assert sorted(files.opened) == names
    monkeypatch.setattr(decoded_files, "BUDGET_BYTES", 0)
    files.opened.clear()
    read(plan, files=files)
    assert set(files.opened) == set(names)
    assert len(files.opened) > len(names)


def test_an_error_comes_after_the_rows_before_it(tmp_path: Path) -> None:
    plan = change_plan(tmp_path, 2)
    wanted = [row for task in plan.tasks[:1] for row in rows(execute(task))]
    second = Path(plan.tasks[1].uri)
    second.write_bytes(second.read_bytes()[:-20] + bytes(20))
    found: list[ChangeBatch] = []
    with pytest.raises(DataCorrupt):
        read_until_error([plan], found)
    assert rows(found) == wanted


def delivered(rows_of: DecodedFiles, task: ChangeTask) -> Iterator[ChangeBatch]:
    return rows_of.deliver(task, files=DataFiles(), use_threads=False)


def decoded_with_deletes(plan: ChangePlan, budget: Budget) -> DecodedFiles:
    """Deliver the deletes of a version, so that the other rows of its files are in memory."""
    decoded = DecodedFiles(execute, budget)
    decoded.expect(change_file_tasks([(task, -1) for task in plan.tasks]))
    for task in plan.tasks:
        if task.kind is TaskKind.CDC_DELETES:
            list(delivered(decoded, task))
    return decoded


def test_rows_that_were_given_up_when_they_are_due_are_read_again(tmp_path: Path) -> None:
    plan = change_plan(tmp_path, 1)
    task = plan.tasks[3]
    decoded = decoded_with_deletes(plan, Budget())
    assert decoded.has(task)
    lock = decoded._lock

    class OtherThread:
        """Gives rows up before the lock is got."""

        def __enter__(self) -> None:
            decoded._lock = lock
            decoded.release()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    decoded._lock = OtherThread()  # type: ignore[assignment]
    assert rows(delivered(decoded, task)) == rows(execute(task))


def test_memory_is_taken_until_rows_are_delivered(tmp_path: Path) -> None:
    plan, budget = change_plan(tmp_path, 5), Budget()
    decoded = decoded_with_deletes(plan, budget)
    assert sum(batch.size_bytes for task in plan.tasks[3:] for batch in execute(task)) == budget.used_bytes
    for task in plan.tasks[3:]:
        before = budget.used_bytes
        assert {budget.used_bytes for _ in delivered(decoded, task)} == {before}
    assert budget.used_bytes == 0

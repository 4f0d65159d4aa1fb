"""Images that lie side by side in change files: the same rows at the same places as by comparing them."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.changelog import compared_tasks
from tailer.changelog.carryovers import ChangelogCounts
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine import local
from tailer.engine.local import LocalEngine
from tailer.errors import DataCorrupt
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position
from tests.support.follow import plans
from tests.support.tables.log_files import cdc, metadata, protocol, schema_string, write_commit

Row = tuple[int, int, dict[str, Any]]
KEY = ("id",)


class Reading:
    """Reads a version as a keyed pipeline does."""

    def __init__(self, rules: PairingRules) -> None:
        self._rules = rules
        self.counts = ChangelogCounts()

    def read(self, plan: ChangePlan, after: Position | None = None) -> list[Row]:
        return [row for batch in self.batches(plan, after) for row in rows_of(batch)]

    def batches(self, plan: ChangePlan, after: Position | None = None) -> list[ChangeBatch]:
        def note(_: ChangePlan, counts: ChangelogCounts) -> None:
            self.counts = counts

        async def run() -> list[ChangeBatch]:
            engine = ChangelogEngine(LocalEngine(2), self._rules, note)
            async with engine.run([plan], after) as batches:
                return [batch async for batch in batches]

        return anyio.run(run)


def rows_of(batch: ChangeBatch) -> list[Row]:
    places = zip(batch.row_index.to_pylist(), batch.rows.to_pylist(), strict=True)
    return [(batch.task % 2**20, position, row) for position, row in places]


def write_version(path: Path, *files: list[tuple[Any, str]], group: int = 1000) -> ChangePlan:
    """Write change files of keys and change types, and plan their version."""
    write_commit(path, 0, protocol(), metadata(schema_string(id="long", note="string")))
    actions = []
    for number, changes in enumerate(files):
        table = pa.table(
            {
                "id": pa.array([key for key, _ in changes], pa.int64()),
                "note": [f"{number} {at}" for at in range(len(changes))],
                "_change_type": pa.array([kind for _, kind in changes], pa.string()),
            }
        )
        name = f"cdc-{number}.parquet"
        pq.write_table(table, path / name, row_group_size=group)
        actions.append(cdc(name, size=(path / name).stat().st_size))
    write_commit(path, 1, *actions)
    _, plan = plans(path)
    return plan


def update(key: Any) -> list[tuple[Any, str]]:
    return [(key, "update_preimage"), (key, "update_postimage")]


def random_changes(chosen: random.Random, keys: list[int], count: int) -> list[tuple[Any, str]]:
    changes: list[tuple[Any, str]] = []
    for _ in range(count):
        key = chosen.choice(keys)
        changes += chosen.choice([update(key), update(key), [(key, "insert")], [(key, "delete")]])
    return changes


def by_comparing(monkeypatch: pytest.MonkeyPatch, plan: ChangePlan, rules: PairingRules) -> list[Row]:
    with monkeypatch.context() as patched:
        patched.setattr(compared_tasks, "can_lie_side_by_side", lambda _: False)
        return Reading(rules).read(plan)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("group", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_the_rows_are_those_of_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, group: int
) -> None:
    """Keys occur several times; inserts meet deletes of their key; batches end between the images of an update."""
    chosen = random.Random(seed)
    keys = list(range(chosen.choice([5, 1000])))
    plan = write_version(tmp_path, *(random_changes(chosen, keys, 20) for _ in range(3)), group=group)
    rules = PairingRules(compute_updates=True, key=KEY, null_keys=True)
    wanted = by_comparing(monkeypatch, plan, rules)
    monkeypatch.setattr(local, "READ_BYTES", 1)
    reading = Reading(rules)
    assert reading.read(plan) == wanted
    assert reading.counts.in_place
    numbers = {batch.task % 2**20: batch.task for batch in reading.batches(plan)}
    for task, position, _ in chosen.sample(wanted, 3):
        # A sink that holds a pair back is at the row before it, which is where the preimage lies.
        for row in (position, position - 1):
            after = Position(1, numbers[task], row)
            assert reading.read(plan, after) == [each for each in wanted if each[:2] > (task, row)]


def test_updates_of_the_writer_are_not_counted(tmp_path: Path) -> None:
    """Wherever they lie, only deletes and inserts that were made an update count."""
    rules = PairingRules(compute_updates=True, key=KEY)
    both: list[tuple[Any, str]] = [(9, "delete"), (9, "insert")]
    for number, images in enumerate([[*update(1), *update(2)], [*update(1), *reversed(update(2))]]):
        reading = Reading(rules)
        reading.read(write_version(tmp_path / str(number), images + both))
        assert reading.counts.in_place is (number == 0)
        assert reading.counts.updates == 1


def test_both_images_come_in_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [change for key in range(20) for change in update(key)]
    plan = write_version(tmp_path, changes, group=3)
    monkeypatch.setattr(local, "READ_BYTES", 1)
    for batch in Reading(PairingRules(compute_updates=True, key=KEY)).batches(plan):
        types = batch.rows["_change_type"].to_pylist()
        assert types == ["update_preimage", "update_postimage"] * (len(types) // 2)
        assert batch.row_index.to_pylist()[::2] == batch.row_index.to_pylist()[1::2]


@pytest.mark.parametrize(
    "changes",
    [
        [*update(1), *reversed(update(2))],
        [(1, "update_preimage"), (2, "update_preimage"), (1, "update_postimage"), (2, "update_postimage")],
        [(1, "update_preimage"), (2, "update_postimage"), *update(3)],
        [*update(1), (2, "update_preimage")],
        [(2, "update_postimage"), *update(1)],
        [*update(None), *update(1)],
    ],
    ids=["after first", "apart", "another key", "no postimage", "no preimage", "null"],
)
def test_other_images_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: list[tuple[Any, str]]
) -> None:
    for group in (1, 2, 1000):
        plan = write_version(tmp_path / str(group), changes, group=group)
        rules = PairingRules(compute_updates=True, key=KEY)
        reading = Reading(rules)
        assert reading.read(plan) == by_comparing(monkeypatch, plan, rules)
        assert not reading.counts.in_place


@pytest.mark.parametrize("files", [1, 2])
def test_a_preimage_without_its_postimage_is_no_end(tmp_path: Path, files: int) -> None:
    """A file that changes between comparison and delivery loses no row in silence."""
    plan = write_version(tmp_path, *([*update(number), *update(9)] for number in range(files)), group=3)
    rules = PairingRules(compute_updates=True, key=KEY)

    class Cut(LocalEngine):
        @asynccontextmanager
        async def run(
            self, plans: Sequence[ChangePlan], after: Position | None = None
        ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
            async with super().run(plans, after) as batches:
                yield (batch async for batch in batches if batch.row_index[0].as_py() < 3)

    async def run() -> None:
        async with ChangelogEngine(Cut(2), rules).run([plan]) as batches:
            async for _ in batches:
                pass

    with pytest.raises(DataCorrupt, match=r"cdc-0.parquet: it lost a postimage"):
        anyio.run(run)


def test_equal_nulls_are_a_key_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = write_version(tmp_path, [*update(None), *update(1)])
    rules = PairingRules(compute_updates=True, key=KEY, null_keys=True)
    reading = Reading(rules)
    assert reading.read(plan) == by_comparing(monkeypatch, plan, rules)
    assert reading.counts.in_place

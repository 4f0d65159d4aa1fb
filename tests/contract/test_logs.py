"""The contract of `TableLog` and of the reader of its rows, over every format: what each log promises to the spine."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.config.tables import TableRef
from tailer.errors import ConfigError, NotATable, VersionAhead
from tailer.formats.registry import format_of
from tailer.formats.rows import execute
from tailer.plan import ChangePlan
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.table_log import TableLog
from tests.support.iceberg.table import IcebergTable
from tests.support.toy.table import SCHEMA, ToyTable, installed

pytestmark = pytest.mark.anyio

Rows = Counter[tuple[object, ...]]
DELETES: Final = ("delete", "update_preimage")


@dataclass
class Written:
    """A table, and its rows at each version: the ids, which a row's name repeats."""

    format: str
    path: Path
    rows: dict[int, list[int]]

    def open(self) -> TableLog:
        """Open its log."""
        return TableRef(str(self.path)).open()

    def at(self, version: int) -> Rows:
        """Return the rows at a version."""
        return Counter((each, f"n{each}") for each in self.rows.get(version, ()))


def arrow(ids: range) -> pa.Table:
    """Return rows with these ids."""
    return pa.table([pa.array(ids, pa.int64()), pa.array([f"n{each}" for each in ids])], schema=SCHEMA)


def delta(path: Path) -> Written:
    """Write versions that add rows, and delete some by rewriting files."""
    written = Written("delta", path, {})
    for ids, gone in ((range(5), "id = 1"), (range(5, 9), "id > 6")):
        write_deltalake(path, arrow(ids), mode="append")
        DeltaTable(path).delete(gone)
    written.rows = {0: [*range(5)], 1: [0, 2, 3, 4], 2: [0, *range(2, 9)], 3: [0, *range(2, 7)]}
    return written


def of_lance(path: Path) -> Written:
    """Write versions that add rows, and delete some by files of deletions."""
    written = Written("lance", path, {})
    for ids, gone in ((range(5), "id = 1"), (range(5, 9), "id > 6")):
        lance.write_dataset(arrow(ids), path, mode="append" if path.exists() else "create")
        lance.dataset(path).delete(gone)
    written.rows = {1: [*range(5)], 2: [0, 2, 3, 4], 3: [0, *range(2, 9)], 4: [0, *range(2, 7)]}
    return written


def toy(path: Path) -> Written:
    """Write versions of a format that is not ours."""
    table = ToyTable(path).write_history()
    return Written("toy", path, dict(enumerate(table.history)))


def toy_with_gaps(path: Path) -> Written:
    """Write versions of that format whose numbers have gaps."""
    table = ToyTable(path, step=3).write_history()
    return Written("toy", path, {3 * number + 2: rows for number, rows in enumerate(table.history)})


def iceberg(path: Path) -> Written:
    """Write versions that add rows, and delete some by files of positions and of keys; one is of another branch."""
    table = IcebergTable(path)
    kept = table.data({"id": [*range(5)], "name": [f"n{number}" for number in range(5)]})
    table.commit([kept])
    table.commit([table.positions([(kept, 1)])])
    table.commit([table.data({"id": [99], "name": ["n99"]})], branch="other")
    table.commit([table.data({"id": [*range(5, 9)], "name": [f"n{number}" for number in range(5, 9)]})])
    table.commit([table.equality({"id": [7, 8]}, {"id": 1})])
    rows = {1: [*range(5)], 2: [0, 2, 3, 4], 4: [0, *range(2, 9)], 5: [0, *range(2, 7)]}
    return Written("iceberg", path, rows)


WRITERS: Final[dict[str, Callable[[Path], Written]]] = {
    "delta": delta,
    "lance": of_lance,
    "iceberg": iceberg,
    "toy": toy,
    "toy with gaps": toy_with_gaps,
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    """Install the format that is not ours."""
    with installed(tmp_path / "packages"):
        yield


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    """A table of each format."""
    return WRITERS[request.param](tmp_path / "table")


def changes(plan: ChangePlan) -> tuple[Rows, Rows]:
    """Return the rows that a plan inserts and deletes, and check its positions."""
    found: dict[bool, Rows] = {True: Counter(), False: Counter()}
    for task in plan.tasks:
        last = -1
        for batch in execute(task):
            positions: list[Any] = batch.row_index.to_pylist()
            assert positions == sorted(positions)
            assert positions[0] > last
            last = positions[-1]
            for row in batch.rows.to_pylist():
                assert row["_commit_version"] == plan.version
                found[row["_change_type"] in DELETES][row["id"], row["name"]] += 1
    return found[False], found[True]


async def plans(log: TableLog, first: int) -> list[ChangePlan]:
    """Return all plans from a version on."""
    await log.seek(first)
    found = []
    while (plan := await log.next_plan()) is not None:
        found.append(plan)
    return found


async def test_a_table_is_recognised(written: Written) -> None:
    assert format_of(str(written.path)).name == written.format
    there = format_of(str(written.path))
    assert await there.is_in(LocalStore(written.path), "")
    assert await there.is_in(LocalStore(written.path.parent), "table")
    assert not await there.is_in(LocalStore(written.path.parent), "other")
    names = [each.name for each in await LocalStore(written.path).list(there.log_folder)]
    # A version of Iceberg's metadata is no version of rows.
    numbers = set(range(1, 6)) if written.format == "iceberg" else set(written.rows)
    assert set(there.versions(names)) == numbers


async def test_the_fold_of_all_changes_is_the_table_at_each_version(written: Written) -> None:
    rows: Rows = Counter()
    found = await plans(written.open(), min(written.rows))
    assert [plan.version for plan in found] == list(written.rows)
    for plan in found:
        inserted, deleted = changes(plan)
        assert not deleted - (rows + inserted)
        rows = rows + inserted - deleted
        assert rows == written.at(plan.version)


async def test_plans_are_the_same_from_any_version_on(written: Written) -> None:
    whole = await plans(written.open(), min(written.rows))
    for number, plan in enumerate(whole):
        assert await plans(written.open(), plan.version) == whole[number:]
        assert [task.index for task in plan.tasks] == list(range(len(plan.tasks)))


@pytest.mark.parametrize("most", [1, 2, 100])
async def test_plans_made_together_are_the_same(written: Written, most: int) -> None:
    log, first = written.open(), min(written.rows)
    await log.seek(first)
    found: list[ChangePlan] = []
    while together := await log.next_plans(most):
        assert len(together) <= most
        found += together
    assert found == await plans(written.open(), first)
    assert await log.next_plan() is None


async def test_a_snapshot_has_all_rows_of_its_version(written: Written) -> None:
    for version in written.rows:
        inserted, deleted = Counter[tuple[object, ...]](), Counter[tuple[object, ...]]()
        async for plan in written.open().snapshot_plans(version):
            found = changes(plan)
            inserted, deleted = inserted + found[0], deleted + found[1]
            assert all(task.index in range(2**62, 2**63) for task in plan.tasks)
        assert (inserted, deleted) == (written.at(version), Counter())


async def test_plans_travel(written: Written) -> None:
    for plan in await plans(written.open(), min(written.rows)):
        for again in (pickle.loads(pickle.dumps(plan)), ChangePlan.from_json(plan.to_json())):
            assert again == plan
            assert changes(again) == changes(plan)


async def test_the_place_in_a_log(written: Written) -> None:
    log, first, last = written.open(), min(written.rows), max(written.rows)
    assert (await log.latest(), await log.ids(first)) == (last, (await log.table_id(),))
    assert (await log.resolve(Start.at("earliest"))).version == first
    assert (await log.resolve(Start.at("latest"))).version == last + 1
    snapshot = await log.resolve(Start.at("snapshot"))
    assert (snapshot.version, snapshot.snapshot) == (last, True)
    assert await log.resolve_end(Start.at("latest", "end")) == last
    assert await log.seek(last + 1) is not None
    assert await log.next_plan() is None
    assert log.state_id == await log.table_id()
    with pytest.raises(VersionAhead):
        await log.seek(last + 2)


@pytest.mark.parametrize("name", ["delta", "lance", "iceberg", "toy"])
async def test_there_is_no_table(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotATable, match="there is no such folder"):
        await TableRef(str(tmp_path / "none"), table_format=name).open().latest()


async def test_a_format_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="table_format: 'tyo' is no format of a table"):
        TableRef(str(tmp_path), table_format="tyo").open()

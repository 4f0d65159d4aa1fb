"""Micro-batch limits: so many files, rows or bytes, and the end before an undeliverable version."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import lance
import pyarrow as pa
import pytest

from tailer.changelog.rules import PairingRules
from tailer.config.tables import TableRef
from tailer.errors import ConfigError, FileVacuumed, SchemaChanged, TableReplaced, TailerError, VersionAhead
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan, ChangeTask, Position
from tailer.spark.source.admission import Admission, Budget
from tailer.spark.source.plan_cache import Place, View
from tailer.spark.splits import DiffSplit, FileSlice, FilesSplit, NetChangesSplit, diff_splits, file_splits, read_split
from tailer.start import StartPoint
from tailer.stores.local import LocalStore
from tests.support.follow import plans
from tests.support.spark.batches import KEEP, PlainView, feed_all, places_of
from tests.support.tables.log_files import (
    add,
    commit_info,
    metadata,
    parquet,
    protocol,
    remove,
    schema_string,
    task,
    write_commit,
)

SCHEMA: Final = pa.schema([("a", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write version 1 with a file of 100 rows in 10 row groups, 2 without files, 3 with three files of 5 rows each."""
    write_commit(tmp_path, 0, protocol(), metadata(**{"delta.enableChangeDataFeed": "true"}))
    write_commit(tmp_path, 1, _file(tmp_path, "large", 100))
    write_commit(tmp_path, 2, commit_info(operation="OPTIMIZE"))
    write_commit(tmp_path, 3, *(_file(tmp_path, f"small-{index}", 5) for index in range(3)))
    return tmp_path


def _file(table: Path, name: str, rows: int) -> dict[str, Any]:
    file = parquet(table / name, pa.table([list(range(rows))], SCHEMA), row_group_size=10)
    return add(name, size=file.stat().st_size)


def size(table: Path, name: str) -> int:
    """Return the size of a file in bytes."""
    return (table / name).stat().st_size


def ends(table: Path, budget: Budget, rules: PairingRules = KEEP) -> list[Position]:
    """Return the ends of all batches."""
    fed = feed_all(table, StartPoint(0), budget, rules)
    assert fed.rows == places_of(table, rules)
    return [place.position for place in fed.places]


async def advance(table: Path, view: View, after: Place | None = None) -> Place:
    admission = Admission(DeltaTableLog(LocalStore(table)), view, KEEP)
    return await admission.advance(after or await admission.start(StartPoint(0)), Budget())


def test_files(table: Path) -> None:
    second = Position(3, 1)
    assert ends(table, Budget(max_files=2)) == [Position(3, 0), Position.end(3)]
    assert ends(table, Budget(max_files=1)) == [Position.end(2), Position(3, 0), second, Position.end(3)]


def test_fragments_of_a_lance_dataset_are_its_files(tmp_path: Path) -> None:
    lance.write_dataset(pa.table([list(range(10))], SCHEMA), tmp_path / "t", max_rows_per_file=1)

    async def found(budget: Budget, rules: PairingRules) -> list[Position]:
        admission = Admission(TableRef(str(tmp_path / "t")).open(), PlainView(), rules)
        places = [await admission.start(StartPoint(1))]
        while len(places) == 1 or places[-1] != places[-2]:
            places.append(await admission.advance(places[-1], budget))
        return [place.position for place in places[1:-1]]

    ends = [Position(1, 3), Position(1, 7), Position.end(1)]
    assert anyio.run(found, Budget(max_files=4), KEEP) == ends
    assert anyio.run(found, Budget(max_rows=4), KEEP) == ends
    lance.write_dataset(pa.table([list(range(10))], SCHEMA), tmp_path / "t", max_rows_per_file=1, mode="overwrite")
    compared = PairingRules(compute_updates=True, key=("a",))
    assert anyio.run(found, Budget(max_files=4), compared) == [*ends, Position.end(2)]


def test_rows(table: Path) -> None:
    rows = feed_all(table, StartPoint(0), Budget(max_rows=30))
    assert rows.sizes == [30, 30, 30, 25]
    assert [place.position for place in rows.places][:3] == [Position(1, 0, row) for row in (29, 59, 89)]


def test_bytes_cut_between_row_groups(table: Path) -> None:
    fed = feed_all(table, StartPoint(0), Budget(max_bytes=size(table, "large") // 3))
    assert fed.rows == places_of(table)
    assert fed.sizes[:3] == [30, 30, 30]


def test_a_file_as_large_as_what_is_left_is_not_opened(table: Path) -> None:
    budget = Budget(max_bytes=size(table, "large"))
    (table / "large").unlink()
    assert anyio.run(_first_end, table, budget) == Position.end(2)


async def _first_end(table: Path, budget: Budget) -> Position:
    admission = Admission(DeltaTableLog(LocalStore(table)), PlainView(), KEEP)
    return (await admission.advance(await admission.start(StartPoint(0)), budget)).position


def test_a_compared_version_is_never_cut(table: Path) -> None:
    write_commit(table, 4, metadata(**{"delta.enableChangeDataFeed": "false"}))
    rewritten = _file(table, "other", 100)
    write_commit(table, 5, remove("large", size=size(table, "large")), rewritten)
    assert ends(table, Budget(max_rows=7), PairingRules())[-1] == Position.end(5)
    assert Position(5, 0, 6) not in ends(table, Budget(max_rows=7), PairingRules())
    assert (
        Position(5, 0, 6) in ends(table, Budget(max_rows=104), KEEP) or ends(table, Budget(max_files=1))[-2].task == 0
    )


def test_a_file_without_rows_is_passed(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, protocol(), metadata(), _file(tmp_path, "empty", 0), _file(tmp_path, "some", 3))
    for budget in (Budget(max_rows=1), Budget(max_bytes=1), Budget(max_files=1)):
        assert ends(tmp_path, budget)[-1] == Position.end(0)


def test_versions_before_damage_come_first(table: Path) -> None:
    (table / "small-1").unlink()
    place = anyio.run(advance, table, PlainView())
    assert place.position == Position.end(3)  # files are not opened for this
    with pytest.raises(FileVacuumed):
        feed_all(table, StartPoint(0), Budget(max_rows=1000))
    write_commit(table, 4, "{no json")
    assert anyio.run(advance, table, PlainView()).position == Position.end(3)
    with pytest.raises(TailerError):
        anyio.run(advance, table, PlainView(), place)


class Strict(PlainView):
    """A view that refuses every schema change."""

    def plan(self, plan: ChangePlan, before: pa.Schema | None) -> ChangePlan:
        """See `tailer.spark.source.plan_cache.View.plan`."""
        if before is not None and before != plan.schema:
            raise SchemaChanged(plan.table, plan.version, "other columns")
        return plan


def test_a_schema_that_the_reader_cannot_take_ends_a_batch(table: Path) -> None:
    write_commit(table, 4, metadata(schema_string(a="long", b="long")))
    place = anyio.run(advance, table, Strict())
    assert place.position == Position.end(3)
    with pytest.raises(SchemaChanged):
        anyio.run(advance, table, Strict(), place)


def test_a_schema_change_is_reported_once(table: Path) -> None:
    write_commit(table, 4, metadata(schema_string(a="long", b="long")), _file(table, "more", 50))
    fed = feed_all(table, StartPoint(0), Budget(max_rows=7))
    assert [event.version for event in fed.changes] == [4]
    assert fed.changes[0].changes == ("column b int64 was added",)


def test_a_checkpoint_of_another_table_is_refused(table: Path) -> None:
    with pytest.raises(TableReplaced):
        anyio.run(advance, table, PlainView(), Place("another", Position.end(1)))


@pytest.mark.parametrize("place", [Position(5, 0, 6), Position(5, 0), Position(5, 1, 3)])
def test_other_choices_in_the_middle_of_a_version_are_refused(table: Path, place: Position) -> None:
    write_commit(table, 4, metadata(**{"delta.enableChangeDataFeed": "false"}))
    write_commit(table, 5, remove("large", size=size(table, "large")), _file(table, "other", 100))
    for rules, net in ((PairingRules(), False), (KEEP, True)):
        with pytest.raises(ConfigError, match="a part of version 5"):
            anyio.run(_advanced, table, rules, net, Place("id", place))
        with pytest.raises(ConfigError, match="a part of version 5"):
            anyio.run(_work, table, rules, net, Place("id", Position.end(3)), Place("id", place))
    assert anyio.run(_advanced, table, KEEP, False, Place("id", place)).position == Position.end(5)


async def _advanced(table: Path, rules: PairingRules, net: bool, after: Place) -> Place:
    return await Admission(DeltaTableLog(LocalStore(table)), PlainView(), rules, net=net).advance(after, Budget())


async def _work(table: Path, rules: PairingRules, net: bool, after: Place, through: Place) -> object:
    admission = Admission(DeltaTableLog(LocalStore(table)), PlainView(), rules, net=net)
    return (await admission.work(after, through.position, through.table_id)).splits()


def test_versions_after_the_end_are_not_read(table: Path) -> None:
    write_commit(table, 4, "{no json")
    assert anyio.run(_bounded, table, Place("id", Position.end(2)), 3) == [Position.end(3), Position.end(3)]


async def _bounded(table: Path, after: Place, last: int) -> list[Position]:
    admission = Admission(DeltaTableLog(LocalStore(table)), PlainView(), KEEP)
    first = await admission.advance(after, Budget(), last)
    return [first.position, (await admission.advance(first, Budget(), last)).position]


def test_nothing_is_asked_for_between_a_place_and_itself(table: Path) -> None:
    write_commit(table, 4, "{no json")
    place = Place("id", Position.end(3))
    assert anyio.run(_work, table, KEEP, False, place, place) == []


def test_rows_of_a_version_admitted_as_a_whole_count(table: Path) -> None:
    write_commit(table, 4, metadata(**{"delta.enableChangeDataFeed": "false"}))
    before = "large"
    for version in range(5, 9):
        rewritten = _file(table, f"version-{version}", 100)
        write_commit(table, version, remove(before, size=size(table, before)), rewritten)
        before = f"version-{version}"
    assert [place.version for place in ends(table, Budget(max_rows=200), PairingRules())] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("size_bytes", [-1, 0, 1, 10**10])
def test_rows_are_read_despite_a_wrong_size_in_the_log(tmp_path: Path, size_bytes: int) -> None:
    parquet(tmp_path / "file", pa.table([list(range(95))], SCHEMA), row_group_size=10)
    write_commit(tmp_path, 0, protocol(), metadata(), add("file", size=size_bytes))
    for budget in (Budget(), Budget(max_rows=7), Budget(max_bytes=100)):
        fed = feed_all(tmp_path, StartPoint(0), budget)
        assert sorted(row for _, _, row, *_ in fed.rows.elements()) == list(range(95))


def test_a_log_that_ends_before_a_batch_does_is_refused(table: Path) -> None:
    with pytest.raises(VersionAhead):
        anyio.run(_work, table, KEEP, False, Place("id", Position.end(1)), Place("id", Position.end(7)))
    with pytest.raises(ConfigError, match="goes backwards"):
        anyio.run(_work, table, KEEP, False, Place("id", Position.end(2)), Place("id", Position.end(1)))


def test_another_table_is_noticed_before_its_first_version(table: Path) -> None:
    for after, through in (("other", "id"), ("id", "other")):
        places = Place(after, Position.end(-1)), Place(through, Position.end(1))
        with pytest.raises(TableReplaced):
            anyio.run(_work, table, KEEP, False, *places)


def test_net_changes_of_a_batch(table: Path) -> None:
    write_commit(table, 4, remove("small-0", size=size(table, "small-0")), _file(table, "small-3", 2))
    rows = feed_all(table, StartPoint(2), Budget(), PairingRules(), net=True).rows
    assert [place[:2] for place in rows.elements() if place[3] != "insert"] == []
    assert rows.total() == 12  # three of five rows of one file are deleted, two were rewritten


def test_a_large_file_is_split_among_pieces(tmp_path: Path) -> None:
    path = parquet(tmp_path / "file", pa.table([list(range(1000))], SCHEMA), row_group_size=10)
    whole = FileSlice(_sized(path, 100 * 2**20))
    splits = file_splits([whole], 2**20)
    assert len(splits) == 100
    rows = [row for split in splits for batch in read_split(split) for row in batch.row_index.to_pylist()]
    assert rows == list(range(1000))
    assert max(sum(map(len, read_split(split))) for split in splits) == 10


def _sized(path: Path, size_bytes: int) -> ChangeTask:
    return replace(task(path, SCHEMA), size_bytes=size_bytes)


def test_small_files_share_a_piece(tmp_path: Path) -> None:
    path = parquet(tmp_path / "file", pa.table([list(range(3))], SCHEMA))
    assert file_splits([]) == []
    assert [len(split.slices) for split in file_splits([FileSlice(task(path, SCHEMA))] * 20)] == [7, 7, 6]


def test_kinds_of_work(table: Path) -> None:
    write_commit(table, 4, metadata(**{"delta.enableChangeDataFeed": "false"}))
    write_commit(table, 5, remove("large", size=size(table, "large")), _file(table, "other", 100))
    assert anyio.run(_kinds, table, PairingRules(), False) == [DiffSplit, FilesSplit]
    assert anyio.run(_kinds, table, PairingRules(), True) == [NetChangesSplit]
    assert anyio.run(_kinds, table, KEEP, False) == [FilesSplit]


def test_partitions_of_a_version_are_work_for_several_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of partitions on one side only are not compared. An update may move a row to another partition."""
    monkeypatch.setattr("tailer.spark.splits.MIN_SPLIT_BYTES", 1)
    write_commit(tmp_path, 0, protocol(), metadata(schema_string(a="long", p="integer"), ["p"]))
    files = [_file(tmp_path, f"file-{index}", 5) for index in range(5)]
    for file, value in zip(files, ("1", "2", "01", "2", "3"), strict=True):
        file["add"]["partitionValues"] = {"p": value}
    write_commit(tmp_path, 1, *files[:2])
    gone = [{"remove": file["add"] | {"extendedFileMetadata": True}} for file in files[:2]]
    write_commit(tmp_path, 2, *gone, *files[2:])
    plan = plans(tmp_path, 2)[0]
    splits, alone = diff_splits(plan, PairingRules())
    assert [[task.index for task in split.plan.tasks] for split in splits] == [[0, 2], [1, 3]]
    assert [part.task.index for part in alone] == [4]
    updates = PairingRules(compute_updates=True, key=("a",))
    assert diff_splits(plan, updates) == ([DiffSplit(plan, updates)], [])


def test_partitions_whose_type_changes_are_compared_as_they_can_be(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, protocol(), metadata(schema_string(a="long", p="string"), ["p"]))
    files = [_file(tmp_path, f"file-{index}", 5) for index in range(3)]
    for file, value in zip(files, ("abc", "1", "1"), strict=True):
        file["add"]["partitionValues"] = {"p": value}
    write_commit(tmp_path, 1, *files[:2])
    gone = [{"remove": file["add"] | {"extendedFileMetadata": True}} for file in files[:2]]
    write_commit(tmp_path, 2, metadata(schema_string(a="long", p="integer"), ["p"]), *gone, files[2])
    expected = places_of(tmp_path, PairingRules())
    assert expected.total() == 25
    assert feed_all(tmp_path, StartPoint(0), Budget(), PairingRules()).rows == expected


async def _kinds(table: Path, rules: PairingRules, net: bool) -> list[type]:
    admission = Admission(DeltaTableLog(LocalStore(table)), PlainView(), rules, net=net)
    start = await admission.start(StartPoint(0))
    return [type(split) for split in (await admission.work(start, Position.end(5))).splits()]

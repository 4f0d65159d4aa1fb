"""`refine` and `refine_range` over plans made by hand: the remaining rows, their change types and positions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.changelog.carryovers import ChangelogCounts, refine, refine_range
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.changelog.rules import Carryovers, PairingRules, check_key, concerns
from tailer.changelog.spill import RUN_BYTES, SpilledBitmaps, SpilledPreimages
from tailer.errors import ConfigError, FileVacuumed
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch
from tailer.plan import ChangePlan, ChangeTask, Regime, RowTracking, TaskKind
from tailer.read.decoded_files import DecodedFiles, compared_tasks
from tailer.read.execute import execute
from tailer.schema.columns import PHYSICAL_NAME
from tailer.schema.text_types import with_chars
from tests.support.seeds import repeats
from tests.support.tables.log_files import marked, parquet

Columns = Mapping[str, Sequence[Any]]
# Kind, task, position in the file and values.
Row = tuple[Any, ...]

DROP = PairingRules()
KEEP = PairingRules(Carryovers.KEEP)
BY_ID = PairingRules(compute_updates=True)
BY_KEY = PairingRules(compute_updates=True, key=("k",))
UNCHANGED = PairingRules(skip_unchanged=True)
PAIR = pa.schema([("k", pa.int64()), ("v", pa.string())])
NUMBER = pa.schema([("v", pa.int64())])


@cache
def matches() -> RowIndex:
    return RowIndex()


@dataclass(frozen=True)
class File:
    """A data file, or a change file: rows that a version deletes or inserts."""

    columns: Columns
    schema: pa.Schema
    partition: tuple[tuple[str, str | None], ...] = ()
    include: Sequence[int] | None = None
    exclude: Sequence[int] | None = None
    tracking: RowTracking | None = None
    at: pa.Schema | None = None  # the table's schema, if the file has another


@dataclass
class Versions:
    """Makes the plans of a table's versions in a folder."""

    folder: Path
    plans: list[ChangePlan] = field(default_factory=list)

    def files(
        self, gone: Iterable[File] = (), come: Iterable[File] = (), schema: pa.Schema = PAIR, feed: bool = False
    ) -> ChangePlan:
        """Make a version that removes and adds data files."""
        files = [(TaskKind.DELETE, file) for file in gone] + [(TaskKind.INSERT, file) for file in come]
        return self._plan(Regime.FILES, files, schema, feed)

    def cdc(self, *files: File, schema: pa.Schema = PAIR) -> ChangePlan:
        """Make a version with change files."""
        kinds = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
        return self._plan(Regime.CDC, [(kind, file) for kind in kinds for file in files], schema, feed=True)

    def values(self, gone: Sequence[Any], come: Sequence[Any]) -> ChangePlan:
        """Make a version that rewrites one file of one column."""
        files = [File({"v": rows}, NUMBER) for rows in (gone, come)]
        return self.files(files[:1] if gone else [], files[1:] if come else [], NUMBER)

    def _plan(
        self, regime: Regime, files: Sequence[tuple[TaskKind, File]], schema: pa.Schema, feed: bool
    ) -> ChangePlan:
        version = 3 + len(self.plans)
        tasks = tuple(self._task(version, index, *each, schema) for index, each in enumerate(files))
        self.plans.append(ChangePlan("t", "id", version, 1000, None, regime, schema, tasks, feed))
        return self.plans[-1]

    def _task(self, version: int, index: int, kind: TaskKind, file: File, schema: pa.Schema) -> ChangeTask:
        types = {name: column.type for name, column in zip(file.schema.names, file.schema, strict=True)}
        columns = {name: pa.array(rows, types.get(name)) for name, rows in file.columns.items()}
        path = parquet(self.folder / f"{version}-{index}.parquet", pa.table(columns))
        include, exclude = (None if rows is None else marked(rows) for rows in (file.include, file.exclude))
        at = file.at or (schema if kind is TaskKind.INSERT else file.schema)
        return ChangeTask(
            "t",
            "id",
            version,
            1000,
            index,
            kind,
            str(path),
            1,
            at,
            file.partition,
            include,
            exclude,
            file.tracking,
        )


@pytest.fixture
def table(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


def pairs(*rows: tuple[Any, Any], **values: Any) -> File:
    """Make a file with columns `k` and `v`."""
    return File({"k": [row[0] for row in rows], "v": [row[1] for row in rows]}, PAIR, **values)


def tracked(values: Sequence[Any], first: int | None, version: int | None, **stored: Sequence[Any]) -> File:
    """Make a file with column `v` and optionally `rid` and `rver`, which hold row ids and commit versions."""
    names = ["rid" if "rid" in stored else None, "rver" if "rver" in stored else None]
    columns = {"v": values, **{name: pa.array(rows, pa.int64()) for name, rows in stored.items()}}
    return File(columns, NUMBER, tracking=RowTracking(first, version, *names))


def read(tasks: Iterable[ChangeTask], preimages: SpilledPreimages | None = None) -> list[Row]:
    return rows_of((batch for task in tasks for batch in execute(task)), preimages)


def rows_of(batches: Iterable[ChangeBatch], preimages: SpilledPreimages | None = None) -> list[Row]:
    found: list[Row] = []
    for batch in batches:
        for piece in (batch,) if preimages is None else preimages.joined(batch):
            columns = [column.to_pylist() for column in piece.rows.columns[: -len(METADATA_FIELDS)]]
            kinds = piece.rows[CHANGE_TYPE].to_pylist()
            places = [[batch.task] * len(kinds), piece.row_index.to_pylist()]
            found += zip(kinds, *places, *columns, strict=True)
    return found


def kept_rows(*plans: ChangePlan) -> DecodedFiles:
    """Return what reads the rows of `plans` into memory, and others from their files."""
    rows = DecodedFiles(execute)
    for plan in plans:
        rows.expect(compared_tasks(plan))
    return rows


def refined(plan: ChangePlan, rules: PairingRules, run_bytes: int = RUN_BYTES) -> tuple[list[Row], ChangelogCounts]:
    """Return the rows of a plan by `rules`, and the counts: the same whether rows are kept in memory or read again."""
    if not concerns(plan, rules):
        return read(plan.tasks), ChangelogCounts()
    answers = []
    for kept in (kept_rows(plan), kept_rows()):
        with SpilledBitmaps() as selections, SpilledPreimages(run_bytes) as preimages:
            found, counts = refine(plan, rules, matches(), selections, preimages, kept)
            answers.append((read(found.tasks, preimages), counts))
            if all(map(kept.has, found.tasks)):
                answers.append(
                    (rows_of((batch for task in found.tasks for batch in kept.read(task)), preimages), counts)
                )
    for answer in answers[1:]:
        assert repr(answer) == repr(answers[0])  # NaN is not equal to itself
    return answers[0]


def left(plan: ChangePlan, rules: PairingRules = DROP) -> list[Row]:
    """Return kind and values of the remaining rows."""
    return [(row[0], *row[3:]) for row in refined(plan, rules)[0]]


class TestCarryovers:
    def test_equal_rows_cancel_out_one_for_one(self, table: Versions) -> None:
        rows, counts = refined(table.values([1, 2, 2, 3, None], [2, None, 4, 1]), DROP)
        assert rows == [("delete", 0, 1, 2), ("delete", 0, 3, 3), ("insert", 1, 2, 4)]
        assert counts == ChangelogCounts(carryovers=6)

    def test_the_first_deleted_and_the_last_inserted_ones_are_left(self, table: Versions) -> None:
        gone = [File({"v": [7, 7]}, NUMBER), File({"v": [7, 8]}, NUMBER)]
        come = [File({"v": [8, 8]}, NUMBER), File({"v": [7, 8]}, NUMBER)]
        assert refined(table.files(gone, come, NUMBER), DROP)[0] == [
            ("delete", 0, 0, 7),
            ("delete", 0, 1, 7),
            ("insert", 2, 1, 8),
            ("insert", 3, 1, 8),
        ]

    def test_nothing_is_left(self, table: Versions) -> None:
        assert refined(table.values([3, 1, 2], [1, 2, 3]), DROP) == ([], ChangelogCounts(carryovers=6))

    def test_they_may_be_kept(self, table: Versions) -> None:
        plan = table.values([1, 2], [2, 3])
        assert not concerns(plan, KEEP)
        assert left(plan, KEEP) == [("delete", 1), ("delete", 2), ("insert", 2), ("insert", 3)]

    def test_a_feed_is_believed(self, table: Versions) -> None:
        plan = table.files([pairs((1, "a"))], [pairs((1, "a"))], feed=True)
        assert not concerns(plan, DROP)
        assert not concerns(plan, UNCHANGED)
        assert left(plan, BY_KEY) == [("update_preimage", 1, "a"), ("update_postimage", 1, "a")]
        assert refined(plan, replace(BY_KEY, skip_unchanged=True)) == ([], ChangelogCounts(updates=1, unchanged=2))

    def test_rows_that_vectors_leave_out_are_not_compared(self, table: Versions) -> None:
        gone = File({"v": [1, 2, 3, 4]}, NUMBER, exclude=[0, 3])
        come = File({"v": [4, 3, 1, 2]}, NUMBER, include=[0, 1, 3], exclude=[0])
        assert refined(table.files([gone], [come], NUMBER), DROP) == ([], ChangelogCounts(carryovers=4))

    def test_a_vector_and_a_rewritten_file_in_one_version(self, table: Versions) -> None:
        """Rows 1 and 2 of a remaining file are deleted; another file is rewritten; the new file has one row of each."""
        stays, rewritten = File({"v": [1, 2, 3, 4]}, NUMBER, include=[1, 2]), File({"v": [5, 6]}, NUMBER)
        plan = table.files([stays, rewritten], [File({"v": [6, 3, 9]}, NUMBER)], NUMBER)
        assert refined(plan, DROP)[0] == [("delete", 0, 1, 2), ("delete", 1, 0, 5), ("insert", 2, 2, 9)]

    @pytest.mark.parametrize("gone", [True, False])
    def test_one_side_alone_is_not_compared(self, table: Versions, gone: bool) -> None:
        file = File({"v": [1, 2, 1]}, NUMBER, include=[0, 2])
        plan = table.files([file] if gone else [], [] if gone else [file], NUMBER)
        assert not any(concerns(plan, rules) for rules in (DROP, BY_ID, BY_KEY, UNCHANGED))

    def test_snapshots_and_versions_without_changes_are_not_compared(self, table: Versions) -> None:
        plan = table.values([1], [1])
        for regime in (Regime.SNAPSHOT, Regime.NONE):
            assert not any(concerns(replace(plan, regime=regime), rules) for rules in (DROP, BY_ID, BY_KEY, UNCHANGED))

    def test_only_the_delivered_columns_count(self, table: Versions) -> None:
        plan = table.files([pairs((1, "a"), (2, "b"))], [pairs((3, "b"), (1, "c"))])
        assert left(plan.select(["v"])) == [("delete", "a"), ("insert", "c")]
        assert left(plan.select(["k"])) == [("delete", 2), ("insert", 3)]
        assert left(plan.select(["v", "k"])) == [
            ("delete", "a", 1),
            ("delete", "b", 2),
            ("insert", "b", 3),
            ("insert", "c", 1),
        ]


class TestMaps:
    """Entries in another order are no change."""

    SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.map_(pa.string(), pa.list_(pa.map_(pa.int64(), pa.string()))))])
    ONE: Final = [("a", [[(1, "x"), (2, "y")]]), ("b", None)]
    SAME: Final = [("b", None), ("a", [[(2, "y"), (1, "x")]])]
    OTHER: Final = [("b", None), ("a", [[(2, "x"), (1, "y")]])]

    def test_in_carryovers_updates_and_net_changes(self, table: Versions) -> None:
        gone = File({"k": [1, 2, 3], "v": [self.ONE, self.ONE, self.ONE]}, self.SCHEMA)
        come = File({"k": [1, 2, 4], "v": [self.SAME, self.OTHER, self.SAME]}, self.SCHEMA)
        plan = table.files([gone], [come], self.SCHEMA)
        changes = [("delete", 2), ("delete", 3), ("insert", 2), ("insert", 4)]
        assert [row[:2] for row in left(plan)] == changes
        assert [row[0] for row in net(table)] == ["delete", "delete", "insert", "insert"]
        updates = [("delete", 3), ("update_preimage", 2), ("update_postimage", 2), ("insert", 4)]
        assert [row[:2] for row in left(plan, BY_KEY)] == updates
        unchanged = replace(BY_KEY, carryovers=Carryovers.KEEP, skip_unchanged=True)
        rows, counts = refined(plan, unchanged)
        assert [(row[0], row[3]) for row in rows] == updates
        assert counts.unchanged == 2
        by_map = replace(BY_KEY, key=("v",), carryovers=Carryovers.KEEP)
        assert [row[0] for row in left(plan, by_map)].count("update_preimage") == 2


class TestRowTracking:
    def test_by_row_id_and_commit_version(self, table: Versions) -> None:
        """Ids and versions are the stored ones; where null, those of the log."""
        gone = tracked([1, 2, 3, 4], 0, 5)
        come = tracked([1, 2, 3, 9], 3, 6, rid=[0, 1, 2, None], rver=[5, 5, None, None])
        rows, counts = refined(table.files([gone], [come], NUMBER), DROP)
        assert rows == [("delete", 0, 3, 4), ("insert", 1, 3, 9)]
        assert counts == ChangelogCounts(carryovers=6)

    def test_rows_with_one_id_but_another_version_are_compared_by_value(self, table: Versions) -> None:
        gone, come = tracked([1, 2], 0, 5), tracked([1, 3], 9, 6, rid=[0, 1])
        assert refined(table.files([gone], [come], NUMBER), DROP)[0] == [("delete", 0, 1, 2), ("insert", 1, 1, 3)]

    @pytest.mark.parametrize(
        ("gone", "come", "rows"),
        [
            # Invalid ids: several rows have the same one.
            ([[1, 5, 5], [2, 5, 5]], [[2, 5, 5], [3, 5, 5]], [("delete", 1), ("insert", 3)]),
            ([[1, 5, 5]], [[1, 5, 5], [1, 5, 5]], [("insert", 1)]),
            ([[1, 5, 5], [2, 5, 5]], [[1, 5, 5]], [("delete", 2)]),
            ([[1, 5, 5], [2, 5, 5]], [[3, 5, 5]], [("delete", 1), ("delete", 2), ("insert", 3)]),
            # Missing ids.
            ([[1, None, 5], [2, None, 5]], [[2, None, 5], [3, None, 5]], [("delete", 1), ("insert", 3)]),
            ([[1, 4, None], [2, 5, None]], [[2, 4, None], [3, 5, None]], [("delete", 1), ("insert", 3)]),
        ],
    )
    def test_ids_of_broken_writers_lose_no_rows(
        self, table: Versions, gone: list[list[Any]], come: list[list[Any]], rows: list[tuple[str, int]]
    ) -> None:
        sides = []
        for side in (gone, come):
            values, ids, versions = map(list, zip(*side, strict=True))
            sides.append(tracked(values, None, None, rid=ids, rver=versions))
        assert left(table.files(sides[:1], sides[1:], NUMBER)) == rows

    def test_a_log_that_says_nothing_of_the_ids(self, table: Versions) -> None:
        gone, come = tracked([1, 2], None, None), tracked([2, 1], None, None)
        plan = table.files([gone], [come], NUMBER)
        assert refined(plan, DROP) == ([], ChangelogCounts(carryovers=4))
        assert refined(plan, replace(BY_ID, carryovers=Carryovers.KEEP))[1] == ChangelogCounts()

    def test_only_one_side_is_tracked(self, table: Versions) -> None:
        plan = table.files([File({"v": [1, 2]}, NUMBER)], [tracked([2, 3], 0, 5)], NUMBER)
        assert left(plan, BY_ID) == [("delete", 1), ("insert", 3)]

    def test_ids_that_are_delivered(self, table: Versions) -> None:
        """A row that is deleted and inserted with another id is not a carry-over."""
        gone, come = tracked([1, 2, 3], 0, 5), tracked([1, 2, 4], 9, 6, rid=[0, None, 2], rver=[5, None, None])
        plan = table.files([gone], [come], NUMBER)
        assert left(plan) == [("delete", 3), ("insert", 4)]
        with_ids = plan.with_row_ids()
        assert left(with_ids) == [("delete", 2, 1, 5), ("delete", 3, 2, 5), ("insert", 2, 10, 6), ("insert", 4, 2, 6)]
        assert refined(with_ids, BY_ID)[0] == [
            ("delete", 0, 1, 2, 1, 5),
            ("insert", 1, 1, 2, 10, 6),
            ("update_preimage", 1, 2, 3, 2, 5),
            ("update_postimage", 1, 2, 4, 2, 6),
        ]


class TestUpdates:
    @pytest.mark.parametrize("run_bytes", [1, 40, RUN_BYTES])
    def test_images_come_together_where_the_postimage_is(self, table: Versions, run_bytes: int) -> None:
        gone = [pairs((1, "a"), (2, "b"), (3, "c")), pairs((4, "d"), (5, "e"))]
        come = [pairs((6, "f"), (5, "E"), (2, "b"), (3, "C")), pairs((1, "A"))]
        rows, counts = refined(table.files(gone, come), BY_KEY, run_bytes)
        assert rows == [
            ("delete", 1, 0, 4, "d"),
            ("insert", 2, 0, 6, "f"),
            ("update_preimage", 2, 1, 5, "e"),
            ("update_postimage", 2, 1, 5, "E"),
            ("update_preimage", 2, 3, 3, "c"),
            ("update_postimage", 2, 3, 3, "C"),
            ("update_preimage", 3, 0, 1, "a"),
            ("update_postimage", 3, 0, 1, "A"),
        ]
        assert counts == ChangelogCounts(carryovers=2, updates=3)

    def test_null_keys_are_no_keys(self, table: Versions) -> None:
        plan = table.files([pairs((None, "a"), (1, None))], [pairs((None, "b"), (1, "c"))])
        assert left(plan, BY_KEY) == [
            ("delete", None, "a"),
            ("insert", None, "b"),
            ("update_preimage", 1, None),
            ("update_postimage", 1, "c"),
        ]
        both = replace(BY_KEY, key=("k", "v"))
        assert [kind for kind, *_ in left(plan, both)] == ["delete", "delete", "insert", "insert"]

    def test_one_key_in_several_rows(self, table: Versions) -> None:
        """The n-th deleted row is paired with the n-th inserted one; the third one stays unpaired."""
        gone, come = (
            [pairs((1, "a"), (2, "x"), (1, "b")), pairs((1, "c"))],
            [pairs((1, "d"), (2, "y")), pairs((1, "e"))],
        )
        rows, counts = refined(table.files(gone, come), BY_KEY)
        assert [(row[0], row[4]) for row in rows] == [
            ("delete", "c"),
            ("update_preimage", "a"),
            ("update_postimage", "d"),
            ("update_preimage", "x"),
            ("update_postimage", "y"),
            ("update_preimage", "b"),
            ("update_postimage", "e"),
        ]
        assert counts == ChangelogCounts(updates=3, ambiguous=5)

    def test_carry_overs_leave_the_others_of_their_key(self, table: Versions) -> None:
        """Of two rows with one key one is carried over, so the other two are paired without ambiguity."""
        plan = table.files([pairs((1, "a"), (1, "b"))], [pairs((1, "c"), (1, "a"))])
        rows, counts = refined(plan, BY_KEY)
        assert [(row[0], row[4]) for row in rows] == [("update_preimage", "b"), ("update_postimage", "c")]
        assert counts == ChangelogCounts(carryovers=2, updates=1)

    def test_keys_come_before_row_ids(self, table: Versions) -> None:
        """Key 2 matches key 2 whatever its row id; row ids pair only the rows that no key pairs."""
        tracking = [RowTracking(0, 1), RowTracking(9, 2, "rid")]
        gone = pairs((1, "a"), (2, "b"), (3, "c"), tracking=tracking[0])
        come = pairs((2, "B"), (4, "d"), (5, "e"), tracking=tracking[1])
        come = replace(come, columns={**come.columns, "rid": pa.array([0, 2, 1], pa.int64())})
        plan = table.files([gone], [come])
        assert left(plan, BY_KEY) == [
            ("delete", 1, "a"),
            ("update_preimage", 2, "b"),
            ("update_postimage", 2, "B"),
            ("update_preimage", 3, "c"),
            ("update_postimage", 4, "d"),
            ("insert", 5, "e"),
        ]
        assert left(plan, BY_ID)[:2] == [("update_preimage", 1, "a"), ("update_postimage", 2, "B")]

    def test_rows_that_a_vector_deletes_have_partners_too(self, table: Versions) -> None:
        stays = pairs((1, "a"), (2, "b"), (3, "c"), include=[1])
        assert refined(table.files([stays], [pairs((2, "B"))]), BY_KEY)[0] == [
            ("update_preimage", 1, 0, 2, "b"),
            ("update_postimage", 1, 0, 2, "B"),
        ]

    def test_several_key_columns_and_nested_ones(self, table: Versions) -> None:
        schema = pa.schema([("a", pa.string()), ("b", pa.struct([("x", pa.float64())])), ("v", pa.int64())])
        nested = [{"x": float("nan")}, {"x": None}, {"x": 0.0}, None]
        gone = File({"a": ["p", "q", "r", "s"], "b": nested, "v": [1, 2, 3, 4]}, schema)
        come = File({"a": ["p", "q", "r", "s"], "b": [*nested[:2], {"x": -0.0}, None], "v": [5, 6, 7, 8]}, schema)
        rules = PairingRules(compute_updates=True, key=("b", "a"))
        rows = refined(table.files([gone], [come], schema), rules)[0]
        assert [(row[0], row[-1]) for row in rows] == [
            ("delete", 3),
            ("delete", 4),
            *zip(["update_preimage", "update_postimage"] * 2, [1, 5, 2, 6], strict=True),
            ("insert", 7),
            ("insert", 8),
        ]

    def test_without_keys_or_ids_there_are_none(self, table: Versions) -> None:
        assert left(table.values([1, 2], [2, 3]), BY_ID) == [("delete", 1), ("insert", 3)]
        assert not concerns(table.values([1], [2]), replace(BY_ID, carryovers=Carryovers.KEEP))

    @pytest.mark.parametrize("key", [("nope",), ("k", "nope"), ("V",)])
    def test_a_key_that_is_no_column(self, table: Versions, key: tuple[str, ...]) -> None:
        plan = table.files([pairs((1, "a"))], [pairs((1, "b"))])
        with pytest.raises(ConfigError, match=f"no column '{key[-1]}' at version 3"):
            check_key(plan, replace(BY_KEY, key=key))

    def test_updates_that_change_nothing(self, table: Versions) -> None:
        """Paired rows are compared, not rows of equal values: 1 and 2 exchange their values."""
        rules = replace(BY_KEY, carryovers=Carryovers.KEEP, skip_unchanged=True)
        plan = table.files([pairs((1, "a"), (2, "b"), (3, "c"))], [pairs((3, "c"), (2, "a"), (1, "b"))])
        rows, counts = refined(plan, rules)
        assert [row[0] for row in rows] == ["update_preimage", "update_postimage"] * 2
        assert counts == ChangelogCounts(updates=3, unchanged=2)
        assert refined(plan.select(["k"]), rules) == ([], ChangelogCounts(updates=3, unchanged=6))
        ids = table.files([tracked([1, 2, 3], 0, 1)], [tracked([2, 1, 3], 9, 2, rid=[0, 1, 2])], NUMBER)
        rows, counts = refined(ids, replace(rules, key=()))
        assert [row[::3] for row in rows] == [
            *zip(["update_preimage", "update_postimage"] * 2, [1, 2, 2, 1], strict=True)
        ]
        assert counts == ChangelogCounts(updates=3, unchanged=2)


KINDS = ["update_preimage", "update_postimage"]


def written(*rows: tuple[str, int, str]) -> File:
    """Write a change file."""
    kinds, keys, values = zip(*rows, strict=True)
    return File({"k": keys, "v": values, CHANGE_TYPE: kinds}, PAIR)


class TestChangeFiles:
    ROWS = (
        ("insert", 1, "a"),
        ("update_preimage", 2, "b"),
        ("delete", 3, "c"),
        ("update_postimage", 2, "b"),
        ("update_preimage", 4, "d"),
        ("update_postimage", 4, "D"),
        ("strange", 5, "e"),
        ("delete", 1, "a"),
        ("strange", 3, "C"),
    )

    def test_they_are_left_as_they_are(self, table: Versions) -> None:
        plan = table.cdc(written(*self.ROWS))
        assert not any(concerns(plan, rules) for rules in (DROP, KEEP, BY_ID))
        assert len(left(plan)) == len(self.ROWS)

    def test_images_that_are_equal(self, table: Versions) -> None:
        rows, counts = refined(table.cdc(written(*self.ROWS)), UNCHANGED)
        assert counts == ChangelogCounts(unchanged=2)
        assert [row[2] for row in rows] == [2, 7, 0, 4, 5, 6, 8]

    def test_equal_images_of_several_files_are_dropped_as_multisets(self, table: Versions) -> None:
        one = written(("update_preimage", 1, "a"), ("update_postimage", 1, "b"))
        other = written(("update_preimage", 1, "a"), ("update_postimage", 1, "a"))
        rows, counts = refined(table.cdc(one, other), UNCHANGED)
        assert [(row[0], row[1], row[2]) for row in rows] == [
            ("update_preimage", 2, 0),
            ("update_postimage", 2, 1),
        ]
        assert counts == ChangelogCounts(unchanged=2)

    def test_deletes_and_inserts_may_be_updates(self, table: Versions) -> None:
        """Images that are adjacent stay a pair; a row of any other kind is not an image."""
        rows, counts = refined(table.cdc(written(*self.ROWS)), replace(BY_KEY, skip_unchanged=True))
        assert rows == [
            ("delete", 0, 2, 3, "c"),
            ("update_preimage", 1, 5, 4, "d"),
            ("update_postimage", 1, 5, 4, "D"),
            ("strange", 1, 6, 5, "e"),
            ("strange", 1, 8, 3, "C"),
        ]
        assert counts == ChangelogCounts(updates=1, unchanged=4)

    def test_images_far_apart_are_put_together(self, table: Versions) -> None:
        """delta-rs writes all postimages first; an update across partitions has its images in two files."""
        one = written(
            ("update_postimage", 1, "A"),
            ("update_postimage", 2, "B"),
            ("update_preimage", 1, "a"),
            ("update_preimage", 2, "b"),
            ("update_preimage", 3, "c"),
        )
        other = written(("update_postimage", 3, "C"), ("update_postimage", 9, "Z"), ("update_preimage", 8, "y"))
        plan = table.cdc(one, other)
        rows, counts = refined(plan, BY_KEY)
        assert rows == [
            ("update_preimage", 2, 0, 1, "a"),
            ("update_postimage", 2, 0, 1, "A"),
            ("update_preimage", 2, 1, 2, "b"),
            ("update_postimage", 2, 1, 2, "B"),
            ("update_preimage", 3, 0, 3, "c"),
            ("update_postimage", 3, 0, 3, "C"),
            ("update_postimage", 3, 1, 9, "Z"),
            ("update_preimage", 3, 2, 8, "y"),
        ]
        assert counts == ChangelogCounts()
        as_they_lie = [row[3] for row in refined(plan, BY_ID)[0]]
        assert as_they_lie == [1, 2, 1, 2, 3, 3, 9, 8]

    def test_rows_that_move_to_the_key_of_another_are_that_one(self, table: Versions) -> None:
        """MERGE may change a row's key and insert a row with the old key, or give a deleted row's key to another."""
        one = written(
            ("insert", 1, "new"),
            ("update_preimage", 1, "old"),
            ("update_postimage", 2, "old"),
            ("update_preimage", 3, "c"),
            ("update_postimage", 4, "c"),
        )
        other = written(("delete", 4, "d"), ("update_preimage", 5, "e"), ("update_postimage", 5, "E"))
        rows, counts = refined(table.cdc(one, other), BY_KEY)
        assert [(row[0], *row[3:]) for row in rows] == [
            ("update_preimage", 1, "old"),
            ("update_postimage", 1, "new"),
            ("update_postimage", 2, "old"),
            ("update_preimage", 3, "c"),
            ("update_preimage", 4, "d"),
            ("update_postimage", 4, "c"),
            ("update_preimage", 5, "e"),
            ("update_postimage", 5, "E"),
        ]
        assert counts == ChangelogCounts(updates=2)

    def test_images_of_one_key_are_paired_in_their_order(self, table: Versions) -> None:
        changes = [("update_preimage", 1, "a"), ("update_preimage", 1, "b"), ("update_postimage", 1, "b")]
        rows, counts = refined(table.cdc(written(*changes, ("update_postimage", 1, "a"))), BY_KEY)
        assert [(row[0], row[4]) for row in rows] == [
            ("update_preimage", "a"),
            ("update_postimage", "b"),
            ("update_preimage", "b"),
            ("update_postimage", "a"),
        ]
        assert counts == ChangelogCounts(ambiguous=4)


def physical(name: str, kind: pa.DataType, stored: str) -> pa.Field:
    return pa.field(name, kind, metadata={PHYSICAL_NAME: stored.encode()})


LONG, INT, TEXT = pa.int64(), pa.int32(), pa.string()
LISTS = pa.list_(pa.field("element", TEXT))
NESTED = pa.list_(pa.struct([("x", INT)]))
WIDER = pa.list_(pa.struct([("x", LONG)]))
K = ("k", LONG)


def decimals(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale)


class TestOtherColumns:
    """One column changes with the version; row 2 is unchanged."""

    @pytest.mark.parametrize(
        ("before", "gone", "after", "come", "carried"),
        [
            ([K], {}, [K, ("v", TEXT)], {"v": [None, None, "new"]}, [0, 1]),
            ([K, ("w", TEXT)], {"w": ["x", None, "z"]}, [K], {}, [1]),  # dropped: rows without a value in it are equal
            ([K, ("v", INT)], {"v": [1, 2, 3]}, [K, ("v", LONG)], {"v": [1, 2, 2**40]}, [0, 1]),
            ([K, ("v", LONG)], {"v": [1, 2, 3]}, [K, ("v", INT)], {"v": [1, 2, 3]}, []),
            ([K, ("v", LONG)], {"v": [1, 2, 3]}, [K, ("v", TEXT)], {"v": ["1", "2", "3"]}, []),
            ([K, ("v", TEXT)], {"v": ["1", "x", None]}, [K, ("v", LONG)], {"v": [1, 2, None]}, []),
            ([K, ("v", pa.float32())], {"v": [0.5, 0.1, 3]}, [K, ("v", pa.float64())], {"v": [0.5, 0.1, 3]}, [0, 2]),
            ([K, ("v", pa.null())], {"v": [None] * 3}, [K, ("v", TEXT)], {"v": ["a", None, "b"]}, [1]),
            (
                [K, ("v", decimals(5, 1))],
                {"v": [1, 2, 3]},
                [K, ("v", decimals(9, 3))],
                {"v": [1, 2, 4]},
                [0, 1],
            ),
            (
                [K, ("v", NESTED)],
                {"v": [[{"x": 1}], [], None]},
                [K, ("v", WIDER)],
                {"v": [[{"x": 1}], [None], None]},
                [0, 2],
            ),
            (
                [K, physical("v", TEXT, "p1")],
                {"p1": ["a", "b", "c"]},
                [K, physical("renamed", TEXT, "p1")],
                {"p1": ["a", "B", "c"]},
                [0, 2],
            ),
            (  # dropped and added again: another column
                [K, physical("v", TEXT, "p1")],
                {"p1": ["a", "b", "c"]},
                [K, physical("v", TEXT, "p2")],
                {"p2": ["a", None, "c"]},
                [],
            ),
            (
                [K, physical("v", TEXT, "p1")],
                {"p1": ["a", None, "c"]},
                [K, physical("v", TEXT, "p2")],
                {"p2": ["a", None, None]},
                [1],
            ),
            (  # column mapping was removed
                [physical("k", LONG, "p1"), physical("v", TEXT, "p2")],
                {"p1": [0, 1, 2], "p2": ["a", "b", None]},
                [K, ("v", TEXT)],
                {"v": ["a", "B", None]},
                [0, 2],
            ),
            (  # also under other names
                [physical("k", LONG, "p1"), physical("v", TEXT, "w")],
                {"p1": [0, 1, 2], "w": ["a", "b", None]},
                [K, ("w", TEXT)],
                {"w": ["a", "b", None]},
                [],
            ),
            (  # each has the physical name of the other
                [physical("k", LONG, "v"), physical("v", LONG, "k")],
                {"v": [0, 1, 2], "k": [5, 6, 7]},
                [K, ("v", LONG)],
                {"v": [5, 6, 8]},
                [0, 1],
            ),
            (
                [K, ("s", pa.struct([("x", INT), ("y", INT)]))],
                {"s": [{"x": 1, "y": 2}, {"x": None, "y": 2}, None]},
                [K, ("s", pa.struct([("y", INT), ("X", INT)]))],
                {"s": [{"y": 2, "X": 1}, {"y": 2, "X": None}, None]},
                [1, 2],
            ),
            ([K, ("v", INT)], {"v": [1, 2, 3]}, [("v", INT), K], {"v": [1, 2, 4]}, [0, 1]),
        ],
    )
    def test_deleted_rows_are_compared_as_rows_of_the_version(
        self, table: Versions, before: Any, gone: Columns, after: Any, come: Columns, carried: list[int]
    ) -> None:
        old, new = pa.schema(before), pa.schema(after)
        names = [{f.metadata[PHYSICAL_NAME].decode(): f.type for f in s if f.metadata} for s in (old, new)]
        files = [
            File(
                {"k": [0, 1, 2], **{n: pa.array(v, types.get(n, kind(schema, n))) for n, v in columns.items()}}, schema
            )
            for schema, columns, types in zip((old, new), (gone, come), names, strict=True)
        ]
        plan = table.files(files[:1], files[1:], new)
        for rules in (DROP, BY_KEY):
            rows, counts = refined(plan, rules)
            assert counts.carryovers == 2 * len(carried)
            assert [row[2] for row in rows if row[0] in {"insert", "update_postimage"}] == [
                row for row in range(3) if row not in carried
            ]

    def test_updates_have_the_columns_of_the_version(self, table: Versions) -> None:
        wide = pa.schema([("k", LONG), ("n", LONG)])
        narrow = pa.schema([("k", INT)])
        plan = table.files([File({"k": [1, 2]}, narrow)], [File({"k": [1, 2], "n": [None, 5]}, wide)], wide)
        assert left(plan, BY_KEY) == [("update_preimage", 2, None), ("update_postimage", 2, 5)]

    def test_a_row_with_a_column_that_is_dropped_is_left_as_it_is(self, table: Versions) -> None:
        """An update would have no column for the dropped value."""
        plan = table.files([pairs((1, "a"), (2, "b"))], [File({"k": [1, 3]}, pa.schema([K]))], pa.schema([K]))
        assert left(plan, BY_KEY) == [("delete", 1, "a"), ("delete", 2, "b"), ("insert", 1), ("insert", 3)]
        plan = replace(plan, feed=True)
        assert [kind for kind, *_ in left(plan, BY_KEY)] == ["delete", "delete", "insert", "insert"]


def kind(schema: pa.Schema, name: str) -> pa.DataType | None:
    return schema.field(name).type if schema.get_field_index(name) >= 0 else None


class TestPartitions:
    @pytest.mark.parametrize(
        ("of", "one", "other", "equal"),
        [
            (INT, "1", "1", True),
            (INT, "1", "01", True),
            (INT, "1", "2", False),
            (INT, None, "", True),
            (INT, None, "0", False),
            (TEXT, None, "", False),
            (pa.binary(), None, "", False),
            (TEXT, "a", "A", False),
            (TEXT, "1", "01", False),
            (pa.binary(), "a", "a", True),
            (pa.float64(), "0.0", "-0.0", False),
            (pa.float64(), "NaN", "NaN", True),
            (pa.float64(), "1", "1.0", True),
            (decimals(10, 2), "1.0", "1.00", True),
            (pa.bool_(), "true", "false", False),
            (pa.date32(), "2020-01-01", "2020-01-01", True),
            (pa.date32(), "0001-01-01", "0001-01-01", True),
            (pa.timestamp("us", "UTC"), "2020-01-01 00:00:00", "2020-01-01T00:00:00.000000Z", True),
            (pa.timestamp("us", "UTC"), "2020-01-01T01:00:00+01:00", "2020-01-01 00:00:00", True),
            (pa.timestamp("us"), "2020-01-01 00:00:00", "2020-01-01 00:00:00.000001", False),
        ],
    )
    def test_values_are_compared_however_written(
        self, table: Versions, of: pa.DataType, one: str | None, other: str | None, equal: bool
    ) -> None:
        schema = pa.schema([("v", LONG), ("p", of)])
        files = [File({"v": [1, 2]}, schema, (("p", text),)) for text in (one, other)]
        assert refined(table.files(files[:1], files[1:], schema), DROP)[1].carryovers == (4 if equal else 0)
        # A column that is not delivered does not matter.
        alone = table.files(files[:1], files[1:], schema).select(["v"])
        assert refined(alone, DROP)[1].carryovers == 4

    @pytest.mark.parametrize(
        ("of", "text"),
        [
            (pa.date32(), "0000-01-01"),
            (pa.timestamp("us", "UTC"), "0000-06-01 00:00:00"),
            (pa.timestamp("us"), "0000-06-01 00:00:00"),
        ],
    )
    def test_days_before_the_first_of_pythons_calendar(self, table: Versions, of: pa.DataType, text: str) -> None:
        schema = pa.schema([("v", LONG), ("p", of)])
        files = [File({"v": [1, 2]}, schema, (("p", text),)) for _ in range(2)]
        plan = table.files(files[:1], files[1:], schema)
        list(execute(plan.tasks[0]))
        with SpilledBitmaps() as selections, SpilledPreimages() as preimages:
            _, counts = refine(plan, DROP, matches(), selections, preimages, kept_rows(plan))
        assert counts.carryovers == 4

    def test_a_partition_column_that_widens(self, table: Versions) -> None:
        old, new = (pa.schema([("v", LONG), ("p", of)]) for of in (pa.date32(), pa.timestamp("us")))
        gone = File({"v": [1, 2]}, old, (("p", "2020-01-01"),))
        come = File({"v": [2, 3]}, new, (("p", "2020-01-01 00:00:00"),))
        assert refined(table.files([gone], [come], new), DROP)[1].carryovers == 2

    def test_partitions_with_one_side_only_are_not_read(self, table: Versions) -> None:
        schema = pa.schema([("v", LONG), ("p", TEXT)])
        gone = [File({"v": [1, 2]}, schema, (("p", text),)) for text in "ab"]
        come = [File({"v": [2, 1]}, schema, (("p", text),)) for text in "bc"]
        plan = table.files(gone, come, schema)
        for index in (0, 3):
            Path(plan.tasks[index].uri).unlink()
        with SpilledBitmaps() as selections, SpilledPreimages() as preimages:
            found, counts = refine(plan, DROP, matches(), selections, preimages, kept_rows(plan))
            assert counts == ChangelogCounts(carryovers=4)
            assert read(found.tasks[1:3]) == []
            with pytest.raises(FileVacuumed):
                read(found.tasks)

    def test_updates_move_rows_between_partitions(self, table: Versions) -> None:
        schema = pa.schema([("k", LONG), ("p", TEXT)])
        plan = table.files(
            [File({"k": [1, 2]}, schema, (("p", "a"),))], [File({"k": [2, 3]}, schema, (("p", "b"),))], schema
        )
        assert left(plan, BY_KEY) == [
            ("delete", 1, "a"),
            ("update_preimage", 2, "a"),
            ("update_postimage", 2, "b"),
            ("insert", 3, "b"),
        ]


VALUES = st.lists(st.lists(st.tuples(st.integers(0, 3) | st.none(), st.sampled_from("ab")), min_size=1), max_size=3)


@settings(max_examples=repeats(30))
@given(gone=VALUES, come=VALUES, by_key=st.booleans(), keep=st.booleans(), skip=st.booleans())
def test_rules_against_counting(
    tmp_path_factory: pytest.TempPathFactory,
    gone: list[list[Any]],
    come: list[list[Any]],
    by_key: bool,
    keep: bool,
    skip: bool,
) -> None:
    table = Versions(tmp_path_factory.mktemp("t"))
    plan = table.files([pairs(*rows) for rows in gone], [pairs(*rows) for rows in come])
    key = ("k",) if by_key else ()
    rules = PairingRules(Carryovers.KEEP if keep else Carryovers.DROP, bool(by_key), key, skip)
    rows, counts = refined(plan, rules)
    was = Counter(row for file in gone for row in file)
    now = Counter(row for file in come for row in file)
    deleted = Counter(row[3:] for row in rows if row[0] in {"delete", "update_preimage"})
    inserted = Counter(row[3:] for row in rows if row[0] in {"insert", "update_postimage"})
    assert deleted - inserted == was - now
    assert inserted - deleted == now - was
    if not keep:
        assert (deleted, inserted) == (was - now, now - was)
    assert len(rows) == sum(was.values()) + sum(now.values()) - counts.carryovers - counts.unchanged
    images = [row for row in rows if row[0] in KINDS]
    assert [row[0] for row in images] == KINDS * (len(images) // 2)
    for before, after in zip(images[::2], images[1::2], strict=True):
        assert before[1:4] == after[1:4]
        assert before != after or not skip
    assert counts.updates == len(images) // 2 + counts.unchanged // 2
    places = [row[1:3] for row in rows if row[0] != "update_preimage"]
    assert places == sorted(set(places))
    assert refined(plan, rules) == (rows, counts)


def net(table: Versions, rules: PairingRules = DROP, plans: Sequence[ChangePlan] | None = None) -> list[Row]:
    """Return kind, version, position and values of the rows left of all versions."""
    with SpilledBitmaps() as selections:
        plans = table.plans if plans is None else plans
        answers = []
        for kept in (kept_rows(*plans), kept_rows()):
            found, _ = refine_range(plans, rules, matches(), selections, kept)
            answers.append([(row[0], plan.version, *row[1:]) for plan in found for row in read(plan.tasks)])
        assert answers[0] == answers[1]
        return answers[0]


class TestNetChanges:
    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("rules", [DROP, BY_ID, KEEP], ids=["drop", "updates", "keep"])
    @pytest.mark.parametrize(
        ("versions", "expected"),
        [
            ([([], [1]), ([1], [])], []),
            ([([], [1]), ([1], []), ([], [1])], [("insert", 5, 0, 0, 1)]),
            ([([], [1])], [("insert", 3, 0, 0, 1)]),
            ([([1], []), ([], [1])], []),
            ([([1], []), ([], [1]), ([1], [])], [("delete", 3, 0, 0, 1)]),
            ([([1], [2]), ([2], [1])], []),
            ([([1], [2]), ([2], [3])], [("delete", 3, 0, 0, 1), ("insert", 4, 1, 0, 3)]),
            ([([1], [2]), ([2], [])], [("delete", 3, 0, 0, 1)]),
            ([([], [1]), ([1], [2])], [("insert", 4, 1, 0, 2)]),
            # Inserted twice, deleted once: the first one is removed.
            ([([1], []), ([1], [])], [("delete", 3, 0, 0, 1), ("delete", 4, 0, 0, 1)]),
            ([([], [1, 1]), ([1], [])], [("insert", 3, 0, 1, 1)]),
            ([([], [None, None]), ([None], [])], [("insert", 3, 0, 1, None)]),
        ],
        ids=str,
    )
    def test_existed_before_and_exists_after(
        self, table: Versions, rules: PairingRules, versions: list[tuple[list[Any], list[Any]]], expected: list[Row]
    ) -> None:
        for gone, come in versions:
            table.values(gone, come)
        assert net(table, rules) == expected

    def test_carried_over_and_then_deleted(self, table: Versions) -> None:
        """The delete has the version that deleted the row, not the one that rewrote it."""
        table.values([1, 2, 3], [2, 3, 4])
        table.values([2, 3, 4], [3])
        assert net(table) == [("delete", 3, 0, 0, 1), ("delete", 4, 0, 0, 2)]

    def test_updates_over_several_versions(self, table: Versions) -> None:
        """Row 1 is updated twice, 2 deleted and inserted, 3 changed and reset, 4 inserted and updated, 5 deleted."""
        table.files([pairs((1, "a"), (2, "b"), (3, "c"))], [pairs((1, "A"), (3, "C"), (4, "d"))])
        table.files([pairs((1, "A"), (3, "C"), (4, "d"), (5, "e"))], [pairs((1, "AA"), (2, "bb"), (3, "c"), (4, "dd"))])
        assert net(table, BY_KEY) == [
            ("update_preimage", 3, 0, 0, 1, "a"),
            ("update_preimage", 3, 0, 1, 2, "b"),
            ("delete", 4, 0, 3, 5, "e"),
            ("update_postimage", 4, 1, 0, 1, "AA"),
            ("update_postimage", 4, 1, 1, 2, "bb"),
            ("insert", 4, 1, 3, 4, "dd"),
        ]
        plain = [row[0] for row in net(table)]
        assert plain == ["delete", "delete", "delete", "insert", "insert", "insert"]

    def test_row_ids_identify_updates_without_a_key(self, table: Versions) -> None:
        table.files([tracked([1, 2], 0, 1)], [tracked([5, 2], 9, 3, rid=[0, 1], rver=[None, 1])], NUMBER)
        table.files(
            [tracked([5, 2], 9, 3, rid=[0, 1], rver=[None, 1])],
            [tracked([6, 2], 19, 4, rid=[0, 1], rver=[None, 1])],
            NUMBER,
        )
        assert net(table, BY_ID) == [("update_preimage", 3, 0, 0, 1), ("update_postimage", 4, 1, 0, 6)]

    def test_a_row_is_one_image_at_most(self, table: Versions) -> None:
        """Key 1 matches key 1; by row id it would match 2, whose key is new in the range."""
        come = pairs((1, "A"), (2, "b"), tracking=RowTracking(9, 2, "rid"))
        come = replace(come, columns={**come.columns, "rid": pa.array([7, 0], pa.int64())})
        table.files([pairs((1, "a"), tracking=RowTracking(0, 1))], [come])
        assert [(row[0], row[-1]) for row in net(table, BY_KEY)] == [
            ("update_preimage", "a"),
            ("update_postimage", "A"),
            ("insert", "b"),
        ]

    def test_versions_with_change_files(self, table: Versions) -> None:
        """Their images stay images only if both remain in the range; rows of an unknown kind stay."""
        table.files(come=[pairs((1, "a"), (2, "b"))], feed=True)
        table.cdc(
            written(
                ("update_preimage", 1, "a"),
                ("update_postimage", 1, "A"),
                ("update_preimage", 3, "c"),
                ("update_postimage", 3, "C"),
                ("strange", 9, "s"),
                ("delete", 2, "b"),
            )
        )
        table.cdc(written(("update_preimage", 3, "C"), ("update_postimage", 3, "CC"), ("delete", 4, "d")))
        expected = [
            ("insert", 4, 1, 1, 1, "A"),
            ("delete", 4, 1, 2, 3, "c"),
            ("strange", 4, 1, 4, 9, "s"),
            ("delete", 5, 0, 2, 4, "d"),
            ("insert", 5, 1, 1, 3, "CC"),
        ]
        assert net(table) == expected
        images = {(4, 2): "update_preimage", (5, 1): "update_postimage"}
        assert net(table, BY_KEY) == [(images.get((row[1], row[3]), row[0]), *row[1:]) for row in expected]

    def test_duplicates(self, table: Versions) -> None:
        table.values([7, 7, 7], [7])
        table.values([], [8, 8])
        table.values([7, 8], [8, 9])
        assert net(table) == [
            ("delete", 3, 0, 0, 7),
            ("delete", 3, 0, 1, 7),
            ("insert", 4, 0, 0, 8),
            ("insert", 4, 0, 1, 8),
            ("delete", 5, 0, 0, 7),
            ("insert", 5, 1, 1, 9),
        ]

    def test_columns_that_change_in_the_range(self, table: Versions) -> None:
        """Rows are compared in all columns, and delivered in their own."""
        narrow, wide = pa.schema([("k", INT)]), pa.schema([("k", LONG), ("v", TEXT)])
        table.files(come=[File({"k": [1, 2, 3]}, narrow)], schema=narrow)
        table.files([File({"k": [1, 2]}, narrow)], [pairs((1, None), (2, "b"))], wide)
        table.files([pairs((2, "b"))], schema=wide)
        assert net(table) == [("insert", 3, 0, 0, 1), ("insert", 3, 0, 2, 3)]
        assert net(table, KEEP) == net(table)

    @pytest.mark.parametrize("after", [INT, TEXT])
    def test_columns_that_cannot_be_compared(self, table: Versions, after: pa.DataType) -> None:
        table.values([], [1])
        schema = pa.schema([("v", after)])
        table.files(come=[File({"v": [None]}, schema)], schema=schema)
        with pytest.raises(ConfigError, match="version 3"):
            net(table)
        assert net(table, plans=table.plans[1:]) == [("insert", 4, 0, 0, None)]

    def test_a_column_that_is_dropped_in_the_range(self, table: Versions) -> None:
        """Rows that differ in the dropped column are different rows, on either side."""
        narrow = pa.schema([K])
        table.files([pairs((1, "a"), (2, None), (3, "c"))], [pairs((4, "d"), (5, None))])
        table.files([File({"k": [4, 5]}, narrow)], [File({"k": [1, 2, 9]}, narrow)], narrow)
        assert [(row[0], *row[4:]) for row in net(table)] == [
            ("delete", 1, "a"),
            ("delete", 3, "c"),
            ("insert", 4, "d"),
            ("delete", 4),
            ("insert", 1),
            ("insert", 9),
        ]

    def test_updates_where_a_column_is_dropped_in_the_range(self, table: Versions) -> None:
        """A preimage never follows its postimage: a row inserted and deleted in the range did not exist before."""
        narrow = pa.schema([K])
        table.files([pairs((1, "a"), (2, "b"))], [pairs((1, "A"), (3, "c"))])
        table.files([File({"k": [1, 3]}, narrow)], [File({"k": [2, 3]}, narrow)], narrow)
        table.files([File({"k": [3]}, narrow)], schema=narrow)
        assert [(row[0], row[1], *row[4:]) for row in net(table, BY_KEY)] == [
            ("update_preimage", 3, 1, "a"),
            ("update_preimage", 3, 2, "b"),
            ("update_postimage", 3, 1, "A"),
            ("insert", 3, 3, "c"),
            ("delete", 4, 1),
            ("update_postimage", 4, 2),
            ("delete", 5, 3),
        ]

    def test_another_column_of_the_same_name(self, table: Versions) -> None:
        """The values of common columns are equal; each row lacks the other's column."""
        old, new = (pa.schema([K, physical("v", TEXT, each)]) for each in ("p1", "p2"))
        table.files([File({"k": [1, 2], "p1": pa.array(["a", None], TEXT)}, old)], schema=old)
        table.files(come=[File({"k": [1, 2], "p2": pa.array(["a", None], TEXT)}, new)], schema=new)
        assert net(table) == [("delete", 3, 0, 0, 1, "a"), ("insert", 4, 0, 0, 1, "a")]

    def test_a_table_that_maps_its_columns_no_more(self, table: Versions) -> None:
        """Names were exchanged before mapping was removed: columns are matched by identity from version to version."""
        plain = pa.schema([("a", LONG), ("b", LONG)])
        mapped, swapped = (
            pa.schema([physical(name, LONG, "a"), physical(other, LONG, "b")]) for name, other in ("ab", "ba")
        )
        table.files([File({"a": [1, 2], "b": [5, 6]}, plain)], schema=plain)
        table.files(schema=mapped)
        table.files(schema=swapped)
        table.files(schema=pa.schema([("b", LONG), ("a", LONG)]))
        table.files(come=[File({"a": [5, 2], "b": [1, 6]}, plain)], schema=plain)
        assert net(table) == [("delete", 3, 0, 1, 2, 6), ("insert", 7, 0, 1, 2, 6)]
        assert net(table, plans=table.plans[1:]) == [("insert", 7, 0, 0, 5, 1), ("insert", 7, 0, 1, 2, 6)]

    def test_versions_without_changes(self, table: Versions) -> None:
        table.values([], [])
        table.values([], [1])
        table.values([], [])
        assert net(table) == [("insert", 4, 0, 0, 1)]
        assert net(table, BY_KEY, [replace(table.plans[0], schema=PAIR)]) == []

    def test_some_of_the_columns(self, table: Versions) -> None:
        table.files(come=[pairs((1, "a"), (2, "b"))])
        table.files([pairs((1, "a"))], [pairs((3, "b"), (1, "c"))])
        plans = [plan.select(["v"]) for plan in table.plans]
        assert net(table, plans=plans) == [("insert", 3, 0, 1, "b"), ("insert", 4, 1, 0, "b"), ("insert", 4, 1, 1, "c")]

    def test_row_ids_that_change_files_do_not_have(self, table: Versions) -> None:
        """A row inserted with an id and deleted by a change file, which has no ids, is inserted and deleted."""
        table.files(come=[replace(pairs((1, "a"), (2, "b")), tracking=RowTracking(0, 3))], feed=True)
        table.cdc(written(("delete", 1, "a")))
        plans = [plan.with_row_ids() for plan in table.plans]
        assert net(table, plans=plans) == [("insert", 3, 0, 1, 2, "b", 1, 3)]


@settings(max_examples=repeats(20))
@given(
    versions=st.lists(
        st.tuples(*[st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=4)] * 2), min_size=1
    ),
    by_key=st.booleans(),
)
def test_net_changes_against_counting(
    tmp_path_factory: pytest.TempPathFactory, versions: list[tuple[list[Any], list[Any]]], by_key: bool
) -> None:
    table = Versions(tmp_path_factory.mktemp("t"))
    was: Counter[Any] = Counter()
    now: Counter[Any] = Counter()
    for gone, come in versions:
        table.files([pairs(*gone)] if gone else [], [pairs(*come)] if come else [])
        was.update(gone)
        now.update(come)
    rows = net(table, BY_KEY if by_key else DROP)
    assert Counter(row[4:] for row in rows if row[0] in {"delete", "update_preimage"}) == was - now
    assert Counter(row[4:] for row in rows if row[0] in {"insert", "update_postimage"}) == now - was
    kinds = Counter(row[0] for row in rows)
    assert kinds["update_preimage"] == kinds["update_postimage"]
    assert by_key or not kinds["update_preimage"]
    places = [row[1:4] for row in rows]
    assert places == sorted(set(places))


class TestChars:
    """Files have a CHAR padded or not: each row is compared, paired and counted as it is delivered."""

    SCHEMA = pa.schema([with_chars(pa.field("k", TEXT), "char(2)"), with_chars(pa.field("v", LISTS), "array<char(2)>")])
    OLD = File({"k": ["a", "b", "c"], "v": [["x"], None, []]}, SCHEMA)
    NEW = File({"k": ["a ", "b ", "c "], "v": [["x "], ["y "], []]}, SCHEMA)

    def test_carryovers_and_keys(self, table: Versions) -> None:
        plan = table.files([self.OLD], [self.NEW], self.SCHEMA)
        for rules in (DROP, UNCHANGED):
            assert refined(plan, rules)[0] == [("delete", 0, 1, "b ", None), ("insert", 1, 1, "b ", ["y "])]
        for rules in (BY_KEY, replace(BY_KEY, carryovers=Carryovers.KEEP, skip_unchanged=True)):
            found = [row for row in refined(plan, rules)[0] if row[0].startswith("update")]
            assert [(row[0], *row[3:]) for row in found] == [
                ("update_preimage", "b ", None),
                ("update_postimage", "b ", ["y "]),
            ]

    @pytest.mark.parametrize("gone", [("a", "a "), ("a ", "a")])
    def test_partition_values(self, table: Versions, gone: tuple[str, str]) -> None:
        schema = pa.schema([("v", LONG), self.SCHEMA.field("k")])
        old, new = (
            File({"v": rows}, schema, (("k", text),)) for rows, text in zip(([1, 2], [1, 3]), gone, strict=True)
        )
        plan = table.files([old], [new], schema)
        assert refined(plan, DROP)[0] == [("delete", 0, 1, 2, "a "), ("insert", 1, 1, 3, "a ")]

    def test_net_changes(self, table: Versions) -> None:
        table.files(come=[self.OLD], schema=self.SCHEMA)
        table.files([self.OLD], [self.NEW], self.SCHEMA)
        table.cdc(File({"k": ["b "], "v": [["y"]], CHANGE_TYPE: ["delete"]}, self.SCHEMA), schema=self.SCHEMA)
        assert net(table) == [("insert", 3, 0, 0, "a ", ["x "]), ("insert", 3, 0, 2, "c ", [])]

    def test_net_changes_end_where_a_char_becomes_a_string(self, table: Versions) -> None:
        plain = pa.schema([("k", TEXT), ("v", LISTS)])
        table.files(come=[self.OLD], schema=self.SCHEMA)
        table.files(come=[replace(self.OLD, schema=plain)], schema=plain)
        with pytest.raises(ConfigError, match="cannot be compared with those of the last version"):
            net(table)

    def test_a_char_that_becomes_a_string(self, table: Versions) -> None:
        """Rows were delivered padded before, and are not from then on."""
        plain = pa.schema([("k", TEXT), ("v", LISTS)])
        plan = table.files([self.OLD], [replace(self.OLD, schema=plain)], plain)
        assert [(row[0], *row[3:]) for row in refined(plan, DROP)[0]] == [
            *(("delete", *row) for row in [("a ", ["x "]), ("b ", None), ("c ", [])]),
            *(("insert", *row) for row in [("a", ["x"]), ("b", None), ("c", [])]),
        ]

"""`mode = "mirror"` of the `delta` sink by itself: what it does, columns that change, and what it refuses."""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import tailer
from tailer.errors import ConfigError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, Gap, SchemaChange
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress
from tailer_sinks.delta.mirror import merges
from tailer_sinks.delta.mirror import table as mirror_table
from tailer_sinks.delta.sink import DeltaSink
from tests.support.mirrors.delta import APP, batch, deliver, full, make_mirror, mirror_rows

pytestmark = [pytest.mark.anyio, pytest.mark.long]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
NEXT_STEP = "Ask for a snapshot with `tailer resnapshot PIPELINE`."


@pytest.fixture(params=["merge", "rewrite"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way of a transaction into the table: a MERGE, or all rows written again."""
    if request.param == "rewrite":
        monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)
    return str(request.param)


def inserts(version: int, *ids: int, task: int = 0) -> ChangeBatch:
    return batch(version, "insert", SCHEMA, [{"id": each, "name": f"{each} at {version}"} for each in ids], task)


def deletes(version: int, *ids: int, task: int = 0) -> ChangeBatch:
    return batch(version, "delete", SCHEMA, [{"id": each, "name": "old"} for each in ids], task)


def gap(first: int, last: int, *, snapshot: bool) -> Gap:
    return Gap("t", first, last, 0, "lost", snapshot=snapshot)


def names(path: Path) -> dict[int, str]:
    rows = mirror_rows(path).to_pylist()
    found = {row["id"]: row["name"] for row in rows}
    assert len(found) == len(rows)
    return found


def expect(version: int, app_id: str = APP) -> Progress:
    return Progress(app_id, Position.end(version))


@pytest.mark.usefixtures("way")
async def test_of_a_key_that_changes_in_several_versions_the_last_change_counts(tmp_path: Path) -> None:
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1, 2, 3))
    await deliver(
        sink, deletes(2, 1, 2), inserts(2, 1, 4), deletes(3, 1, 4), inserts(3, 1), deletes(4, 1), inserts(5, 1, 5)
    )
    assert names(tmp_path) == {3: "3 at 1", 1: "1 at 5", 5: "5 at 5"}
    assert await make_mirror(tmp_path).progress(APP) == expect(5)
    assert DeltaTable(tmp_path).version() == 2  # its creation, and two transactions


@pytest.mark.usefixtures("way")
async def test_the_rows_of_a_version_need_no_order(tmp_path: Path) -> None:
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1, 2))
    await deliver(
        sink, batch(2, ["update_postimage", "update_preimage"], SCHEMA, [{"id": 1, "name": "new"}, {"id": 1}])
    )
    assert names(tmp_path) == {1: "new", 2: "2 at 1"}


@pytest.mark.usefixtures("way")
async def test_changes_that_cancel_out_move_the_progress(tmp_path: Path) -> None:
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1))
    await deliver(sink, inserts(2, 2), deletes(3, 2))
    assert names(tmp_path) == {1: "1 at 1"}
    assert await make_mirror(tmp_path).progress(APP) == expect(3)


async def test_a_snapshot_takes_the_place_of_all_rows_and_columns(tmp_path: Path) -> None:
    other = pa.schema([("name", pa.string()), ("number", pa.float64())])
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1, 2))
    await deliver(sink, gap(2, 6, snapshot=True), inserts(6, 2, task=SNAPSHOT_TASKS), schema=full(SCHEMA))
    assert names(tmp_path) == {2: "2 at 6"}
    assert DeltaTable(tmp_path).history(1)[0]["gap"] == "versions 2 to 6 are lost: lost"
    sink = make_mirror(tmp_path, key=["name"])
    rows = batch(8, "insert", other, [{"name": "a", "number": 0.5}], SNAPSHOT_TASKS)
    async with sink.begin(APP, full(other)) as transaction:
        await transaction.announce(gap(7, 8, snapshot=True))
        await transaction.write(rows)
        await transaction.commit(expect(8))
    assert mirror_rows(tmp_path).to_pylist() == [{"name": "a", "number": 0.5}]
    await deliver(sink, gap(9, 9, snapshot=True), schema=full(other))
    assert len(mirror_rows(tmp_path)) == 0
    assert await make_mirror(tmp_path, key=["name"]).progress(APP) == expect(9)


async def test_it_continues_under_the_next_id_of_its_table(tmp_path: Path) -> None:
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1, 2, 3))
    await deliver(sink, deletes(2, 1, 2), inserts(2, 5), app_id="orders/another")
    assert names(tmp_path) == {3: "3 at 1", 5: "5 at 2"}
    # The former id comes back: the pipeline sets its progress to the version before.
    with pytest.raises(SinkRejected, match="would not be a mirror of version 3"):
        await sink.reset(expect(3))
    await sink.reset(expect(2))
    assert await make_mirror(tmp_path).progress(APP) == expect(2)
    await deliver(sink, deletes(3, 5), inserts(3, 6))
    assert names(tmp_path) == {3: "3 at 1", 6: "6 at 3"}
    with pytest.raises(SinkRejected, match="would not be a mirror of version 2"):
        await sink.reset(expect(2))


@pytest.mark.usefixtures("way")
async def test_a_table_without_a_key_of_its_own_is_mirrored_by_row_ids(tmp_path: Path) -> None:
    tracked = pa.schema([*SCHEMA, ("_row_id", pa.int64()), ("_row_commit_version", pa.int64())])
    rows = [{"id": 1, "name": "a", "_row_id": 10}, {"id": 1, "name": "a", "_row_id": 11}]
    sink = make_mirror(tmp_path, key=[])
    await deliver(sink, batch(1, "insert", tracked, rows))
    await deliver(sink, batch(2, "delete", tracked, rows[:1]))
    assert mirror_rows(tmp_path)["_row_id"].to_pylist() == [11]


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [2**63 - 1, -(2**63), 0]),
    "string": (pa.string(), ["", "\0", "é" * 100, "é" * 100 + "x", "'\"`;"]),
    "binary": (pa.binary(), [b"", b"\xff" * 80, b"\xff" * 80 + b"\0"]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [datetime(2026, 1, 1, 0, 0, 0, at, tzinfo=UTC) for at in (1, 2, 999)]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(1969, 1, 1, 0, 0, 0, at) for at in (1, 2, 999)]),  # noqa: DTZ001
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "decimal": (pa.decimal128(38, 10), [Decimal("1234567890123456789.1234567890"), Decimal("1E-10")]),
    "boolean": (pa.bool_(), [True, False]),
}


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", KEYS)
async def test_keys_of_every_type(tmp_path: Path, name: str) -> None:
    """Each key is in a file of its own, so that those are skipped which have other keys."""
    kind, values = KEYS[name]
    schema = pa.schema([('a `key` "of" it\'s', kind), ("part", pa.int32()), ("n", pa.int64())])
    sink = make_mirror(tmp_path, key=[schema.names[0], "part"])
    rows: list[dict[str, Any]] = []
    for at, value in enumerate(values):
        rows.append(dict(zip(schema.names, (value, 7, at), strict=True)))
    for version, row in enumerate(rows):
        await deliver(sink, batch(version, "insert", schema, [row]))
    for version, row in enumerate(rows, len(rows)):
        changed: list[dict[str, Any]] = [row, {**row, "n": row["n"] + 100}]
        await deliver(sink, batch(version, ["update_preimage", "update_postimage"], schema, changed))
    with pytest.raises(SinkRejected, match="insert a key that is there"):
        await deliver(sink, batch(2 * len(rows), "insert", schema, rows[:1]))
    found = mirror_rows(tmp_path).sort_by("n").to_pylist()
    assert found == [{**row, "n": row["n"] + 100} for row in rows]


PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["a/b=c%20 d", "é'\"", "null", " "]),
    "date": (pa.date32(), [date(1, 1, 1), date(2026, 3, 1)]),
    "boolean": (pa.bool_(), [True, False]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", PARTITIONS)
async def test_partitions_of_every_type(tmp_path: Path, name: str) -> None:
    kind, values = PARTITIONS[name]
    schema = pa.schema([("id", pa.int64()), ("p", kind)])
    rows: list[dict[str, Any]] = [{"id": at, "p": value} for at, value in enumerate([*values, None])]
    sink = make_mirror(tmp_path, partition_by=["p"])
    await deliver(sink, batch(1, "insert", schema, rows))
    changed = [rows[0], {"id": 0, "p": None}]
    await deliver(sink, batch(2, ["update_preimage", "update_postimage"], schema, changed))
    found = pa.RecordBatchReader.from_stream(DeltaTable(tmp_path).scan()).read_all().to_pylist()
    assert sorted(found, key=lambda row: int(row["id"])) == [{"id": 0, "p": None}, *rows[1:]]


@pytest.mark.usefixtures("way")
async def test_partitions_stay_and_rows_move_between_them(tmp_path: Path) -> None:
    sink = make_mirror(tmp_path, partition_by=["name"])
    rows: list[dict[str, Any]] = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": None}]
    await deliver(sink, batch(1, "insert", SCHEMA, rows))
    await deliver(
        sink,
        batch(2, ["update_preimage", "update_postimage"], SCHEMA, [rows[0], {"id": 1, "name": "b"}]),
        deletes(3, 3),
    )
    assert names(tmp_path) == {1: "b", 2: "b"}
    assert DeltaTable(tmp_path).metadata().partition_columns == ["name"]
    await deliver(sink, gap(4, 6, snapshot=True), inserts(6, 9, task=SNAPSHOT_TASKS), schema=full(SCHEMA))
    assert DeltaTable(tmp_path).metadata().partition_columns == ["name"]
    with pytest.raises(SinkRejected, match="holds an empty string, which to Delta is null"):
        await deliver(sink, batch(7, "insert", SCHEMA, [{"id": 5, "name": ""}]))
    with pytest.raises(SinkRejected, match="is partitioned by name"):
        await deliver(make_mirror(tmp_path, partition_by=["id"]), inserts(7, 7))


async def test_the_change_feed_of_a_mirror_is_right(tmp_path: Path, way: str) -> None:
    """Folded, the feed of each commit turns the rows before it into those after it."""
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1, 2, 3))
    DeltaTable(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    first = DeltaTable(tmp_path).version() + 1
    await deliver(sink, deletes(2, 1, 2), inserts(2, 1, 4))
    await deliver(sink, inserts(3, 7), deletes(4, 7), deletes(4, 4))
    await deliver(sink, gap(5, 6, snapshot=True), inserts(6, 1, 9, task=SNAPSHOT_TASKS), schema=full(SCHEMA))
    await deliver(sink, deletes(7, 9))
    ours = [row async for batch in tailer.changes(tmp_path, start=first) for row in batch.to_pylist()]
    for feed in (ours, pa.table(DeltaTable(tmp_path).load_cdf(first)).to_pylist()):
        kinds = [(row["_commit_version"] - first, row["id"], row["_change_type"]) for row in feed]
        assert way == "rewrite" or sorted(each for each in kinds if each[0] != 2) == [
            (0, 1, "update_postimage"),
            (0, 1, "update_preimage"),
            (0, 2, "delete"),
            (0, 4, "insert"),
            (1, 4, "delete"),
            (3, 9, "delete"),
        ]
        await to_thread.run_sync(check_fold, tmp_path, first, feed)


def check_fold(path: Path, first: int, feed: list[dict[str, Any]]) -> None:
    """Check that the changes of each version from `first` on turn the rows before it into those after it."""
    rows = rows_at(path, first - 1)
    for version in range(first, DeltaTable(path).version() + 1):
        for row in (row for row in feed if row["_commit_version"] == version):
            rows[f"{row['id']} {row['name']}"] += -1 if row["_change_type"] in ("delete", "update_preimage") else 1
        assert +rows == rows_at(path, version)
        assert min(rows.values()) >= 0


def rows_at(path: Path, version: int) -> Counter[str]:
    return Counter(f"{row['id']} {row['name']}" for row in mirror_rows(path, version).to_pylist())


@pytest.mark.usefixtures("way")
async def test_an_update_may_change_the_key(tmp_path: Path) -> None:
    """Two rows swap their keys, and one gets another key."""
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1, 2, 3, 4))
    kinds = ["update_preimage", "update_postimage"] * 3
    ids = [(1, "1 at 1"), (2, "1 at 1"), (2, "2 at 1"), (1, "2 at 1"), (3, "3 at 1"), (9, "3 at 1")]
    await deliver(sink, batch(2, kinds, SCHEMA, [{"id": one, "name": name} for one, name in ids]))
    assert names(tmp_path) == {1: "2 at 1", 2: "1 at 1", 4: "4 at 1", 9: "3 at 1"}
    taken = batch(3, kinds[:2], SCHEMA, [{"id": 1, "name": "2 at 1"}, {"id": 4, "name": "2 at 1"}])
    with pytest.raises(SinkRejected, match="insert a key that is there"):
        await deliver(sink, taken)


@pytest.mark.usefixtures("way")
class TestColumns:
    """The columns of the source change."""

    async def change(self, sink: Any, after: pa.Schema, origins: dict[str, str] | None, *rows: ChangeBatch) -> None:
        before = full(SCHEMA)
        await deliver(sink, SchemaChange("t", 2, 0, before, full(after), ("it changed",), origins), *rows)

    async def test_a_column_is_added_in_the_commit_of_the_first_rows_that_have_it(self, tmp_path: Path) -> None:
        wide = pa.schema([("id", pa.int64()), ("extra", pa.struct([("x", pa.int32())])), ("name", pa.string())])
        kept = {"id": "id", "name": "name"}
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(1, 1, 2))
        await self.change(sink, wide, kept, batch(2, "insert", wide, [{"id": 3, "extra": {"x": 7}, "name": "c"}]))
        found = mirror_rows(tmp_path).sort_by("id").to_pylist()
        assert found[0] == {"id": 1, "name": "1 at 1", "extra": None}
        assert found[2] == {"id": 3, "name": "c", "extra": {"x": 7}}
        assert DeltaTable(tmp_path).version() == 2
        await deliver(sink, batch(3, "delete", wide, [{"id": 1}]))
        assert len(mirror_rows(tmp_path)) == 2

    async def test_a_column_is_added_without_rows(self, tmp_path: Path) -> None:
        wide = pa.schema([*SCHEMA, ("extra", pa.int32())])
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(1, 1))
        await self.change(sink, wide, {"id": "id", "name": "name"})
        assert mirror_rows(tmp_path).to_pylist() == [{"id": 1, "name": "1 at 1", "extra": None}]
        assert await make_mirror(tmp_path).progress(APP) == expect(2)

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(
        ("after", "origins", "unchanged"),
        [
            ([("id", pa.int64())], {"id": "id"}, {"id": 1}),
            ([("title", pa.string()), ("id", pa.int64())], {"id": "id", "title": "name"}, {"id": 1, "title": "1 at 1"}),
            ([("id", pa.int64()), ("name", pa.string())], {"id": "id"}, {"id": 1, "name": None}),
            ([("id", pa.int64()), ("name", pa.int8())], {"id": "id"}, {"id": 1, "name": None}),
            (
                [("id", pa.decimal128(20, 0)), ("name", pa.string()), ("more", pa.list_(pa.int32()))],
                {"id": "id", "name": "name"},
                {"id": 1, "name": "1 at 1", "more": None},
            ),
        ],
        ids=["dropped", "renamed", "another one", "another one of another type", "widened"],
    )
    @pytest.mark.parametrize("with_rows", [False, True])
    async def test_columns_that_change_are_written_again(
        self, tmp_path: Path, after: list[Any], origins: dict[str, str], unchanged: dict[str, Any], with_rows: bool
    ) -> None:
        schema = pa.schema(after)
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(1, 1, 2))
        kinds = ["update_preimage", "update_postimage", "insert"]
        rows = [batch(2, kinds, schema, [{"id": 2}, {"id": 2}, {"id": 3}])] if with_rows else []
        await self.change(sink, schema, origins, *rows)
        found = {int(row["id"]): row for row in mirror_rows(tmp_path).to_pylist()}
        assert found[1] == unchanged
        assert found.keys() == ({1, 2, 3} if with_rows else {1, 2})
        assert await make_mirror(tmp_path).progress(APP) == expect(2)
        assert DeltaTable(tmp_path).version() == 2
        await deliver(sink, batch(3, "delete", schema, [{"id": 1}]), batch(3, "insert", schema, [{"id": 9}]))
        assert max(int(each) for each in mirror_rows(tmp_path)["id"].to_pylist()) == 9

    @pytest.mark.parametrize(
        ("after", "origins", "error"),
        [
            ([("id", pa.int64()), ("name", pa.binary())], {"id": "id", "name": "name"}, "name is string there"),
            ([("id", pa.int32()), ("name", pa.string())], {"id": "id", "name": "name"}, "id is int64 there"),
        ],
    )
    async def test_other_changes_need_a_snapshot(
        self, tmp_path: Path, after: list[Any], origins: dict[str, str], error: str
    ) -> None:
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(1, 1))
        with pytest.raises(SinkRejected, match=error) as refused:
            await self.change(sink, pa.schema(after), origins)
        assert refused.value.hint == NEXT_STEP
        assert names(tmp_path) == {1: "1 at 1"}
        other = pa.schema(after)
        await deliver(sink, gap(2, 3, snapshot=True), batch(3, "insert", other, [{"id": 5}]), schema=full(other))
        assert mirror_rows(tmp_path)["id"].to_pylist() == [5]

    async def test_a_field_of_a_struct_needs_a_snapshot(self, tmp_path: Path) -> None:
        """It is not known whether it is new, or was renamed."""
        before = pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int32())]))])
        after = pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int32()), ("y", pa.int32())]))])
        sink = make_mirror(tmp_path)
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "s": {"x": 1}}]))
        change = SchemaChange("t", 2, 0, full(before), full(after), ("s",), {"id": "id", "s": "s"})
        with pytest.raises(SinkRejected, match="s is struct") as refused:
            await deliver(sink, change)
        assert refused.value.hint == NEXT_STEP

    @pytest.mark.parametrize("new", [False, True])
    async def test_columns_that_change_behind_rows_of_the_same_transaction(self, tmp_path: Path, new: bool) -> None:
        """A version deletes rows with its former columns, and rows of the version before wait, too."""
        other = pa.schema([("id", pa.int64()), ("title", pa.string()), ("more", pa.int32())])
        sink = make_mirror(tmp_path)
        before = inserts(1, 1, 2)
        if not new:
            await deliver(sink, before)
        change = SchemaChange("t", 3, 0, full(SCHEMA), full(other), ("renamed",), {"id": "id", "title": "name"})
        rows = batch(3, "insert", other, [{"id": 2, "title": "c", "more": 7}])
        await deliver(sink, *([before] if new else []), inserts(2, 5), deletes(3, 2), change, rows)
        assert mirror_rows(tmp_path).sort_by("id").to_pylist() == [
            {"id": 1, "title": "1 at 1", "more": None},
            {"id": 2, "title": "c", "more": 7},
            {"id": 5, "title": "5 at 2", "more": None},
        ]

    @pytest.mark.parametrize("origins", [{"name": "name"}, {"name": "name", "number": "id"}])
    async def test_the_key_may_not_go(self, tmp_path: Path, origins: dict[str, str]) -> None:
        after = pa.schema([("name", pa.string()), ("number", pa.int64())])
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(1, 1))
        with pytest.raises(
            SinkRejected, match=r"the key column id of .* is dropped or renamed in version 2"
        ) as refused:
            await self.change(sink, after, origins)
        assert "run `tailer resnapshot PIPELINE`" in (refused.value.hint or "")
        sink = make_mirror(tmp_path, key=["number"])
        rows = batch(3, "insert", after, [{"number": 5}], SNAPSHOT_TASKS)
        await deliver(sink, gap(2, 3, snapshot=True), rows, schema=full(after))
        assert mirror_rows(tmp_path)["number"].to_pylist() == [5]

    async def test_another_key_needs_a_snapshot(self, tmp_path: Path) -> None:
        """By a key that rows share, an update would reach all of them, and lose or double some."""
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        rows = [{"id": 1, "name": "x"}, {"id": 2, "name": "x"}]
        update = batch(2, ["update_preimage", "update_postimage"], schema, [rows[0], {"id": 3, "name": "x"}])
        await deliver(make_mirror(tmp_path), batch(1, "insert", schema, rows))
        other = make_mirror(tmp_path, key=["name"])
        with pytest.raises(SinkRejected, match="have another key than name, which is the one of the") as refused:
            await deliver(other, update)
        assert "Set key to the former columns" in (refused.value.hint or "")
        with pytest.raises(SinkRejected, match="have another key than name"):
            await deliver(other, batch(2, "insert", schema, []))
        with pytest.raises(SinkRejected, match="have another key than name"):
            async with other.open_mirror("orders"):
                pass
        assert mirror_rows(tmp_path).to_pylist() == rows
        unique = [{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]
        await deliver(
            other, gap(2, 3, snapshot=True), batch(3, "insert", schema, unique, SNAPSHOT_TASKS), schema=full(schema)
        )
        await deliver(other, batch(4, "delete", schema, unique[:1]))
        with pytest.raises(SinkRejected, match="have another key than id"):
            await deliver(make_mirror(tmp_path), batch(5, "delete", schema, unique[1:]))
        assert mirror_rows(tmp_path).to_pylist() == unique[1:]

    async def test_the_key_of_a_table_of_an_earlier_release(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as earlier:
            earlier.setattr(mirror_table, "key_name", "{}/#none".format)
            await deliver(make_mirror(tmp_path), inserts(1, 1))
        assert DeltaTable(tmp_path).transaction_version("orders/#key") is None
        await deliver(make_mirror(tmp_path), inserts(2, 2))
        with pytest.raises(SinkRejected, match="have another key than name"):
            await deliver(make_mirror(tmp_path, key=["name"]), inserts(3, 3))

    @pytest.mark.parametrize("origins", [{"name": "name"}, {"id": "name", "name": "id"}])
    async def test_the_key_may_not_become_another_column(self, tmp_path: Path, origins: dict[str, str]) -> None:
        after = pa.schema([("id", pa.int64()), ("name", pa.int64())])
        sink = make_mirror(tmp_path)
        rows = batch(1, "insert", after, [{"id": 1, "name": 2}])
        await deliver(sink, rows)
        change = SchemaChange("t", 2, 0, full(after), full(after), ("id is another one",), origins)
        with pytest.raises(
            SinkRejected, match=r"the key column id of .* is another column from version 2 on"
        ) as refused:
            await deliver(sink, change)
        assert refused.value.hint == NEXT_STEP

    async def test_other_columns_without_an_announcement_are_refused(self, tmp_path: Path) -> None:
        wide = pa.schema([*SCHEMA, ("extra", pa.int32())])
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(1, 1))
        with pytest.raises(SinkRejected, match="extra is missing there"):
            await deliver(sink, batch(2, "insert", wide, [{"id": 2}]))

    @pytest.mark.parametrize(
        ("field", "error"),
        [
            (pa.field("t", pa.time64("us")), "Delta files have no type for t"),
            (pa.field("NAME", pa.string()), "is spelled name in the table"),
        ],
    )
    async def test_columns_that_a_mirror_cannot_have(self, tmp_path: Path, field: pa.Field, error: str) -> None:
        with pytest.raises(SinkRejected, match=error) as refused:
            await deliver(make_mirror(tmp_path / "m"), batch(1, "insert", pa.schema([*SCHEMA, field]), []))
        assert refused.value.hint
        assert not (tmp_path / "m").exists()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("items", "error"),
    [
        ([inserts(2, 5, 5)], "version 2 inserts or deletes a key twice; the key is id"),
        ([deletes(2, 1, 1)], "version 2 inserts or deletes a key twice; the key is id"),
        ([deletes(2, 1), inserts(2, 3, 3)], "version 2 inserts or deletes a key twice"),
        ([inserts(2, 3), deletes(3, 1), inserts(3, 3)], "version 3 inserts or deletes a key twice"),
        ([deletes(2, 1), deletes(3, 1)], "version 3 inserts or deletes a key twice"),
        ([inserts(2, 1)], "the changes up to version 2 insert a key that is there"),
        ([inserts(2, 7, 1), deletes(3, 2)], "the changes up to version 3 insert a key that is there"),
        ([inserts(2, 1), deletes(3, 1)], "the changes up to version 3 insert a key that is there"),
        ([inserts(2, 7, 1), deletes(3, 1)], "the changes up to version 3 insert a key that is there"),
        ([deletes(2, 9)], "the changes up to version 2 delete a key that is not there"),
        ([deletes(2, 9), inserts(2, 9)], "the changes up to version 2 delete a key that is not there"),
        ([batch(2, "insert", SCHEMA, [{"name": "x"}])], "the key column id of .* is null in version 2"),
        ([batch(2, "merge", SCHEMA, [{"id": 6}])], "another change type than Delta defines"),
        ([gap(2, 4, snapshot=False)], "versions 2 to 4 are lost, and .* would not be a mirror"),
    ],
)
async def test_contradictions_stop_a_mirror(tmp_path: Path, items: list[Any], error: str) -> None:
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1, 2))
    with pytest.raises(SinkRejected, match=error) as refused:
        await deliver(sink, *items, schema=full(SCHEMA))
    assert refused.value.hint
    assert names(tmp_path) == {1: "1 at 1", 2: "2 at 1"}
    assert await sink.progress(APP) == expect(1)
    await deliver(sink, inserts(2, 3))
    assert names(tmp_path) == {1: "1 at 1", 2: "2 at 1", 3: "3 at 2"}


async def test_a_first_version_or_snapshot_may_not_delete_or_repeat_keys(tmp_path: Path) -> None:
    for items in ([deletes(1, 5)], [inserts(0, 5, task=SNAPSHOT_TASKS), inserts(0, 5, task=SNAPSHOT_TASKS + 1)]):
        with pytest.raises(SinkRejected, match=r"first changes of a key delete it|version 0 inserts or deletes a key"):
            await deliver(make_mirror(tmp_path / "m"), *items)
        assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("key", "ids", "operation"),
    [
        ("id", [5], "MERGE"),  # in one of ten files
        ("id", [5, 915], "WRITE"),
        ("name", [5, 915], "WRITE"),
        ("part", [5], "MERGE"),  # in one partition
        ("id", [50_000], "MERGE"),  # in none
    ],
)
async def test_a_table_is_written_again_if_a_merge_would_keep_much_of_it_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, ids: list[int], operation: str
) -> None:
    """Ten files have a hundred rows each, with keys that follow each other."""
    schema = pa.schema([*SCHEMA, ("part", pa.string())])
    sink = make_mirror(tmp_path, key=["part", "id"] if key == "part" else [key], partition_by=["part"])

    def rows(numbers: Iterable[int]) -> list[dict[str, Any]]:
        return [{"id": each, "name": f"{each:010d}" * 20, "part": f"p{each // 100}"} for each in numbers]

    await deliver(sink, *(batch(1, "insert", schema, rows(range(at, at + 100))) for at in range(0, 1000, 100)))
    assert len(DeltaTable(tmp_path).file_uris()) == 10
    monkeypatch.setattr(mirror_table, "_MERGE_BYTES", 150_000)
    kinds = "insert" if ids == [50_000] else ["update_preimage", "update_postimage"] * len(ids)
    again = ids if ids == [50_000] else [each for one in ids for each in (one, one)]
    await deliver(sink, batch(2, kinds, schema, rows(again)))
    assert DeltaTable(tmp_path).history(1)[0]["operation"] == operation
    assert len(mirror_rows(tmp_path)) == 1000 + (ids == [50_000])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "append"}, "orders.key: is for a mirror"),
        ({"key": ["id", "id"]}, "orders.key: names a column twice"),
        ({"adopt": True}, "orders.adopt: is not for a mirror"),
        ({"mode": "history", "adopt": True}, "orders.adopt: is not for a history"),
        ({"mode": "history", "deletes": "mark"}, "orders.deletes: is not for a history, which keeps deleted rows"),
        ({"mode": "append", "key": [], "deletes": "mark"}, "orders.deletes: is for a mirror"),
    ],
)
def test_options(options: dict[str, Any], error: str) -> None:
    with pytest.raises((ConfigError, ExceptionGroup)) as refused:
        make_mirror("/nowhere", **options)
    found = refused.value.exceptions if isinstance(refused.value, ExceptionGroup) else [refused.value]
    assert error in " ".join(str(each) for each in found)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ([], "has no key"),
        (["nothing"], "the key column nothing is not a column of"),
        (["price"], "the key column price has type double, whose values identify no row"),
    ],
)
async def test_keys_that_identify_no_row(tmp_path: Path, key: list[str], error: str) -> None:
    schema = pa.schema([*SCHEMA, ("price", pa.float64())])
    with pytest.raises(SinkRejected, match=error):
        await deliver(make_mirror(tmp_path / "m", key=key), batch(1, "insert", schema, [{"id": 1}]))


async def test_a_column_with_the_name_that_a_merge_adds_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, ("lake_tailer_change", pa.string())])
    with pytest.raises(SinkRejected, match="cannot have a column lake_tailer_change"):
        await deliver(make_mirror(tmp_path / "m"), batch(1, "insert", schema, [{"id": 1}]))


class TestTargets:
    """Tables that a mirror may fill, and others."""

    async def test_a_table_that_the_sink_has_not_made_is_refused(self, tmp_path: Path) -> None:
        write_deltalake(tmp_path, pa.table({"id": [1]}))
        with pytest.raises(SinkRejected, match="is a Delta table that lake-tailer has not made"):
            await make_mirror(tmp_path).progress(APP)

    async def test_a_table_of_the_other_mode_or_another_pipeline_is_refused(self, tmp_path: Path) -> None:
        log, mirror = tmp_path / "log", tmp_path / "mirror"
        await deliver(DeltaSink("orders", str(log)), inserts(1, 1))
        await deliver(make_mirror(mirror), inserts(1, 1))
        with pytest.raises(SinkRejected, match='was made with mode = "append"'):
            await make_mirror(log).progress(APP)
        with pytest.raises(SinkRejected, match='was made with mode = "mirror"'):
            await DeltaSink("orders", str(mirror)).progress(APP)
        with pytest.raises(SinkRejected, match="pipeline orders fills"):
            await make_mirror(mirror).progress("items/5f0c6a1e")

    async def test_lost_progress_is_no_first_start(self, tmp_path: Path) -> None:
        sink = make_mirror(tmp_path)
        await sink.check_first_start("orders", [])
        properties = {"lakeTailer.mirror": "orders"}
        DeltaTable.create(tmp_path, SCHEMA, configuration=properties, raise_if_key_not_exists=False)
        await sink.check_first_start("orders", [])
        write_deltalake(tmp_path, pa.table({"id": [1], "name": ["a"]}), mode="append")
        with pytest.raises(SinkRejected, match="has rows of orders, but there is no progress"):
            await sink.check_first_start("orders", [])

    @pytest.mark.parametrize(
        ("setting", "error"),
        [
            ("delta.appendOnly", "a mirror deletes rows"),
            ("delta.enableDeletionVectors", "deletionVectors"),
            ("delta.columnMapping.mode", "columnMapping"),
        ],
    )
    async def test_a_table_that_cannot_be_merged_into_is_refused(
        self, tmp_path: Path, setting: str, error: str, upgrade: Callable[[Path, str], None]
    ) -> None:
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(1, 1))
        upgrade(tmp_path, setting)
        with pytest.raises(SinkRejected, match=error):
            await deliver(sink, inserts(2, 2))

    @pytest.fixture
    def upgrade(self) -> Callable[[Path, str], None]:
        """Set a property as another writer would."""

        def upgrade(path: Path, setting: str) -> None:
            table = DeltaTable(path)
            if setting == "delta.appendOnly":
                table.alter.set_table_properties({setting: "true"})
                return
            created = (path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
            value = "name" if "Mapping" in setting else "true"
            metadata = next(line for line in created if line.startswith('{"metaData"'))
            changed = metadata.replace('"configuration":{', f'"configuration":{{"{setting}":"{value}",')
            feature = "columnMapping" if "Mapping" in setting else "deletionVectors"
            protocol = (
                f'{{"protocol":{{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["{feature}"],'
                f'"writerFeatures":["{feature}"]}}}}'
            )
            commit = path / "_delta_log" / f"{table.version() + 1:020d}.json"
            commit.write_text(f"{protocol}\n{changed}\n")

        return upgrade

    async def test_a_reset_is_refused(self, tmp_path: Path) -> None:
        sink = make_mirror(tmp_path)
        await deliver(sink, inserts(3, 1))
        for version in (1, 7):
            with pytest.raises(SinkRejected, match=f"would not be a mirror of version {version}") as refused:
                await sink.reset(expect(version))
            assert refused.value.hint == NEXT_STEP


@pytest.mark.usefixtures("way")
async def test_of_two_instances_one_commits(tmp_path: Path) -> None:
    first, second = make_mirror(tmp_path / "m"), make_mirror(tmp_path / "m")
    for version in (1, 2):  # the first time there is no table
        assert await first.progress(APP) == await second.progress(APP)
        async with first.begin(APP, full(SCHEMA)) as transaction:
            await transaction.write(inserts(version, version))
            await deliver(second, inserts(version, version))
            with pytest.raises(SinkFenced):
                await transaction.commit(expect(version))
        with pytest.raises(SinkFenced):  # still on its old progress
            await deliver(first, inserts(version + 1, 9))
        assert await first.progress(APP) == expect(version)
    assert names(tmp_path / "m") == {1: "1 at 1", 2: "2 at 2"}


async def test_streams_of_a_pipeline_before_and_after_replace_table_exclude_each_other(tmp_path: Path) -> None:
    """The next id of the table has no progress yet, when an instance commits under the one before."""
    old, new = make_mirror(tmp_path), make_mirror(tmp_path)
    await deliver(old, inserts(1, 1, 2))
    streams: list[list[Any]] = [[], [inserts(2, 7)], [gap(2, 2, snapshot=True)]]
    for number, items in enumerate(streams):
        async with new.begin(f"orders/next{number}", full(SCHEMA)) as transaction:
            for each in items:
                await (transaction.write(each) if isinstance(each, ChangeBatch) else transaction.announce(each))
            await deliver(old, inserts(10 + number, 10 + number))
            with pytest.raises(SinkUnavailable):
                await transaction.commit(expect(20, f"orders/next{number}"))
    assert sorted(names(tmp_path)) == [1, 2, 10, 11, 12]


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_lost_answer_is_found_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: bool
) -> None:
    sink = make_mirror(tmp_path)
    await deliver(sink, inserts(1, 1))
    merge, write = merges.merge, write_deltalake

    def answers_late(real: Callable[..., Any]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            real(*args, **options)
            raise OSError("connection reset")

        return call

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("connection reset")

    monkeypatch.setattr(mirror_table, "merge", answers_late(merge))
    monkeypatch.setattr(mirror_table, "write_deltalake", answers_late(write))
    before = [gap(2, 2, snapshot=True)] if snapshot else []
    await deliver(sink, *before, inserts(2, 2), schema=full(SCHEMA))
    wanted = {2: "2 at 2"} if snapshot else {1: "1 at 1", 2: "2 at 2"}
    assert names(tmp_path) == wanted
    monkeypatch.setattr(mirror_table, "merge", fails)
    monkeypatch.setattr(mirror_table, "write_deltalake", fails)
    before = [gap(3, 3, snapshot=True)] if snapshot else []
    with pytest.raises(SinkUnavailable, match="connection reset"):
        await deliver(sink, *before, inserts(3, 3), schema=full(SCHEMA))
    assert names(tmp_path) == wanted
    assert await sink.progress(APP) == expect(2)
    monkeypatch.setattr(mirror_table, "merge", merge)
    monkeypatch.setattr(mirror_table, "write_deltalake", write)
    await deliver(sink, inserts(3, 3))
    assert names(tmp_path) == {**wanted, 3: "3 at 3"}


async def test_partitions_with_letters_beyond_ascii(tmp_path: Path, spark: SparkSession) -> None:
    """delta-rs cannot remove the files that Spark writes there. The mirror stops before it has rows twice."""
    schema = pa.schema([("id", pa.int64()), ("town", pa.string())])
    sink = make_mirror(tmp_path, partition_by=["town"])
    await deliver(sink, batch(1, "insert", schema, [{"id": number, "town": "K\u00f6ln"} for number in (1, 2)]))
    await deliver(sink, batch(2, "delete", schema, [{"id": 1, "town": "K\u00f6ln"}]))
    assert mirror_rows(tmp_path).column("id").to_pylist() == [2]
    await deliver(sink, batch(3, "insert", schema, [{"id": 3, "town": "K\u00f6ln"}]))
    await to_thread.run_sync(spark.sql, f"OPTIMIZE delta.`{tmp_path}`")
    with pytest.raises(SinkRejected, match="delta-rs cannot remove files that Spark has written"):
        await deliver(sink, batch(4, "delete", schema, [{"id": 3, "town": "K\u00f6ln"}]))
    assert sorted(mirror_rows(tmp_path).column("id").to_pylist()) == [2, 3]

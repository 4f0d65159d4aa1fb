"""The tables of the `sql` sink get the columns of the source, and hold its values exactly."""

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import Gap, SchemaChange
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress
from tailer_sinks.testing import DELTA_TYPES, flat_rows
from tests.support.mirrors.databases import (
    APP,
    Database,
    DuckDbDatabase,
    PostgresDatabase,
    SqliteDatabase,
    batch,
    deliver,
    full,
    mirrored,
    opened,
    rows_in,
)
from tests.support.servers.postgres import Postgres

pytestmark = pytest.mark.anyio

ZONED = pa.timestamp("us", tz="UTC")


def change(before: pa.Schema, after: pa.Schema, origins: dict[str, str], version: int = 2) -> SchemaChange:
    return SchemaChange("t", version, 0, full(before), full(after), ("it changed",), origins)


def same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


async def test_columns_are_added_renamed_and_dropped(database: Database) -> None:
    before = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string()), ("c", pa.string())])
    after = pa.schema(
        [("id", pa.int64()), ("b", pa.string()), ("a", pa.string()), ("c", pa.string()), ("d", pa.bool_())]
    )
    # a and b change their names with each other, and c is another column of the same name.
    event = change(before, after, {"id": "id", "b": "a", "a": "b"})
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "a": "a", "b": "b", "c": "c"}]))
        await deliver(sink, event, batch(2, "insert", after, [{"id": 2, "a": "x", "b": "y", "c": "z", "d": True}]))
    assert rows_in(database, "orders") == [
        {"id": 1, "b": "a", "a": "b", "c": None, "d": None},
        {"id": 2, "b": "y", "a": "x", "c": "z", "d": True},
    ]


async def test_a_column_of_the_key_is_renamed(database: Database) -> None:
    before, after = (pa.schema([(name, pa.int64()), ("v", pa.string())]) for name in ("id", "number"))
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]))
        await deliver(sink, batch(2, "delete", before, [{"id": 1}]), change(before, after, {"number": "id", "v": "v"}))
    async with opened(database) as sink:
        await deliver(sink, batch(3, "delete", after, [{"number": 2}]), batch(3, "insert", after, [{"number": 3}]))
    assert rows_in(database, "orders") == [{"number": 3, "v": None}]


async def test_readers_keep_the_columns_until_the_version_is_complete(database: Database) -> None:
    before, after = (pa.schema([("id", pa.int64()), (name, pa.string())]) for name in ("old", "new"))
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "old": "a"}, {"id": 2, "old": "b"}]))
        removed = batch(2, "delete", before, [{"id": 1}])
        await deliver(sink, removed, change(before, after, {"id": "id", "new": "old"}), at=Position(2, 0, 0))
    assert rows_in(database, "orders") == [{"id": 1, "old": "a"}, {"id": 2, "old": "b"}]
    async with opened(database) as sink:
        await deliver(sink, batch(2, "insert", after, [{"id": 3, "new": "c"}], task=1))
    assert rows_in(database, "orders") == [{"id": 2, "new": "b"}, {"id": 3, "new": "c"}]


WIDENED: list[tuple[pa.DataType, Any, pa.DataType, Any]] = [
    (pa.int8(), -5, pa.int64(), 2**40),
    (pa.int32(), 7, pa.float64(), 0.5),
    (pa.float32(), 0.1, pa.float64(), 0.1),
    (pa.int32(), 7, pa.decimal128(12, 2), Decimal("1.25")),
    (pa.decimal128(5, 0), Decimal(7), pa.decimal128(12, 2), Decimal("1.25")),
    (pa.decimal128(5, 1), Decimal("-7.5"), pa.decimal128(12, 3), Decimal("1.255")),
    (pa.date32(), date(2026, 3, 1), pa.timestamp("us"), datetime(2026, 3, 1, 12)),  # noqa: DTZ001
    (pa.null(), None, pa.string(), "x"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("narrow", "old", "wide", "new"), WIDENED, ids=[f"{each[0]} to {each[2]}" for each in WIDENED])
@pytest.mark.parametrize("mode", ["mirror", "append"])
async def test_columns_are_widened(
    database: Database, mode: str, narrow: pa.DataType, old: Any, wide: pa.DataType, new: Any
) -> None:
    before, after = (pa.schema([("id", pa.int64()), ("v", kind)]) for kind in (narrow, wide))
    async with opened(database, mode=mode, key=["id"] if mode == "mirror" else []) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "v": old}]))
        await deliver(sink, change(before, after, same("id", "v")), batch(2, "insert", after, [{"id": 2, "v": new}]))
    wanted = pa.table({"v": pa.array([pa.scalar(old, narrow).cast(wide), pa.scalar(new, wide)], wide)})
    assert [{"v": row["v"]} for row in rows_in(database, "orders")] == flat_rows(wanted)


async def test_a_key_is_widened_or_refused_by_name(database: Database) -> None:
    before, after = (pa.schema([("id", kind)]) for kind in (pa.int32(), pa.decimal128(12, 2)))
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1}]))
        event = change(before, after, same("id"))
        if not isinstance(database, SqliteDatabase):
            await deliver(sink, event)
            assert rows_in(database, "orders") == [{"id": "1.00"}]
        else:
            with pytest.raises(SinkRejected, match="column id of the key of orders was widened"):
                await deliver(sink, event)
            rows = batch(2, "insert", after, [{"id": Decimal("1.50")}], SNAPSHOT_TASKS)
            async with sink.begin(APP, rows.rows.schema) as transaction:
                await transaction.announce(Gap("t", 2, 2, 0, "commanded", snapshot=True))
                await transaction.write(rows)
                await transaction.commit(Progress(APP, Position.end(2)))
            assert rows_in(database, "orders") == [{"id": "1.50"}]


async def test_fields_that_are_added_are_null_and_others_are_refused(database: Database) -> None:
    inner = pa.struct([("x", pa.int32())])
    before = pa.schema([("id", pa.int64()), ("s", inner)])
    wider = pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int64()), ("y", pa.string())]))])
    other = pa.schema([("id", pa.int64()), ("s", pa.struct([("z", pa.int64())]))])
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "s": {"x": 1}}]))
        rows = batch(2, "insert", wider, [{"id": 2, "s": {"x": 2**40, "y": "b"}}])
        await deliver(sink, change(before, wider, same("id", "s")), rows)
        assert [row["s"] for row in rows_in(database, "orders")] == [{"x": 1}, {"x": 2**40, "y": "b"}]
        with pytest.raises(SinkRejected, match="columns s of orders have another type, and there are rows"):
            await deliver(sink, change(wider, other, same("id", "s"), version=3))
    assert mirrored(database, "orders") == 2


async def test_a_column_of_another_type_in_a_table_that_was_emptied(database: Database) -> None:
    before, after = (pa.schema([("id", pa.int64()), ("v", kind)]) for kind in (pa.string(), pa.int32()))
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "v": "a"}]))
        event = change(before, after, same("id", "v"))
        await deliver(
            sink, batch(2, "delete", before, [{"id": 1}]), event, batch(2, "insert", after, [{"id": 1, "v": 5}])
        )
    assert rows_in(database, "orders") == [{"id": 1, "v": 5}]


async def test_other_columns_without_an_announcement_are_refused(database: Database) -> None:
    before, after = (pa.schema([("id", pa.int64()), (name, pa.string())]) for name in ("a", "b"))
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1}]))
        with pytest.raises(SinkRejected, match="orders has other columns than are delivered: a, b") as refused:
            await deliver(sink, batch(2, "insert", after, [{"id": 2}]))
        assert "tailer resnapshot" in refused.value.hint


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DELTA_TYPES)
async def test_values_are_exact_in_a_mirror(database: Database, name: str) -> None:
    kind, values = DELTA_TYPES[name]
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    async with opened(database) as sink:
        await deliver(
            sink, batch(1, "insert", schema, [{"id": at, "v": value} for at, value in enumerate([*values, None])])
        )
    found = [row["v"] for row in sorted(rows_in(database, "orders"), key=lambda row: row["id"])]
    assert found == [row["v"] for row in flat_rows(pa.table({"v": pa.array([*values, None], kind)}))]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.uint64(), 2**64 - 1),
        (pa.float16(), 0.5),
        (pa.list_(pa.float32(), 2), [0.5, 1.5]),
        (pa.date32(), 2_932_897),
        (pa.date32(), -719_529),
        (ZONED, -62_200_000_000_000_000),
        (ZONED, 253_402_300_800_000_000),
        (pa.time64("us"), 86_399_999_999),
        (pa.dictionary(pa.int8(), pa.string()), "a"),
        (pa.binary(3), b"\x00\x01\x02"),
    ],
    ids=str,
)
async def test_other_types_and_far_dates(database: Database, kind: pa.DataType, value: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", schema, [{"id": 1, "v": value}, {"id": 2, "v": None}]))
    ((_, first), (_, second)) = sorted(database.query("SELECT id, CAST(v AS TEXT) FROM orders"))
    assert second is None
    assert first


async def test_types_that_a_database_lacks_are_refused_by_name(database: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.duration("us"))])
    async with opened(database) as sink:
        with pytest.raises(SinkRejected, match="column v has type duration"):
            await deliver(sink, batch(1, "insert", schema, [{"id": 1}]))


async def test_what_texts_of_postgresql_cannot_have_is_refused_by_name(database: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("s", pa.list_(pa.string()))])
    for version, (column, value) in enumerate([("v", "a\0b"), ("s", ["\\", "a\\\0"])], 1):
        rows = batch(version, "insert", schema, [{"id": 1, column: value}])
        async with opened(database, table=f"table of {column}") as sink:
            if "schema" in database.options:
                with pytest.raises(SinkRejected, match=f"column {column} has a text with the character"):
                    await deliver(sink, rows, app_id=f"{column}/5f0c")
            else:
                await deliver(sink, rows, app_id=f"{column}/5f0c")
                assert rows_in(database, f"table of {column}")[0][column] == value


async def test_names_with_signs_of_sql_are_names(database: Database) -> None:
    schema = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in ('a"b', "q?", "p%s", "select", "é"))])
    row = {each.name: "?%s" for each in schema} | {"id": 1}
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", schema, [row, {**row, "id": 2}]))
        await deliver(sink, batch(2, "delete", schema, [row]), batch(3, "insert", schema, [row]))
    assert sorted(rows_in(database, "orders"), key=lambda each: each["id"]) == [row, {**row, "id": 2}]


async def test_columns_that_are_called_like_the_sinks_own_are_refused(database: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("Lake_Tailer_Before", pa.int16())])
    async with opened(database) as sink:
        with pytest.raises(SinkRejected, match="column Lake_Tailer_Before has a name that begins with lake_tailer_"):
            await deliver(sink, batch(1, "insert", schema, [{"id": 1}]))


@pytest.mark.parametrize("mode", ["mirror", "append"])
async def test_names_that_differ_only_in_case(database: Database, mode: str) -> None:
    narrow = pa.schema([("id", pa.int64()), ("a", pa.string())])
    schema = narrow.append(pa.field("A", pa.string()))
    row = {"id": 1, "a": "small", "A": "large"}
    options = {"mode": mode, "key": ["id"] if mode == "mirror" else []}
    came = change(narrow, schema, same("id", "a"))
    async with opened(database, **options) as sink, opened(database, table="late", **options) as late:
        if "schema" in database.options:
            await deliver(sink, batch(1, "insert", schema, [row]))
            found = rows_in(database, "orders")
            assert [{name: each[name] for name in schema.names} for each in found] == [row]
            return
        with pytest.raises(SinkRejected, match="columns a and A have one name in the database") as refused:
            await deliver(sink, batch(1, "insert", schema, [row]))
        assert "with select" in refused.value.remedy
        await deliver(late, batch(1, "insert", narrow, [{"id": 1, "a": "small"}]), app_id="late/5f0c")
        with pytest.raises(SinkRejected, match="columns a and A have one name in the database"):
            await deliver(late, came, batch(2, "insert", schema, [row | {"id": 2}]), app_id="late/5f0c")
        assert len(rows_in(database, "late")) == 1


async def test_all_columns_of_a_log_that_get_another_type_are_named(database: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.int64())])
    other = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.string())])
    async with opened(database, mode="append", key=[]) as sink:
        await deliver(sink, batch(1, "insert", schema, [{"id": 1, "a": "x", "b": 2}]))
        with pytest.raises(
            SinkRejected, match=r"column a of orders is string, .* int64; column b of orders is int64, "
        ):
            await deliver(sink, batch(2, "insert", other, [{"id": 2, "a": 1, "b": "x"}]))


async def test_indexes_and_views_of_others_on_a_dropped_column(database: Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.string())])
    ids = pa.schema([("id", pa.int64())])
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", schema, [{"id": 1, "a": "x"}]))
        database.query("CREATE INDEX mine ON orders (a)")
        database.query("CREATE VIEW orders_by_a AS SELECT a FROM orders")
        if not isinstance(database, DuckDbDatabase):  # whose tables are written again, and whose views are not checked
            with pytest.raises(SinkRejected):
                await deliver(sink, change(schema, ids, same("id")), batch(2, "insert", ids, [{"id": 2}]))
            assert len(rows_in(database, "orders")) == 1
        database.query("DROP VIEW orders_by_a")
        if isinstance(database, SqliteDatabase):
            with pytest.raises(SinkRejected):
                await deliver(sink, change(schema, ids, same("id")), batch(2, "insert", ids, [{"id": 2}]))
            database.query("DROP INDEX mine")
        await deliver(sink, change(schema, ids, same("id")), batch(2, "insert", ids, [{"id": 2}]))
    assert rows_in(database, "orders") == [{"id": 1}, {"id": 2}]


async def test_bytes_that_are_no_text_are_refused_by_name(database: Database) -> None:
    rows = batch(1, "insert", pa.schema([("id", pa.int64()), ("name", pa.binary())]), [{"id": 1, "name": b"\xff"}])
    schema = rows.rows.schema.set(1, pa.field("name", pa.string()))
    columns = [column.view(each.type) for column, each in zip(rows.rows.columns, schema, strict=True)]
    rows = replace(rows, rows=pa.RecordBatch.from_arrays(columns, schema=schema))
    async with opened(database) as sink:
        with pytest.raises(SinkRejected, match=r"column name has a text that is not UTF-8|a value of a row"):
            await deliver(sink, rows)


@pytest.mark.stores
async def test_columns_beyond_the_limits_of_postgresql(postgres: Postgres) -> None:
    """A stop before the version, and a snapshot makes the table again, with what it had."""
    database = PostgresDatabase(postgres)
    before = pa.schema([("id", pa.int64()), ("a", pa.string())])
    more, long = (pa.schema([*before, *added]) for added in ([("b", pa.string())], [("x" * 64, pa.string())]))
    async with opened(database) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "a": "a"}]))
        with pytest.raises(SinkRejected, match="has a name of more than 63 bytes"):
            await deliver(sink, change(before, long, same("id", "a")))
        added, dropped = (", ".join(f"{verb} c{number}" for number in range(1598)) for verb in ("ADD", "DROP"))
        database.query(f"ALTER TABLE orders {added.replace(',', ' int,')} int")
        database.query(f"ALTER TABLE orders {dropped}")
        database.query("CREATE VIEW v AS SELECT a FROM orders; CREATE INDEX i ON orders (a)")
        database.query("GRANT SELECT ON orders TO PUBLIC")
        rows = batch(2, "insert", more, [{"id": 2, "a": "a", "b": "b"}], SNAPSHOT_TASKS)
        with pytest.raises(SinkRejected, match="may get 0 more columns before it has had 1600") as refused:
            await deliver(sink, change(before, more, same("id", "a")))
        assert "tailer resnapshot" in refused.value.hint
    async with opened(database) as sink, sink.begin(APP, rows.rows.schema) as transaction:
        await transaction.announce(Gap("t", 2, 2, 0, "commanded", snapshot=True))
        await transaction.write(rows)
        await transaction.commit(Progress(APP, Position.end(2)))
    assert rows_in(database, "orders") == [{"id": 2, "a": "a", "b": "b"}]
    assert database.query("SELECT max(attnum) < 10 FROM pg_attribute WHERE attrelid = 'orders'::regclass") == [(True,)]
    assert database.query("SELECT a, has_table_privilege('public', 'orders', 'SELECT') FROM v") == [("a", True)]
    indexed = f"SELECT count(*) FROM pg_indexes WHERE tablename = 'orders' AND schemaname = '{database.schema}'"
    assert database.query(indexed) == [(2,)]


@pytest.mark.stores
async def test_a_row_beyond_a_page_of_postgresql(postgres: Postgres) -> None:
    schema = pa.schema([("id", pa.int64()), *((f"c{number}", pa.int64()) for number in range(1100))])
    async with opened(PostgresDatabase(postgres)) as sink:
        with pytest.raises(SinkRejected, match="row is too big") as refused:
            await deliver(sink, batch(1, "insert", schema, [dict.fromkeys(schema.names, 2**40)]))
    assert "Leave columns out with select" in refused.value.hint

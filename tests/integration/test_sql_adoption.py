"""Mirrors that adopt tables which users made: they equal the source, and nothing else of the table is changed."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, Gap, SchemaChange
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification.comparison import repair
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
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
    verified,
)
from tests.support.servers.postgres import Postgres

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("score", pa.float32()),
        ("tags", pa.list_(pa.string())),
    ]
)
LAST = 6


def row(number: int, name: str) -> dict[str, Any]:
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    amount, score = Decimal(number) / 4, number / 10
    return {
        "id": number,
        "name": name,
        "amount": amount,
        "day": date(2026, 3, number),
        "moment": moment,
        "score": score,
    }


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose rows swap names, go and come again with them, and get a column."""
    path = tmp_path_factory.mktemp("orders") / "orders"
    first = [row(number, name) for number, name in enumerate("abcd", 1)]
    write_deltalake(path, pa.Table.from_pylist(first, SCHEMA))
    swap = "CASE WHEN id = 1 THEN 'b' WHEN id = 2 THEN 'a' ELSE name END"
    DeltaTable(path).update(updates={"name": swap})
    DeltaTable(path).delete("id = 3")
    write_deltalake(path, pa.Table.from_pylist([row(5, "c"), row(6, "f")], SCHEMA), mode="append")
    wider = SCHEMA.append(pa.field("note", pa.string()))
    write_deltalake(
        path, pa.Table.from_pylist([row(7, "g") | {"note": "n"}], wider), mode="append", schema_mode="merge"
    )
    DeltaTable(path).update(updates={"name": "'z'"}, predicate="id = 7")
    DeltaTable(path).update(updates={"name": "CASE WHEN id = 7 THEN 'a' ELSE 'z' END"}, predicate="id IN (2, 7)")
    return path


async def mirror(database: Database, orders: Path, last: int = LAST, **options: Any) -> None:
    """Run a pipeline up to version `last`, and verify it."""
    log = DeltaTableLog(LocalStore(orders), allowed_roots=("/",))
    async with opened(database, adopt=True, **options) as sink:
        start, end = Start(StartKind.EARLIEST), Start(StartKind.VERSION, last)
        await row_pipeline("orders", log, sink, LocalEngine(), TimerWake(), start, end).run()
        found = await verified(sink, "orders", log, Policy())
    assert (found.is_equal, mirrored(database, options.get("table", "orders"))) == (True, last), found


USUAL = (
    """id integer PRIMARY KEY, name text, amount numeric(10, 2), day date, moment timestamptz, score real, tags jsonb"""
)


@dataclass(frozen=True)
class Shape:
    """The statements that make a table, and a query of what the user has beside the mirror, with its answer."""

    made: str
    query: str = "SELECT 1"
    answer: tuple[tuple[Any, ...], ...] = ((1,),)
    table: str = "orders"


def columns(changed: str, **others: str) -> str:
    """Return the usual columns, some with other types, and more of them."""
    parts = dict(part.split(" ", 1) for part in USUAL.replace("10, 2", "10,2").split(", ")) | others
    return ", ".join([*(f"{name} {kind}" for name, kind in parts.items()), *filter(None, [changed])])


def made(more: str = "", after: str = "", **others: str) -> str:
    return f"CREATE TABLE orders ({columns(more, **others)}) {after};"


SHAPES = {
    "the usual one": Shape(made()),
    "wider types": Shape(
        made(id="bigint PRIMARY KEY", amount="numeric(20,4)", score="double precision", day="timestamp", note="text")
    ),
    "numbers without limits": Shape(
        made(id="numeric PRIMARY KEY", amount="numeric", tags="json", moment="timestamp(6) with time zone"),
        "SELECT max(id) FROM orders",
        ((7,),),
    ),
    "limited texts and a unique index": Shape(
        made(id="integer", name="varchar(1)", note="varchar(20)") + "CREATE UNIQUE INDEX ON orders (id)"
    ),
    "columns of the user": Shape(
        made(seen="integer NOT NULL DEFAULT 7", n="bigint GENERATED ALWAYS AS IDENTITY", mark="text"),
        "SELECT DISTINCT seen, mark FROM orders",
        ((7, None),),
    ),
    "a generated column": Shape(
        made(double="numeric GENERATED ALWAYS AS (amount * 2) STORED"),
        "SELECT bool_and(double = amount * 2) FROM orders",
        ((True,),),
    ),
    "a unique index": Shape(made("UNIQUE (name)")),
    "unique at the end, and checks": Shape(
        made("UNIQUE (name) DEFERRABLE, CHECK (amount >= 0)") + "CREATE VIEW v AS SELECT id FROM orders",
        "SELECT count(*) FROM v",
        ((6,),),
    ),
    "referenced": Shape(
        made() + "CREATE TABLE items (id integer REFERENCES orders DEFERRABLE)",
        "INSERT INTO items VALUES (1); SELECT id FROM items",
        ((1,),),
    ),
    "referencing": Shape(
        "CREATE TABLE days (day date PRIMARY KEY); INSERT INTO days SELECT date '2026-03-01' + n FROM "
        "generate_series(0, 9) AS n;" + made(day="date REFERENCES days"),
        "SELECT count(*) FROM days",
        ((10,),),
    ),
    "triggers": Shape(
        "CREATE TABLE audit (id integer); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql "
        "SET search_path FROM CURRENT AS $$ BEGIN "
        "INSERT INTO audit VALUES (NEW.id); RETURN NEW; END $$;"
        + made()
        + "CREATE TRIGGER a AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note();"
        "CREATE TRIGGER b BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note()",
        "SELECT count(*) > 6 FROM audit",
        ((True,),),
    ),
    "partitions": Shape(
        made(after="PARTITION BY HASH (id)")
        + "CREATE TABLE p0 PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE p1 PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "SELECT (SELECT count(*) FROM p0) + (SELECT count(*) FROM p1)",
        ((6,),),
    ),
    "another name": Shape(made().replace("orders", '"My Orders"'), table="My Orders"),
}
IN_SQLITE = {
    "the usual one": made(amount="text", tags="text", score=""),
    "columns of the user": made(
        "UNIQUE (name)",
        id="bigint PRIMARY KEY",
        amount="text",
        score="blob",
        tags="text",
        seen="integer NOT NULL DEFAULT 7",
    ),
    "without numbers of rows": made(
        "", "WITHOUT ROWID", amount="varchar(20)", score="", tags="text", g="text AS (name || 'x')"
    ),
}
IN_DUCKDB = {
    "the usual one": made(note="text", tags="json"),
    "wider, with indexes": made(
        "UNIQUE (name)", id="bigint PRIMARY KEY", amount="decimal(20,4)", score="double", note="text", tags="json"
    )
    + "CREATE TABLE others (id INTEGER)",
}


@pytest.mark.stores
@pytest.mark.parametrize("name", SHAPES)
async def test_a_table_of_postgresql_is_filled(postgres: Postgres, orders: Path, name: str) -> None:
    database, shape = PostgresDatabase(postgres), SHAPES[name]
    database.query(shape.made)
    await mirror(database, orders, last=3, table=shape.table)
    if "INSERT" in shape.query:
        database.query(shape.query)
    await mirror(database, orders, table=shape.table)
    assert tuple(database.query(shape.query.rpartition("; ")[2])) == shape.answer


@pytest.mark.parametrize("name", IN_SQLITE)
async def test_a_table_of_sqlite_is_filled(tmp_path: Path, orders: Path, name: str) -> None:
    database = SqliteDatabase(tmp_path / "mirror.db")
    database.query(IN_SQLITE[name].rstrip(";"))
    await mirror(database, orders)


@pytest.mark.parametrize("name", IN_DUCKDB)
async def test_a_table_of_duckdb_is_filled(tmp_path: Path, orders: Path, name: str) -> None:
    database = DuckDbDatabase(tmp_path / "mirror.duckdb")
    database.query(IN_DUCKDB[name])
    await mirror(database, orders)


@pytest.mark.stores
async def test_a_table_is_repaired(postgres: Postgres, orders: Path) -> None:
    """Under a unique index, and a foreign key that an update would break for a moment."""
    database = PostgresDatabase(postgres)
    database.query(made("UNIQUE (name)") + "CREATE TABLE items (id integer REFERENCES orders DEFERRABLE)")
    await mirror(database, orders)
    database.query("INSERT INTO items VALUES (1); UPDATE orders SET name = 'x' WHERE id = 1")
    database.query("UPDATE orders SET name = 'b' WHERE id = 4; DELETE FROM orders WHERE id = 6")
    log = DeltaTableLog(LocalStore(orders), allowed_roots=("/",))
    async with opened(database, adopt=True) as sink:
        compared = [each async for each in repair(lambda: sink.open_mirror("orders"), log, LocalEngine(), Policy(), 9)]
    assert [each.is_equal for each in compared] == [False, True]
    assert database.query("SELECT id FROM items") == [(1,)]


WIDENED = {
    "numbers": ("ALTER TABLE orders ALTER id TYPE bigint", "ALTER TABLE orders ALTER score TYPE double precision"),
    "digits": ("ALTER TABLE orders ALTER amount TYPE decimal(20,4)", "ALTER TABLE orders ALTER id TYPE decimal(12,2)"),
    "days": ("ALTER TABLE orders ALTER day TYPE timestamp",),
    "texts": ("ALTER TABLE orders ALTER name TYPE text",),
    "without limits": ("ALTER TABLE orders ALTER amount TYPE numeric, ALTER id TYPE numeric, ALTER tags TYPE json",),
}


@pytest.mark.parametrize("name", WIDENED)
async def test_a_column_that_the_user_widens_is_verified(database: Database, orders: Path, name: str) -> None:
    """At once, before the next version, and repaired as the table is now. SQLite changes no types."""
    statements = WIDENED[name]
    if isinstance(database, SqliteDatabase) or (isinstance(database, DuckDbDatabase) and name == "without limits"):
        return
    key = "integer" if isinstance(database, DuckDbDatabase) else "integer PRIMARY KEY"
    database.query(made(id=key, name="varchar(1)", note="text", tags="json"))
    await mirror(database, orders, last=3)
    for statement in statements:
        database.query(statement)
    log = DeltaTableLog(LocalStore(orders), allowed_roots=("/",))
    async with opened(database, adopt=True) as sink:
        compared = [each async for each in repair(lambda: sink.open_mirror("orders"), log, LocalEngine(), Policy(), 9)]
        assert [each.is_equal for each in compared] == [True]
        database.query("DELETE FROM orders WHERE id = 1")
        database.query("UPDATE orders SET name = 'x', score = 7 WHERE id = 4")
        compared = [each async for each in repair(lambda: sink.open_mirror("orders"), log, LocalEngine(), Policy(), 9)]
        assert [each.is_equal for each in compared] == [False, True]
    await mirror(database, orders)


async def test_a_type_that_changes_values_is_named_by_verification(database: Database, orders: Path) -> None:
    """All rows would be called different."""
    if isinstance(database, SqliteDatabase):
        return
    key = "integer" if isinstance(database, DuckDbDatabase) else "integer PRIMARY KEY"
    database.query(made(id=key, note="text", tags="json"))
    await mirror(database, orders, last=3)
    database.query("ALTER TABLE orders ALTER day TYPE timestamptz")
    with pytest.raises(SinkRejected, match=r"column day of orders is .* which may change values of date32"):
        await mirror(database, orders, last=3)


ROWS = pa.schema([("id", pa.int32()), ("name", pa.string())])
TABLE = "CREATE TABLE orders (id integer PRIMARY KEY, name varchar(20) UNIQUE, mark varchar(20) DEFAULT 'mine')"


def first() -> ChangeBatch:
    return batch(1, "insert", ROWS, [{"id": number, "name": name} for number, name in enumerate("abc")])


def run(database: Database, hint: str) -> None:
    """Run the statements of a hint."""
    statements = re.search(r"run: (.*?);? (?:and then|Or keep)|Run: (.*?)(?:;? and then.*|;? Or keep.*|)$", hint)
    assert statements is not None, hint
    for statement in (statements[1] or statements[2]).split("; "):
        database.query(statement)


async def test_rows_swap_values_of_a_unique_index(database: Database) -> None:
    """Within a version, and over several that are merged at once."""
    database.query(TABLE)
    swap = [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}, {"id": 0, "name": "b"}, {"id": 1, "name": "a"}]
    images = ["update_preimage"] * 2 + ["update_postimage"] * 2
    async with opened(database, adopt=True) as sink:
        await deliver(sink, first())
        await deliver(sink, batch(2, images, ROWS, swap))
        assert names_in(database) == {0: "b", 1: "a", 2: "c"}
        await deliver(
            sink,
            batch(3, "delete", ROWS, [{"id": 2, "name": "c"}]),
            batch(4, ["update_preimage", "update_postimage"], ROWS, [{"id": 0, "name": "b"}, {"id": 0, "name": "c"}]),
            batch(5, "insert", ROWS, [{"id": 3, "name": "b"}]),
        )
        assert names_in(database) == {0: "c", 1: "a", 3: "b"}
        with pytest.raises(SinkRejected, match=r"the unique index .* of orders refuses"):
            await deliver(sink, batch(6, "insert", ROWS, [{"id": 4, "name": "a"}]))
    assert names_in(database) == {0: "c", 1: "a", 3: "b"}


def names_in(database: Database) -> dict[Any, Any]:
    return {row["id"]: row["name"] for row in rows_in(database, "orders")}


async def test_rows_of_a_user_are_never_replaced(database: Database) -> None:
    database.query(TABLE)
    schema = first().rows.schema
    async with opened(database, adopt=True) as sink:
        async with sink.begin(APP, schema) as transaction:
            await transaction.write(first())
            database.query("INSERT INTO orders VALUES (9, 'theirs', 'x')")
            with pytest.raises(SinkUnavailable, match="somebody has changed the table orders"):
                await transaction.commit(Progress(APP, Position.end(1)))
        with pytest.raises(SinkRejected, match="the table orders has rows"):
            await deliver(sink, first())
        snapshot = Gap("t", 1, 1, 0, "commanded", snapshot=True)
        with pytest.raises(SinkRejected, match="the table orders has rows"):
            await deliver(sink, SchemaChange("t", 1, 0, schema, schema, (), {}), snapshot)
    async with opened(database) as sink:
        with pytest.raises(SinkRejected, match="lake-tailer did not make") as refused:
            await deliver(sink, first())
    assert "adopt = true" in refused.value.hint
    assert database.query("SELECT id, name, mark FROM orders") == [(9, "theirs", "x")]


CHANGES: dict[str, tuple[pa.Schema, dict[str, str], str]] = {
    "renamed": (
        pa.schema([("id", pa.int32()), ("title", pa.string())]),
        {"id": "id", "title": "name"},
        "column name of orders is called title",
    ),
    "dropped": (pa.schema([("id", pa.int32())]), {"id": "id"}, "column name of orders is not in the source any more"),
    "taken": (
        pa.schema([*ROWS, ("mark", pa.string())]),
        {"id": "id", "name": "name"},
        "column mark of orders has values, and it is new",
    ),
    "key renamed": (
        pa.schema([("number", pa.int32()), ("name", pa.string())]),
        {"number": "id", "name": "name"},
        "column id of orders is called number",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_the_user_changes_columns_before_the_version(database: Database, name: str) -> None:
    """The error has the statements, after which the pipeline goes on."""
    database.query(TABLE.replace(" UNIQUE", ""))
    after, origins, reason = CHANGES[name]
    event = SchemaChange("t", 2, 0, full(ROWS), full(after), ("it changed",), origins)
    more = batch(2, "insert", after, [{after.names[0]: 7, after.names[-1]: 7 if len(after) == 1 else "new"}])
    async with opened(database, adopt=True) as sink:
        await deliver(sink, first())
        with pytest.raises(SinkRejected, match=reason) as refused:
            await deliver(sink, event, more)
        assert names_in(database) == {0: "a", 1: "b", 2: "c"}
    if name == "taken" and isinstance(database, PostgresDatabase):
        database.query("ALTER TABLE orders ALTER COLUMN mark DROP DEFAULT")
    run(database, refused.value.hint)
    async with opened(database, adopt=True) as sink:
        await deliver(sink, event, more)
        await deliver(sink, batch(3, "delete", after, [{after.names[0]: 1}]))
    found = {tuple(row.values()) for row in rows_in(database, "orders")}
    wanted = {(row["id"], *[row["name"]] * (name != "dropped")) for row in first().rows.to_pylist() if row["id"] != 1}
    assert {row[: len(ROWS) if name != "dropped" else 1] for row in found} >= wanted
    assert len(found) == 3


async def test_a_column_that_the_user_drops_needs_a_snapshot(database: Database) -> None:
    """The source's values would be null in it."""
    database.query(TABLE.replace(" UNIQUE", ""))
    async with opened(database, adopt=True) as sink:
        await deliver(sink, first())
        database.query("ALTER TABLE orders DROP COLUMN name")
        with pytest.raises(SinkRejected, match="column name of orders is gone") as refused:
            await deliver(sink, batch(2, "insert", ROWS, [{"id": 9, "name": "n"}]))
        run(database, refused.value.hint)
    assert "tailer resnapshot" in refused.value.hint


async def test_generated_columns_of_duckdb_are_named(tmp_path: Path) -> None:
    database = DuckDbDatabase(tmp_path / "mirror.duckdb")
    database.query("CREATE TABLE orders (id integer, name text AS (id || 'x'))")
    async with opened(database, adopt=True) as sink:
        await sink.progress(APP)
        (error,) = await sink.refusals(APP, full(ROWS))
    assert "column name of orders is generated" in str(error)


async def test_columns_that_swap_their_names_need_a_snapshot(database: Database) -> None:
    """Values would stay under the former names. Another case of a name is no other name, where names have none."""
    kept = pa.schema([*ROWS, ("mark", pa.string())])
    database.query(TABLE)
    event = SchemaChange("t", 2, 0, full(kept), full(kept), (), {"id": "id", "name": "mark", "mark": "name"})
    upper = pa.schema([("id", pa.int32()), ("Name", pa.string()), ("mark", pa.string())])
    cased = SchemaChange("t", 2, 0, full(kept), full(upper), (), {"id": "id", "Name": "name", "mark": "mark"})
    async with opened(database, adopt=True) as sink:
        await deliver(sink, batch(1, "insert", kept, [{"id": 1, "name": "n", "mark": "m"}]))
        with pytest.raises(SinkRejected, match=r"column mark of orders is called name .* another one mark") as refused:
            await deliver(sink, event, batch(2, "insert", kept, [{"id": 2, "name": "x", "mark": "y"}]))
        assert "resnapshot" in refused.value.hint
        rows = batch(2, "insert", upper, [{"id": 2, "Name": "x", "mark": "y"}])
        if isinstance(database, PostgresDatabase):
            with pytest.raises(SinkRejected, match="column name of orders is called Name") as refused:
                await deliver(sink, cased, rows)
            run(database, refused.value.hint)
        await deliver(sink, cased, rows)
    assert sorted(database.query("SELECT * FROM orders")) == [(1, "n", "m"), (2, "x", "y")]


async def test_columns_are_added_and_the_user_widens(database: Database) -> None:
    database.query("CREATE TABLE orders (id integer PRIMARY KEY, v smallint, mark varchar(20) DEFAULT 'mine')")
    before, after = (pa.schema([("id", pa.int32()), ("v", kind)]) for kind in (pa.int16(), pa.int64()))
    after = after.append(pa.field("w", pa.string()))
    event = SchemaChange("t", 2, 0, full(before), full(after), ("it changed",), {"id": "id", "v": "v"})
    async with opened(database, adopt=True) as sink:
        await deliver(sink, batch(1, "insert", before, [{"id": 1, "v": 1}]))
        rows = batch(2, "insert", after, [{"id": 2, "v": 2**40, "w": "w"}])
        if not isinstance(database, SqliteDatabase):  # whose integers are all as wide
            with pytest.raises(SinkRejected, match=r"column v of orders is (smallint|SMALLINT), which") as refused:
                await deliver(sink, event, rows)
            assert "Make it bigint or wider" in refused.value.hint.replace("BIGINT", "bigint")
            database.query("ALTER TABLE orders ALTER COLUMN v TYPE bigint")
            await deliver(sink, batch(2, "insert", before, [{"id": 3, "v": 3}]), at=Position(2, 0, 0))
        if isinstance(database, DuckDbDatabase):
            with pytest.raises(SinkRejected, match="orders has no column w") as refused:
                await deliver(sink, event, rows)
            run(database, refused.value.hint)
        await deliver(sink, event, rows)
    assert {row["id"]: (row["v"], row["w"]) for row in rows_in(database, "orders")}[2] == (2**40, "w")
    assert {mark for (mark,) in database.query("SELECT mark FROM orders")} == {"mine"}


UNFIT = """
CREATE UNLOGGED TABLE orders (id bigint, name varchar(3), a smallint, b numeric(5,1), c timestamp(3), d uuid,
    e integer GENERATED ALWAYS AS (1) STORED, f text NOT NULL, g timestamp, h char(5));
CREATE TABLE items (id integer, n integer);
CREATE UNIQUE INDEX ON orders (id, name);
CREATE UNIQUE INDEX n ON orders (id) WHERE id > 0;
ALTER TABLE orders ADD UNIQUE (name) DEFERRABLE, ADD UNIQUE (id) DEFERRABLE, ADD UNIQUE (a);
CREATE UNLOGGED TABLE i1 (a smallint REFERENCES orders (a) ON DELETE CASCADE ON UPDATE CASCADE);
CREATE UNLOGGED TABLE i2 (a smallint, CONSTRAINT second FOREIGN KEY (a) REFERENCES orders (a));
CREATE UNLOGGED TABLE i3 () INHERITS (orders);
INSERT INTO orders (id, name, f) VALUES (1, 'a', 'f');
CREATE RULE r AS ON DELETE TO orders DO INSTEAD NOTHING;
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION f()
"""
UNFIT_SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("a", pa.int32()),
        ("b", pa.decimal128(5, 2)),
        ("c", pa.timestamp("us")),
        ("d", pa.string()),
        ("e", pa.int32()),
        ("g", pa.timestamp("us", "UTC")),
        ("h", pa.string()),
        ("i", pa.string()),
    ]
)
FAULTS = {
    "is not logged": "SET LOGGED",
    "i3 inherits from orders": "NO INHERIT",
    "the rule r changes": "DROP RULE r",
    "the trigger t may change": "AFTER trigger",
    "i1_a_fkey of i1 would change": "REFERENCES orders(a) ON UPDATE CASCADE DEFERRABLE",
    "second of i2 cannot wait": "ALTER CONSTRAINT second DEFERRABLE",
    "orders has rows": "Empty it",
    "column a of orders is smallint": "Make it integer",
    "column b of orders is numeric(5,1)": "numeric(5, 2)",
    "column c of orders is timestamp(3)": "Make it timestamp or wider",
    "column d of orders is uuid": "Make it text",
    "column e of orders is generated": "another name",
    "column g of orders is timestamp without": "Make it timestamptz",
    "column h of orders is character(5)": "Make it text",
    "orders has no column i": "ADD COLUMN",
    "column f of orders needs a value": "DROP NOT NULL",
    "no unique index on the key, id": "CREATE UNIQUE INDEX",
}


@pytest.mark.stores
async def test_all_that_does_not_fit_is_named_at_once(postgres: Postgres) -> None:
    database = PostgresDatabase(postgres)
    database.query(UNFIT)
    async with opened(database, adopt=True) as sink:
        await sink.progress(APP)
        errors = await sink.refusals(APP, full(UNFIT_SCHEMA))
    named = {str(error): error.hint.replace(f"{database.schema}.", "") for error in errors}
    assert len(named) == len(FAULTS), named
    for reason, step in FAULTS.items():
        (text,) = (text for text in named if reason in text.replace(f"{database.schema}.", ""))
        assert step in named[text]
    assert database.tables() == sorted(["orders", "items", "i1", "i2", "i3"], key=database.tables().index)


@pytest.mark.stores
async def test_foreign_keys_wait_for_the_end_of_the_version(postgres: Postgres) -> None:
    database = PostgresDatabase(postgres)
    database.query(TABLE)
    database.query("CREATE TABLE items (id integer REFERENCES orders ON DELETE CASCADE)")
    images = [{"id": 0, "name": "a"}, {"id": 0, "name": "z"}]
    update = batch(2, ["update_preimage", "update_postimage"], ROWS, images)
    async with opened(database, adopt=True) as sink:
        with pytest.raises(SinkRejected, match="would change or refuse") as refused:
            await deliver(sink, first())
        run(database, refused.value.hint)
        await deliver(sink, first())
        database.query("INSERT INTO items VALUES (0)")
        await deliver(sink, update)
        with pytest.raises(SinkRejected, match="the constraint items_id_fkey"):
            await deliver(sink, batch(3, "delete", ROWS, [{"id": 0, "name": "z"}]))
        # A key that comes later is seen before it does anything.
        database.query("CREATE TABLE more (id integer REFERENCES orders ON DELETE SET NULL)")
        with pytest.raises(SinkRejected, match=r"more_id_fkey of .*more would change"):
            await deliver(sink, batch(3, "insert", ROWS, [{"id": 8, "name": "n"}]))
    assert database.query("SELECT id FROM items") == [(0,)]
    assert names_in(database) == {0: "z", 1: "b", 2: "c"}


@pytest.mark.stores
async def test_a_foreign_key_to_a_partition_is_seen(postgres: Postgres) -> None:
    database = PostgresDatabase(postgres)
    database.query(
        "CREATE TABLE orders (id integer PRIMARY KEY, name text) PARTITION BY RANGE (id);"
        "CREATE TABLE p0 PARTITION OF orders FOR VALUES FROM (0) TO (2);"
        "CREATE TABLE p1 PARTITION OF orders DEFAULT;"
        "CREATE TABLE notes (id integer REFERENCES p0 ON DELETE CASCADE);"
        "CREATE TABLE items (id integer REFERENCES orders DEFERRABLE)"
    )
    images = [{"id": 0, "name": "a"}, {"id": 0, "name": "z"}]
    async with opened(database, adopt=True) as sink:
        with pytest.raises(SinkRejected, match=r"notes_id_fkey of .*notes would change") as refused:
            await deliver(sink, first())
        run(database, refused.value.hint)
        await deliver(sink, first())
        database.query("INSERT INTO notes VALUES (0); INSERT INTO items VALUES (0)")
        await deliver(sink, batch(2, ["update_preimage", "update_postimage"], ROWS, images))
        with pytest.raises(SinkRejected, match=r"version 3 insert a key that orders has"):
            await deliver(sink, batch(3, "insert", ROWS, [{"id": 1, "name": "b"}]))
    assert database.query("SELECT (SELECT id FROM notes), (SELECT id FROM items)") == [(0, 0)]
    assert names_in(database) == {0: "z", 1: "b", 2: "c"}


@pytest.mark.stores
async def test_a_text_beyond_its_column_stops(postgres: Postgres) -> None:
    """PostgreSQL would cut the spaces off."""
    database = PostgresDatabase(postgres)
    database.query(TABLE)
    async with opened(database, adopt=True) as sink:
        with pytest.raises(SinkRejected, match="column name of orders has a text of more than 20 characters"):
            await deliver(sink, batch(1, "insert", ROWS, [{"id": 1, "name": "a" + " " * 20}]))
        await deliver(sink, batch(1, "insert", ROWS, [{"id": 1, "name": "\u00e9" * 19 + " "}]))
    assert names_in(database) == {1: "\u00e9" * 19 + " "}


async def test_a_version_in_several_transactions(database: Database) -> None:
    """Its rows wait in the types of the table, and a row of a user that comes meanwhile stays."""
    database.query("CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(20) UNIQUE)")
    async with opened(database, adopt=True) as sink:
        await deliver(sink, first(), at=Position(1, 0, 2))
        database.query("INSERT INTO orders VALUES (9, 'theirs')")
        rest = batch(1, "insert", ROWS, [{"id": 5, "name": "d"}], task=1)
        with pytest.raises(SinkRejected, match="the table orders has rows"):
            await deliver(sink, rest)
        assert database.query("SELECT id, name FROM orders") == [(9, "theirs")]
        database.query("DELETE FROM orders")
        await deliver(sink, rest)
    assert names_in(database) == {0: "a", 1: "b", 2: "c", 5: "d"}


@pytest.mark.stores
async def test_columns_come_while_a_foreign_key_waits(postgres: Postgres) -> None:
    """A version that replaces the table deletes rows without a column, and inserts them with it."""
    database = PostgresDatabase(postgres)
    database.query(TABLE + "; CREATE TABLE items (id integer REFERENCES orders DEFERRABLE)")
    after = pa.schema([*ROWS, ("w", pa.string())])
    origins = {"id": "id", "name": "name"}
    event = SchemaChange("t", 2, 0, full(ROWS), full(after), ("it changed",), origins)
    async with opened(database, adopt=True) as sink:
        await deliver(sink, first())
        database.query("INSERT INTO items VALUES (0)")
        removed = batch(2, "delete", ROWS, [{"id": 0, "name": "a"}])
        await deliver(sink, removed, event, batch(2, "insert", after, [{"id": 0, "name": "a", "w": "w"}], task=1))
    assert sorted(database.query("SELECT id, w FROM orders")) == [(0, "w"), (1, None), (2, None)]


async def test_a_snapshot_keeps_the_table(database: Database) -> None:
    database.query(TABLE)
    after = pa.schema([*ROWS, ("w", pa.string())])
    async with opened(database, adopt=True) as sink:
        await deliver(sink, first())
        if isinstance(database, DuckDbDatabase):
            database.query("ALTER TABLE orders ADD COLUMN w VARCHAR")
        rows = batch(4, "insert", after, [{"id": 5, "name": "b", "w": "w"}], SNAPSHOT_TASKS)
        async with sink.begin(APP, rows.rows.schema) as transaction:
            await transaction.announce(Gap("t", 4, 4, 0, "commanded", snapshot=True))
            await transaction.write(rows)
            await transaction.commit(Progress(APP, Position.end(4)))
    async with opened(database, key=["name"]) as sink:  # the record says that the table is the user's
        rows = batch(5, "insert", after, [{"id": 6, "name": "b", "w": "w"}], SNAPSHOT_TASKS)
        async with sink.begin(APP, rows.rows.schema) as transaction:
            await transaction.announce(Gap("t", 5, 5, 0, "commanded", snapshot=True))
            await transaction.write(rows)
            await transaction.commit(Progress(APP, Position.end(5)))
    assert database.query("SELECT id, name, mark, w FROM orders") == [(6, "b", "mine", "w")]

"""Readers of PostgreSQL beside every change of columns and rows: each finds the rows of its snapshot, and no others."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any, Final, LiteralString

import anyio
import psycopg
import pyarrow as pa
import pytest
from anyio import to_thread
from psycopg.rows import dict_row

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, Gap, SchemaChange
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress
from tailer_sinks.sql.databases import postgresql_columns
from tests.support.mirrors.databases import APP, PostgresDatabase, batch, deliver, full, mirrored, opened
from tests.support.servers.postgres import USER, Postgres

pytestmark = [pytest.mark.anyio, pytest.mark.stores]

Row = dict[str, Any]

TABLE: Final = pa.schema([("id", pa.int32()), ("a", pa.string()), ("n", pa.int32()), ("d", pa.decimal128(5, 1))])
ROWS: Final[list[Row]] = [
    {"id": 1, "a": "x", "n": 10, "d": Decimal("0.5")},
    {"id": 2, "a": "y", "n": None, "d": Decimal("1.5")},
    {"id": 3, "a": "z", "n": 30, "d": None},
]
GAP: Final = Gap("t", 2, 2, 0, "ordered", snapshot=True)


@pytest.fixture
def database(postgres: Postgres) -> PostgresDatabase:
    return PostgresDatabase(postgres)


class Reader:
    """A transaction that has its snapshot, and has read no rows of the table."""

    def __init__(self, database: PostgresDatabase, level: str) -> None:
        settings = f"-c search_path={database.schema}"
        self.connection = psycopg.connect(database.options["url"], options=settings, row_factory=dict_row)
        self.connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        self.version()

    def version(self) -> int:
        found = self.connection.execute("SELECT version FROM lake_tailer_mirrors").fetchone()
        assert found is not None
        return int(found["version"])

    def rows(self, source: LiteralString = "orders") -> list[Row]:
        return self.connection.execute(f"SELECT * FROM {source} ORDER BY 1").fetchall()

    def has(self, version: int, rows: Sequence[Row], source: LiteralString = "orders") -> bool:
        """Return whether the version and the rows of its snapshot are these, in any columns beside theirs."""
        found = self.rows(source)
        alike = [{name: row.get(name) for name in rows[0]} for row in found] if rows else found
        return self.version() == version and sorted(map(str, map(plain, alike))) == sorted(map(str, map(plain, rows)))


def plain(row: Mapping[str, Any]) -> Row:
    """Return a row with equal values of different types in one form."""
    return {
        name: str(Decimal(str(value)).normalize()) if isinstance(value, int | float | Decimal) else value
        for name, value in sorted(row.items())
    }


@contextmanager
def reading(database: PostgresDatabase, level: str = "REPEATABLE READ") -> Iterator[Reader]:
    reader = Reader(database, level)
    try:
        yield reader
    finally:
        reader.connection.close()


def has_wider_column(database: PostgresDatabase) -> bool:
    """Return whether a wider column is there, with its values."""
    found = database.query(
        "SELECT 1 FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname LIKE 'lake_tailer_wider_%' "
        "AND col_description(attrelid, attnum) IS NOT NULL"
    )
    return bool(found)


def event(version: int, before: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None = None) -> SchemaChange:
    kept = {name: name for name in after.names if name in before.names} if origins is None else origins
    return SchemaChange("t", version, 0, full(before), full(after), ("it changed",), kept)


def typed(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([(each.name, kinds.get(each.name, each.type)) for each in TABLE])


def insert(version: int, schema: pa.Schema, task: int = 0, **row: Any) -> ChangeBatch:
    return batch(version, "insert", schema, [row], task)


ADDED: Final = pa.schema([*TABLE, ("more", pa.string())])
DROPPED: Final = TABLE.remove(1)
RENAMED: Final = pa.schema([("id", pa.int32()), ("n", pa.string()), ("a", pa.int32()), ("d", pa.decimal128(5, 1))])
LONG: Final = typed(n=pa.int64())
DECIMAL: Final = typed(n=pa.decimal128(22, 2))
TWO: Final = typed(n=pa.int64(), d=pa.decimal128(12, 3))
KEY: Final = typed(id=pa.int64())
ALL: Final = typed(id=pa.decimal128(20, 0), n=pa.float64(), d=pa.decimal128(9, 1))
IN_PLACE: Final = typed(d=pa.decimal128(12, 1))
MOVED: Final = pa.schema([("id", pa.int32()), ("m", pa.int64()), ("d", pa.decimal128(5, 1))])
OTHER: Final = typed(id=pa.string(), a=pa.int32())
WIDER: Final = typed(id=pa.string(), a=pa.int64())

# Items of one transaction, the rows that a reader of before finds in the columns of after, and how many are there then.
CHANGES: Final[dict[str, tuple[list[Any], list[Row], int]]] = {
    "added": ([event(2, TABLE, ADDED), insert(2, ADDED, id=4, more="m")], [{**row, "more": None} for row in ROWS], 4),
    "dropped": ([event(2, TABLE, DROPPED)], [{name: row[name] for name in DROPPED.names} for row in ROWS], 3),
    "renamed": (
        [event(2, TABLE, RENAMED, {"id": "id", "n": "a", "a": "n", "d": "d"}), insert(2, RENAMED, id=4)],
        [{"id": row["id"], "n": row["a"], "a": row["n"], "d": row["d"]} for row in ROWS],
        4,
    ),
    "widened": ([event(2, TABLE, LONG), insert(2, LONG, id=4, n=2**40)], ROWS, 4),
    "two widened": ([event(2, TABLE, TWO), insert(2, TWO, id=4, n=2**40, d=Decimal("0.125"))], ROWS, 4),
    "a key widened": ([event(2, TABLE, KEY), insert(2, KEY, id=2**40)], ROWS, 4),
    "all widened": (
        [event(2, TABLE, ALL), batch(2, "delete", ALL, [{"id": Decimal(1)}]), insert(2, ALL, id=Decimal(10**15))],
        ROWS,
        3,
    ),
    "widened twice behind rows": (
        [
            insert(2, TABLE, id=4),
            event(3, TABLE, LONG),
            insert(3, LONG, id=5, n=2**40),
            event(4, LONG, DECIMAL),
            insert(4, DECIMAL, id=6, n=Decimal("0.01")),
        ],
        ROWS,
        6,
    ),
    "renamed and widened": (
        [event(2, TABLE, MOVED, {"id": "id", "m": "n", "d": "d"})],
        [{"id": row["id"], "m": row["n"], "d": row["d"]} for row in ROWS],
        3,
    ),
    "more digits": ([event(2, TABLE, IN_PLACE), insert(2, IN_PLACE, id=4, d=Decimal("99999999.5"))], ROWS, 4),
    "all rows deleted": ([batch(2, "delete", TABLE, ROWS)], ROWS, 0),
    "a snapshot": ([GAP, insert(2, TABLE, SNAPSHOT_TASKS, id=9)], ROWS, 1),
    "a snapshot of wider rows": ([GAP, insert(2, KEY, SNAPSHOT_TASKS, id=2**40)], ROWS, 1),
    "a snapshot of rows widened behind it": (
        [GAP, insert(2, OTHER, SNAPSHOT_TASKS, id="9"), event(3, OTHER, WIDER), insert(3, WIDER, id="8", a=2**40)],
        [{"id": None, "a": None, "n": row["n"], "d": row["d"]} for row in ROWS],
        2,
    ),
    # Nothing is known of the values of the former key in the new type, and of those of a.
    "a snapshot of other types": (
        [GAP, insert(2, OTHER, SNAPSHOT_TASKS, id="9")],
        [{"id": None, "a": None, "n": row["n"], "d": row["d"]} for row in ROWS],
        1,
    ),
}
# What depends on the columns id and n, and questions to all that belongs to it.
DEPENDENTS: Final = (
    "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    """CREATE VIEW "It's %s" WITH (security_barrier, check_option = local) AS SELECT id, n AS "N?" FROM orders""",
    """CREATE VIEW above AS SELECT one.id, "N?" / 2 AS half, two.n FROM "It's %s" one JOIN orders AS two USING (id)""",
    "CREATE VIEW once AS SELECT max(id) AS most FROM above",
    "CREATE VIEW above_all AS SELECT (SELECT most FROM once), above.* FROM above",
    """COMMENT ON VIEW "It's %s" IS 'it''s 100 %'""",
    """COMMENT ON COLUMN above.half IS 'of "N?"'""",
    """ALTER VIEW "It's %s" ALTER "N?" SET DEFAULT 7""",
    """GRANT SELECT ("N?") ON "It's %s" TO ROLE WITH GRANT OPTION""",
    "GRANT SELECT, INSERT ON above TO PUBLIC",
    "ALTER VIEW once OWNER TO ROLE",
    "REVOKE DELETE ON once FROM ROLE",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA THIS GRANT SELECT ON TABLES TO ROLE",
    "CREATE RULE no_rows AS ON DELETE TO once DO INSTEAD NOTHING",
    "CREATE TRIGGER instead INSTEAD OF INSERT ON above FOR EACH ROW EXECUTE FUNCTION nothing()",
    "CREATE TRIGGER of_n AFTER UPDATE OF n ON orders FOR EACH ROW WHEN (NEW.n > 0) EXECUTE FUNCTION nothing()",
    "ALTER TABLE orders DISABLE TRIGGER of_n",
    "COMMENT ON TRIGGER of_n ON orders IS 'a trigger'",
    "CREATE POLICY small ON orders AS RESTRICTIVE FOR UPDATE TO ROLE, CURRENT_USER USING (n < 5) WITH CHECK (id > n)",
    "CREATE POLICY all_of_it ON orders USING ((SELECT most FROM once) >= id)",
    "COMMENT ON POLICY small ON orders IS 'a policy'",
    "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
)
OF_SCHEMA: Final = "WHERE relnamespace = to_regnamespace(current_schema())"
OF_DEPENDENTS: Final = (
    (
        """relname::text, relkind::text, relowner, reloptions, obj_description(oid),
        array(SELECT x::text FROM aclexplode(coalesce(relacl, acldefault('r', relowner))) AS x ORDER BY 1)""",
        f"pg_class {OF_SCHEMA} AND relname <> 'lake_tailer_progress'",
    ),
    ("relname::text, pg_get_viewdef(oid)", f"pg_class {OF_SCHEMA} AND relkind = 'v'"),
    (
        """attrelid::regclass::text, attnum, attname::text, attacl::text, col_description(attrelid, attnum),
        (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum)""",
        f"pg_attribute JOIN pg_class c ON c.oid = attrelid {OF_SCHEMA} AND relkind = 'v'",
    ),
    ("pg_get_ruledef(r.oid)", f"pg_rewrite r JOIN pg_class c ON c.oid = ev_class {OF_SCHEMA}"),
    (
        "pg_get_triggerdef(t.oid), tgenabled::text, obj_description(t.oid)",
        f"pg_trigger t JOIN pg_class c ON c.oid = tgrelid {OF_SCHEMA}",
    ),
    (
        "policyname::text, permissive, roles::text, cmd, qual, with_check",
        "pg_policies WHERE schemaname = current_schema()",
    ),
    ("obj_description(oid, 'pg_policy')", "pg_policy WHERE polrelid = 'orders'::regclass"),
    ("obj_description(oid, 'pg_constraint')", "pg_constraint WHERE conrelid = 'orders'::regclass"),
    ("obj_description(oid, 'pg_statistic_ext')", "pg_statistic_ext WHERE stxrelid = 'orders'::regclass"),
)
REAL: Final = "WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped"
OF_A_LOG: Final = ("added", "widened", "two widened", "widened twice behind rows", "more digits")


async def send(database: PostgresDatabase, items: Sequence[Any], mode: str = "mirror", **options: Any) -> None:
    """Run one transaction, whose first rows have the schema that it begins with."""
    key = ["id"] if mode == "mirror" else []
    first = next((each.rows.schema for each in items if isinstance(each, ChangeBatch)), full(TABLE))
    schema = next((each.before for each in items[:1] if isinstance(each, SchemaChange)), first)
    async with opened(database, mode=mode, key=key, **options) as sink, sink.begin(APP, schema) as transaction:
        for each in items:
            await (transaction.write(each) if isinstance(each, ChangeBatch) else transaction.announce(each))
        await transaction.commit(Progress(APP, Position.end(items[-1].version)))


async def started(database: PostgresDatabase) -> None:
    await send(database, [batch(1, "insert", TABLE, ROWS)])


async def until(condition: Callable[[], bool]) -> None:
    while not await to_thread.run_sync(condition):  # noqa: ASYNC110 - it is in the database
        await anyio.sleep(0.02)


@pytest.mark.parametrize(
    ("mode", "name"), [*(("mirror", each) for each in CHANGES), *(("append", each) for each in OF_A_LOG)]
)
async def test_readers_find_the_rows_of_their_snapshot(database: PostgresDatabase, mode: str, name: str) -> None:
    """A reader of before a column is widened is waited for, and then one with a later snapshot has the same rows.

    So it is for readers of a view of a view.
    """
    items, seen, count = CHANGES[name]
    await send(database, [batch(1, "insert", TABLE, ROWS)], mode)
    database.query("CREATE VIEW part_of_it AS SELECT id, n, d FROM orders")
    database.query("CREATE VIEW view_of_it AS SELECT * FROM part_of_it")
    viewed = [{"id": row["id"], "n": old["n"], "d": old["d"]} for row, old in zip(seen, ROWS, strict=True)]
    widens = name.endswith(("widened", "widened twice behind rows", "wider rows"))
    with reading(database) as older, reading(database, "READ COMMITTED") as newest:
        async with anyio.create_task_group() as group:
            with anyio.fail_after(60):
                group.start_soon(send, database, items, mode)
                if widens:
                    await until(partial(has_wider_column, database))
                    with reading(database) as later:
                        assert older.has(1, ROWS)
                        older.connection.close()
                        await until(lambda: mirrored(database, "orders") != 1)
                        assert later.has(1, seen)
                        assert later.has(1, viewed, "view_of_it")
        assert widens or (older.has(1, seen) and older.has(1, viewed, "view_of_it"))
        found = newest.rows()
        assert len(newest.rows("view_of_it")) == count
        assert (newest.version(), len(found)) == (items[-1].version, count)
        assert not any(column.startswith("lake_tailer") for row in found for column in row)


async def test_an_open_cursor_is_waited_for(database: PostgresDatabase) -> None:
    items, _, count = CHANGES["widened"]
    await started(database)
    with reading(database, "READ COMMITTED") as reader:
        reader.connection.execute("DECLARE part CURSOR FOR SELECT id, n FROM orders ORDER BY id")
        assert reader.connection.execute("FETCH part").fetchall() == [{"id": 1, "n": 10}]
        async with anyio.create_task_group() as group:
            group.start_soon(send, database, items)
            await anyio.sleep(0.3)
            assert [row["id"] for row in reader.connection.execute("FETCH ALL FROM part").fetchall()] == [2, 3]
            assert mirrored(database, "orders") == 1
            reader.connection.commit()
    assert len(database.query("SELECT id FROM orders")) == count


async def test_what_belongs_to_the_table_and_its_columns_stays(database: PostgresDatabase) -> None:
    await started(database)
    role = f"reader_of_{database.schema}"
    for statement in (
        f"CREATE ROLE {role}",
        f"GRANT USAGE ON SCHEMA {database.schema} TO {role}",
        f"GRANT SELECT (n, a) ON orders TO {role} WITH GRANT OPTION",
        "GRANT SELECT (n) ON orders TO PUBLIC",
        "COMMENT ON COLUMN orders.n IS 'it''s 100 % \"n\"?'",
        "ALTER TABLE orders ALTER n SET DEFAULT 5",
        "ALTER TABLE orders ADD COLUMN mine text DEFAULT 'own'",
        "CREATE INDEX by_n ON orders (n, a) WHERE n > 0",
        "CREATE INDEX by_n_and_a ON orders ((n + 1))",
        "ALTER TABLE orders ADD CONSTRAINT at_least CHECK (n < id * 1000)",
        "ALTER TABLE orders ADD CONSTRAINT n_is_unique UNIQUE (n, id)",
        "CREATE STATISTICS of_n ON n, a FROM orders",
        "COMMENT ON INDEX by_n IS 'an index'",
        "COMMENT ON CONSTRAINT at_least ON orders IS 'a constraint'",
        "COMMENT ON STATISTICS of_n IS 'an object'",
        "CREATE VIEW ids AS SELECT a, mine FROM orders",
        *(each.replace("ROLE", role).replace("THIS", database.schema) for each in DEPENDENTS),
    ):
        database.query(statement)
    queries = [
        f"SELECT {columns} FROM {source}"
        for columns, source in (
            (
                "attname::text, attacl::text, attnotnull, col_description(attrelid, attnum)",
                f"pg_attribute {REAL}",
            ),
            ("pg_get_expr(adbin, adrelid)", "pg_attrdef WHERE adrelid = 'orders'::regclass"),
            ("conname::text, pg_get_constraintdef(oid)", "pg_constraint WHERE conrelid = 'orders'::regclass"),
            ("pg_get_indexdef(indexrelid)", "pg_index WHERE indrelid = 'orders'::regclass"),
            ("pg_get_statisticsobjdef(oid)", "pg_statistic_ext WHERE stxrelid = 'orders'::regclass"),
            ("a, mine", "ids"),
            *OF_DEPENDENTS,
        )
    ]

    def belongings() -> list[list[str]]:
        return [sorted(map(repr, database.query(each))) for each in queries]

    before = belongings()
    wide = typed(id=pa.int64(), n=pa.int64())
    await send(database, [event(2, TABLE, wide)])
    assert belongings() == before
    columns = database.query(f"SELECT attname::text FROM pg_attribute {REAL} ORDER BY attnum")
    assert [name for (name,) in columns] == ["a", "d", "mine", "id", "n"]
    with pytest.raises(SinkRejected, match="refuses a row of orders: the constraint at_least"):
        await send(database, [insert(3, wide, id=5, n=2**40)])


@pytest.mark.parametrize(
    ("name", "owner", "statement", "reason"),
    [
        ("dropped", "sink", "CREATE VIEW mine AS SELECT * FROM orders", "view .*mine depends on column a of"),
        ("widened", "sink", "CREATE MATERIALIZED VIEW mine AS SELECT n FROM orders", "view .*mine depends on"),
        ("widened", "sink", "CREATE TEMP VIEW mine AS SELECT n FROM orders", "view .*mine depends on column n of"),
        ("widened", "sink", "CREATE VIEW mine AS SELECT f(n) FROM orders", "view .*mine cannot be made again: .*f.big"),
        ("widened", "other", "CREATE VIEW mine AS SELECT n FROM orders", "view .*mine depends on column n of"),
        ("more digits", "other", "CREATE VIEW mine AS SELECT d FROM orders", "view .*mine depends on column"),
        ("all widened", "sink", "ALTER TABLE orders ADD mine int GENERATED ALWAYS AS (n + 1) STORED", "column mine of"),
        ("a snapshot of other types", "sink", "CREATE VIEW mine AS SELECT -id FROM orders", "not exist: - text"),
        ("widened", "sink", "CREATE POLICY mine ON orders USING (f(n) > 0)", "policy mine of .* made again: .*f.big"),
        (
            "widened",
            "sink",
            "CREATE VIEW below AS SELECT n FROM orders; CREATE MATERIALIZED VIEW mine AS TABLE below",
            "materialized view .*mine depends on view",
        ),
    ],
)
async def test_what_cannot_be_made_again_stops_the_pipeline(
    database: PostgresDatabase, name: str, owner: str, statement: str, reason: str
) -> None:
    """The sink's user owns the table. Nothing has changed then, and the next step that the error names can be done."""
    items, _, count = CHANGES[name]
    urls = {}
    for user in ("sink", "other"):
        role = f"{user}_of_{database.schema}"
        database.query(f"CREATE ROLE {role} LOGIN")
        database.query(f"GRANT CREATE, USAGE ON SCHEMA {database.schema} TO {role}")
        urls[user] = database.options["url"].replace(f"{USER}@", f"{role}@")
    database.query("CREATE FUNCTION f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1'")
    await send(database, [batch(1, "insert", TABLE, ROWS)], url=urls["sink"])
    settings = f"-c search_path={database.schema}"
    with psycopg.connect(urls[owner], options=settings, autocommit=True) as theirs:
        for each in statement.split("; "):
            theirs.execute(each.encode())
        before = database.query(f"SELECT attname::text, attnum, atttypid FROM pg_attribute {REAL}")
        with pytest.raises(SinkRejected, match=reason) as refused:
            await send(database, items, url=urls["sink"])
        assert refused.value.hint == "Drop what depends on the column, run `tailer resume PIPELINE`, and make it again."
        assert database.query(f"SELECT attname::text, attnum, atttypid FROM pg_attribute {REAL}") == before
        assert (mirrored(database, "orders"), len(database.query("SELECT * FROM orders"))) == (1, 3)
        kind = statement.rsplit("; ", 1)[-1].removeprefix("CREATE ").split(" mine")[0]
        drop = {"POLICY": "DROP POLICY mine ON orders", "ALTER TABLE orders ADD": "ALTER TABLE orders DROP mine"}
        theirs.execute(drop.get(kind, f"DROP {kind.removeprefix('TEMP ')} mine").encode())
    await send(database, items, url=urls["sink"])
    assert len(database.query("SELECT id FROM orders")) == count


async def test_a_process_that_ends_between_the_steps_leaves_the_rest(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one goes on with the same column, or drops that of another type, and notices rows that have changed."""

    def die(*_: object) -> None:
        raise SinkUnavailable("orders", "killed")

    items, _, _ = CHANGES["widened"]
    await started(database)
    with monkeypatch.context() as patch:
        patch.setattr(postgresql_columns, "_wait_for_older", die)
        for attempt in ("all widened", "widened"):
            with pytest.raises(SinkUnavailable, match="killed"):
                await send(database, CHANGES[attempt][0])
    assert has_wider_column(database)
    assert mirrored(database, "orders") == 1
    database.query("UPDATE orders SET n = 77 WHERE id = 1")
    await send(database, items)
    assert sorted(database.query("SELECT id, n FROM orders")) == [(1, 77), (2, None), (3, 30), (4, 2**40)]
    assert not database.query(f"SELECT 1 FROM pg_attribute {REAL} AND attname LIKE 'lake_tailer%'")


async def test_rows_that_change_between_the_steps_begin_them_again(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    items, _, _ = CHANGES["widened"]
    await started(database)
    with monkeypatch.context() as patch:
        change = "UPDATE orders SET n = 5 WHERE id = 2"
        patch.setattr(postgresql_columns, "_wait_for_older", lambda *_: database.query(change))
        with pytest.raises(SinkUnavailable, match="somebody has changed"):
            await send(database, items)
    await send(database, items)
    assert (2, 5) in database.query("SELECT id, n FROM orders")


async def test_a_reader_that_does_not_end_is_named_and_tried_again(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that begin after the columns were filled are not waited for, in whatever attempt.

    The sink's role may see nothing of the readers' sessions.
    """
    items, _, _ = CHANGES["widened"]
    role = f"sink_of_{database.schema}"
    database.query(f"CREATE ROLE {role} LOGIN")
    database.query(f"GRANT CREATE, USAGE ON SCHEMA {database.schema} TO {role}")
    url = database.options["url"].replace(f"{USER}@", f"{role}@")
    await send(database, [batch(1, "insert", TABLE, ROWS)], url=url)
    monkeypatch.setattr(postgresql_columns, "_WAIT_S", 0.3)
    with reading(database) as older:
        with pytest.raises(SinkUnavailable, match=f"of processes .*{older.connection.info.backend_pid}"):
            await send(database, items, url=url)
        with reading(database) as later:
            older.connection.close()
            await send(database, items, url=url)
            assert later.has(1, ROWS)


async def test_readers_beside_many_changes_find_versions_alone(database: PostgresDatabase) -> None:
    """Readers take their snapshots at any moment, and read the rows some time later."""
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(22, 2), pa.decimal128(24, 4)]
    schemas = [pa.schema([("id", kind), ("n", kind)]) for kind in kinds]
    ended = threading.Event()

    def read(seed: int) -> list[int]:
        pauses, versions = random.Random(seed), []
        while not ended.is_set():
            with reading(database) as reader:
                time.sleep(pauses.uniform(0, 0.1))
                versions.append(reader.version())
                rows = {(int(row["id"]), int(row["n"])) for row in reader.rows()}
            assert rows == {(number, number + versions[-1]) for number in range(3)}
        return versions

    def rows(version: int) -> list[Row]:
        return [{"id": number, "n": number + version} for number in range(3)]

    await send(database, [batch(0, "insert", schemas[0], rows(0))])
    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, seed) for seed in range(3)]
        try:
            for version, (before, after) in enumerate(pairwise(schemas), 1):
                kinds_of_rows = ["update_preimage", "update_postimage"]
                pairs = [row for pair in zip(rows(version - 1), rows(version), strict=True) for row in pair]
                changed = batch(version, kinds_of_rows * 3, after, pairs)
                await send(database, [event(version, before, after), changed])
                await anyio.sleep(0.1)
        finally:
            ended.set()
        seen = {version for each in readers for version in each.result()}
    assert seen == set(range(len(schemas)))


async def test_columns_are_widened_with_the_last_part_of_a_version(database: PostgresDatabase) -> None:
    await started(database)
    async with opened(database) as sink:
        removed = batch(2, "delete", TABLE, [{"id": 1}])
        await deliver(sink, removed, event(2, TABLE, KEY), insert(2, KEY, id=2**40), at=Position(2, 0, 0))
    with reading(database) as reader:
        assert reader.has(1, ROWS)
    assert not has_wider_column(database)
    await send(database, [insert(2, KEY, task=1, id=5)])
    assert sorted(database.query("SELECT id FROM orders")) == [(2,), (3,), (5,), (2**40,)]


async def test_dropped_columns_count(database: PostgresDatabase) -> None:
    """PostgreSQL has 1,600 columns for each table, with those that were dropped. The error says what removes them."""
    items, _, _ = CHANGES["widened"]
    await started(database)
    loop = "EXECUTE 'ALTER TABLE orders ADD x int'; EXECUTE 'ALTER TABLE orders DROP x';"
    database.query(f"DO $$BEGIN FOR i IN 1..1596 LOOP {loop} END LOOP; END$$")
    with pytest.raises(SinkRejected, match="1600 columns") as refused:
        await send(database, items)
    assert "Dropped columns count" in (refused.value.hint or "")
    for statement in (
        "CREATE TABLE copy (LIKE orders INCLUDING ALL)",
        "INSERT INTO copy SELECT * FROM orders",
        "DROP TABLE orders",
        "ALTER TABLE copy RENAME TO orders",
    ):
        database.query(statement)
    await send(database, items)
    assert len(database.query("SELECT id FROM orders")) == 4

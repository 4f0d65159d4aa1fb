"""Values that a database cannot hold, in each database, mode and policy: `on_bad_value` of the `sql` sink."""

import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailer.changelog.equal_rows.keyed_difference import DifferenceKind
from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected
from tailer.events import VARIANT, ChangeBatch, Gap, SchemaChange
from tailer.formats.delta.table import DeltaTableLog
from tailer.metrics import BAD_VALUES
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import Rewritten, verify
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress, app_id_of
from tailer.stores.local import LocalStore
from tailer_sinks.sql.databases.dialect import Connection
from tailer_sinks.sql.databases.sqlite import Sqlite
from tailer_sinks.sql.sink import SqlSink
from tests.support.mirrors.databases import (
    APP,
    Database,
    DuckDbDatabase,
    PostgresDatabase,
    SqliteDatabase,
    batch,
    deliver,
    full,
    opened,
    rows_in,
    verified,
)
from tests.support.servers.postgres import Postgres
from tests.support.variant.encoder import Layout, Scalar, encode, metadata, names_in

pytestmark = pytest.mark.anyio

LIMIT: Final = 16_000  # of a row in SQLite, here
P, D, S = "PostgresDatabase", "DuckDbDatabase", "SqliteDatabase"
DATE, MOMENT, ZONED, NUL = (
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    "a text with the character U+0000",
)
STRUCT = pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))])
MAP = pa.map_(pa.string(), pa.string())
FIRST_MOMENT: Final = -210_866_803_200_000_000  # of PostgreSQL

# A type, a value, the databases that cannot hold it, and the value that takes its place; None: there is none.
BAD: Final[Sequence[tuple[pa.DataType, Any, str, Any]]] = [
    (pa.string(), "a\0", P, "a\ufffd"),
    (pa.string(), "\0", P, "\ufffd"),
    (pa.string(), "\0\0", P, "\ufffd\ufffd"),
    (pa.string(), "ä\0ö\0", P, "ä\ufffdö\ufffd"),
    (pa.string(), "\\u0000\0\t\n", P, "\\u0000\ufffd\t\n"),
    (pa.string(), "x" * 3000 + "\0", P, "x" * 3000 + "\ufffd"),
    (pa.large_string(), "\0'; DROP TABLE orders", P, "\ufffd'; DROP TABLE orders"),
    (pa.string(), b"\xff", P + D + S, "\ufffd"),
    (pa.string(), b"a\xffb", P + D + S, "a\ufffdb"),
    (pa.string(), b"\xc3", P + D + S, "\ufffd"),
    (pa.string(), b"\xed\xa0\x80", P + D + S, "\ufffd\ufffd\ufffd"),
    (pa.large_string(), b"\xf8!", P + D + S, "\ufffd!"),
    (pa.list_(pa.string()), ["a\0"], P, ["a\ufffd"]),
    (pa.list_(pa.string()), ["\\\0"], P, ["\\\ufffd"]),
    (pa.list_(pa.string()), ["\0\0", "\0"], P, ["\ufffd\ufffd", "\ufffd"]),
    (pa.list_(pa.string()), ["\\u0000", "\0\\"], P, ["\\u0000", "\ufffd\\"]),
    (STRUCT, {"a": "\0", "b": None}, P, {"a": "\ufffd", "b": None}),
    (STRUCT, {"a": None, "b": ["x", "\0"]}, P, {"a": None, "b": ["x", "\ufffd"]}),
    (MAP, [("\0", "x")], P, {"\ufffd": "x"}),
    (MAP, [("a", "\0")], P, {"a": "\ufffd"}),
    (pa.list_(pa.list_(pa.string())), [["\0"], []], P, [["\ufffd"], []]),
    (VARIANT, "a\0", P, "a\ufffd"),
    (VARIANT, {"\0": 1}, P, {"\ufffd": 1}),
    (VARIANT, [{"a": ["\0"]}], P, [{"a": ["\ufffd"]}]),
    (VARIANT, {"metadata": b"", "value": b""}, P + D + S, None),
    (VARIANT, {"metadata": b"\x01\x00\x00", "value": b"\xff"}, P + D + S, None),
    (DATE, -(2**31), P + D, None),
    (DATE, 2**31 - 1, P + D, None),
    (DATE, -(2**31) + 1, P + D, None),
    (DATE, -2_440_589, P, None),
    (DATE, 2_145_042_906, P, None),
    (MOMENT, -(2**63), P + D, None),
    (MOMENT, 2**63 - 1, D, None),
    (MOMENT, FIRST_MOMENT - 1, P, None),
    (ZONED, -(2**63), P + D, None),
    (ZONED, FIRST_MOMENT - 1, P, None),
    (ZONED, 2**63 - 1, D, None),
    (pa.timestamp("s"), 2**62, P + D + S, None),
    (pa.timestamp("ms"), -(2**62), P + D + S, None),
    (pa.timestamp("s"), FIRST_MOMENT // 10**6 - 1, P, None),
    (pa.timestamp("ms", "UTC"), 2**63 - 1, P + D + S, None),
    (pa.timestamp("s", "Europe/Rome"), -(2**63), P + D + S, None),
    (pa.string(), "y" * 20_000, S, None),
    (pa.binary(), b"z" * 20_000, S, None),
    (pa.list_(pa.string()), ["w" * 10_000] * 2, S, None),
]
# Values next to those, which every database holds.
GOOD: Final[Sequence[tuple[pa.DataType, Any]]] = [
    (pa.string(), "\\u0000 \ufffd \U0001f600"),
    (pa.list_(pa.string()), ["\\u0000", "\\\\u0000", '"']),
    (pa.float64(), float("nan")),
    (pa.float32(), float("-inf")),
    (pa.decimal128(38, 0), 10**38 - 1),
    (DATE, -2_440_588),
    (DATE, 2_145_042_905),
    (MOMENT, FIRST_MOMENT),
    (pa.timestamp("s"), FIRST_MOMENT // 10**6),
    (pa.timestamp("ms"), 2**53),
    (pa.int64(), -(2**63)),
    (pa.binary(), b"\0\xff"),
    (pa.string(), None),
]


def column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Return values of a type, also those that Arrow does not check."""
    if kind == VARIANT:
        parts = [
            value if value is None or (isinstance(value, dict) and "metadata" in value) else variant(value)
            for value in values
        ]
        return pa.array(parts, VARIANT)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        raw = [value.encode() if isinstance(value, str) else value for value in values]
        return pa.array(raw, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()).view(kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)
    return pa.array(values, kind)


def variant(value: Any) -> dict[str, bytes] | None:
    if value is None or (isinstance(value, dict) and "metadata" in value):
        return value
    names = sorted(names_in(value))
    return {"metadata": metadata(names), "value": encode(scalars(value), names, repeat(Layout()))}


def scalars(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: scalars(child) for name, child in value.items()}
    if isinstance(value, list):
        return [scalars(child) for child in value]
    return Scalar(16, value, "") if isinstance(value, str) else Scalar(3, value, "")


def is_bad(number: int, database: Database) -> bool:
    return type(database).__name__ in BAD[number][2]


def values_batch(numbers: Sequence[int], version: int = 1) -> ChangeBatch:
    """Return a row for each bad value, and one with all good ones."""
    ids = [*numbers, 100]
    columns = {"id": pa.array(ids, pa.int64())}
    for number, (kind, value, _, _) in enumerate(BAD):
        columns[f"b{number}"] = column(kind, [value if row == number else None for row in ids])
    for number, (kind, value) in enumerate(GOOD):
        columns[f"g{number}"] = column(kind, [value if row == 100 else None for row in ids])
    made = batch(version, "insert", pa.schema([("id", pa.int64())]), [{"id": row} for row in ids])
    rows = pa.record_batch([*columns.values(), *made.rows.columns[1:]], names=[*columns, *made.rows.schema.names[1:]])
    return replace(made, rows=rows)


def letters(database: Database) -> list[tuple[Any, ...]]:
    """Return the dead letters: key, version, column, reason, row."""
    if not database.has("lake_tailer_dead_letters"):
        return []
    columns = "row_key, version, column_name, reason, row_json"
    found = database.query(f"SELECT {columns} FROM lake_tailer_dead_letters WHERE table_name = 'orders'")
    return [(*row[:4], json.loads(row[4])) for row in sorted(found)]


def counted() -> int:
    return sum(int(each.value) for labels, each in BAD_VALUES.samples().items() if labels[0] == "orders")


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SQLite refuse large rows."""
    connect = Sqlite.connect

    def limited(self: Sqlite) -> Connection:
        connection = connect(self)
        connection._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMIT)  # type: ignore[attr-defined]
        return connection

    monkeypatch.setattr(Sqlite, "connect", limited)
    monkeypatch.setattr(Sqlite, "holds", replace(Sqlite.holds, row_bytes=LIMIT - 1000))


def options(mode: str) -> dict[str, Any]:
    return {"mode": mode, "key": ["id"] if mode == "mirror" else []}


@pytest.mark.parametrize("mode", ["mirror", "append"])
async def test_stop(database: Database, mode: str) -> None:
    """The default: each value stops the pipeline, and nothing of its version is visible."""
    bad = [number for number in range(len(BAD)) if is_bad(number, database)]
    assert len(bad) >= 10
    async with opened(database, **options(mode)) as sink:
        for number in bad:
            with pytest.raises(SinkRejected):
                await deliver(sink, values_batch([number]))
        await deliver(sink, values_batch([number for number in range(len(BAD)) if number not in bad]))
    assert len(rows_in(database, "orders")) == len(BAD) - len(bad) + 1
    assert not database.has("lake_tailer_dead_letters")


@pytest.mark.parametrize("mode", ["mirror", "append"])
async def test_null(database: Database, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    before = counted()
    async with opened(database, on_bad_value="null", **options(mode)) as sink:
        await deliver(sink, values_batch(range(len(BAD))))
    rows = {row["id"]: row for row in rows_in(database, "orders")}
    assert [row for row in range(len(BAD)) if rows[row][f"b{row}"] is None] == bad_ones(database)
    assert counted() - before == len(bad_ones(database))
    assert len([line for line in caplog.messages if "on_bad_value" in line]) == len(bad_ones(database))
    assert not any("DROP" in line for line in caplog.messages)  # no values
    await assert_good(database, rows[100], mode)


@pytest.mark.parametrize("mode", ["mirror", "append"])
async def test_replace(database: Database, mode: str) -> None:
    """A value that nothing can take the place of stops the pipeline, by name."""
    refused = [number for number in bad_ones(database) if BAD[number][3] is None]
    async with opened(database, on_bad_value="replace", **options(mode)) as sink:
        for number in refused:
            with pytest.raises(SinkRejected, match=f"column b{number} of orders .*nothing can take its place"):
                await deliver(sink, values_batch([number]))
        await deliver(sink, values_batch([number for number in range(len(BAD)) if number not in refused]))
    rows = {row["id"]: row for row in rows_in(database, "orders")}
    for number in bad_ones(database):
        if number not in refused:
            assert rows[number][f"b{number}"] == BAD[number][3]
    await assert_good(database, rows[100], mode)


@pytest.mark.parametrize("mode", ["mirror", "append"])
async def test_dead_letter(database: Database, mode: str) -> None:
    """They come once, also where a transaction is repeated."""
    before, all_values = counted(), values_batch(range(len(BAD)))
    async with opened(database, on_bad_value="dead_letter", **options(mode)) as sink:
        async with sink.begin(APP, all_values.rows.schema) as transaction:
            await transaction.write(all_values)
        await deliver(sink, all_values)
    rows = {row["id"]: row for row in rows_in(database, "orders")}
    bad = bad_ones(database)
    assert sorted(rows) == sorted({*range(len(BAD)), 100} - set(bad))
    assert counted() - before == len(bad)
    found = {row["id"]: (key, version, name, reason, row) for key, version, name, reason, row in letters(database)}
    assert sorted(found) == bad
    for number, (key, version, name, reason, row) in found.items():
        assert (version, name) == (1, f"b{number}")
        assert reason.startswith("has a ")
        assert key == (f"[{number}]" if mode == "mirror" else f'["5f0c6a1e",1,0,{number},"insert"]')
        is_written = "U+0000" in reason or "date" in reason
        assert (row[name] is not None) == is_written
        if isinstance(BAD[number][1], str) and is_written:
            assert row[name] == BAD[number][1]
    await assert_good(database, rows[100], mode)


def bad_ones(database: Database) -> list[int]:
    return [number for number in range(len(BAD)) if is_bad(number, database)]


async def assert_good(database: Database, row: Mapping[str, Any], mode: str) -> None:
    """Compare a row with what is there where no policy is set."""
    async with opened(database, table="good", **options(mode)) as sink:
        await deliver(sink, values_batch([]), app_id="good/5f0c6a1e")
    ((expected),) = rows_in(database, "good")
    assert {name: row[name] for name in row if name[0] == "g"} == {
        name: expected[name] for name in expected if name[0] == "g"
    }


class TestKeys:
    SCHEMA: Final = pa.schema([("id", pa.string()), ("name", pa.string())])

    def changes(self, version: int, kinds: Sequence[str], *rows: tuple[Any, Any], task: int = 0) -> ChangeBatch:
        made = batch(version, kinds, self.SCHEMA, [{"id": "", "name": ""}] * len(rows), task)
        given = [column(pa.string(), values) for values in zip(*rows, strict=True)]
        return replace(made, rows=pa.record_batch([*given, *made.rows.columns[2:]], schema=made.rows.schema))

    async def test_null_is_not_for_keys(self, database: Database) -> None:
        async with opened(database, on_bad_value="null") as sink:
            with pytest.raises(SinkRejected, match=r"column id of orders has a text that is not UTF-8.*cannot be null"):
                await deliver(sink, self.changes(1, ["insert"], (b"\xff", "a")))

    async def test_a_replaced_key_stays_one(self, database: Database) -> None:
        async with opened(database, on_bad_value="replace") as sink:
            await deliver(sink, self.changes(1, ["insert"] * 2, (b"\xff", "a"), ("b", "b")))
            await deliver(
                sink, self.changes(2, ["update_preimage", "update_postimage"], (b"\xff", "a"), (b"\xff", "c"))
            )
            assert {row["id"]: row["name"] for row in rows_in(database, "orders")} == {"\ufffd": "c", "b": "b"}
            with pytest.raises(SinkRejected, match="insert a key that orders has"):
                await deliver(sink, self.changes(3, ["insert"], ("\ufffd", "other")))
            await deliver(sink, self.changes(3, ["delete"], (b"\xff", "c")))
        assert [row["id"] for row in rows_in(database, "orders")] == ["b"]

    async def test_a_key_beyond_an_index(self, database: Database) -> None:
        """PostgreSQL alone has a limit, and random texts cannot be compressed."""
        key = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=4000))
        async with opened(database, on_bad_value="dead_letter") as sink:
            await deliver(sink, self.changes(1, ["insert"] * 2, (key, "a"), ("b", "b")))
            dead = letters(database)
            assert len(dead) == isinstance(database, PostgresDatabase)
            assert all(row[0].startswith("sha256:") and row[4]["id"] == key for row in dead)
            await deliver(sink, self.changes(2, ["delete"], (key, "a")))
        assert (letters(database), [row["id"] for row in rows_in(database, "orders")]) == ([], ["b"])

    async def test_a_dead_row_and_another_with_its_key(self, database: Database) -> None:
        """A contradiction, whichever comes first."""
        good, dead = ("k", "good"), ("k", b"\xff")
        async with opened(database, on_bad_value="dead_letter") as sink:
            for rows in ((good, dead), (dead, dead)):
                with pytest.raises(SinkRejected, match="the key is id"):
                    await deliver(sink, self.changes(1, ["insert"] * 2, *rows))
            await deliver(sink, self.changes(1, ["insert"] * 2, good, ("l", b"\xff")))
            for row in (dead, ("l", "good"), ("l", b"\xff")):
                with pytest.raises(SinkRejected, match="the key is id"):
                    await deliver(sink, self.changes(2, ["insert"], row))
            with pytest.raises(SinkRejected, match="the key is id"):
                await deliver(sink, self.changes(2, ["delete"], (b"nobody\xff", "")))
        assert len(letters(database)) == len(rows_in(database, "orders")) == 1

    async def test_another_policy_while_there_are_letters(self, database: Database) -> None:
        async with opened(database, on_bad_value="dead_letter") as sink:
            await deliver(sink, self.changes(1, ["insert"], ("k", b"\xff")))
        snapshot = Gap(APP, 2, 0, 2, "asked for", snapshot=True)
        async with opened(database, on_bad_value="null") as sink:
            with pytest.raises(SinkRejected, match="orders has dead letters"):
                await deliver(sink, self.changes(2, ["delete"], ("k", b"\xff")))
            rows = self.changes(2, ["insert"], ("k", b"\xff"), task=SNAPSHOT_TASKS)
            async with sink.begin(APP, rows.rows.schema) as transaction:
                await transaction.announce(snapshot)
                await transaction.write(rows)
                await transaction.commit(Progress(APP, Position.end(2)))
            await deliver(sink, self.changes(3, ["insert"], ("l", "good")))
        assert letters(database) == []
        assert {row["id"]: row["name"] for row in rows_in(database, "orders")} == {"k": None, "l": "good"}

    @pytest.mark.parametrize("mode", ["mirror", "append"])
    async def test_another_policy_inside_a_version(self, database: Database, mode: str) -> None:
        """A large version of which a part is stored stops at a value, and goes on with another policy."""
        policies = ["stop", "dead_letter", "null"]
        async with opened(database, **options(mode)) as sink:
            await deliver(sink, self.changes(1, ["insert"], ("a", "1")), at=Position(1, 0, 0))
            with pytest.raises(SinkRejected):
                await deliver(sink, self.changes(1, ["insert"], ("b", b"\xff"), task=1), at=Position(1, 1, 0))
        for task, policy in enumerate(policies[1:], 1):
            async with opened(database, on_bad_value=policy, **options(mode)) as sink:
                changes = self.changes(1, ["insert"] * 2, (f"b{task}", b"\xff"), (f"c{task}", "2"), task=task)
                if mode == "mirror" and policy == "null":
                    with pytest.raises(SinkRejected, match="orders has dead letters"):
                        await deliver(sink, changes)
                else:
                    await deliver(sink, changes, at=Position(1, task, 1))
        async with opened(database, on_bad_value="dead_letter", **options(mode)) as sink:
            await deliver(sink, self.changes(1, ["insert"], ("d", "3"), task=3))
        rows = {row["id"]: row["name"] for row in rows_in(database, "orders")}
        expected: dict[str, str | None] = {"a": "1", "c1": "2", "d": "3"}
        assert rows == (expected if mode == "mirror" else expected | {"b2": None, "c2": "2"})
        assert [row["id"] for *_, row in letters(database)] == ["b1"]

    @pytest.mark.parametrize("policy", ["null", "replace", "dead_letter"])
    async def test_verification(self, tmp_path: Path, database: Database, policy: str) -> None:
        """The mirror equals the source as the policy leaves it, and a repair goes by that, too."""
        rows = pa.table({"id": ["1", "2", "3\0", "4"], "name": ["a", "b\0", "c", "d" * 20_000]})
        rows = rows.take({"null": [0, 1, 3], "replace": [0, 1, 2]}.get(policy, [0, 1, 2, 3]))
        write_deltalake(str(tmp_path / "table"), rows)
        table = DeltaTableLog(LocalStore(tmp_path / "table"))
        app_id = app_id_of("orders", await table.table_id())
        async with opened(database, on_bad_value=policy) as sink:
            await deliver(sink, batch(0, "insert", rows.schema, rows.to_pylist()), app_id=app_id)
            result = await verified(sink, "orders", table, Policy())
            assert result.is_equal
            assert result.source_rows - result.mirror_rows == len(letters(database))
            database.query("UPDATE orders SET name = 'other' WHERE id = '1'")
            async with sink.open_mirror("orders") as mirror:
                result = await verify(mirror, table, LocalEngine(), Policy(), 10, repairs=True)
            assert (result.counts[DifferenceKind.DIFFERENT], result.rewritten) == (1, Rewritten(1, 1))
            assert (await verified(sink, "orders", table, Policy())).is_equal

    @pytest.mark.parametrize(("kept", "seed"), [("mirror", 1), ("mirror", 2), ("mark", 3), ("history", 4)])
    async def test_random_changes(self, database: Database, kept: str, seed: int) -> None:
        """The mirror and its letters equal the source at every version, in parts and after aborts and new sinks."""
        chance = random.Random(seed)
        names: list[Any] = ["a", "b", "c", b"\xfe", "d" * 2000, "e\0"]
        keys: list[Any] = ["1", "2", "3", b"\xff1", b"\xff2", "4\0", "5"]
        given = {"mark": {"deletes": "mark"}, "history": {"mode": "history"}}.get(kept, {})
        source: dict[Any, Any] = {}
        states: list[dict[Any, Any]] = [{}]  # by version
        while len(states) < 25:
            async with opened(database, on_bad_value="dead_letter", **given) as sink:
                for _ in range(chance.randint(1, 3)):
                    written: list[ChangeBatch] = []
                    for _ in range(chance.randint(1, 3)):
                        written += self.random_version(chance, len(states), source, keys, names)
                        states.append(held(database, source))
                    await self.deliver_parts(sink, chance, written, len(states) - 1)
                    rows = rows_in(database, "orders")
                    for row in rows:
                        assert kept != "history" or row["_valid_from"][-11:-8] == f":{row['_valid_from_version']:02}"
                        assert (row.get("_deleted_version") is None) == (row.get("_deleted_at") is None)
                    now = [row for row in rows if row.get("_deleted_version", row.get("_valid_to_version")) is None]
                    assert {row["id"]: row["name"] for row in now} == states[-1]
                    assert len(letters(database)) == len(source) - len(states[-1])
        rows = rows_in(database, "orders")
        for version, state in enumerate(states if kept == "history" else []):
            holding = [row for row in rows if row["_valid_from_version"] <= version < (row["_valid_to_version"] or 99)]
            assert {row["id"]: row["name"] for row in holding} == state

    def random_version(
        self, chance: random.Random, version: int, source: dict[Any, Any], keys: list[Any], names: list[Any]
    ) -> list[ChangeBatch]:
        rows: list[tuple[str, tuple[Any, Any]]] = []
        for key in chance.sample(keys, chance.randint(1, 4)):
            if key in source:
                rows.append(("delete", (key, source.pop(key))))
            if chance.random() < 0.6:
                source[key] = chance.choice(names)
                rows.append(("insert", (key, source[key])))
        chance.shuffle(rows)
        parts = [part for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]) if part]
        return [
            self.changes(version, [kind for kind, _ in part], *(row for _, row in part), task=task)
            for task, part in enumerate(parts)
        ]

    async def deliver_parts(
        self, sink: SqlSink, chance: random.Random, written: list[ChangeBatch], version: int
    ) -> None:
        """Deliver in one transaction or two, the first inside a version, after one that is given up."""
        if chance.random() < 0.3 and written:
            async with sink.begin(APP, full(self.SCHEMA)) as transaction:
                await transaction.write_all(written)
        if chance.random() < 0.5 and len(written) > 1:
            *earlier, last = written
            if last.task == 1:
                await deliver(sink, *earlier, at=Position(last.version, 0, len(earlier[-1]) - 1))
                written = [last]
        async with sink.begin(APP, full(self.SCHEMA)) as transaction:
            if written:
                await transaction.write_all(written)
            await transaction.commit(Progress(APP, Position.end(version)))


class TestLimits:
    """Texts beyond the limit of a column of an adopted table, which counts characters. PostgreSQL alone has limits."""

    SCHEMA: Final = TestKeys.SCHEMA
    MADE: Final = "CREATE TABLE orders (id varchar(4) PRIMARY KEY, name varchar(3))"
    BAD: Final = "has a text of more than 3 characters"

    def changes(self, version: int, kinds: str | Sequence[str], *rows: tuple[Any, Any], task: int = 0) -> ChangeBatch:
        kinds = [kinds] * len(rows) if isinstance(kinds, str) else kinds
        return TestKeys().changes(version, kinds, *rows, task=task)

    def names(self, database: Database) -> dict[str, Any]:
        return dict(database.query("SELECT id, name FROM orders"))

    @pytest.fixture
    def limited(self, postgres: Postgres) -> Database:
        database = PostgresDatabase(postgres)
        database.query(self.MADE)
        return database

    @pytest.mark.parametrize("policy", ["stop", "null", "replace", "dead_letter"])
    async def test_files_have_no_limits(self, tmp_path: Path, policy: str) -> None:
        for database in (SqliteDatabase(tmp_path / "mirror.db"), DuckDbDatabase(tmp_path / "mirror.duckdb")):
            database.query(self.MADE)
            async with opened(database, adopt=True, on_bad_value=policy) as sink:
                await deliver(sink, self.changes(1, "insert", ("longer", "longer")))
            assert (self.names(database), letters(database)) == ({"longer": "longer"}, [])

    @pytest.mark.parametrize("text", ["abcd", "abc ", "   \u00e9", "\U0001f600" * 4, "a" * 3000])
    @pytest.mark.parametrize("at", [None, Position(1, 0, 1)])
    async def test_stop(self, limited: Database, text: str, at: Position | None) -> None:
        """PostgreSQL would cut spaces off. The pipeline stops at the row, and nothing of its version is visible."""
        async with opened(limited, adopt=True) as sink:
            await deliver(sink, self.changes(1, "insert", ("a", "\U0001f600" * 3), ("b", None)), at=at)
            with pytest.raises(SinkRejected, match=f"column name of orders {self.BAD} in version 1") as refused:
                await deliver(sink, self.changes(1, "insert", ("c", text), task=1), at=at and Position(1, 1, 0))
            assert "longer type" in refused.value.hint
            assert text not in str(refused.value)
        assert self.names(limited) == ({} if at else {"a": "\U0001f600" * 3, "b": None})

    async def test_null_and_replace(self, limited: Database, caplog: pytest.LogCaptureFixture) -> None:
        before, rows = counted(), [("a", "abcd"), ("b", "ab  "), ("c", "\u00e9" * 4), ("d", "abc")]
        for policy, names in (("null", [None, None, None]), ("replace", ["abc", "ab ", "\u00e9" * 3])):
            async with opened(limited, adopt=True, on_bad_value=policy) as sink:
                await deliver(sink, self.changes(1, "insert", *rows))
                assert list(self.names(limited).values()) == [*names, "abc"]
                await deliver(sink, self.changes(2, "delete", *rows))
                with pytest.raises(SinkRejected, match=r"cannot be null|insert a key that orders has"):
                    await deliver(sink, self.changes(3, "insert", ("12345", "a"), ("12346", "b")))
            limited.query("DROP TABLE orders, lake_tailer_mirrors, lake_tailer_progress")
            limited.query(self.MADE)
        assert counted() - before == 6
        assert [line for line in caplog.messages if f"{self.BAD}: 3 values up to version 1" in line]

    async def test_a_key_that_is_cut_stays_one(self, limited: Database) -> None:
        async with opened(limited, adopt=True, on_bad_value="replace") as sink:
            await deliver(sink, self.changes(1, "insert", ("12345", "a"), ("b", b"\x80\x80\x80\x80")))
            images = ["update_preimage", "update_postimage"]
            await deliver(sink, self.changes(2, images, ("12345", "a"), ("12345", "cccc")))
            assert self.names(limited) == {"1234": "ccc", "b": "\ufffd" * 3}
            await deliver(sink, self.changes(3, "delete", ("12345", "cccc")))
        assert list(self.names(limited)) == ["b"]

    async def test_dead_letters(self, limited: Database) -> None:
        """They come and go with their rows, and with the limit."""
        async with opened(limited, adopt=True, on_bad_value="dead_letter") as sink:
            await deliver(sink, self.changes(1, "insert", ("a", "abcd"), ("12345", "b"), ("c", "c"), ("d\0", "dddd")))
            found = {row["id"]: (key, name, reason) for key, _, name, reason, row in letters(limited)}
            assert found == {
                "a": ('["a"]', "name", self.BAD),
                "12345": ('["12345"]', "id", "has a text of more than 4 characters"),
                "d\0": ('["d\\u0000"]', "id, name", f"has {NUL}; {self.BAD}"),
            }
            images = ["update_preimage", "update_postimage"] * 2
            rows = [("a", "abcd"), ("a", "a"), ("c", "c"), ("c", "cccc")]
            await deliver(sink, self.changes(2, images, *rows))
            await deliver(sink, self.changes(3, "delete", ("12345", "b"), ("d\0", "dddd")))
            assert (self.names(limited), [row["id"] for *_, row in letters(limited)]) == ({"a": "a"}, ["c"])
            limited.query("ALTER TABLE orders ALTER COLUMN name TYPE text")
            await deliver(sink, self.changes(4, ["delete", "insert"], ("c", "cccc"), ("c", "ccccc")))
        assert (self.names(limited), letters(limited)) == ({"a": "a", "c": "ccccc"}, [])

    async def test_a_limit_that_comes_while_rows_wait(self, limited: Database) -> None:
        """PostgreSQL would cut off the spaces of a text that waits."""
        async with opened(limited, adopt=True, on_bad_value="dead_letter") as sink:
            await deliver(sink, self.changes(1, "insert", ("a", "a  ")), at=Position(1, 0, 0))
            limited.query("ALTER TABLE orders ALTER COLUMN name TYPE varchar(2)")
            with pytest.raises(SinkRejected, match="column name of orders has 2 characters now, and rows that wait"):
                await deliver(sink, self.changes(1, "insert", ("b", "b"), task=1))
            limited.query("ALTER TABLE orders ALTER COLUMN name TYPE varchar(3)")
            await deliver(sink, self.changes(1, "insert", ("b", "b"), task=1))
        assert self.names(limited) == {"a": "a  ", "b": "b"}

    @pytest.mark.parametrize("policy", ["null", "replace", "dead_letter"])
    async def test_verification(self, tmp_path: Path, limited: Database, policy: str) -> None:
        rows = pa.table({"id": ["1", "2", "3"], "name": ["a", "abcd", "abc"]})
        write_deltalake(str(tmp_path / "table"), rows)
        table = DeltaTableLog(LocalStore(tmp_path / "table"))
        app_id = app_id_of("orders", await table.table_id())
        async with opened(limited, adopt=True, on_bad_value=policy) as sink:
            await deliver(sink, batch(0, "insert", rows.schema, rows.to_pylist()), app_id=app_id)
            limited.query("UPDATE orders SET name = 'abd' WHERE id = '3'")
            async with sink.open_mirror("orders") as mirror:
                result = await verify(mirror, table, LocalEngine(), Policy(), 10, repairs=True)
            assert (result.counts[DifferenceKind.DIFFERENT], result.rewritten) == (1, Rewritten(1, 1))
            result = await verified(sink, "orders", table, Policy())
        assert result.is_equal
        assert result.source_rows - result.mirror_rows == len(letters(limited)) == (policy == "dead_letter")


DAY_US: Final = 86_400_000_000
FAR: Final = [2**31 - 1, -(2**31), 2**63 // DAY_US + 1, -(2**63) // DAY_US - 1]  # days that no timestamp reaches


class TestFarDates:
    """Days in columns of timestamps that a user made. SQLite has texts for both, and holds all of them."""

    def changes(self, version: int, kind: str, *rows: tuple[int, int]) -> ChangeBatch:
        made = batch(version, kind, pa.schema([("id", DATE), ("day", DATE)]), [{}] * len(rows))
        given = [column(DATE, values) for values in zip(*rows, strict=True)]
        return replace(made, rows=pa.record_batch([*given, *made.rows.columns[2:]], schema=made.rows.schema))

    @pytest.fixture
    def dated(self, database: Database) -> Database:
        key = "" if isinstance(database, DuckDbDatabase) else " PRIMARY KEY"
        database.query(f"CREATE TABLE orders (id timestamp{key}, day timestamp)")
        return database

    @pytest.mark.parametrize("policy", ["stop", "null", "replace"])
    async def test_the_other_policies(self, dated: Database, policy: str) -> None:
        holds_all = isinstance(dated, SqliteDatabase)
        rows = [(0, 0), *((number, day) for number, day in enumerate(FAR, 1))]
        async with opened(dated, adopt=True, on_bad_value=policy) as sink:
            for bad in [] if holds_all else rows[1:] if policy != "null" else [(FAR[0], 0)]:
                with pytest.raises(
                    SinkRejected, match=r"column (day|id) of orders has a (date|value) beyond"
                ) as refused:
                    await deliver(sink, self.changes(1, "insert", rows[0], bad))
                assert refused.value.__cause__ is None
            if policy == "null" or holds_all:
                await deliver(sink, self.changes(1, "insert", *rows))
                assert dated.query("SELECT count(*), count(day) FROM orders") == [(5, 5 if holds_all else 1)]

    async def test_dead_letters(self, dated: Database) -> None:
        """A row is known by the same text of its key, whichever rows come with it."""
        holds_all = isinstance(dated, SqliteDatabase)
        async with opened(dated, adopt=True, on_bad_value="dead_letter") as sink:
            await deliver(sink, self.changes(1, "insert", (0, FAR[0]), (FAR[1], 1), (2, 2), (3, FAR[2])))
            dead = {key: row["day"] for key, *_, row in letters(dated)}
            assert (
                dead == {}
                if holds_all
                else {
                    '["1970-01-01T00:00:00.000000"]': "+5881580-07-11",
                    '["-5877641-06-23"]': "1970-01-02",
                    '["1970-01-04T00:00:00.000000"]': "+294247-01-11",
                }
            )
            await deliver(sink, self.changes(2, "delete", (0, FAR[0])))
            await deliver(sink, self.changes(3, "delete", (2, 2), (FAR[1], 1)))
        assert dated.query("SELECT count(*) FROM orders") == [(1 if holds_all else 0,)]
        assert len(letters(dated)) == (0 if holds_all else 1)

    async def test_a_log_whose_column_is_a_timestamp(self, database: Database) -> None:
        """Rows of an earlier version have a date in it."""
        before, after = (pa.schema([("id", DATE), ("day", kind)]) for kind in (DATE, MOMENT))
        widened = SchemaChange("t", 1, 0, full(before), full(after), (), {"id": "id", "day": "day"})
        async with opened(database, mode="append", key=[], on_bad_value="dead_letter") as sink:
            await deliver(sink, widened, batch(1, "insert", after, [{}]))
            await deliver(sink, self.changes(2, "insert", (1, 1), (2, FAR[0])))
        assert len(rows_in(database, "orders")) == 2
        assert [row["day"] for *_, row in letters(database)] == ["+5881580-07-11"]

    async def test_verification(self, tmp_path: Path, dated: Database) -> None:
        days = pa.array([0, 1, 2], pa.int32()).view(DATE)
        write_deltalake(
            str(tmp_path / "table"),
            pa.table({"id": days, "day": column(DATE, [0, 150_000_000, 1])}),
            configuration={"delta.dataSkippingNumIndexedCols": "0"},
        )
        table = DeltaTableLog(LocalStore(tmp_path / "table"))
        app_id = app_id_of("orders", await table.table_id())
        async with opened(dated, adopt=True, on_bad_value="dead_letter") as sink:
            await deliver(sink, self.changes(0, "insert", (0, 0), (1, 150_000_000), (2, 1)), app_id=app_id)
            result = await verified(sink, "orders", table, Policy())
        assert result.is_equal
        assert result.source_rows - result.mirror_rows == len(letters(dated))


def held(database: Database, source: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the rows of a source that a database can hold."""
    has_nul = not isinstance(database, PostgresDatabase)
    return {
        key: name
        for key, name in source.items()
        if all(isinstance(text, str) and (has_nul or "\0" not in text) for text in (key, name))
    }

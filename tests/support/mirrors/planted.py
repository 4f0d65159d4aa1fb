"""A table with columns of all types, its mirror, and differences that are planted in the mirror."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tailer.changelog.equal_rows.keyed_difference import Difference
from tailer.engine.local import LocalEngine
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification.comparison import Verification
from tailer.sink import Sink
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tests.support.mirrors.databases import Database, DuckDbDatabase, PostgresDatabase, SqliteDatabase

__all__ = ["PLANTED", "configured", "drop_primary_key", "follow", "found", "key_of", "log_of", "plant", "write"]

SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("code", pa.string()),
        ("flag", pa.bool_()),
        ("n", pa.int32()),
        ("ratio", pa.float64()),
        ("small", pa.float32()),
        ("amount", pa.decimal128(12, 2)),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("attr", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("props", pa.map_(pa.string(), pa.int64())),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("sizes", pa.list_(pa.int32()))]))),
    ]
)
# What is done to the mirror, and the differences that must be found for it: the kind, the key and the columns.
PLANTED: Final[dict[str, tuple[str, list[tuple[str, int, str]]]]] = {
    "a row is missing": ("DELETE FROM orders WHERE id = 3", [("missing", 3, "")]),
    "a row is superfluous": ("INSERT INTO orders (id, code) VALUES (1000, 'x')", [("unexpected", 1000, "")]),
    "the last digit of a decimal": ("amount = '4.26' WHERE id = 4", [("different", 4, "amount")]),
    "minus zero": ("ratio = '-0' WHERE id = 5", [("different", 5, "ratio")]),
    "an empty text for null": ("code = '' WHERE id = 6", [("different", 6, "code")]),
    "null for an empty text": ("code = NULL WHERE id = 7", [("different", 7, "code")]),
    "two rows are swapped": (
        "code = CASE id WHEN 8 THEN 'c9' ELSE 'c8' END WHERE id IN (8, 9)",
        [("different", 8, "code"), ("different", 9, "code")],
    ),
    "another key": ("id = 2000 WHERE id = 10", [("missing", 10, ""), ("unexpected", 2000, "")]),
    "a row of an earlier version": ("n = 11 WHERE id = 11", [("different", 11, "n")]),
    "a trailing blank": ("code = 'c12 ' WHERE id = 12", [("different", 12, "code")]),
    "upper case": ("code = 'C13' WHERE id = 13", [("different", 13, "code")]),
    "a boolean": ("flag = NOT flag WHERE id = 14", [("different", 14, "flag")]),
    "an integer": ("n = n + 1 WHERE id = 15", [("different", 15, "n")]),
    "the last bit of a double": ("ratio = 1.6000000000000003 WHERE id = 16", [("different", 16, "ratio")]),
    "the last bit of a float": ("small = 1.7000002 WHERE id = 17", [("different", 17, "small")]),
    "bytes": ("data = {bytes} WHERE id = 18", [("different", 18, "data")]),
    "a day": ("day = '2026-03-02' WHERE id = 19", [("different", 19, "day")]),
    "a microsecond": ("moment = '2026-03-01T12:00:20.000001Z' WHERE id = 20", [("different", 20, "moment")]),
    "the order of a list": ("""tags = '["b","a"]' WHERE id = 21""", [("different", 21, "tags")]),
    "null in a list": ("""tags = '["a","b",null]' WHERE id = 22""", [("different", 22, "tags")]),
    "a field of a struct": ("""attr = '{{"a":23,"b":"y"}}' WHERE id = 23""", [("different", 23, "attr")]),
    "a number as text in a struct": ("""attr = '{{"a":"24","b":"x"}}' WHERE id = 24""", [("different", 24, "attr")]),
    "a value of a map": ("""props = '{{"k":26}}' WHERE id = 25""", [("different", 25, "props")]),
    "an entry without value": ("""props = '{{"k":26,"l":null}}' WHERE id = 26""", [("different", 26, "props")]),
    "two columns": ("code = 'x', flag = NULL WHERE id = 27", [("different", 27, "code flag")]),
    "the order of fields": ("""attr = '{{ "b": "x", "a": 28 }}' WHERE id = 28""", []),
    "a field that is null, or not there": ("""attr = '{{"b":"x"}}' WHERE id = 29""", []),
    "a text that is cut": ("code = 'c3' WHERE id = 30", [("different", 30, "code")]),
    "a microsecond without a zone": (
        "local = '2026-03-01T12:00:31.000001' WHERE id = 31",
        [("different", 31, "local")],
    ),
    "NaN for a number": ("ratio = 'NaN' WHERE id = 32", [("different", 32, "ratio")]),
    "a number for NaN": ("ratio = 3.3 WHERE id = 33", [("different", 33, "ratio")]),
    "zero for minus zero": ("ratio = 0.0 WHERE id = 34", [("different", 34, "ratio")]),
    "null for a number": ("n = NULL WHERE id = 35", [("different", 35, "n")]),
    "zero for null": ("n = 0 WHERE id = 36", [("different", 36, "n")]),
    "null for false": ("flag = NULL WHERE id = 37", [("different", 37, "flag")]),
    "the order of fields in a list": ("""items = '[{{"sizes":[1,2],"sku":"s"}}]' WHERE id = 38""", []),
    "a number deep in a column": (
        """items = '[{{"sku":"s","sizes":[1,3]}}]' WHERE id = 39""",
        [("different", 39, "items")],
    ),
    "an empty list for null": ("tags = '[]' WHERE id = 40", [("different", 40, "tags")]),
    "null for an empty list": ("tags = NULL WHERE id = 41", [("different", 41, "tags")]),
    "a letter in two characters": ("code = 'e\N{COMBINING ACUTE ACCENT}' WHERE id = 42", [("different", 42, "code")]),
    "a sign": ("amount = '-43.25' WHERE id = 43", [("different", 43, "amount")]),
    "a year": ("day = '1926-03-01' WHERE id = 44", [("different", 44, "day")]),
    "an hour": ("moment = '2026-03-01T13:00:45.000000Z' WHERE id = 45", [("different", 45, "moment")]),
    "null for bytes": ("data = NULL WHERE id = 46", [("different", 46, "data")]),
    "null for a struct": ("attr = NULL WHERE id = 47", [("different", 47, "attr")]),
}


def values(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "code": {6: None, 7: "", 42: "\N{LATIN SMALL LETTER E WITH ACUTE}"}.get(number, f"c{number}"),
        "flag": number % 2 == 0,
        "n": None if number == 36 else number,
        "ratio": {5: 0.0, 33: float("nan"), 34: -0.0}.get(number, number / 10),
        "small": number / 10,
        "amount": Decimal(number) + Decimal("0.25"),
        "data": b"\0" * (number % 100),
        "day": date(2026, 3, 1),
        "moment": datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(seconds=number),
        "local": datetime(2026, 3, 1, 12) + timedelta(seconds=number),  # noqa: DTZ001 - it has no zone
        "tags": {40: None, 41: []}.get(number, ["a", "b"]),
        "attr": {"a": None if number == 29 else number, "b": "x"},
        "props": [("k", number)],
        "items": [{"sku": "s", "sizes": [1, 2]}],
    }


def write(path: Path, count: int = 50) -> None:
    """Write a table of two versions, of which the second one changes a row."""
    rows = [values(number) for number in range(1, count + 1)]
    write_deltalake(path, pa.Table.from_pylist(rows, SCHEMA))
    DeltaTable(path).update(updates={"n": "n + 1000"}, predicate="id = 11")


def log_of(path: Path) -> DeltaTableLog:
    return DeltaTableLog(LocalStore(path), allowed_roots=("/",))


async def follow(sink: Sink, path: Path, last: int, policy: Policy) -> None:
    """Deliver a table up to version `last`."""
    start, end = Start(StartKind.EARLIEST), Start(StartKind.VERSION, last)
    await row_pipeline("orders", log_of(path), sink, LocalEngine(), TimerWake(), start, end, policy).run()


def found(verification: Verification) -> set[tuple[str, int, str]]:
    """Return the kind, the key and the columns of each difference."""
    return {(each.kind.value, key_of(each), " ".join(each.columns)) for each in verification.differences}


def key_of(difference: Difference) -> int:
    row = difference.source or difference.mirror or {}
    return int(row["id"] or 0)


def plant(database: Database, *names: str) -> None:
    """Change the mirror by the statements of `PLANTED` with these names."""
    for name in names:
        text = PLANTED[name][0].format(bytes="X'01'" if isinstance(database, SqliteDatabase) else "'\\x01'::bytea")
        if "-0'" in text and isinstance(database, SqliteDatabase):
            text = text.replace("'-0'", "-1e-200 * 1e-200")  # a literal would be zero
        if "ratio" in text and "zero" in name and isinstance(database, DuckDbDatabase):
            # It takes 0.0 and -0.0 for equal, and leaves a value that is equal.
            database.query(f"UPDATE orders SET ratio = 1 WHERE{text.partition('WHERE')[2]}")
        database.query(text if text.startswith(("DELETE", "INSERT")) else f"UPDATE orders SET {text}")


def drop_primary_key(database: Database) -> None:
    """Let the mirror have rows with the same key."""
    if isinstance(database, PostgresDatabase):
        database.query("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
        return
    database.query("ALTER TABLE orders RENAME TO with_key")
    database.query("CREATE TABLE orders AS SELECT * FROM with_key")
    database.query("DROP TABLE with_key")


def configured(folder: Path, sink: str) -> Path:
    """Write a configuration with the pipeline `orders` from the table `orders` into `sink`."""
    config = folder / "tailer.toml"
    config.write_text(f'[pipelines.orders]\ntable = "orders"\n[pipelines.orders.sink]\n{sink}\n')
    return config

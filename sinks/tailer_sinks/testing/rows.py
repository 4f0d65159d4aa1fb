"""Change rows for tests: every type of a Delta table, and rows that are all different."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from tailer.events import METADATA_FIELDS, ChangeBatch
from tailer_sinks.encoding.flat import FlatEncoder

__all__ = ["DELTA_TYPES", "MOMENT_MS", "change_batch", "flat_rows", "numbered"]

_STRUCT: Final = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])
MOMENT_MS: Final = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
_ZONED: Final = pa.timestamp("us", tz="UTC")

# Every type of a Delta table by its Delta name, with values from its edges. Nulls are added.
DELTA_TYPES: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "byte": (pa.int8(), [-128, 127]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1]),
    "integer": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1]),
    "float": (pa.float32(), [0.1, -0.0, 3.4028235e38, float("nan"), float("-inf")]),
    "double": (pa.float64(), [0.1, -0.0, 5e-324, 1.7976931348623157e308, float("nan"), float("inf")]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal("-12345678.90"), Decimal("0.01")]),
    "decimal(38,18)": (pa.decimal128(38, 18), [Decimal("12345678901234567890.123456789012345678"), Decimal("1E-18")]),
    "string": (pa.string(), ["", "null", 'a "quoted" \\ line\n\t\x01', "é東京😀"]),
    "binary": (pa.binary(), [b"", b"\x00\xff\n"]),
    "boolean": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    "timestamp": (_ZONED, [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 1), datetime(2026, 3, 1, 12)]),  # noqa: DTZ001
    "struct": (_STRUCT, [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}]),
    "array": (pa.list_(pa.string()), [[], ["a", None, 'b"']]),
    "array of structs": (pa.list_(_STRUCT), [[{"a": 1, "b": {"c": "x"}}, None]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("k", 1), ('"', None)]]),
    "map by integer": (pa.map_(pa.int32(), pa.decimal128(5, 1)), [[(1, Decimal("1.5")), (2, None)]]),
    "void": (pa.null(), [None]),
}


def flat_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert rows to flat JSON values, for `SinkTests.delivered` to return."""
    encoder = FlatEncoder("testing", rows.schema)
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return [json.loads(text) for batch in batches for text in encoder.rows(batch).to_pylist()]


def change_batch(
    version: int, columns: dict[str, pa.Array], task: int = 0, first_row: int = 0, table_id: str = "table"
) -> ChangeBatch:
    """Make inserted rows of `version` with `columns`, all of one length."""
    length = len(next(iter(columns.values())))
    metadata = [["insert"] * length, [version] * length, [MOMENT_MS * 1000 + version] * length]
    arrays = [pa.array(values, field.type) for values, field in zip(metadata, METADATA_FIELDS, strict=True)]
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    rows = pa.record_batch([*columns.values(), *arrays], schema=pa.schema([*fields, *METADATA_FIELDS]))
    return ChangeBatch(table_id, version, task, rows, pa.array(range(first_row, first_row + length), pa.int64()))


def numbered(version: int, rows: int = 3, task: int = 0, first_row: int = 0) -> ChangeBatch:
    """Make rows of `version` that all differ."""
    ids = [version * 1_000_000 + task * 100_000 + row for row in range(first_row, first_row + rows)]
    names = [f"row {number}" if number % 5 else None for number in ids]
    columns = {"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())}
    return change_batch(version, columns, task, first_row)

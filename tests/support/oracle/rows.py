"""The oracle: snapshots, folds and comparisons by which every suite judges change rows.

Rows are compared as multisets of plain Python values, so batches, order and memory layout do not matter. A row omits
its null columns, as in Spark's own JSON form: a row read with an older schema then equals the same row read with a
newer one. Types are compared separately, by name. Variants are compared by their decoded values: ours decoded by
`tailer.variant`, Spark's by PySpark.

The universal oracle is the fold (invariant 8): the rows of version v are those of v-1 without deleted rows and
preimages, plus inserted rows and postimages. It needs no second change reader. Deleted rows have the columns of version
v-1, all others those of v. If the columns differ, remaining rows are converted by the identity of each column
(`tests.support.oracle.column_identity`), not by its name.
"""

import base64
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import VariantVal

from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, is_variant
from tailer.variant import Variant

__all__ = [
    "ATOMS",
    "COME",
    "GONE",
    "METADATA",
    "Row",
    "Rows",
    "arrow_type",
    "assert_same",
    "collected",
    "delta_rs_snapshot",
    "difference",
    "fold",
    "from_spark_json",
    "gone_and_come",
    "rows_in_order",
    "rows_of",
    "spark_feed",
    "spark_snapshot",
    "type_name",
]

Row = tuple[tuple[str, Hashable], ...]
Rows = Counter[Row]

METADATA: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
GONE: Final = ("delete", "update_preimage")
COME: Final = ("insert", "update_postimage")


def spark_snapshot(spark: SparkSession, path: Path, version: int) -> Rows:
    """Return all rows of `version` as Spark reads them."""
    frame = spark.read.format("delta").option("versionAsOf", version).load(str(path))
    return rows_of(collected(frame))


def collected(frame: DataFrame) -> pa.Table:
    """Return the rows of a frame. PySpark cannot return null Variants itself: it casts them to the type they have."""
    try:
        return frame.toArrow()
    except pa.ArrowInvalid:
        return pa.Table.from_batches(frame._collect_as_arrow())  # type: ignore[operator]


def delta_rs_snapshot(path: Path, version: int) -> Rows:
    """Return all rows of `version` as delta-rs reads them, a hundred times faster than Spark."""
    reader = QueryBuilder().register("snapshot", DeltaTable(path, version=version))
    return rows_of(pa.table(reader.execute("SELECT * FROM snapshot").read_all()))


def spark_feed(spark: SparkSession, path: Path, first: int = 0, last: int | None = None) -> dict[int, pa.Table]:
    """Return Spark's own change feed from `first` to `last` (None: the latest), by version, for versions with rows."""
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first)
    if last is not None:
        reader = reader.option("endingVersion", last)
    table = collected(reader.load(str(path)))
    versions = pc.unique(table.column(COMMIT_VERSION)).to_pylist()
    return {version: table.filter(pc.equal(table.column(COMMIT_VERSION), version)) for version in sorted(versions)}


def rows_of(table: pa.Table, without: Iterable[str] = ()) -> Rows:
    """Return the rows of `table` as a multiset, without the columns named in `without`."""
    return Counter(rows_in_order(table, without))


def rows_in_order(table: pa.Table, without: Iterable[str] = ()) -> list[Row]:
    """Return the rows of `table`, without the columns named in `without`."""
    dropped = set(without)
    names = [name for name in table.schema.names if name not in dropped]
    columns = [_values(table.column(name).combine_chunks()) for name in names]
    if not columns:
        return [()] * table.num_rows
    return [_row(names, values) for values in zip(*columns, strict=True)]


def _row(names: Sequence[str], values: Iterable[Hashable]) -> Row:
    return tuple(sorted((name, value) for name, value in zip(names, values, strict=True) if value is not None))


def _values(array: pa.Array) -> list[Hashable]:
    """Return one hashable value per element; null is None."""
    kind = array.type
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in _values(chunk)]
    if is_variant(kind):
        return [None if one is None else _decoded(Variant(**one).to_python()) for one in _plain(array)]
    if _is_spark_variant(kind):
        return [None if one is None else _decoded(VariantVal(**one).toPython()) for one in _plain(array)]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*(_values(child) for child in array.flatten()), strict=True)
        return [_row(names, row) if valid else None for row, valid in zip(rows, _validity(array), strict=True)]
    if pa.types.is_map(kind):
        return [None if not item.is_valid else tuple(sorted(_values(item.values), key=repr)) for item in array]
    if pa.types.is_nested(kind):
        return [None if not item.is_valid else tuple(_values(item.values)) for item in array]
    if pa.types.is_timestamp(kind):
        return _plain(array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()))
    if pa.types.is_date(kind):
        return _plain(array.cast(pa.date32()).cast(pa.int32()))
    if pa.types.is_floating(kind):
        # NaN equals itself, -0.0 only itself.
        return [None if value is None else repr(value) for value in _plain(array)]
    return _plain(array)


def _is_spark_variant(kind: pa.DataType) -> bool:
    """Return whether Spark gave Variants as this type: it marks one of the two fields."""
    return pa.types.is_struct(kind) and any("variant" in _texts(field.metadata) for field in kind)


def _texts(metadata: Mapping[bytes, bytes] | None) -> set[str]:
    return {key.decode() for key in metadata or {}}


def _decoded(value: Any) -> Hashable:
    """Return a value of a Variant with its type, as far as rewriting a file keeps it: numbers are one type."""
    if isinstance(value, dict):
        return ("object", tuple(sorted((name, _decoded(item)) for name, item in value.items())))
    if isinstance(value, list):
        return ("array", tuple(_decoded(item) for item in value))
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return ("number", Decimal(value))
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)


def _validity(array: pa.Array) -> list[bool]:
    return [bool(valid) for valid in array.is_valid().to_pylist()]


def _plain(array: pa.Array) -> list[Any]:
    return list(array.to_pylist())


def difference(found: Rows, expected: Rows, limit: int = 4) -> str:
    """Return the differences of `found` in a few lines; empty if there are none."""
    lines: list[str] = []
    for title, rows in (("missing", expected - found), ("unexpected", found - expected)):
        if rows:
            lines.append(f"{title}: {rows.total()} rows of {expected.total()} expected, {found.total()} found")
            lines += [f"  {count} x {dict(row)}" for row, count in sorted(rows.items(), key=repr)[:limit]]
    return "\n".join(lines)


def assert_same(found: Rows, expected: Rows, where: str) -> None:
    """Fail with `where` and a short difference unless both have the same rows, each as often."""
    wrong = difference(found, expected)
    assert not wrong, f"{where}\n{wrong}"


def fold(before: Rows, changes: pa.Table, where: str) -> Rows:
    """Apply one version's changes to `before`. Fails if a row is deleted that does not exist."""
    kept, come = gone_and_come(before, [changes], where)
    return kept + come


def gone_and_come(before: Rows, changes: Iterable[pa.Table], where: str) -> tuple[Rows, Rows]:
    """Return the rows of `before` that a version deletes, and those it inserts. Fails if a deleted row is missing."""
    gone, come = Rows(), Rows()
    for table in changes:
        kinds = table.column(CHANGE_TYPE)
        strange = set(pc.unique(kinds).to_pylist()) - {*GONE, *COME}
        assert not strange, f"{where}: change types {strange}"
        gone += rows_of(table.filter(pc.is_in(kinds, pa.array(GONE))), METADATA)
        come += rows_of(table.filter(pc.is_in(kinds, pa.array(COME))), METADATA)
    wrong = difference(before, before | gone)
    assert not wrong, f"{where}: rows are deleted that were not there\n{wrong}"
    return before - gone, come


def type_name(kind: pa.DataType) -> str:
    """Return the name of the type in Delta's schema, for any Arrow layout."""
    if is_variant(kind) or _is_spark_variant(kind):
        return "variant"
    if pa.types.is_struct(kind):
        return "struct<" + ",".join(f"{field.name}:{type_name(field.type)}" for field in kind) + ">"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_nested(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _ALIASES.get(str(kind), str(kind))


_ALIASES: Final = {"large_string": "string", "string_view": "string", "large_binary": "binary"}

# The Arrow types of Delta's primitive types without parameters.
ATOMS: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_type(spark_type: Any) -> pa.DataType:
    """Return the Arrow type of a type in Spark's schema JSON."""
    if isinstance(spark_type, dict) and spark_type["type"] == "struct":
        return pa.struct([(field["name"], arrow_type(field["type"])) for field in spark_type["fields"]])
    if isinstance(spark_type, dict) and spark_type["type"] == "array":
        return pa.list_(arrow_type(spark_type["elementType"]))
    return ATOMS[spark_type]


def from_spark_json(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> pa.Table:
    """Return rows as Spark's `toJSON` writes them (null columns omitted), typed by Spark's schema JSON."""
    kind = arrow_type(dict(schema))
    values = [_typed(row, kind) for row in rows]
    return pa.Table.from_pylist(values, pa.schema(list(kind)))


def _typed(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _typed(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_typed(item, kind.value_type) for item in value]
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    if pa.types.is_decimal(kind):
        return Decimal(str(value))
    if pa.types.is_binary(kind):
        return base64.b64decode(value)
    return value

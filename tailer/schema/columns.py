"""Columns of a table over time, and of its change rows: physical names, type widening, reading with a later schema.

The Arrow schema of a table has logical names in table order. Each field's metadata has the column's physical name
(`PHYSICAL_NAME`), Parquet field id (`FIELD_ID`) and identity (`COLUMN_ID`), on every level of nesting, where the table
format defines them.
"""

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import pyarrow as pa

from tailer.errors import UnsupportedFeature
from tailer.events import METADATA_FIELDS, ROW_COMMIT_VERSION, ROW_ID, is_struct, is_variant

__all__ = [
    "CHAR",
    "COLLATIONS",
    "COLUMN_ID",
    "DEFAULT",
    "FIELD_ID",
    "FILE_NAMES",
    "METADATA_NAMES",
    "PHYSICAL_NAME",
    "RESERVED",
    "ROW_IDS",
    "ROW_TRACKING",
    "SOURCE_NAME",
    "ColumnRange",
    "Ranges",
    "add_row_ids",
    "bare_type",
    "column_id",
    "dropped_column",
    "is_absent",
    "joined_type",
    "output_schema",
    "physical_name",
    "physical_type",
    "refuse_names",
    "restated",
    "restates",
    "schema_from_text",
    "schema_to_text",
    "select_columns",
    "source_name",
    "widens",
]


METADATA_NAMES: Final = frozenset(field.name for field in METADATA_FIELDS)
RESERVED: Final = "change rows have a metadata column of that name"
_NAME_TAKEN: Final = (
    "Leave the column out by naming the others (columns, `--columns`); or rename it, and start after the version that "
    "does so. No row of this version was delivered."
)
PHYSICAL_NAME: Final = b"delta.columnMapping.physicalName"
FIELD_ID: Final = b"PARQUET:field_id"
FILE_NAMES: Final = b"tailer.fileNames"  # a JSON list: names of the column in files that have no field ids
DEFAULT: Final = b"tailer.default"  # its value where a file lacks the column, as the text of a partition value
# The name of the column in the table, where it leaves under another (`tailer.shape.select`).
SOURCE_NAME: Final = b"tailer.source"
CHAR: Final = b"tailer.char"  # lengths of its CHAR values (`tailer.schema.text_types`)
COLLATIONS: Final = b"tailer.collations"  # of its texts (`tailer.schema.text_types`)
ROW_IDS: Final = (ROW_ID, ROW_COMMIT_VERSION)
# Marks a field of a task's schema that comes from row tracking, not from a column of the table.
ROW_TRACKING: Final = b"tailer.rowTracking"
COLUMN_ID: Final = b"tailer.column"  # identity assigned by `tailer.schema.identity`
_ABSENT: Final = "tailer.absent: "  # prefix of a physical name that no file has
_NO_ID: Final = b"-1"


def select_columns(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of those `columns` that `schema` has, in the order given."""
    return pa.schema([schema.field(column) for column in columns if schema.get_field_index(column) >= 0])


def add_row_ids(schema: pa.Schema) -> pa.Schema:
    """Append the columns of row tracking to `schema`, marked as not the table's own."""
    return pa.schema([*schema, *(pa.field(name, pa.int64(), metadata={ROW_TRACKING: b""}) for name in ROW_IDS)])


def output_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of change rows for a table with `schema`: its fields, then the metadata columns.

    Fields have no Arrow metadata. Nested fields are nullable on every level, because a null struct has null fields.
    """
    columns = [pa.field(column.name, bare_type(column.type), column.nullable) for column in schema]
    return pa.schema([*columns, *METADATA_FIELDS])


def dropped_column(before: pa.Schema, after: pa.Schema) -> str | None:
    """Return the first column or nested field that `after` drops; None where it drops none. A rename drops nothing."""
    remaining = _columns(pa.struct(list(after)))
    return next((name for path, name in _columns(pa.struct(list(before))).items() if path not in remaining), None)


def column_id(field: pa.Field) -> str:
    """Return the field's identity over time: assigned by `tailer.schema.identity`, else its physical name."""
    identity = (field.metadata or {}).get(COLUMN_ID)
    return physical_name(field) if identity is None else str(identity.decode())


def is_absent(field: pa.Field) -> bool:
    """Return whether `restated` added the field, for rows without it."""
    return physical_name(field).startswith(_ABSENT)


def physical_name(field: pa.Field) -> str:
    """Return the column's name in data files and in partition values."""
    metadata = field.metadata or {}
    name = metadata.get(PHYSICAL_NAME, metadata.get(SOURCE_NAME))
    return field.name if name is None else str(name.decode())


def source_name(field: pa.Field) -> str:
    """Return the column's name in the table."""
    source = (field.metadata or {}).get(SOURCE_NAME)
    return field.name if source is None else str(source.decode())


def restated(before: pa.Schema, after: pa.Schema) -> pa.Schema:
    """Adapt `after` for reading rows written with the schema `before`; columns missing there are null.

    Files may have values for these columns, from an earlier time when the table had them. Columns are read by the
    physical names and field ids in `before`, and have the CHARs and collations from there. The result is `after` itself
    where that is the same.
    """
    schema = pa.schema(_restated(before, after))
    return after if schema.equals(after, check_metadata=True) else schema


def restates(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether every value of `before` can be read as `after`: fields stay, widen, are added or dropped.

    This holds on every level of nesting. For schemas, pass a struct of the fields.
    """
    if is_struct(before) and is_struct(after):
        pairs = _by_identity(before, after)
        return all(old is None or restates(old.type, field.type) for old, field in pairs)
    if pa.types.is_list(before) and pa.types.is_list(after):
        return restates(before.value_type, after.value_type)
    if pa.types.is_map(before) and pa.types.is_map(after):
        return restates(before.key_type, after.key_type) and restates(before.item_type, after.item_type)
    return before.equals(after) or pa.types.is_null(before) or widens(before, after)


def widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether a column may widen from `narrow` to `wide` without rewriting files (PROTOCOL.md, "Type Widening").

    Every value of `narrow` is then a value of `wide`. Nested types widen in their fields, not as a whole. A target may
    accept more: see `tailer_sinks.encoding.typed.fits`.
    """
    if pa.types.is_signed_integer(narrow):
        if pa.types.is_decimal(wide):
            return bool(wide.scale >= 0 and wide.precision - wide.scale >= (20 if narrow.bit_width == 64 else 10))
        if pa.types.is_float64(wide):
            return bool(narrow.bit_width < 64)
        return bool(pa.types.is_signed_integer(wide) and narrow.bit_width < wide.bit_width)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        scale = wide.scale - narrow.scale
        return bool(0 <= scale <= wide.precision - narrow.precision)
    dates = pa.types.is_date32(narrow) and pa.types.is_timestamp(wide) and wide.tz is None
    return bool(dates or (pa.types.is_float32(narrow) and pa.types.is_float64(wide)))


def _by_identity(before: Iterable[pa.Field], after: Iterable[pa.Field]) -> Iterator[tuple[pa.Field | None, pa.Field]]:
    """Yield each field of `after` with the field of the same identity in `before`, if any."""
    old = {column_id(field): field for field in before if not is_absent(field)}
    return ((old.get(column_id(field)), field) for field in after)


def _restated(before: Iterable[pa.Field], after: Iterable[pa.Field]) -> list[pa.Field]:
    return [_restated_field(old, field) for old, field in _by_identity(before, after)]


def _restated_field(before: pa.Field | None, after: pa.Field) -> pa.Field:
    metadata = dict(after.metadata or {})
    if before is None:
        metadata |= {PHYSICAL_NAME: f"{_ABSENT}{after.name}".encode()}
        return after.with_metadata(metadata | ({FIELD_ID: _NO_ID} if FIELD_ID in metadata else {}))
    stored = physical_name(before)
    if stored != physical_name(after) or PHYSICAL_NAME in metadata:
        metadata[PHYSICAL_NAME] = stored.encode()
    for key in (FIELD_ID, CHAR, COLLATIONS):
        metadata.pop(key, None)
        metadata |= {key: before.metadata[key]} if key in (before.metadata or {}) else {}
    kind = joined_type(before.type, after.type, lambda old, new: pa.struct(_restated(old, new)))
    return after.with_type(kind).with_metadata(metadata or None)


def joined_type(
    before: pa.DataType, after: pa.DataType, join: Callable[[pa.StructType, pa.StructType], pa.StructType]
) -> pa.DataType:
    """Return `after` with its outermost structs, also in arrays and maps, as `join` makes them of both."""
    if is_struct(before) and is_struct(after):
        return join(before, after)
    if pa.types.is_list(before) and pa.types.is_list(after):
        return pa.list_(after.value_field.with_type(joined_type(before.value_type, after.value_type, join)))
    if pa.types.is_map(before) and pa.types.is_map(after):
        value = after.item_field.with_type(joined_type(before.item_type, after.item_type, join))
        return pa.map_(joined_type(before.key_type, after.key_type, join), value)
    return after


def _columns(kind: pa.DataType, above: tuple[str, ...] = (), shown: str = "") -> dict[tuple[str, ...], str]:
    """Map the identity path of every field, on all levels, to its name in messages."""
    names: dict[tuple[str, ...], str] = {}
    fields = () if is_variant(kind) else (kind.field(index) for index in range(kind.num_fields))
    for field in fields:
        if not is_absent(field):
            path, name = (*above, column_id(field)), f"{shown}.{field.name}".lstrip(".")
            names |= {path: name, **_columns(field.type, path, name)}
    return names


def bare_type(kind: pa.DataType) -> pa.DataType:
    """Remove metadata from a type on every level."""
    return _with_names(kind, attrgetter("name"))


def physical_type(kind: pa.DataType) -> pa.DataType:
    """Return `bare_type` with the physical names of fields."""
    return _with_names(kind, physical_name)


def _with_names(kind: pa.DataType, name: Callable[[pa.Field], str]) -> pa.DataType:
    if is_struct(kind):
        return pa.struct([pa.field(name(field), _with_names(field.type, name)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _with_names(kind.value_type, name)))
    if pa.types.is_map(kind):
        return pa.map_(_with_names(kind.key_type, name), pa.field("value", _with_names(kind.item_type, name)))
    return kind


def refuse_names(
    schema: pa.Schema, table: str, version: int, taken: Collection[str] = METADATA_NAMES, reason: str = RESERVED
) -> None:
    """Raise `UnsupportedFeature` with `reason` where the name of a column is one of those `taken`, ignoring case."""
    for name in schema.names:
        if name.lower() in taken:
            raise UnsupportedFeature(table, f"column {name}", version, reason, _NAME_TAKEN)


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """A range of a column's values in a file or row group.

    `low`, `high`: inclusive bounds of the values that are not null, in the column's type; None: unknown. Texts are
    compared byte by byte, and bounds of floating-point columns leave NaN out. `may_have_values` False: all rows are
    null. Of a struct's field, a row is null also where the struct is.
    """

    low: pa.Scalar | None = None
    high: pa.Scalar | None = None
    may_be_null: bool = True
    may_have_values: bool = True


# By the path of names of the column.
Ranges = Mapping[tuple[str, ...], ColumnRange]


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as text for JSON: in Arrow's serialized form, with the metadata of fields."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """Rebuild a schema from the text that `schema_to_text` returned."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))

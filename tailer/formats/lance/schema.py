"""Fields of a manifest as an Arrow schema (Lance format, "Fields", "Data Types"; `protos/file.proto`).

The types are those of rows as they are read: a blob is `large_binary`, JSON is text, and any other extension type is
the type that it is stored as. Each field has its id, and the name of its extension type if it has one, as metadata.

Physical names of columns come from field ids, which stay when a column is renamed. Overwrite gives all columns new ids,
from 0 on. A column with the name and the type that one had before is still that column, and keeps its physical name.
The others get names that no column had, with the version in them.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.formats.lance.manifest import Field, Manifest
from tailer.schema.columns import PHYSICAL_NAME

__all__ = ["FIELD_ID", "ColumnNames", "arrow_schema", "field_id", "is_plain", "key_columns"]

FIELD_ID: Final = b"lance:field_id"
EXTENSION: Final = b"lance:extension"

_MOST_LEVELS: Final = 64
_ARROW_EXTENSION: Final = b"ARROW:extension:"
_BLOB: Final = "lance.blob.v2"
_CONVERTED: Final = ("json", "blob", "lance.", "ARROW:extension")  # in the type or metadata of what is read otherwise

_PLAIN: Final = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    "blob": pa.large_binary(),
    "lance.bfloat16": pa.binary(2),
}
_PARAMETERS: Final[Sequence[tuple[re.Pattern[str], Callable[..., pa.DataType]]]] = (
    (re.compile(r"fixed_size_binary:(\d+)"), lambda size: pa.binary(int(size))),
    (re.compile(r"timestamp:(s|ms|us|ns):-"), pa.timestamp),
    (re.compile(r"timestamp:(s|ms|us|ns):(.+)"), pa.timestamp),
    (re.compile(r"duration:(s|ms|us|ns)"), pa.duration),
    (re.compile(r"decimal:128:(\d+):(-?\d+)"), lambda digits, scale: pa.decimal128(int(digits), int(scale))),
    (re.compile(r"decimal:256:(\d+):(-?\d+)"), lambda digits, scale: pa.decimal256(int(digits), int(scale))),
)
_LISTS: Final = {
    "list": pa.list_,
    "list.struct": pa.list_,
    "large_list": pa.large_list,
    "large_list.struct": pa.large_list,
}
_FIXED_SIZE_LIST: Final = re.compile(r"fixed_size_list:(.+):(\d+)")
_DICTIONARY: Final = re.compile(r"dict:(.+):(u?int(?:8|16|32|64)):(?:false|true)")


def arrow_schema(manifest: Manifest, table: str) -> pa.Schema:
    """Return the schema of the rows of a version.

    Raises `UnsupportedFeature` for a type that is not known, and `LogCorrupt` if the fields are no tree.
    """
    fields = manifest.fields
    nested: dict[int, list[pa.Field]] = {-1: []} | {field.id: [] for field in fields}
    levels = {-1: 0}
    for field in fields:
        level = levels.get(field.parent_id)
        if field.id < 0 or field.id in levels or level is None or level == _MOST_LEVELS:
            reason = f"field {field.id} ({field.name}) in field {field.parent_id} is not part of a tree"
            raise LogCorrupt(table, "_versions", reason, manifest.version)
        levels[field.id] = level + 1
    for field in reversed(fields):  # each field comes before those nested in it
        nested[field.parent_id].insert(0, _arrow_field(field, nested[field.id], manifest, table))
    return pa.schema(nested[-1], {key.encode(): value for key, value in manifest.schema_metadata.items()})


def is_plain(fields: Sequence[Field]) -> bool:
    """Return whether all columns are in data files just as rows have them: none is nested, a blob or an extension."""
    return all(
        field.parent_id < 0
        and not field.extension_name
        and not any(sign in mark for mark in (field.logical_type, *field.metadata) for sign in _CONVERTED)
        for field in fields
    )


def key_columns(fields: Sequence[Field]) -> tuple[str, ...]:
    """Return the columns of the unenforced primary key, in its order; none if a field in it is nested."""
    parts = [(field.key_position or len(fields), field.id, field) for field in fields if field.key_position is not None]
    if any(field.parent_id >= 0 for *_, field in parts):
        return ()
    return tuple(field.name for *_, field in sorted(parts, key=lambda place: place[:2]))


def field_id(field: pa.Field) -> int:
    """Return the id of a field of a schema from `arrow_schema`."""
    return int(field.metadata[FIELD_ID])


def _arrow_field(field: Field, nested: Sequence[pa.Field], manifest: Manifest, table: str) -> pa.Field:
    try:
        kind = pa.large_binary() if field.extension_name == _BLOB else _arrow_type(field.logical_type, nested)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        name = f"the type {field.logical_type!r} of the field {field.name!r}"
        raise UnsupportedFeature(table, name, manifest.version, str(error)) from error
    metadata = {key.encode(): value for key, value in field.metadata.items()}
    metadata = {key: value for key, value in metadata.items() if not key.startswith(_ARROW_EXTENSION)}
    metadata |= {FIELD_ID: str(field.id).encode()}
    if field.extension_name:
        metadata |= {EXTENSION: field.extension_name.encode()}
    return pa.field(field.name, kind, field.nullable, metadata)


def _arrow_type(logical: str, nested: Sequence[pa.Field]) -> pa.DataType:
    if logical == "struct":
        return pa.struct(nested)
    if logical == "json" and not nested:
        return pa.string()
    fixed_size = _FIXED_SIZE_LIST.fullmatch(logical)
    if not nested and logical not in _LISTS:
        return _scalar_type(logical)
    if len(nested) != 1:
        raise ValueError(f"it has {len(nested)} nested fields, not one")
    if logical in _LISTS:
        return _LISTS[logical](nested[0])
    if fixed_size:
        return pa.list_(nested[0], int(fixed_size[2]))
    if logical == "map" and pa.types.is_struct(nested[0].type) and nested[0].type.num_fields == 2:
        return pa.map_(*nested[0].type)
    raise ValueError("it cannot have these nested fields")


def _scalar_type(logical: str) -> pa.DataType:
    """Return a type without fields of its own: the elements of its lists have the name `item` and may be null."""
    sizes: list[int] = []
    while match := _FIXED_SIZE_LIST.fullmatch(logical):
        logical, size = match.groups()
        sizes.append(int(size))
        if len(sizes) > _MOST_LEVELS:
            raise ValueError(f"it has more than {_MOST_LEVELS} levels")
    kind = _element_type(logical)
    for size in reversed(sizes):
        kind = pa.list_(kind, size)
    return kind


def _element_type(logical: str) -> pa.DataType:
    if logical in _PLAIN:
        return _PLAIN[logical]
    for pattern, build in _PARAMETERS:
        if match := pattern.fullmatch(logical):
            return build(*match.groups())
    match = _DICTIONARY.fullmatch(logical)
    if match is None or match[1] not in _PLAIN:
        raise ValueError("lake-tailer does not know it")
    return pa.dictionary(_PLAIN[match[2]], _PLAIN[match[1]])


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnNames:
    """Physical names by field id. An id that is not in `by_id` has `prefix` and its own digits as its name."""

    by_id: Mapping[int, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""

    @property
    def renamed(self) -> tuple[tuple[str, int], ...]:
        """Return physical names that are not the digits of their field id, with that id."""
        return tuple((name, number) for number, name in self.by_id.items() if name != str(number))

    def after_overwrite(self, before: pa.Schema, after: pa.Schema, version: int) -> "ColumnNames":
        """Return the names of the columns `after` an overwrite. Both schemas are as `arrow_schema` returns them."""
        names = {(path, kind): self._name(number) for path, kind, number in _fields(before)}
        fresh = ColumnNames(prefix=f"{version}.")
        kept = {number: names.get((path, kind), fresh._name(number)) for path, kind, number in _fields(after)}
        return ColumnNames(kept, fresh.prefix)

    def extended(self, schema: pa.Schema) -> "ColumnNames":
        """Return the names with those of all fields of `schema`."""
        if not self.prefix:
            return self
        return ColumnNames({number: self._name(number) for _, _, number in _fields(schema)}, self.prefix)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema from `arrow_schema` with physical names as the only metadata of its fields.

        It is that of rows as tasks deliver them: a dictionary is its values.
        """
        return pa.schema([self._field(column) for column in schema])

    def _name(self, number: int) -> str:
        return self.by_id.get(number, f"{self.prefix}{number}")

    def _field(self, column: pa.Field) -> pa.Field:
        name = self._name(field_id(column)).encode()
        return pa.field(column.name, self._type(column.type), column.nullable, {PHYSICAL_NAME: name})

    def _type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return kind.value_type
        if pa.types.is_struct(kind):
            return pa.struct([self._field(column) for column in kind])
        if pa.types.is_list(kind):
            return pa.list_(self._element(kind.value_field))
        if pa.types.is_large_list(kind):
            return pa.large_list(self._element(kind.value_field))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(self._element(kind.value_field), kind.list_size)
        if pa.types.is_map(kind):
            return pa.map_(self._type(kind.key_type), self._element(kind.item_field))
        return kind

    def _element(self, column: pa.Field) -> pa.Field:
        return pa.field(column.name, self._type(column.type), column.nullable)


def _fields(schema: pa.Schema) -> Iterator[tuple[tuple[str, ...], str, int]]:
    """Yield the path of names, the type and the id of each field on every level."""
    yield from _fields_of(pa.struct(list(schema)), ())


def _fields_of(kind: pa.DataType, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, int]]:
    for column in (kind.field(index) for index in range(kind.num_fields)):
        path = (*above, column.name)
        if FIELD_ID in (column.metadata or {}):
            yield path, "struct" if pa.types.is_struct(column.type) else str(column.type), field_id(column)
        yield from _fields_of(column.type, path)

"""Columns of Variants, shredded or not (Variant Shredding).

A Variant column is a struct with the fields `metadata`, `value` and, where it is shredded, `typed_value`, in any order.
`value` and `typed_value` mean, together:

=========  =============  ========================================================================
value      typed_value    the Variant
=========  =============  ========================================================================
null       null           missing, in a field of an object; the Variant null elsewhere
set        null           `value`
null       set            `typed_value`
set        set            an object with the fields of both; an error if it is none, or they overlap
=========  =============  ========================================================================

The schema is checked when a `ColumnReader` is made, because a column of nulls never shows its values. Columns are read
one after another, with all rows at once; decoded values of nested columns are put together per row.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailer.variant.decode import decode, ordered
from tailer.variant.errors import InvalidVariant
from tailer.variant.metadata import Metadata
from tailer.variant.scalars import Form, JsonForm, Primitive, check_time, primitives

__all__ = ["SQL_NULL", "ColumnReader", "json_texts"]


class _Absent:
    """A place without a value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


SQL_NULL: Final = _Absent("SQL_NULL")
_MISSING: Final = _Absent("MISSING")

_METADATA: Final = "metadata"
_VALUE: Final = "value"
_TYPED: Final = "typed_value"

_Forms = Sequence[Primitive]
# From the values of a typed column, those that are null among them, to their forms.
_Leaf = Callable[[pa.Array], list[Any]]


@dataclass(frozen=True, slots=True)
class _Node:
    """The storage of a value. Of `leaf`, `item` and `members` one is set where it is shredded, else none."""

    has_value: bool
    leaf: _Leaf | None = None
    item: "_Node | None" = None
    members: dict[str, "_Node"] | None = None

    @property
    def is_typed(self) -> bool:
        """Return whether there is a `typed_value`."""
        return not (self.leaf is None and self.item is None and self.members is None)


class ColumnReader:
    """Reads columns of one type into the forms of `form`.

    Raises `InvalidVariant` for a type that is no Variant, or has a `typed_value` of a type that is not for shredding.
    """

    def __init__(self, kind: pa.DataType, form: Form) -> None:
        if not pa.types.is_struct(kind) or not {_METADATA, _VALUE, _TYPED} >= set(_names(kind)):
            raise InvalidVariant(f"{kind} is not the type of a Variant")
        if _METADATA not in _names(kind) or not _is_bytes(kind.field(_METADATA).type):
            raise InvalidVariant("there is no binary field `metadata`")
        self._known = primitives(form)
        self._root = _node(kind, form, "", {_METADATA})

    def read(self, column: pa.StructArray) -> list[Any]:
        """Return the value of each row, `SQL_NULL` for those that are null. Raises `InvalidVariant` naming the row."""
        children = dict(zip(_names(column.type), column.flatten(), strict=True))
        metadata: list[Metadata | None] = []
        for row, (data, is_there) in enumerate(zip(children[_METADATA].to_pylist(), _are_valid(column), strict=True)):
            if not is_there:
                metadata.append(None)
            elif data is None:
                raise InvalidVariant(f"row {row}: the metadata is null")
            else:
                metadata.append(_in_row(row, Metadata.parse, data))
        found = _values(self._root, children, metadata, list(range(len(column))), self._known)
        return [
            SQL_NULL if names is None else None if value is _MISSING else value
            for names, value in zip(metadata, found, strict=True)
        ]


def json_texts(column: pa.Array | pa.ChunkedArray, *, quote_decimals: bool = True) -> list[str | None]:
    """Return the JSON text of each Variant of a column as `Variant.to_json` does; None for SQL NULL.

    Raises `InvalidVariant` naming the row.
    """
    reader = ColumnReader(column.type, JsonForm(quote_decimals))
    chunks: Iterable[pa.Array] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    encode = msgspec.json.Encoder().encode
    return [None if value is SQL_NULL else encode(value).decode() for chunk in chunks for value in reader.read(chunk)]


def _node(kind: pa.DataType, form: Form, path: str, others: set[str]) -> _Node:
    """Check the type of a place that holds values, named `path` in errors. `others`: what else is in the struct."""
    names = _names(kind) if pa.types.is_struct(kind) else []
    if not names or len(set(names)) < len(names) or not {_VALUE, _TYPED, *others} >= set(names):
        raise InvalidVariant(f"{path or 'the column'} is not a struct of {_VALUE} and {_TYPED}")
    if not {_VALUE, _TYPED} & set(names):
        raise InvalidVariant(f"{path or 'the column'} has neither {_VALUE} nor {_TYPED}")
    if (has_value := _VALUE in names) and not _is_bytes(kind.field(_VALUE).type):
        raise InvalidVariant(f"{path}{_VALUE} is {kind.field(_VALUE).type}, not binary")
    if _TYPED not in names:
        return _Node(has_value)
    typed = kind.field(_TYPED).type
    if pa.types.is_list(typed) or pa.types.is_large_list(typed):
        return _Node(has_value, item=_node(typed.value_type, form, f"{path}[].", set()))
    if pa.types.is_struct(typed):
        if len(set(_names(typed))) < typed.num_fields:
            raise InvalidVariant(f"{path}{_TYPED} has two fields of one name")
        members = {field.name: _node(field.type, form, f"{path}{field.name}.", set()) for field in typed}
        return _Node(has_value, members=members)
    return _Node(has_value, leaf=_leaf(typed, form, f"{path}{_TYPED}"))


def _leaf(kind: pa.DataType, form: Form, path: str) -> _Leaf:
    """Return what turns a column of a primitive type into forms (Variant Shredding, "Shredded Value Types")."""
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind) or _is_text(kind):
        return _each(_unchanged)
    if pa.types.is_float32(kind):
        return _each(form.single)
    if pa.types.is_float64(kind):
        return _each(form.double)
    if pa.types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return _each(form.decimal)
    if pa.types.is_date32(kind):
        return _each(form.date, pa.int32())
    if kind == pa.time64("us"):
        return _each(lambda us: form.time(check_time(us)), pa.int64())
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ns") and kind.tz in (None, "UTC"):
        moment = partial(form.timestamp, digits=6 if kind.unit == "us" else 9, is_utc=kind.tz is not None)
        return _each(moment, pa.int64())
    if isinstance(kind, pa.UuidType):
        uuids = _each(form.uuid)
        return lambda column: uuids(column.storage)
    if _is_bytes(kind):
        return _each(form.binary)
    raise InvalidVariant(f"{path} is {kind}, which no Variant is shredded to")


def _unchanged(value: Any) -> Any:
    return value


def _each(form: Callable[[Any], Any], plain: pa.DataType | None = None) -> _Leaf:
    """Return what gives each value of a column its form, read as the type `plain`."""

    def convert(column: pa.Array) -> list[Any]:
        values = (column if plain is None else column.cast(plain)).to_pylist()
        return [None if value is None else form(value) for value in values]

    return convert


def _values(
    node: _Node, children: dict[str, pa.Array], metadata: Sequence[Metadata | None], rows: Sequence[int], known: _Forms
) -> list[Any]:
    """Return the values of a place, `_MISSING` for those that are not there.

    `children`: the columns of the place. `metadata` and `rows`: of each value, for decoding and for errors.
    """
    typed = _typed_values(node, children[_TYPED], metadata, rows, known) if node.is_typed else [_MISSING] * len(rows)
    if not node.has_value:
        return typed
    found = []
    for data, value, names, row in zip(children[_VALUE].to_pylist(), typed, metadata, rows, strict=True):
        if data is None or names is None:
            found.append(value)
            continue
        decoded = _in_row(row, decode, names, data, known)
        if value is not _MISSING:
            decoded = _in_row(row, _merge, decoded, value, node)
        found.append(decoded)
    return found


def _merge(rest: Any, shredded: Any, node: _Node) -> dict[str, Any]:
    """Put a partially shredded object together."""
    if node.members is None or not isinstance(rest, dict):
        raise InvalidVariant("`value` and `typed_value` are both set, and are not the parts of one object")
    if overlap := rest.keys() & node.members.keys():
        raise InvalidVariant(f"the field {min(overlap)!r} is in `value` and in `typed_value`")
    return ordered([*rest, *shredded], [*rest.values(), *shredded.values()])


def _typed_values(
    node: _Node, column: pa.Array, metadata: Sequence[Metadata | None], rows: Sequence[int], known: _Forms
) -> list[Any]:
    """Return the values of a `typed_value`, `_MISSING` for nulls."""
    if node.leaf is not None:
        values = node.leaf(column)
        return [_MISSING if value is None else value for value in values] if column.null_count else values
    there = _are_valid(column)
    if node.members is not None:
        return _objects(node.members, column, there, metadata, rows, known)
    assert node.item is not None
    offsets = column.offsets.to_pylist()
    spans = [(a, b) if is_there else (a, a) for (a, b), is_there in zip(pairwise(offsets), there, strict=True)]
    start, stop = offsets[0], offsets[-1]
    owners = [0] * (stop - start)
    for index, (a, b) in enumerate(spans):
        owners[a - start : b - start] = [index] * (b - a)
    items = column.values.slice(start, stop - start)
    inner = dict(zip(_names(items.type), items.flatten(), strict=True))
    values = _values(node.item, inner, [metadata[i] for i in owners], [rows[i] for i in owners], known)
    nulls = [None if value is _MISSING else value for value in values]
    return [
        nulls[a - start : b - start] if is_there else _MISSING for (a, b), is_there in zip(spans, there, strict=True)
    ]


def _objects(
    members: dict[str, _Node],
    column: pa.Array,
    there: Sequence[bool],
    metadata: Sequence[Metadata | None],
    rows: Sequence[int],
    known: _Forms,
) -> list[Any]:
    """Return shredded objects, `_MISSING` for nulls."""
    columns = []
    for node, field in zip(members.values(), column.flatten(), strict=True):
        inner = dict(zip(_names(field.type), field.flatten(), strict=True))
        columns.append(_values(node, inner, metadata, rows, known))
    found: list[Any] = []
    for index, is_there in enumerate(there):
        present = {name: column[index] for name, column in zip(members, columns, strict=True)}
        keys = [name for name, value in present.items() if value is not _MISSING]
        found.append(ordered(keys, [present[name] for name in keys]) if is_there else _MISSING)
    return found


def _in_row(row: int, work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    except InvalidVariant as error:
        raise InvalidVariant(f"row {row}: {error}") from None


def _are_valid(column: pa.Array) -> list[bool]:
    return column.is_valid().to_pylist() if column.null_count else [True] * len(column)


def _names(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind]


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))

"""The storage of Variant columns, shredded or not (Variant Shredding).

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
one after another, with all rows at once, and an `Assembler` puts the parts of each value together: as decoded values,
or as one binary value again.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import pyarrow as pa

from tailer.variant.metadata import InvalidVariant, Metadata

__all__ = ["SQL_NULL", "Assembler", "ColumnReader"]


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
_PLACE: Final = frozenset({_VALUE, _TYPED})


class Assembler(Protocol):
    """The target of reading: a form of values, and how parts are put together. All raise `InvalidVariant`."""

    @property
    def null(self) -> Any:
        """The Variant null."""
        ...

    def primitive(self, number: int) -> Callable[[Any], Any]:
        """Return what turns values of the type `number` into the form.

        It is given a bool, int, float, Decimal, str or bytes; of dates, times and timestamps the int that is stored.
        """
        ...

    def value(self, metadata: Metadata, data: bytes) -> Any:
        """Return an encoded value in the form."""
        ...

    def array(self, items: Sequence[Any]) -> Any:
        """Return an array of values in the form."""
        ...

    def object(self, metadata: Metadata, fields: Mapping[str, Any]) -> Any:
        """Return an object of values in the form. All names must be in the metadata."""
        ...

    def merge(self, metadata: Metadata, rest: bytes, fields: Mapping[str, Any], columns: Set[str]) -> Any:
        """Return an object of `fields` and those of the encoded object `rest`, which has no field of `columns`."""
        ...


_Leaf = Callable[[pa.Array], list[Any]]


@dataclass(frozen=True, slots=True)
class _Node:
    """The storage of a value. Of `leaf`, `item` and `members` one is set where it is shredded, else none.

    `leaf`: from a column to values in the form, and None.
    """

    has_value: bool
    leaf: _Leaf | None = None
    item: "_Node | None" = None
    members: "dict[str, _Node] | None" = None

    @property
    def is_typed(self) -> bool:
        """Return whether there is a `typed_value`."""
        return not (self.leaf is None and self.item is None and self.members is None)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that the values of a place belong to: their metadata (None: SQL NULL) and their numbers, for errors."""

    metadata: Sequence[Metadata | None]
    numbers: Sequence[int]

    def take(self, owners: Sequence[int]) -> "_Rows":
        """Return the rows at these places."""
        return _Rows([self.metadata[i] for i in owners], [self.numbers[i] for i in owners])


class ColumnReader:
    """Reads columns of one type into the form of an `Assembler`.

    Raises `InvalidVariant` for a type that is no Variant, or has a `typed_value` of a type that is not for shredding.
    """

    def __init__(self, kind: pa.DataType, assembler: Assembler) -> None:
        names = _names(kind) if pa.types.is_struct(kind) else []
        if _METADATA not in names or not _is_bytes(kind.field(_METADATA).type):
            raise InvalidVariant(f"{kind} is not the type of a Variant")
        self._assembler = assembler
        self._root = self._node(kind, "", _PLACE | {_METADATA})

    def read(self, column: pa.StructArray) -> list[Any]:
        """Return the value of each row, `SQL_NULL` for those that are null. Raises `InvalidVariant` naming the row."""
        children = _children(column)
        metadata: list[Metadata | None] = []
        for row, (data, is_there) in enumerate(zip(children[_METADATA].to_pylist(), _are_valid(column), strict=True)):
            if is_there and data is None:
                raise InvalidVariant(f"row {row}: the metadata is null")
            metadata.append(_in_row(row, Metadata.parse, data) if is_there else None)
        values = self._values(self._root, children, _Rows(metadata, range(len(column))))
        null = self._assembler.null
        return [
            SQL_NULL if names is None else null if value is _MISSING else value
            for names, value in zip(metadata, values, strict=True)
        ]

    def _node(self, kind: pa.DataType, path: str, allowed: frozenset[str]) -> _Node:
        """Check the type of a place that holds values, named `path` in errors. `allowed`: what may be in the struct."""
        names = _names(kind) if pa.types.is_struct(kind) else []
        if len(set(names)) < len(names) or not allowed >= set(names) or not _PLACE & set(names):
            raise InvalidVariant(f"{path or 'the column'} is not a struct with {_VALUE} or {_TYPED}")
        if (has_value := _VALUE in names) and not _is_bytes(kind.field(_VALUE).type):
            raise InvalidVariant(f"{path}{_VALUE} is {kind.field(_VALUE).type}, not binary")
        if _TYPED not in names:
            return _Node(has_value)
        typed = kind.field(_TYPED).type
        if pa.types.is_list(typed) or pa.types.is_large_list(typed):
            return _Node(has_value, item=self._node(typed.value_type, f"{path}[].", _PLACE))
        if pa.types.is_struct(typed):
            if len(set(_names(typed))) < typed.num_fields:
                raise InvalidVariant(f"{path}{_TYPED} has two fields of one name")
            members = {field.name: self._node(field.type, f"{path}{field.name}.", _PLACE) for field in typed}
            return _Node(has_value, members=members)
        number = _NUMBERS.get(typed)  # "Shredded Value Types"
        if pa.types.is_decimal(typed) and typed.precision <= 38 and typed.scale >= 0:
            number = 8 if typed.precision <= 9 else 9 if typed.precision <= 18 else 10
        if number is None:
            raise InvalidVariant(f"{path}{_TYPED} is {typed}, which no Variant is shredded to")
        return _Node(has_value, leaf=_leaf(typed, self._assembler.primitive(number)))

    def _values(self, node: _Node, children: dict[str, pa.Array], rows: _Rows) -> list[Any]:
        """Return the values of a place, `_MISSING` for those that are not there. `children`: its columns."""
        count = len(rows.numbers)
        typed = self._typed_values(node, children[_TYPED], rows) if node.is_typed else [_MISSING] * count
        if not node.has_value:
            pairs = zip(rows.metadata, rows.numbers, typed, strict=True)
            return [self._typed(node, names, row, value) for names, row, value in pairs]
        values = []
        for data, value, names, row in zip(
            children[_VALUE].to_pylist(), typed, rows.metadata, rows.numbers, strict=True
        ):
            if data is None or names is None:
                values.append(self._typed(node, names, row, value))
            elif value is _MISSING:
                values.append(_in_row(row, self._assembler.value, names, data))
            elif node.members is None:
                raise InvalidVariant(f"row {row}: `value` and `typed_value` are both set, and are not of one object")
            else:
                values.append(_in_row(row, self._assembler.merge, names, data, value, node.members.keys()))
        return values

    def _typed(self, node: _Node, names: Metadata | None, row: int, value: Any) -> Any:
        """Return the value of a `typed_value` alone: an object is still a mapping."""
        if node.members is None or value is _MISSING or names is None:
            return value
        return _in_row(row, self._assembler.object, names, value)

    def _typed_values(self, node: _Node, column: pa.Array, rows: _Rows) -> list[Any]:
        """Return the values of a `typed_value`, `_MISSING` for nulls; objects as mappings of their fields."""
        if node.leaf is not None:
            values = node.leaf(column)
            return [_MISSING if value is None else value for value in values] if column.null_count else values
        there = _are_valid(column)
        if node.members is not None:
            return self._fields(node.members, column, there, rows)
        assert node.item is not None
        offsets = column.offsets.to_pylist()
        start, stop = offsets[0], offsets[-1]
        owners = [index for index, (a, b) in enumerate(pairwise(offsets)) for _ in range(b - a)]
        values = self._values(node.item, _children(column.values.slice(start, stop - start)), rows.take(owners))
        items = [self._assembler.null if value is _MISSING else value for value in values]
        return [
            self._assembler.array(items[a - start : b - start]) if is_there else _MISSING
            for (a, b), is_there in zip(pairwise(offsets), there, strict=True)
        ]

    def _fields(self, members: dict[str, _Node], column: pa.Array, there: Sequence[bool], rows: _Rows) -> list[Any]:
        """Return the fields of shredded objects, `_MISSING` for nulls."""
        columns = [
            self._values(node, _children(field), rows)
            for node, field in zip(members.values(), column.flatten(), strict=True)
        ]
        return [
            {
                name: values[index]
                for name, values in zip(members, columns, strict=True)
                if values[index] is not _MISSING
            }
            if is_there
            else _MISSING
            for index, is_there in enumerate(there)
        ]


def _leaf(kind: pa.DataType, form: Callable[[Any], Any]) -> _Leaf:
    """Return what gives each value of a column its form."""
    plain = pa.int32() if pa.types.is_date32(kind) else pa.int64() if pa.types.is_temporal(kind) else None

    def convert(column: pa.Array) -> list[Any]:
        stored = column.storage if isinstance(kind, pa.UuidType) else column
        values = (stored if plain is None else stored.cast(plain)).to_pylist()
        return [None if value is None else form(value) for value in values]

    return convert


_TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view())
_BYTES: Final = (pa.binary(), pa.large_binary(), pa.binary_view())
_NUMBERS: Final[dict[pa.DataType, int]] = {
    pa.bool_(): 1,
    pa.int8(): 3,
    pa.int16(): 4,
    pa.int32(): 5,
    pa.int64(): 6,
    pa.float64(): 7,
    pa.date32(): 11,
    pa.timestamp("us", "UTC"): 12,
    pa.timestamp("us"): 13,
    pa.float32(): 14,
    **dict.fromkeys(_BYTES, 15),
    **dict.fromkeys(_TEXTS, 16),
    pa.time64("us"): 17,
    pa.timestamp("ns", "UTC"): 18,
    pa.timestamp("ns"): 19,
    pa.uuid(): 20,
}


def _in_row(row: int, work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    except InvalidVariant as error:
        raise InvalidVariant(f"row {row}: {error}") from None


def _children(column: pa.Array) -> dict[str, pa.Array]:
    """Return the fields of a struct, null where it is null."""
    return dict(zip(_names(column.type), column.flatten(), strict=True))


def _are_valid(column: pa.Array) -> list[bool]:
    return column.is_valid().to_pylist() if column.null_count else [True] * len(column)


def _names(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind]


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in _BYTES

"""The typed tree of an expression: columns, literals and calls; and the rows over which it is evaluated.

The tree can be pickled, and written as JSON. The rows are those of a batch, or one row of which only some columns are
known.

Every implicit cast of Spark is a call of its own in the tree, so that a function gets arguments of the types it takes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.events import is_struct
from tailer.shape.types import kind_from_text, kind_text, value_type

__all__ = [
    "BatchRows",
    "Call",
    "Column",
    "Expression",
    "KnownRow",
    "Literal",
    "Rows",
    "Values",
    "column_types",
    "columns_beside_comparisons",
    "columns_of",
    "from_json",
    "is_null",
    "spread",
    "to_json",
]

# Dates are days since 1970, timestamps are microseconds since 1970.
Value = bool | int | float | str | bytes | Decimal | None
Values: TypeAlias = pa.Array | pa.Scalar  # a scalar has the value of every row

_COMPARING: Final = frozenset(["=", "<", "<=", ">", ">=", "<=>", "in", "is null", "and", "or", "not"])
_TIMES: Final = (pa.types.is_date32, pa.types.is_timestamp)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, or a field of a struct: `path` has the names from the column on."""

    path: tuple[str, ...]
    kind: pa.DataType


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant of a type. `value` None: null."""

    value: Value
    kind: pa.DataType

    @property
    def scalar(self) -> pa.Scalar:
        """The constant in Arrow."""
        if self.value is not None and any(check(self.kind) for check in _TIMES):
            bits = pa.int32() if pa.types.is_date32(self.kind) else pa.int64()
            return pa.array([self.value], bits).view(self.kind)[0]
        return pa.scalar(self.value, self.kind)


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator, named in lower case. `kind`: the type of its result."""

    function: str
    arguments: "tuple[Expression, ...]"
    kind: pa.DataType


Expression = Column | Literal | Call


def columns_of(expression: Expression) -> Iterator[Column]:
    """Yield the columns in an expression, each as often as it is there."""
    if isinstance(expression, Column):
        yield expression
    elif isinstance(expression, Call):
        for argument in expression.arguments:
            yield from columns_of(argument)


def columns_beside_comparisons(expression: Expression) -> Iterator[Column]:
    """Yield the columns of which more counts than how their values compare, such as their text or their digits."""
    if isinstance(expression, Call):
        keeps_values = expression.function == "cast" and not pa.types.is_string(expression.kind)
        if keeps_values or expression.function in _COMPARING:
            for argument in expression.arguments:
                yield from columns_beside_comparisons(argument)
        else:
            yield from columns_of(expression)


def to_json(expression: Expression) -> list[Any]:
    """Return an expression as JSON. The types of columns are left out: the table's schema has them."""
    if isinstance(expression, Column):
        return ["column", *expression.path]
    if isinstance(expression, Literal):
        return ["literal", kind_text(expression.kind), _value_to_json(expression.value)]
    return ["call", expression.function, kind_text(expression.kind), *map(to_json, expression.arguments)]


def from_json(document: list[Any], columns: Mapping[tuple[str, ...], pa.DataType]) -> Expression:
    """Return the expression that `to_json` wrote. `columns`: the types of columns by path."""
    node, *rest = document
    if node == "column":
        path = tuple(rest)
        return Column(path, columns[path])
    if node == "literal":
        kind = kind_from_text(rest[0])
        return Literal(_value_from_json(rest[1], kind), kind)
    function, kind, *arguments = rest
    return Call(function, tuple(from_json(argument, columns) for argument in arguments), kind_from_text(kind))


def _value_to_json(value: Value) -> bool | int | str | None:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, Decimal) else value


def _value_from_json(value: Any, kind: pa.DataType) -> Value:
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return float.fromhex(value)
    if pa.types.is_binary(kind):
        return bytes.fromhex(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    plain: Value = value
    return plain


def is_null(expression: Expression) -> bool:
    """Return whether an expression is a null, whatever the row is."""
    return isinstance(expression, Literal) and expression.value is None


def column_types(fields: pa.Schema) -> dict[tuple[str, ...], pa.DataType]:
    """Return the type of every column and of every field of a struct, by its path."""
    types: dict[tuple[str, ...], pa.DataType] = {}

    def add(path: tuple[str, ...], kind: pa.DataType) -> None:
        types[path] = value_type(kind)
        if is_struct(kind):
            for field in kind:
                add((*path, field.name), field.type)

    for field in fields:
        add((field.name,), field.type)
    return types


class Rows(Protocol):
    """Rows by the paths of their columns."""

    def column(self, path: tuple[str, ...]) -> Values:
        """Return the values at a path of names, null where a struct on the way is null."""

    def filter(self, mask: pa.BooleanArray) -> "Rows":
        """Return the rows where `mask`, which has no nulls, is true."""


@dataclass(frozen=True, slots=True)
class BatchRows(Rows):
    """The rows of a batch."""

    batch: pa.RecordBatch

    @override
    def column(self, path: tuple[str, ...]) -> pa.Array:
        values = self.batch.column(self.batch.schema.get_field_index(path[0]))
        for name in path[1:]:
            values = pc.struct_field(values, [values.type.get_field_index(name)])
        kind = value_type(values.type)
        return values if kind == values.type else pc.cast(values, kind)

    @override
    def filter(self, mask: pa.BooleanArray) -> "BatchRows":
        return BatchRows(self.batch.filter(mask))


@dataclass(frozen=True, slots=True)
class KnownRow(Rows):
    """One row with the values of some columns."""

    values: Mapping[tuple[str, ...], pa.Scalar]

    @override
    def column(self, path: tuple[str, ...]) -> pa.Array:
        value = self.values[path]
        return pa.array([value], value.type)

    @override
    def filter(self, mask: pa.BooleanArray) -> "KnownRow":
        """The mask is true: a mask that is nowhere true asks for no rows."""
        return self


def spread(values: Values, mask: pa.BooleanArray) -> Values:
    """Return values for all rows from those of the rows where `mask` is true; the other rows are null."""
    if isinstance(values, pa.Scalar):
        return values
    places = pc.subtract(pc.cumulative_sum(pc.cast(mask, pa.int64())), 1)
    return values.take(pc.if_else(mask, places, pa.scalar(None, pa.int64())))

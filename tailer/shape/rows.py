"""The rows over which an expression is evaluated: those of a batch, or one row of which only some columns are known."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.shape.types import value_type

__all__ = ["BatchRows", "KnownRow", "Rows", "Values", "spread"]

Values: TypeAlias = pa.Array | pa.Scalar  # a scalar has the value of every row


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

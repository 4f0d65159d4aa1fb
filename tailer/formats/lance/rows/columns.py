"""Columns that pylance reads, as a task has them: named by the ids of their fields, with dictionaries decoded.

pylance names columns as the dataset, or a file of it, does. Tasks know them by the id of their field, which a rename
does not change, so the columns get those ids as names before they are projected (`tailer.read.projection`).

Dictionaries become their values here, and nothing else knows them: each batch has dictionaries of its own, and an index
may be too narrow for the values of two.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.plan import ROW_TRACKING, ChangeTask
from tailer.read.parquet.batch_sizes import BATCH_BYTES
from tailer.read.projection import Projection
from tailer.variant.nested import Change, changed, changes_where

__all__ = ["ROW_ID", "Columns", "has_row_ids"]

ROW_ID: Final = "_rowid"


class Columns:
    """The columns that a task needs.

    `readable`: those that can be read. `named`: the same, with ids of fields as names on every level and with types
    without dictionaries. `names`: those to read. `with_ids`: whether row ids are read too. `schema`: of change rows.
    """

    def __init__(self, task: ChangeTask, readable: Sequence[pa.Field], named: Sequence[pa.Field]) -> None:
        own = {renamed.name: column for column, renamed in zip(readable, named, strict=True)}
        self.with_ids = has_row_ids(task)
        named = [*named, pa.field(ROW_ID, pa.uint64())] if self.with_ids else named
        self._projection = Projection(task, pa.schema(named))
        wanted = self._projection.columns if any(self._projection.columns) else []
        self._names = {name: own[name].name for name in wanted if name in own}
        self._types = {column.name: column.type for column in named}
        self._encoded = frozenset(own[name].name for name in self._names if _has_dictionaries(own[name].type))
        self.names = list(self._names.values())
        self.schema = self._projection.schema

    def projected(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the task's columns for the rows of a batch of the columns `names`, and any others."""
        columns = {name: _relabelled(batch[own], self._types[name]) for name, own in self._names.items()}
        if self.with_ids:
            columns[ROW_ID] = batch[ROW_ID]
        if not columns:  # a batch needs a column to have rows
            columns = {batch.schema.names[0]: batch.column(0)}
        return self._projection.apply(pa.RecordBatch.from_arrays(list(columns.values()), list(columns)), 0)

    def decodable(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield a batch in parts, each with the number of its first row, that decode to about `BATCH_BYTES` at most.

        A dictionary has a value once, however many rows repeat it. A part of one row may be larger.
        """
        parts = [(0, batch)]
        while parts:
            first, part = parts.pop()
            rows = part.num_rows
            if rows == 1 or sum(_decoded_bytes(part[name]) for name in self._encoded) <= BATCH_BYTES:
                yield first, part
            else:
                half = rows // 2
                # Not slices: these would still have the elements of all lists.
                parts.append((first + half, part.take(pa.array(range(half, rows)))))
                parts.append((first, part.take(pa.array(range(half)))))


def has_row_ids(task: ChangeTask) -> bool:
    """Return whether the rows of a task have row ids among their columns."""
    return any(ROW_TRACKING in (field.metadata or {}) for field in task.schema)


def _relabelled(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values, decoded, with other names of nested fields."""
    if not column.type.equals(kind):
        column = _in_dictionaries(column, pa.DictionaryArray.dictionary_decode)
    return column if column.type.equals(kind) else column.view(kind)


def _has_dictionaries(kind: pa.DataType) -> bool:
    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(changes_where(stored, pa.types.is_dictionary, pa.DictionaryArray.dictionary_decode))


def _in_dictionaries(column: pa.Array, change: Change) -> pa.Array:
    """Return a column, as it is stored, with a change made to all dictionaries in it."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return changed(column, changes_where(column.type, pa.types.is_dictionary, change))


def _decoded_bytes(column: pa.Array) -> int:
    """Return the bytes of the texts and binaries that the dictionaries of a column decode to."""
    sizes: list[int] = []

    def count(values: pa.DictionaryArray) -> pa.DictionaryArray:
        if not pa.types.is_primitive(values.dictionary.type):
            lengths = pc.binary_length(values.dictionary).take(values.indices)
            sizes.append(pc.sum(lengths).as_py() or 0)
        return values

    _in_dictionaries(column, count)
    return sum(sizes)

"""Rows of a task that are in memory with all of its columns, as parts of the task ask for them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.errors import ScratchUnavailable
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeType
from tailer.files import deletion_vector
from tailer.files.row_bitmaps import positions_of, span
from tailer.plan import ChangeTask, DeletionVectorRef, Refinement, TaskKind, output_schema
from tailer.read.data_files import LOCAL
from tailer.schema.columns import COLUMN_ID

__all__ = ["KeptColumns"]

_IMAGES: Final = {TaskKind.DELETE: ChangeType.UPDATE_PREIMAGE, TaskKind.INSERT: ChangeType.UPDATE_POSTIMAGE}


@dataclass(slots=True)
class KeptColumns:
    """The columns of `_whole`, a task whose rows are kept."""

    _whole: ChangeTask
    _columns: dict[str, pa.Field] | None = None

    def include(self, task: ChangeTask) -> bool:
        """Return whether the columns of `task` are read from the file as those that are kept."""
        if self._columns is None:
            self._columns = {field.name: _without_identity(field) for field in self._whole.schema}
        columns = self._columns
        return all(
            (own := columns.get(field.name)) is not None and own.equals(_without_identity(field), check_metadata=True)
            for field in task.schema
        )

    def choose(self, batches: Iterable[ChangeBatch], task: ChangeTask) -> Iterator[ChangeBatch]:
        """Yield the rows of `task`, a part of the whole one, whose rows are `batches`.

        Raises `ScratchUnavailable` for lost spill files.
        """
        positions = None if task.include == self._whole.include else _load(task.include, task)
        refinement = task.refinement or Refinement()
        dropped, updated = _load(refinement.dropped, task), _load(refinement.updated, task)
        for batch in batches:
            types = batch.rows[CHANGE_TYPE]
            if updated is not None:
                types = pc.if_else(_are_in(batch, updated), pa.scalar(_IMAGES[task.kind].value), types)
            columns = [batch.rows[name] for name in task.schema.names]
            columns += [types, *(batch.rows[field.name] for field in METADATA_FIELDS if field.name != CHANGE_TYPE)]
            rows, row_index = pa.RecordBatch.from_arrays(columns, schema=output_schema(task.schema)), batch.row_index
            filters = [] if positions is None else [_are_in(batch, positions)]
            filters += [] if dropped is None else [pc.invert(_are_in(batch, dropped))]
            if filters:
                wanted = reduce(pc.and_, filters)
                rows, row_index = rows.filter(wanted), row_index.filter(wanted)
            if len(rows) > 0:
                yield replace(batch, rows=rows, row_index=row_index, kind=batch.kind if updated is None else None)


def _are_in(batch: ChangeBatch, positions: BitMap64) -> pa.Array:
    first, end = batch.row_index[0].as_py(), batch.last_row + 1
    return pc.is_in(batch.row_index, value_set=positions_of(positions & span(first, end)))


def _load(ref: DeletionVectorRef | None, task: ChangeTask) -> BitMap64 | None:
    """Load positions that a comparison spilled."""
    if ref is None:
        return None
    try:
        return deletion_vector.load(ref, task, LOCAL.read)
    except OSError as error:
        raise ScratchUnavailable(ref.uri or "", "the temporary result of comparing this version was deleted") from error


def _without_identity(field: pa.Field) -> pa.Field:
    """Return a field without the identities that comparing gives to columns, on any level."""
    metadata = {name: value for name, value in (field.metadata or {}).items() if name != COLUMN_ID}
    return field.with_type(_unidentified_type(field.type)).with_metadata(metadata or None)


def _unidentified_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_without_identity(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_identity(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_unidentified_type(kind.key_type), _without_identity(kind.item_field))
    return kind

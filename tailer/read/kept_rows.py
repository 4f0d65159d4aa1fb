"""Rows that are kept in memory when they are first read, so that each file of a small version is read once.

A version is compared by some columns, then maybe by others, and then delivered: each time its rows are read. With
deletion vectors, a version often has a few rows of large files, and to find them takes as long as to read the files.
So the rows of such tasks, and of small files, are read with all columns the first time. Later reads take them from
memory, as `tailer.read.execute` would yield them.

If the rows take more than `KEPT_BYTES` together, or there is no room for them in the process, all are forgotten, and
tasks are executed again. Rows of other large files, of change files and of no Parquet file are never kept, nor those of
a table with a column that is named as one of ours: they are found by name.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.errors import ScratchUnavailable
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ROW_ID, ChangeBatch, ChangeType
from tailer.files import deletion_vector
from tailer.files.row_bitmaps import positions_of, span
from tailer.plan import (
    ChangePlan,
    ChangeTask,
    DeletionVectorRef,
    Refinement,
    TaskKind,
    add_row_ids,
    output_schema,
)
from tailer.read.data_files import LOCAL
from tailer.schema.columns import COLUMN_ID

__all__ = ["KEPT_BYTES", "KeptRows", "ReadTask", "scattered_rows", "whole_tasks"]

ReadTask = Callable[[ChangeTask], Iterator[ChangeBatch]]
"""Yields the rows of a task, as `tailer.read.execute.execute` does."""

KEPT_BYTES: Final = 32 * 2**20  # of Arrow memory, for each version that is being compared
_FEW_ROWS: Final = 200_000  # of a task with a deletion vector
_SMALL_FILE_BYTES: Final = 2**20

_Key = tuple[int, int]
_IMAGES: Final = {TaskKind.DELETE: ChangeType.UPDATE_PREIMAGE, TaskKind.INSERT: ChangeType.UPDATE_POSTIMAGE}


class KeptRows:
    """Reads tasks of `plans`, whose rows were not compared yet, by `execute`, or from memory.

    `has_room`: whether rows may be kept; as soon as it returns False, all are forgotten.

    A task may ask for some of its columns, for the rows at some of its positions (`ChangeTask.include`), and for what
    is left of it after a comparison (`ChangeTask.refinement`). Not thread-safe.
    """

    def __init__(
        self, plans: Sequence[ChangePlan], execute: ReadTask, has_room: Callable[[], bool] = lambda: True
    ) -> None:
        self._execute = execute
        self._has_room = has_room
        self._whole = {_key(task): task for plan in plans for task in whole_tasks(plan)}
        self._columns: dict[_Key, dict[str, pa.Field]] = {}
        self._kept: dict[_Key, list[ChangeBatch]] = {}
        self._bytes = 0

    def read(self, task: ChangeTask) -> Iterator[ChangeBatch]:
        """Yield the rows of a task. Raises what `execute` raises, and `ScratchUnavailable` for lost spill files."""
        whole = self._whole.get(_key(task))
        if whole is None or not self._has_columns(task, whole) or not self._keep(whole):
            yield from self._execute(task)
            return
        positions = None if task.include == whole.include else _load(task.include, task)
        refinement = task.refinement or Refinement()
        dropped, updated = _load(refinement.dropped, task), _load(refinement.updated, task)
        for batch in self._kept[_key(task)]:
            if len(found := _select(batch, task, positions, dropped, updated)) > 0:
                yield found

    def may_have(self, task: ChangeTask) -> bool:
        """Return whether a task may have rows; unless they are worth keeping, it is not read for that."""
        whole = self._whole.get(_key(task))
        return whole is None or not self._keep(whole) or bool(self._kept[_key(task)])

    def has_all(self, plan: ChangePlan) -> bool:
        """Return whether the rows of all tasks are in memory."""
        return all(_key(task) in self._kept for task in plan.tasks)

    def forget(self) -> None:
        """Free the memory; rows are read again from here on."""
        self._whole, self._kept = {}, {}

    def _has_columns(self, task: ChangeTask, whole: ChangeTask) -> bool:
        """Return whether the columns of `task` are read from the file as those of `whole`."""
        key = _key(task)
        if key not in self._columns:
            self._columns[key] = {field.name: _without_identity(field) for field in whole.schema}
        known = self._columns[key]
        return all(
            (own := known.get(field.name)) is not None and own.equals(_without_identity(field), check_metadata=True)
            for field in task.schema
        )

    def _keep(self, whole: ChangeTask) -> bool:
        """Read the rows of a task into memory, unless they are there. Return whether they fit."""
        if (key := _key(whole)) in self._kept:
            return True
        batches: list[ChangeBatch] = []
        for batch in self._execute(whole):
            batches.append(batch)
            self._bytes += batch.size_bytes
            if self._bytes > KEPT_BYTES or not self._has_room():
                self.forget()
                return False
        self._kept[key] = batches
        return True


def whole_tasks(plan: ChangePlan) -> list[ChangeTask]:
    """Return those tasks whose rows are worth keeping, with all columns by which they may be compared."""
    tasks = [task for task in plan.tasks if _is_worth(task)]
    with_ids = {
        id(task.schema): task.schema if ROW_ID in task.schema.names else add_row_ids(task.schema) for task in tasks
    }
    whole = (task if task.tracking is None else replace(task, schema=with_ids[id(task.schema)]) for task in tasks)
    return [task for task in whole if len(set(names := output_schema(task.schema).names)) == len(names)]


def scattered_rows(task: ChangeTask) -> int:
    """Estimate how many rows a task with deletion vectors has, by what the log says of these."""
    include, exclude = (0 if vector is None else vector.cardinality for vector in (task.include, task.exclude))
    return max(include - exclude, 0)


def _key(task: ChangeTask) -> _Key:
    return task.version, task.index


def _is_worth(task: ChangeTask) -> bool:
    """Return whether it pays to keep the task's rows: they are few, or in a small file."""
    if task.kind not in _IMAGES or task.reader is not None or task.refinement is not None:
        return False
    if task.include is not None:
        return scattered_rows(task) <= _FEW_ROWS
    return 0 < task.size_bytes <= _SMALL_FILE_BYTES


def _select(
    batch: ChangeBatch,
    task: ChangeTask,
    positions: BitMap64 | None,
    dropped: BitMap64 | None,
    updated: BitMap64 | None,
) -> ChangeBatch:
    """Return the rows at `positions`, without `dropped`, as a task asks for them; those in `updated` as images."""
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
    return replace(batch, rows=rows, row_index=row_index, kind=batch.kind if updated is None else None)


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

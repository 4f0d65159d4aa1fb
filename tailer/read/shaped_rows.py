"""Rows of a task as its pipeline wants them, whatever reader has read them: `where` and `select`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.errors import ExpressionFailed
from tailer.events import ChangeBatch
from tailer.files.row_bitmaps import bitmap_of, positions_of, span
from tailer.plan import ChangeTask
from tailer.shape.select import MadeColumns, Select

__all__ = ["Read", "fulfilling", "selected"]

Read = Callable[[ChangeTask], Iterator[ChangeBatch]]
"""Yields the rows of a task."""


def selected(task: ChangeTask, read: Read) -> Iterator[ChangeBatch]:
    """Yield the rows of a task with columns that are made from those of the table."""
    assert task.select is not None, "asked by the caller"
    # Tasks that are alike share the columns.
    kept: _Kept | None = getattr(_last, "kept", None)
    if kept is None or kept.select is not task.select or kept.schema is not task.schema:
        _last.kept = kept = _Kept(task.select, task.schema, task.select.making(task.schema))
    made = kept.made
    for batch in read(replace(task, schema=made.read, select=None)):
        with _placed(task):
            rows = made.apply(batch.rows)
        yield replace(batch, rows=rows)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The way to make the columns `schema` of a task."""

    select: Select
    schema: pa.Schema
    made: MadeColumns


_last: Final = threading.local()


def fulfilling(task: ChangeTask, read: Read) -> Iterator[ChangeBatch]:
    """Yield the rows of a task that fulfil its condition: read the condition's columns first, then those rows."""
    condition, found = task.where, BitMap64()
    assert condition is not None, "asked by the caller"
    for batch in read(replace(task, schema=condition.fields, where=None)):
        with _placed(task):
            found |= bitmap_of(batch.row_index.filter(condition.mask(batch.rows)))
    for batch in read(replace(task, where=None)) if found else ():
        some = found & span(batch.row_index[0].as_py(), batch.last_row + 1)
        kept = pc.is_in(batch.row_index, value_set=positions_of(some))
        if kept.true_count:
            yield replace(batch, rows=batch.rows.filter(kept), row_index=batch.row_index.filter(kept))


@contextmanager
def _placed(task: ChangeTask) -> Iterator[None]:
    """Add the place of the row to an error of an expression."""
    try:
        yield
    except ExpressionFailed as error:
        raise error.of_file(task.table, task.version, task.uri) from None

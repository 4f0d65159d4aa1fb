"""Judges ranges of columns by the values that are really there."""

from bisect import bisect
from collections.abc import Iterator
from contextlib import closing
from itertools import accumulate
from math import copysign, isnan
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.events import METADATA_FIELDS, is_struct
from tailer.plan import ChangeTask
from tailer.read.data_files import LOCAL, Files
from tailer.read.execute import execute, open_footer, row_groups
from tailer.read.parquet import statistics
from tailer.read.parquet.footer import Footer
from tailer.read.parquet.legacy_datetimes import OldCalendar
from tailer.read.parquet.statistics import FileColumns, GroupRanges
from tailer.read.pruning import LoggedColumns, paths_of
from tailer.schema.columns import ColumnRange, Ranges

__all__ = ["check_ranges", "check_task", "columns_of", "ranges_of_groups", "task_ranges"]


def columns_of(task: ChangeTask, file: pq.ParquetFile, fields: pa.Schema) -> FileColumns:
    """Return the columns that `fields` are in a task's file."""
    is_old = OldCalendar.of(file, task) is not None
    return FileColumns(task, fields, file.schema_arrow, file.schema, is_old)


def ranges_of_groups(task: ChangeTask, fields: pa.Schema | None = None, files: Files = LOCAL) -> list[Ranges]:
    """Return what is known of the columns of each row group of a task's file, also of small ones, all looked up."""
    with (
        open_footer(task, files) as file,
        closing(files.open(task.uri).source) as source,
        patch.object(statistics, "SMALL_BYTES", -(2**63)),
    ):
        columns = columns_of(task, file, task.schema if fields is None else fields)
        footer = Footer(source)
        return [dict(GroupRanges(columns, file, footer, group)) for group in range(file.num_row_groups)]


def task_ranges(task: ChangeTask, fields: pa.Schema) -> Ranges:
    """Return what the log says of all columns in a task's file. `fields`: those of the table at that time."""
    return LoggedColumns(fields, paths_of(fields)).ranges(task)


def check_ranges(ranges: Ranges, rows: pa.RecordBatch | pa.Table) -> None:
    """Fail unless each value of the rows lies in the range of its column, on every level of structs."""
    for path, array in _columns(rows):
        if path in ranges:
            _check(ranges[path], array, path)


def check_task(task: ChangeTask) -> int:
    """Fail unless each value of a task's rows lies in the ranges of its file and of its row group.

    Return how many bounds were known.
    """
    ranges, groups, ends = task_ranges(task, task.schema), ranges_of_groups(task), list(accumulate(row_groups(task)))
    for batch in execute(task):
        rows = batch.rows.drop_columns([field.name for field in METADATA_FIELDS])
        check_ranges(ranges, rows)
        groups_of_rows = [bisect(ends, position) for position in batch.row_index.to_pylist()]
        for group in set(groups_of_rows):
            check_ranges(groups[group], rows.filter(pa.array([each == group for each in groups_of_rows])))
    return sum(each.low is not None for found in (ranges, *groups) for each in found.values())


def _columns(rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[tuple[str, ...], pa.Array]]:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        yield from _levels((name,), array)


def _levels(path: tuple[str, ...], array: pa.Array) -> Iterator[tuple[tuple[str, ...], pa.Array]]:
    yield path, array
    if is_struct(array.type):
        for field, child in zip(array.type, array.flatten(), strict=True):
            yield from _levels((*path, field.name), child)


def _check(found: ColumnRange, array: pa.Array, path: tuple[str, ...]) -> None:
    assert found.may_be_null or array.null_count == 0, path
    assert found.may_have_values or array.null_count == len(array), path
    bounds = [None if bound is None else _key(bound) for bound in (found.low, found.high)]
    for bound in (found.low, found.high):
        assert bound is None or (bound.is_valid and bound.type.equals(array.type)), path
    for value in array:
        if value.is_valid and not (pa.types.is_floating(value.type) and isnan(value.as_py())):
            key = _key(value)
            assert bounds[0] is None or bounds[0] <= key, (path, found, value)
            assert bounds[1] is None or key <= bounds[1], (path, found, value)


def _key(value: pa.Scalar) -> Any:
    """Return what has the order of values, with -0.0 before 0.0."""
    if pa.types.is_floating(value.type):
        return value.as_py(), copysign(1, value.as_py())
    if pa.types.is_string(value.type):
        return value.as_py().encode()
    if pa.types.is_timestamp(value.type):
        return value.cast(pa.int64()).as_py()
    return value.cast(pa.int32()).as_py() if pa.types.is_date32(value.type) else value.as_py()

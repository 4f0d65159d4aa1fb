"""`execute`: a task becomes change rows. One synchronous function for worker threads, Spark executors and readers.

Rows stream: a row group is read in batches of about `BATCH_BYTES`, so a file of any size passes through in bounded
memory (invariant 7); `tailer.read.parquet.batch_sizes` decides how many rows that may be. Row positions are counted
over the whole file, across row groups, and selected by the task's deletion vectors; row groups in which nothing is
selected are not read. The same task always yields the same rows in the same order (invariant 4). A row that cannot be
read with the types of the table stops the task (invariant 5).

A task may be executed in parts. The number of rows before a row group and the size of the file alone decide to which
part it belongs, so the parts can be made without reading the footer.

Where the task has a condition, rows that do not fulfil it are left out (`tailer.read.selection`).

Columns are found by field id or physical name. A column that a file lacks was added to the table later and is null.
Partition columns come from the log, never from the file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.errors import DataCorrupt
from tailer.events import CHANGE_TYPE, ChangeBatch
from tailer.files.row_bitmaps import words_of
from tailer.plan import END, HELD, ChangeTask
from tailer.read.data_files import LOCAL, DataFile, Files, check_task, translated
from tailer.read.parquet.batch_sizes import MAX_ROWS, BatchSizes
from tailer.read.parquet.footer import FEW_BYTES, Footer, RowGroupRanges
from tailer.read.parquet.layout import ConditionLayout, layout_of
from tailer.read.parquet.legacy_datetimes import open_as_binary
from tailer.read.parquet.statistics import GroupRanges
from tailer.read.projection import CHANGE_FILES, stamps
from tailer.read.selection import Batches, Selection, rows_of_changes

__all__ = [
    "execute",
    "file_of",
    "needed_files",
    "open_footer",
    "opens_each_version",
    "row_groups",
    "selected",
]

_BUFFER_BYTES: Final = 2**20
_FIRST_BYTES: Final = 2**22  # of a row group, decoded: reading some columns of less first costs more than it saves


def execute(
    task: ChangeTask,
    after_row: int = -1,
    through_row: int = END,
    first_byte: int = 0,
    end_byte: int = END,
    *,
    files: Files = LOCAL,
    use_threads: bool = False,
    others: Sequence[tuple[ChangeTask, Callable[[ChangeBatch], bool]]] = (),
) -> Iterator[ChangeBatch]:
    """Yield the task's change rows whose physical position is in (`after_row`, `through_row`], in ascending order.

    Restrict to row groups whose midpoint lies in bytes [`first_byte`, `end_byte`), estimated from row counts and from
    the size of the file in the log. `use_threads`: whether Arrow's threads may decode columns of a file in parallel.

    `others`: tasks of the same file that are executed with this one, each with a function that gets its rows, and none
    after a batch for which it returns False. All have the same columns, partition values and row ids; none has a
    condition, or rows that were compared.

    Raises `FileVacuumed` where a file is gone, `DataCorrupt` where one contradicts itself or the log,
    `StorageUnavailable` where it cannot be read for now, `ChangesUnavailable` where `files` has no such location or the
    log has a partition value that is none, `UnsupportedFeature` for values in the calendar of old Spark.
    """
    for file_task in (task, *(other for other, _ in others)):
        check_task(file_task, files)
    ((uri, needed),) = needed_files(task, after_row, through_row, first_byte, end_byte)
    needed = max(task.size_bytes, 0) if others and task.kind in CHANGE_FILES else needed
    with translated(task, uri), files.open(uri, needed) as opened, _parquet(task, opened.source) as file:
        asked, open_file = range(after_row + 1, through_row + 1), _OpenFile(task, file, opened, files, use_threads)
        keep = {open_file.with_task(other, files): function for other, function in others}
        open_file.others = list(keep)
        for batch, position, wanted in open_file.batches(asked, range(first_byte, end_byte)):
            columns = open_file.layout.projection.apply(batch, position) if others else None
            open_file.others = [
                other
                for other in open_file.others
                if all(map(keep[other], _choose(other, batch, position, wanted, columns)))
            ]
            yield from _choose(open_file, batch, position, wanted, columns)


def needed_files(
    task: ChangeTask, after_row: int = -1, through_row: int = END, first_byte: int = 0, end_byte: int = END
) -> tuple[tuple[str, int]]:
    """Return the task's file with its size if `execute` reads all its rows, 0 if it does not, or may not have to.

    Of a small file, all rows are read under a condition, too: to fetch it takes less than a second request.
    """
    is_all = after_row == -1 and through_row == END and first_byte == 0 and end_byte == END
    is_whole = is_all and task.include is None and task.kind not in CHANGE_FILES
    whole = is_whole and (task.where is None or task.size_bytes <= FEW_BYTES)
    return ((task.uri, max(task.size_bytes, 0) if whole else 0),)


def opens_each_version(_task: ChangeTask) -> bool:
    """See `RowReader.opens_each_version`."""
    return False


def file_of(task: ChangeTask) -> str:
    """Return what counts as one file of the table."""
    return task.uri


def row_groups(task: ChangeTask, files: Files = LOCAL) -> list[int]:
    """Return the number of rows of each row group of the task's file. Raises as `execute` does."""
    check_task(task, files)
    with open_footer(task, files) as file:
        return _counts(task, file)


@contextmanager
def open_footer(task: ChangeTask, files: Files = LOCAL) -> Iterator[pq.ParquetFile]:
    """Open the task's Parquet file as `execute` does, without reading a row. Raises as `execute` does."""
    with translated(task, task.uri), files.open(task.uri) as opened, pq.ParquetFile(opened.source, **_READER) as file:
        _counts(task, file)
        yield file


def selected(task: ChangeTask, num_rows: int, files: Files = LOCAL) -> pa.Array | None:
    """Return which of the `num_rows` rows of the task's file its deletion vectors leave, as `words_of`; None: all.

    Raises as `execute` does.
    """
    selection = Selection(task, num_rows, files)
    return None if task.include is None and task.exclude is None else words_of(selection.kept(0, num_rows), num_rows)


def _row_groups_in(task: ChangeTask, counts: Sequence[int], part: range) -> Iterator[tuple[int, range]]:
    """Yield each row group with its middle in the bytes `part` of the file, and the positions of its rows."""
    position, total = 0, sum(counts)
    for group, rows in enumerate(counts):
        middle = (2 * position + rows) * max(task.size_bytes, 0) // max(2 * total, 1)
        if part.start <= middle < part.stop:
            yield group, range(position, position + rows)
        position += rows


def _common(some: range, others: range) -> range:
    return range(max(some.start, others.start), min(some.stop, others.stop))


def _counts(task: ChangeTask, file: pq.ParquetFile) -> list[int]:
    counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    if sum(counts) != file.metadata.num_rows or min(counts, default=0) < 0:
        reason = f"its row groups have {counts} rows, its footer says {file.metadata.num_rows}"
        raise DataCorrupt(task.table, task.version, task.uri, reason)
    return counts


def _parquet(task: ChangeTask, source: pa.NativeFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source, **_options(task))
    except KeyError:  # a change file without change types: its columns show that
        return pq.ParquetFile(source, **_READER)


def _options(task: ChangeTask) -> Mapping[str, Any]:
    return _CDC_READER if task.kind in CHANGE_FILES else _READER


# Without Arrow's extension types a column is what Parquet stores: JSON is text, a UUID is bytes. Checksums, which Spark
# writes, turn a changed byte from a wrong row into an error.
_READER: Final[dict[str, Any]] = {
    "coerce_int96_timestamp_unit": "us",
    "buffer_size": _BUFFER_BYTES,
    "pre_buffer": False,
    "arrow_extensions_enabled": False,
    "page_checksum_verification": True,
}
# Whether a task selects a row is decided once for each change type.
_CDC_READER: Final[dict[str, Any]] = {**_READER, "read_dictionary": [CHANGE_TYPE]}


class _OpenFile:
    """The open file of a task, and what is known of its rows."""

    def __init__(
        self, task: ChangeTask, file: pq.ParquetFile, opened: DataFile, files: Files, use_threads: bool
    ) -> None:
        self.task = task
        self._file = file
        self._read_ahead = opened.read_ahead
        self._counts = _counts(task, file)
        self.selection = Selection(task, file.metadata.num_rows, files)
        self._footer = Footer(opened.source)
        self.layout = layout = layout_of(task, file)
        self._reader = (
            open_as_binary(opened.source, self._footer.content, **_options(task)) if layout.has_int96 else file
        )
        threads = use_threads and self._read_ahead is None
        sources = file, opened.source, self._footer
        self._sizes = BatchSizes(*sources, layout.sizes, threads)
        self._first = None if layout.condition is None else BatchSizes(*sources, layout.condition.sizes, threads)
        self.stamps = stamps(task.version, task.timestamp_ms, min(file.metadata.num_rows, MAX_ROWS))
        self.others: list[_OpenFile] = []  # for the tasks that are executed with this one
        # Where columns that were read first have a row, all were read in vain: it is likely so in the rest of the file.
        self._looks_first = True
        self.row_filter = None  # of a change file, `batches` finds out which rows fulfil the condition
        if (condition := layout.condition) is not None and task.kind not in CHANGE_FILES:
            self.row_filter = condition.row_filter

    def with_task(self, task: ChangeTask, files: Files) -> "_OpenFile":
        """Return the same file for another task of it, with the same columns."""
        other = copy(self)
        other.task, other.selection = task, Selection(task, self._file.metadata.num_rows, files)
        other.stamps = stamps(task.version, task.timestamp_ms, len(self.stamps[0]))
        return other

    def batches(self, asked: range, part: range) -> Iterator[tuple[pa.RecordBatch, int, range]]:
        """Yield the batches that may have chosen rows, each with the position of its first row, and those wanted.

        `asked`: of these positions. `part`: of row groups with their middle in these bytes.
        """
        selections = [open_file.selection for open_file in (self, *self.others)]
        groups = {
            group: rows
            for group, rows in _row_groups_in(self.task, self._counts, part)
            if _common(rows, asked) and any(selection.may_touch(rows) for selection in selections)
        }
        if (condition := self.layout.condition) is not None:
            groups = {group: rows for group, rows in groups.items() if self._may_hold(group, condition)}
            if self.task.kind in CHANGE_FILES:
                # Images of an update may lie in row groups that follow each other.
                beside = {group + step for group in groups for step in (-1, 0, 1)}
                every = _row_groups_in(self.task, self._counts, range(END))
                near = {group: rows for group, rows in every if group in beside and self._may_hold(group, condition)}
                decode, row_filter = self._first_columns, condition.row_filter
                self.selection.narrow(rows_of_changes(self.task.kind, near, decode, row_filter))
                groups = {group: rows for group, rows in groups.items() if self.selection.may_touch(rows)}
        ahead = self._ranges(list(groups))
        for group, rows in groups.items():
            if ahead is not None:
                ahead.expect_first(group)
            wanted = _common(rows, asked)
            if self._touches(group, rows, wanted):
                if ahead is not None:
                    ahead.expect(group)
                for batch, position in _with_positions(self.task, self._sizes.decode(self._reader, group), group, rows):
                    if position >= wanted.stop:
                        break
                    yield batch, position, wanted

    def _may_hold(self, group: int, condition: ConditionLayout) -> bool:
        """Return whether rows of a row group may fulfil the condition, by what the footer says of their values."""
        if self.task.stats == HELD and self._file.num_row_groups == 1:
            return True
        return condition.where.may_hold(GroupRanges(condition.noted, self._file, self._footer, group))

    def _ranges(self, groups: Sequence[int]) -> RowGroupRanges | None:
        if self._read_ahead is None:
            return None
        types = [CHANGE_TYPE] if self.task.kind in CHANGE_FILES else []
        first = types if self.layout.condition is None else self.layout.condition.sizes.columns
        return RowGroupRanges(self._read_ahead, self._file, self._footer, self.layout.sizes.columns, groups, first)

    def _touches(self, group: int, rows: range, wanted: range) -> bool:
        """Return whether any row of a row group is chosen; True where finding out would cost more than it saves."""
        condition = self.layout.condition
        if self.others:
            return True
        if condition is None or self.task.kind in CHANGE_FILES:
            # The rows of a change file that fulfil a condition are known by their positions.
            is_worth_a_look = condition is None and self.task.kind in CHANGE_FILES
        else:
            is_large = self._file.metadata.row_group(group).total_byte_size >= _FIRST_BYTES
            has_others = len(condition.sizes.columns) < len(self.layout.sizes.columns)
            is_worth_a_look = self._looks_first and is_large and has_others
        if not is_worth_a_look:
            return True
        first, filtered = self._first_columns(group, rows), self.row_filter
        is_touched = any(len(self.selection.fulfilling(batch, at_row, filtered, wanted)) for batch, at_row in first)
        self._looks_first = not is_touched
        return is_touched

    def _first_columns(self, group: int, rows: range) -> Batches:
        """Yield the columns of a row group that decide which rows are chosen."""
        if self._first is None:
            batches = self._file.iter_batches(row_groups=[group], columns=[CHANGE_TYPE], use_threads=False)
        else:
            batches = self._first.decode(self._reader, group)
        return _with_positions(self.task, batches, group, rows)


def _choose(
    open_file: _OpenFile, batch: pa.RecordBatch, position: int, wanted: range, columns: list[pa.Array] | None = None
) -> Iterator[ChangeBatch]:
    """Yield the chosen rows of a batch, if any. `columns`: those of the task for all rows; None: not made yet."""
    task, selection, projection = open_file.task, open_file.selection, open_file.layout.projection
    indices = selection.fulfilling(batch, position, open_file.row_filter, wanted)
    if len(indices) > 0:
        count, columns = len(indices), projection.apply(batch, position) if columns is None else columns
        labels = selection.labels(selection.change_types(batch), position)
        if count < batch.num_rows:
            # Taken from the table's own types: some of those that files have cannot be taken from.
            columns = [column.take(indices) for column in columns]
            labels = labels.take(indices) if selection.kind is None else labels.slice(0, count)
        columns = [*columns, labels, *(stamp.slice(0, count) for stamp in open_file.stamps)]
        chosen = pa.RecordBatch.from_arrays(columns, schema=projection.schema)
        row_index = indices if position == 0 else pc.add(indices, pa.scalar(position, pa.int64()))
        yield ChangeBatch(task.table_id, task.version, task.index, chosen, row_index, selection.kind)


def _with_positions(task: ChangeTask, batches: Iterator[pa.RecordBatch], group: int, rows: range) -> Batches:
    """Yield the batches of a row group with the positions `rows`, each with the position of its first row."""
    position = rows.start
    for batch in batches:
        yield batch, position
        position += batch.num_rows
    if position != rows.stop:
        reason = f"row group {group} lacks {rows.stop - position} of its rows"
        raise DataCorrupt(task.table, task.version, task.uri, reason)

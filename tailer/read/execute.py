"""`execute`: a task becomes change rows. One synchronous function for worker threads, Spark executors and readers.

Rows stream: a row group is read in batches of about `BATCH_BYTES`, so a file of any size passes through in bounded
memory (invariant 7); `tailer.read.batch_sizes` decides how many rows that may be. Row positions are counted over the
whole file, across row groups, and selected by the task's deletion vectors; row groups in which nothing is selected are
not read. The same task always yields the same rows in the same order (invariant 4). A row that cannot be read with the
types of the table stops the task (invariant 5).

A task may be executed in parts. The number of rows before a row group and the size of the file alone decide to which
part it belongs, so the parts can be made without reading the footer.

Columns are found by field id or physical name. A column that a file lacks was added to the table later and is null.
Partition columns come from the log, never from the file.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tailer.errors import (
    DataCorrupt,
    FileVacuumed,
    ObjectNotFound,
    ScratchUnavailable,
    StorageRefused,
    StorageUnavailable,
)
from tailer.events import CHANGE_TYPE, ChangeBatch, ChangeType
from tailer.files import deletion_vector
from tailer.files.row_bitmaps import positions_of, span, words_of
from tailer.plan import END, ChangeTask, DeletionVectorRef, Refinement, TaskKind
from tailer.read.batch_sizes import MAX_ROWS, BatchSizes
from tailer.read.data_files import LOCAL, Files, check_task
from tailer.read.layout import layout_of
from tailer.read.parquet.footer import Footer
from tailer.read.parquet.int96 import open_as_binary
from tailer.read.projection import Projection, repeated, stamps
from tailer.read.row_group_ranges import RowGroupRanges
from tailer.stores.folders import is_lasting

__all__ = ["execute", "file_of", "needed_files", "open_footer", "opens_each_version", "row_groups", "selected"]

opens_each_version = False  # as a `tailer.read.port.RowReader`, which this module is

_BUFFER_BYTES: Final = 2**20


def execute(
    task: ChangeTask,
    after_row: int = -1,
    through_row: int = END,
    first_byte: int = 0,
    end_byte: int = END,
    *,
    files: Files = LOCAL,
    use_threads: bool = False,
) -> Iterator[ChangeBatch]:
    """Yield the task's change rows whose physical position is in (`after_row`, `through_row`], in ascending order.

    Restrict to row groups whose midpoint lies in bytes [`first_byte`, `end_byte`), estimated from row counts and from
    the size of the file in the log. `use_threads`: whether Arrow's threads may decode columns of a file in parallel.

    Raises `FileVacuumed` where a file is gone, `DataCorrupt` where one contradicts itself or the log,
    `StorageUnavailable` where it cannot be read for now, `ChangesUnavailable` where `files` has no such location or the
    log has a partition value that is none, `UnsupportedFeature` for values in the calendar of old Spark.
    """
    check_task(task, files)
    ((uri, needed),) = needed_files(task, after_row, through_row, first_byte, end_byte)
    with _translated(task, uri), files.open(uri, needed) as opened, _parquet(task, opened.source) as file:
        source = opened.source
        counts = _counts(task, file)
        selection = _Selection(task, file.metadata.num_rows, files)
        footer = Footer(source)
        layout = layout_of(task, file)
        projection = layout.projection
        reader = open_as_binary(source, footer.content, **_options(task)) if projection.decoders else file
        threads = use_threads and opened.read_ahead is None
        sizes = BatchSizes(file, source, footer, layout.sizes, threads)
        stamped = stamps(task.version, task.timestamp_ms, min(file.metadata.num_rows, MAX_ROWS))
        asked = range(after_row + 1, through_row + 1)
        groups = {
            group: rows
            for group, rows in _row_groups_in(task, counts, range(first_byte, end_byte))
            if _common(rows, asked) and selection.may_touch(rows)
        }
        ahead = None
        if opened.read_ahead is not None:
            by_type = task.kind in _CDC
            ahead = RowGroupRanges(opened.read_ahead, file, footer, projection.columns, list(groups), by_type)
        for group, rows in groups.items():
            if ahead is not None:
                ahead.expect_first(group)
            if selection.touches(file, group, len(rows)):
                if ahead is not None:
                    ahead.expect(group)
                wanted = _common(rows, asked)
                for batch, first in _counted(task, sizes.decode(reader, group), group, rows):
                    if first >= wanted.stop:
                        break
                    yield from _chosen(task, batch, first, selection, projection, stamped, wanted)


def needed_files(
    task: ChangeTask, after_row: int = -1, through_row: int = END, first_byte: int = 0, end_byte: int = END
) -> tuple[tuple[str, int]]:
    """Return the task's file with its size if `execute` reads all its rows, 0 if it does not, or may not have to."""
    is_all = after_row == -1 and through_row == END and first_byte == 0 and end_byte == END
    whole = is_all and task.include is None and task.kind not in _CDC
    return ((task.uri, max(task.size_bytes, 0) if whole else 0),)


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
    with _translated(task, task.uri), files.open(task.uri) as opened, pq.ParquetFile(opened.source, **_READER) as file:
        _counts(task, file)
        yield file


def selected(task: ChangeTask, num_rows: int, files: Files = LOCAL) -> pa.Array | None:
    """Return which of the `num_rows` rows of the task's file its deletion vectors leave, as `words_of`; None: all.

    Raises as `execute` does.
    """
    selection = _Selection(task, num_rows, files)
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
    return _CDC_READER if task.kind in _CDC else _READER


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


def _counted(
    task: ChangeTask, batches: Iterator[pa.RecordBatch], group: int, rows: range
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the batches of a row group with the positions `rows`, each with the position of its first row."""
    position = rows.start
    for batch in batches:
        yield batch, position
        position += batch.num_rows
    if position != rows.stop:
        raise _short(task, group, rows.stop - position)


def _chosen(
    task: ChangeTask,
    batch: pa.RecordBatch,
    position: int,
    selection: "_Selection",
    projection: Projection,
    stamped: Sequence[pa.Array],
    wanted: range,
) -> Iterator[ChangeBatch]:
    """Yield the selected rows of a batch, if any."""
    types = selection.change_types(batch)
    indices = selection.pick(types, position, wanted)
    if len(indices) > 0:
        columns = [*projection.apply(batch, position), selection.labels(types, position)]
        columns += [stamp.slice(0, batch.num_rows) for stamp in stamped]
        # Taken from the table's own types: some of those that files have cannot be taken from.
        rows = pa.RecordBatch.from_arrays(columns, schema=projection.schema)
        chosen = rows if len(indices) == batch.num_rows else rows.take(indices)
        row_index = indices if position == 0 else pc.add(indices, _int64(position))
        yield ChangeBatch(task.table_id, task.version, task.index, chosen, row_index, selection.kind)


def _short(task: ChangeTask, group: int, missing: int) -> DataCorrupt:
    return DataCorrupt(task.table, task.version, task.uri, f"row group {group} lacks {missing} of its rows")


@cache
def _counting() -> pa.Array:
    return pa.array(range(MAX_ROWS), pa.int64())


class _Selection:
    """The selected rows of the file, and their change types."""

    def __init__(self, task: ChangeTask, num_rows: int, files: Files) -> None:
        self._task = task
        self._files = files
        self._refinement = task.refinement or Refinement()
        self._include = self._load(task.include, num_rows)
        exclude, dropped = self._load(task.exclude, num_rows), self._found(self._refinement.dropped, num_rows)
        self._exclude = exclude | dropped if exclude is not None and dropped is not None else exclude or dropped
        self._updated = self._found(self._refinement.updated, num_rows)
        constant = ChangeType.DELETE if task.kind is TaskKind.DELETE else ChangeType.INSERT
        self._constant = None if task.kind in _CDC else repeated(constant)
        self.kind = constant if self._constant is not None and self._updated is None else None  # of all rows

    def may_touch(self, rows: range) -> bool:
        """Return whether any of the rows at these positions is selected by its position."""
        some = self._include is not None or self._marks(self._exclude, rows.start, rows.stop)
        return not some or len(self.kept(rows.start, rows.stop)) > 0

    def touches(self, file: pq.ParquetFile, group: int, rows: int) -> bool:
        """Return whether any row of a row group is selected by its change type, without reading all its columns."""
        if self._constant is not None:
            return True
        for batch in file.iter_batches(row_groups=[group], columns=[CHANGE_TYPE], use_threads=False):
            fit = self._fit(self.change_types(batch))
            if fit is True or (fit is not False and fit.true_count > 0):
                return True
            rows -= batch.num_rows
        if rows != 0:
            raise _short(self._task, group, rows)
        return False

    def pick(self, types: pa.Array, position: int, wanted: range) -> pa.Array:
        """Indices of the selected rows of a batch that begins at `position`, given all its rows' change types."""
        end = min(position + len(types), wanted.stop)
        first = min(max(position, wanted.start), end)
        if first == position and self._include is None and not self._marks(self._exclude, first, end):
            kept = _counting().slice(0, end - position)
        elif self._include is not None and not self._marks(self._include, first, end):
            return _counting().slice(0, 0)
        else:
            kept = _indices(self.kept(first, end), position)
        if self._constant is not None:
            return kept
        fit = self._fit(types)
        if isinstance(fit, bool):
            return kept if fit else kept.slice(0, 0)
        fitting = pc.indices_nonzero(fit).cast(pa.int64())
        return fitting if len(kept) == len(types) else fitting.filter(pc.is_in(fitting, value_set=kept))

    def change_types(self, batch: pa.RecordBatch) -> pa.Array:
        """The change type of every row of the batch, as the file has it; of a change file as a dictionary of them."""
        if self._constant is None:
            types = batch.column(CHANGE_TYPE)
            return types if types.type.equals(_TYPES) else types.cast(pa.string()).dictionary_encode()
        return self._constant.slice(0, batch.num_rows)

    def labels(self, types: pa.Array, position: int) -> pa.Array:
        """Return the change types to deliver for rows with `types` in the file, the first of which is at `position`."""
        types = types if self._constant is not None else types.cast(pa.string())
        if self._refinement.exactly:
            types = _replaced(types, _PLAIN)
        end = position + len(types)
        if self._updated is None or not self._marks(self._updated, position, end):
            return types
        marked = _indices(self._updated & span(position, end), position)
        updated = pc.is_in(_counting().slice(0, len(types)), value_set=marked)
        return pc.if_else(updated, _replaced(types, _IMAGES), types)

    def kept(self, first: int, end: int) -> BitMap64:
        """Return the positions from `first` to before `end` that are selected by position."""
        kept = span(first, end)
        if self._include is not None:
            kept &= self._include
        if self._exclude is not None:
            kept -= self._exclude
        return kept

    def _fit(self, types: pa.Array) -> bool | pa.Array:
        """Return which rows with these types in a change file are selected by them, or whether all or none are."""
        if types.null_count:
            raise DataCorrupt(
                self._task.table, self._task.version, self._task.uri, f"{CHANGE_TYPE} is null in some row"
            )
        deletes = pc.equal(types.dictionary, _DELETE)
        fit = deletes if self._task.kind is TaskKind.CDC_DELETES else pc.invert(deletes)
        if fit.true_count in (0, len(fit)):
            return bool(fit.true_count > 0)
        return fit.take(types.indices)

    def _marks(self, bitmap: BitMap64 | None, first: int, end: int) -> bool:
        return bitmap is not None and bitmap.range_cardinality(first, end) > 0

    def _found(self, ref: DeletionVectorRef | None, num_rows: int) -> BitMap64 | None:
        """Load a spilled result of comparing rows. If its file is gone, that is no error of the table."""
        try:
            return self._load(ref, num_rows)
        except FileVacuumed as error:
            raise ScratchUnavailable(
                error.path, "the temporary result of comparing this version was deleted"
            ) from error

    def _load(self, ref: DeletionVectorRef | None, num_rows: int) -> BitMap64 | None:
        if ref is None:
            return None
        with _translated(self._task, ref.uri or self._task.uri):
            bitmap = deletion_vector.load(ref, self._task, self._files.read)
        if len(bitmap) > 0 and bitmap.max() >= num_rows:
            reason = f"its deletion vector marks row {bitmap.max()}, the file has {num_rows} rows"
            raise DataCorrupt(self._task.table, self._task.version, self._task.uri, reason)
        return bitmap


_CDC: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)
_DELETE: Final = pa.scalar(ChangeType.DELETE.value)
_TYPES: Final = pa.dictionary(pa.int32(), pa.string())
_PLAIN: Final = {ChangeType.UPDATE_PREIMAGE: ChangeType.DELETE, ChangeType.UPDATE_POSTIMAGE: ChangeType.INSERT}
_IMAGES: Final = {plain: image for image, plain in _PLAIN.items()}


def _replaced(types: pa.Array, names: Mapping[ChangeType, ChangeType]) -> pa.Array:
    for name, other in names.items():
        types = pc.if_else(pc.equal(types, pa.scalar(name.value)), pa.scalar(other.value), types)
    return types


def _indices(positions: BitMap64, start: int) -> pa.Array:
    """Positions as indices relative to `start`."""
    return pc.subtract(positions_of(positions), _int64(start))


def _int64(value: int) -> pa.Scalar:
    # Given a plain number, Arrow looks for numpy first, every time; where there is none that takes longer than the sum.
    return pa.scalar(value, pa.int64())


@contextmanager
def _translated(task: ChangeTask, path: str) -> Iterator[None]:
    """Translate errors of reading `path` into ours."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, ObjectNotFound):
        raise FileVacuumed(task.table, task.version, path, (task.logged or "") * (path == task.uri)) from None
    except (pa.ArrowException, UnicodeError) as error:
        raise DataCorrupt(task.table, task.version, path, str(error)) from error
    except OSError as error:
        # Arrow reports broken Parquet pages as an OSError without an errno; the system's own errors have one.
        if error.errno is None:
            raise DataCorrupt(task.table, task.version, path, str(error)) from error
        raise (StorageRefused if is_lasting(error) else StorageUnavailable)(path, os.strerror(error.errno)) from error

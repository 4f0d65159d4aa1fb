"""The `RowReader` of Lance: a task that names a fragment becomes change rows, as `tailer.read.execute.execute` says.

pylance (extra `lance`) reads the rows; which of them changed was decided before, without it (`tailer.formats.lance`).
It is asked for one fragment of one version of the dataset, with the address of each row, so that a row's position is
its offset in the fragment, whatever was deleted. Where few rows are wanted, it is asked for these alone.
"""

import base64
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap, BitMap64
from typing_extensions import override

from tailer.errors import DataCorrupt, FileVacuumed, ScratchUnavailable, StorageUnavailable
from tailer.events import ChangeBatch, ChangeType
from tailer.files import deletion_vector
from tailer.files.row_bitmaps import positions_of, span
from tailer.formats.lance.rows.columns import ROW_ID, Columns
from tailer.formats.lance.rows.opened import SmallFile, names_file, open_dataset, open_small_file
from tailer.formats.port import RowReader
from tailer.plan import ChangeTask, DeletionVectorRef, FragmentRef, TaskKind
from tailer.read.data_files import Files, check_task
from tailer.read.parquet.batch_sizes import MAX_ROWS
from tailer.read.projection import repeated, stamps

if TYPE_CHECKING:
    import lance
    from lance.lance.schema import LanceField

__all__ = ["FRAGMENTS"]

_BATCH_BYTES: Final = 4 * 2**20
_BATCH_ROWS: Final = 8192  # where batches have a number of rows, whatever their size
_IO_BYTES: Final = 32 * 2**20  # read ahead of what is decoded, at most
_FEW_ROWS: Final = 1024  # of a commit that is small
_FEW: Final = 16  # of this many rows, one is few enough to be looked up by itself
_BLOBS: Final = "all_binary"
_BLOB: Final = b"blob"  # is in the metadata, or in the name of the type, of each column of blobs
_ADDRESS: Final = "_rowaddr"
_OFFSETS: Final = 2**32  # of a fragment, in an address
_OFFSET_BITS: Final = pa.scalar(_OFFSETS - 1, pa.int64())
_LEGACY: Final = ("0.1", "legacy")  # versions of data files whose rows cannot be looked up by themselves
_ROWS_ONLY: Final = (*_LEGACY, "2.0")  # and those whose batches cannot be limited by their size
_NOT_FOUND: Final = re.compile(r"[Nn]ot found: ([^,]*/[^,]*)")
_STORE: Final = ("error performing", "timed out", "connection", "too many open files")


def _execute(task: ChangeTask, fragment: FragmentRef, rows: range, files: Files) -> Iterator[ChangeBatch]:
    """Yield the change rows of a task whose offset in its fragment is in `rows`, in ascending order.

    Raises as `tailer.read.execute.execute`, and `ConfigError` where pylance is not installed.
    """
    wanted = _wanted(task, fragment, rows, files)
    if wanted is not None and len(wanted) == 0:
        return
    updated = _loaded(task, None if task.refinement is None else task.refinement.updated, files)
    kind = _kind(task) if updated is None else None
    with _translated(task):
        scan: SmallFile | _Scan | None = open_small_file(task, fragment, files)
        scan = scan or _Scan(task, fragment, open_dataset(task, fragment, files))
        for batch, positions in scan.batches(wanted):
            if wanted is not None:
                ours = pc.is_in(positions, value_set=_within(wanted, positions))
                batch, positions = batch.filter(ours), positions.filter(ours)  # noqa: PLW2901
            for first, part in scan.columns.decodable(batch) if batch.num_rows > 0 else ():
                row_index = positions.slice(first, part.num_rows)
                columns = [*scan.columns.projected(part), *_metadata(task, row_index, updated)]
                changes = pa.RecordBatch.from_arrays(columns, schema=scan.columns.schema)
                yield ChangeBatch(task.table_id, task.version, task.index, changes, row_index, kind)


def _rows_in_part(fragment: FragmentRef, size_bytes: int, first_byte: int, end_byte: int) -> range:
    """Return the offsets of the rows in a part of a fragment's bytes, where all rows are taken to be equally long."""

    def row_at(byte: int) -> int:
        return min(-(-byte * fragment.rows // max(size_bytes, 1)), fragment.rows)

    return range(row_at(first_byte) if first_byte > 0 else 0, row_at(end_byte))


def _wanted(task: ChangeTask, fragment: FragmentRef, rows: range, files: Files) -> BitMap64 | None:
    """Return the offsets of the rows to deliver, those of deleted rows possibly among them; None: all rows."""
    refinement = task.refinement
    excluded = [task.exclude, None if refinement is None else refinement.dropped]
    is_all = rows.start <= 0 and rows.stop >= fragment.rows
    if is_all and fragment.chosen is None and task.include is None and not any(excluded):
        return None
    offsets = span(max(rows.start, 0), min(rows.stop, fragment.rows))
    if fragment.chosen is not None:
        offsets &= BitMap64(BitMap.deserialize(base64.b64decode(fragment.chosen)))
    if (included := _loaded(task, task.include, files)) is not None:
        offsets &= included
    for ref in excluded:
        if (left_out := _loaded(task, ref, files)) is not None:
            offsets -= left_out
    return offsets


def _loaded(task: ChangeTask, ref: DeletionVectorRef | None, files: Files) -> BitMap64 | None:
    if ref is None:
        return None
    try:
        return deletion_vector.load(ref, task, files.read)
    except OSError as error:
        raise ScratchUnavailable(
            ref.uri or task.uri, "the temporary result of comparing this version was deleted"
        ) from error


def _within(wanted: BitMap64, positions: pa.Array) -> pa.Array:
    """Return the wanted offsets between the first and the last of `positions`."""
    if len(positions) == 0:
        return pa.array([], pa.int64())
    return positions_of(wanted & span(positions[0].as_py(), positions[-1].as_py() + 1))


def _kind(task: ChangeTask) -> ChangeType:
    return ChangeType.DELETE if task.kind is TaskKind.DELETE else ChangeType.INSERT


def _metadata(task: ChangeTask, positions: pa.Array, updated: BitMap64 | None) -> list[pa.Array]:
    """Return the metadata columns of the rows at `positions`."""
    is_delete, count = task.kind is TaskKind.DELETE, len(positions)
    types = repeated(_kind(task)).slice(0, count)
    if updated is not None:
        image = ChangeType.UPDATE_PREIMAGE if is_delete else ChangeType.UPDATE_POSTIMAGE
        types = pc.if_else(pc.is_in(positions, value_set=_within(updated, positions)), pa.scalar(image.value), types)
    length = _FEW_ROWS if count <= _FEW_ROWS else MAX_ROWS
    return [types, *(column.slice(0, count) for column in stamps(task.version, task.timestamp_ms, length))]


class _Scan:
    """A scan of the columns that a task needs of its fragment."""

    def __init__(self, task: ChangeTask, fragment: FragmentRef, dataset: "lance.LanceDataset") -> None:
        self._task = task
        self._ref = fragment
        self._dataset = dataset
        names = {number: name for name, number in fragment.columns}
        own = dataset.schema
        if _BLOB in own.serialize().to_pybytes():  # a blob is read as binary, though its column has another type
            own = dataset.scanner(blob_handling=_BLOBS).projected_schema
        named = [_named(column, field, names) for column, field in zip(own, dataset.lance_schema.fields(), strict=True)]
        self.columns = Columns(task, list(own), named)

    def batches(self, wanted: BitMap64 | None) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield batches, each with the offsets of its rows, among them all that are `wanted` (None: all)."""
        fragment = self._dataset.get_fragment(self._ref.number)
        if fragment is None:
            raise _lacks(self._task, self._ref)
        chosen, storage = None, self._dataset.data_storage_version
        if wanted is not None and len(wanted) * _FEW < self._ref.rows and storage not in _LEGACY:
            chosen = self._row_ids(fragment, wanted)
        has_sizes = storage not in _ROWS_ONLY
        scanner = self._dataset.scanner(
            columns=self.columns.names,
            fragments=[fragment],
            with_row_address=True,
            with_row_id=self.columns.with_ids,
            batch_size=MAX_ROWS if has_sizes else _BATCH_ROWS,
            batch_size_bytes=_BATCH_BYTES if has_sizes else None,
            batch_readahead=2,
            io_buffer_size=_IO_BYTES,
            blob_handling=_BLOBS,
            scan_in_order=True,
            row_addr_allowlist=chosen,
        )
        for batch in scanner.to_reader():
            yield batch, _offsets(batch)

    def _row_ids(self, fragment: "lance.LanceFragment", wanted: BitMap64) -> bytes:
        """Return the ids of the rows at the offsets `wanted` as pylance takes them: stable ids, or else addresses."""
        from lance.dataset import serialize_row_addrs  # noqa: PLC0415 - an extra

        if not self._dataset.has_stable_row_ids:
            first = self._ref.number * _OFFSETS
            return serialize_row_addrs([first + offset for offset in wanted])
        ids: list[int] = []
        for batch in fragment.scanner(columns=[], with_row_id=True, with_row_address=True).to_reader():
            positions = _offsets(batch)
            ours = pc.is_in(positions, value_set=_within(wanted, positions))
            ids += batch[ROW_ID].filter(ours).to_pylist()
        return serialize_row_addrs(ids)


def _offsets(batch: pa.RecordBatch) -> pa.Array:
    return pc.bit_wise_and(batch[_ADDRESS].view(pa.int64()), _OFFSET_BITS)


def _named(column: pa.Field, field: "LanceField", names: Mapping[int, str]) -> pa.Field:
    """Name a column, and all fields within, by the ids of their fields."""
    name = names.get(field.id(), str(field.id()))
    return pa.field(name, _named_type(column.type, field, names), column.nullable)


def _named_type(kind: pa.DataType, field: "LanceField", names: Mapping[int, str]) -> pa.DataType:
    """Return the type of the decoded values, with the ids of fields as their names."""
    inner = field.children()
    if isinstance(kind, pa.BaseExtensionType):
        return _named_type(kind.storage_type, field, names)
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([_named(column, child, names) for column, child in zip(kind, inner, strict=True)])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_named_type(kind.value_type, inner[0], names)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_named_type(kind.value_type, inner[0], names)))
    if pa.types.is_map(kind):
        key, value = inner[0].children()
        item = kind.item_field.with_type(_named_type(kind.item_type, value, names))
        return pa.map_(_named_type(kind.key_type, key, names), item)
    return kind


def _lacks(task: ChangeTask, fragment: FragmentRef) -> DataCorrupt:
    reason = f"version {fragment.version} has no fragment {fragment.number}"
    return DataCorrupt(task.table, task.version, task.uri, reason)


@contextmanager
def _translated(task: ChangeTask) -> Iterator[None]:
    """Translate errors of pylance, which have no types of their own, into ours."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        text = str(error)
        if (gone := _NOT_FOUND.search(text)) is not None:
            below = gone[1].rpartition(task.uri.rpartition("/")[2] + "/")[2]
            raise FileVacuumed(task.table, task.version, f"{task.uri}/{below}") from error
        if any(sign in text.lower() for sign in _STORE):
            raise StorageUnavailable(task.uri, _first_line(text)) from error
        raise DataCorrupt(task.table, task.version, task.uri, _first_line(text)) from error


def _first_line(text: str) -> str:
    """Return what pylance says, without the places in its own source."""
    return re.sub(r", /\S+\.rs:\d+:\d+.*", "", text, flags=re.DOTALL)


class _Fragments(RowReader):
    @override
    def opens_each_version(self, task: ChangeTask) -> bool:
        """Return False where the plan names a file that is read by itself."""
        return not names_file(task)

    @override
    def execute(
        self,
        task: ChangeTask,
        after_row: int,
        through_row: int,
        first_byte: int,
        end_byte: int,
        *,
        files: Files,
        use_threads: bool,
    ) -> Iterator[ChangeBatch]:
        """Yield the rows; pylance has threads of its own."""
        check_task(task, files)
        fragment = _fragment(task)
        part = _rows_in_part(fragment, task.size_bytes, first_byte, end_byte)
        rows = range(max(part.start, after_row + 1), min(part.stop, through_row + 1))
        return _execute(task, fragment, rows, files)

    @override
    def row_groups(self, task: ChangeTask, files: Files) -> list[int]:
        """Return one: that of the fragment, of which one row is read."""
        check_task(task, files)
        fragment = _fragment(task)
        with _translated(task):
            dataset = open_dataset(task, fragment, files)
            stored = dataset.get_fragment(fragment.number)
            if stored is None:
                raise _lacks(task, fragment)
            stored.scanner(limit=1, columns=dataset.schema.names[:1]).to_table()
            return [int(stored.physical_rows)]

    @override
    def needed_files(
        self, task: ChangeTask, after_row: int, through_row: int, first_byte: int, end_byte: int
    ) -> Sequence[tuple[str, int]]:
        """Return none: pylance opens files by itself."""
        return ()

    @override
    def file_of(self, task: ChangeTask) -> Hashable:
        """Return the fragment: all tasks have the location of the dataset."""
        fragment = _fragment(task)
        return task.uri, fragment.version, fragment.number


def _fragment(task: ChangeTask) -> FragmentRef:
    if task.fragment is None:
        raise DataCorrupt(task.table, task.version, task.uri, "the task names no fragment")
    return task.fragment


FRAGMENTS: Final[RowReader] = _Fragments()

"""A sample of rows of a table: columns that could be a key, large values, old timestamps."""

import heapq
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailer.errors import TailerError
from tailer.events import CHANGE_TYPE, ChangeType
from tailer.formats.rows import execute
from tailer.plan import ChangeTask
from tailer.read.data_files import DataFiles
from tailer.read.parquet.legacy_datetimes import int96_paths
from tailer.schema.columns import METADATA_NAMES

__all__ = ["MOST_ROWS", "Sample", "take_sample"]

MOST_ROWS: Final = 10_000
_MOST_FILES: Final = 3
_AFTER: Final = pa.array([ChangeType.INSERT.value, ChangeType.UPDATE_POSTIMAGE.value])
# Of columns that are all unique, keys mostly have one of these endings; the first is the likeliest.
_ENDINGS: Final = ("id", "uuid", "guid", "key", "no", "number", "code")


@dataclass(frozen=True, slots=True)
class LargestValue:
    """The largest text or binary value of a sample, and its column."""

    column: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Results from `rows` rows of `files` files of a version. `version`: None where no file could be read.

    `unique`: columns without nulls whose values are all different, the likeliest key first. `int96`: columns whose
    timestamps are stored in 96 bits.
    """

    version: int | None = None
    files: int = 0
    rows: int = 0
    unique: tuple[str, ...] = ()
    largest: LargestValue | None = None
    int96: tuple[str, ...] = ()


def take_sample(tasks: Sequence[ChangeTask], files: DataFiles) -> Sample:
    """Read the first rows of the largest tasks of one version, in data or change files. Blocking.

    Raises as `execute`.
    """
    used = heapq.nlargest(_MOST_FILES, tasks, lambda task: task.size_bytes)
    batches = [batch for task in used for batch in _first_rows(task, MOST_ROWS // len(used), files)]
    if not batches:
        return Sample()
    table = _without_views(pa.Table.from_batches(batches, batches[0].schema))
    unique = sorted((name for name in table.column_names if _is_unique(table.column(name))), key=_unlikeliness)
    largest = [
        LargestValue(name, pc.max(pc.binary_length(column)).as_py() or 0)
        for name, column in zip(table.column_names, table.columns, strict=True)
        if _is_text(column.type)
    ]
    old = dict.fromkeys(path for task in used if task.reader is None for path in _int96(task, files))
    return Sample(
        version=used[0].version,
        files=len(used),
        rows=len(table),
        unique=tuple(unique),
        largest=max(largest, key=lambda value: value.size_bytes, default=None),
        int96=tuple(old),
    )


def _first_rows(task: ChangeTask, most: int, files: DataFiles) -> Iterator[pa.RecordBatch]:
    """Yield the first rows of a task, without columns of ours."""
    with closing(iter(execute(task, files=files))) as batches:  # type: ignore[type-var]
        for batch in batches:
            rows = batch.rows.slice(0, most)
            if batch.kind is None:  # change files have rows as they were, too
                rows = rows.filter(pc.is_in(rows.column(CHANGE_TYPE), _AFTER))
            yield rows.drop_columns([name for name in rows.schema.names if name in METADATA_NAMES])
            most -= len(rows)
            if most <= 0:
                return


def _is_unique(column: pa.ChunkedArray) -> bool:
    kind = column.type
    fits = (
        pa.types.is_integer(kind)
        or _is_text(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
    return fits and not column.null_count and pc.count_distinct(column).as_py() == len(column)


def _is_text(kind: pa.DataType) -> bool:
    """Return whether values are texts or bytes of any length."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _without_views(table: pa.Table) -> pa.Table:
    """Return the table with the usual types in place of views, of which Arrow computes little."""
    for number, field in enumerate(table.schema):
        for is_view, kind in (
            (pa.types.is_string_view, pa.large_string()),
            (pa.types.is_binary_view, pa.large_binary()),
        ):
            if is_view(field.type):
                table = table.set_column(number, field.name, table.column(number).cast(kind))
    return table


def _unlikeliness(column: str) -> tuple[int, int, str]:
    name = column.lower()
    ending = next((number for number, suffix in enumerate(_ENDINGS) if name.endswith(suffix)), len(_ENDINGS))
    return ending, len(name), name


def _int96(task: ChangeTask, files: DataFiles) -> list[str]:
    try:
        with files.open(task.uri) as data_file:
            return int96_paths(pq.ParquetFile(data_file.source).schema)
    except (OSError, pa.ArrowException, TailerError):
        return []  # reading its rows gave the error, or will

"""Bounds and nulls of the columns in row groups, from the footer of a Parquet file, in the types of the table.

Columns are found, and their values widened, as `tailer.read.projection` does it for rows. What may mean several things
is unknown: columns with unsigned numbers, timestamps of 96 bits, dates and timestamps of old Spark's calendar, CHARs,
Variants, and everything in lists and maps. So are bounds of decimals that are stored as bytes, because writers have
compared these without their sign, and nulls of a field in a struct, which writers count in different ways.

Nothing is looked at before it is asked for. A small row group is decoded in the time that its statistics take, so those
are not looked at: the log has the same ones of a small file.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import isnan
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.errors import DataCorrupt
from tailer.plan import ChangeTask
from tailer.read.parquet.file_fields import FileFields
from tailer.read.parquet.footer import ChunkStatistics, Footer
from tailer.read.pruning import fields_of, partition_range, paths_of, shows_values
from tailer.schema.columns import CHAR, DEFAULT, ColumnRange, physical_name, widens

__all__ = ["FileColumns", "GroupRanges"]

SMALL_BYTES: Final = 2**15  # of a row group
_ALL_NULL: Final = ColumnRange(None, None, may_have_values=False)
_INTEGERS: Final = {"INT32": 4, "INT64": 8}  # physical types, and the bytes of a value
_FLOATS: Final = {"FLOAT": "<f", "DOUBLE": "<d"}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the file that may have bounds.

    `index`: among the columns without children. `found`, `wanted`: the types of the file and of the table. `is_inner`:
    whether it is a field of a struct.
    """

    index: int
    physical: str
    found: pa.DataType
    wanted: pa.DataType
    is_inner: bool


class FileColumns:
    """The columns of a table in files with one schema, each found when it is first asked for.

    `fields`: the columns of the table at the time of the task's rows, with metadata as in `ChangeTask.schema`. `arrow`,
    `schema`: those of the file. `is_old`: whether its dates and timestamps may be in the calendar of old Spark.
    """

    def __init__(
        self, task: ChangeTask, fields: pa.Schema, arrow: pa.Schema, schema: pq.ParquetSchema, is_old: bool
    ) -> None:
        self.fields = fields
        self._logged = dict(task.partition_values)
        self._task = task
        self._arrow = arrow
        self._schema = schema
        self._is_old = is_old
        self._there = FileFields(arrow, self._corrupt)
        self._found: dict[tuple[str, ...], _Leaf | ColumnRange | None] = {}

    def of(self, task: ChangeTask) -> "FileColumns":
        """Return the columns for a task as `Projection.of` takes it."""
        return FileColumns(task, self.fields, self._arrow, self._schema, self._is_old)

    def range(self, path: tuple[str, ...], file: pq.ParquetFile, footer: Footer, group: int) -> ColumnRange | None:
        """Return what is known of a column in a row group; None: nothing."""
        if path not in self._found:
            try:
                self._found[path] = self._find(path)
            except DataCorrupt:  # raised where the rows are read
                self._found[path] = None
        leaf = self._found[path]
        if not isinstance(leaf, _Leaf):
            return leaf
        metadata = file.metadata.row_group(group)
        if metadata.total_byte_size < SMALL_BYTES:
            return None
        noted = footer.statistics(group, leaf.index, len(self._schema))
        return None if noted is None else _range(noted, leaf, metadata.num_rows)

    def _find(self, path: tuple[str, ...]) -> _Leaf | ColumnRange | None:
        names = fields_of(self.fields, path)
        if not names:
            return None
        if (name := physical_name(names[0])) in self._logged:
            return partition_range(self._task, names[0], self._logged[name]) if len(names) == 1 else None
        there, siblings, leaves = self._there, list(self._arrow), 0
        for depth, field in enumerate(names, start=1):
            match = None if pa.types.is_null(field.type) else there.find(field)
            if match is None:
                return None if DEFAULT in (field.metadata or {}) else _ALL_NULL
            number = [sibling.name for sibling in siblings].index(match.name)
            leaves += sum(_leaf_count(sibling.type) for sibling in siblings[:number])
            if depth == len(names):
                return self._leaf(leaves, match, field, is_inner=depth > 1)
            if not pa.types.is_struct(match.type):
                return None
            there, siblings = FileFields(match.type, self._corrupt), list(match.type)
        return None

    def _leaf(self, index: int, field: pa.Field, wanted: pa.Field, *, is_inner: bool) -> _Leaf | None:
        if not _is_ordered(field.type, wanted.type) or CHAR in (wanted.metadata or {}):
            return None
        if self._is_old and pa.types.is_temporal(field.type):
            return None
        column = self._schema.column(index)
        if column.max_repetition_level > 0 or column.name != field.name:
            return None
        return _Leaf(index, column.physical_type, field.type, wanted.type, is_inner)

    def _corrupt(self, reason: str) -> DataCorrupt:
        return DataCorrupt(self._task.table, self._task.version, self._task.uri, reason)


class GroupRanges(Mapping[tuple[str, ...], ColumnRange]):
    """The ranges of the columns of a table in a row group (`Ranges`), as far as they are known.

    Nothing is read before a column is asked for. Values of partition columns are those in the log.
    """

    def __init__(self, columns: FileColumns, file: pq.ParquetFile, footer: Footer, group: int) -> None:
        self._columns = columns
        self._file = file
        self._footer = footer
        self._group = group
        self._known: dict[tuple[str, ...], ColumnRange | None] = {}

    def __getitem__(self, path: tuple[str, ...]) -> ColumnRange:
        if path not in self._known:
            self._known[path] = self._columns.range(path, self._file, self._footer, self._group)
        column_range = self._known[path]
        if column_range is None:
            raise KeyError(path)
        return column_range

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return (path for path in paths_of(self._columns.fields) if path in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _leaf_count(kind: pa.DataType) -> int:
    """Return the number of columns without children that Parquet has for a column."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaf_count(kind.field(index).type) for index in range(kind.num_fields))


def _is_ordered(file_type: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of `file_type` are read as those of `wanted` in the same order, and have bounds in that."""
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(file_type) or pa.types.is_large_string(file_type))
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(file_type):
        return True
    return (file_type.equals(wanted) or widens(file_type, wanted)) and any(check(file_type) for check in _WITH_BOUNDS)


_WITH_BOUNDS: Final = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_date32,
)


def _range(noted: ChunkStatistics, leaf: _Leaf, rows: int) -> ColumnRange | None:
    """Return what statistics say; None where they contradict themselves."""
    nulls = noted.nulls
    if noted.num_values != rows or (nulls is not None and not 0 <= nulls <= rows):
        return None
    if nulls == rows:
        is_sound = noted.low is None and noted.high is None and shows_values(leaf.wanted)
        return _ALL_NULL if is_sound else None
    low, high = (_value(data, leaf) for data in (noted.low, noted.high))
    if isinstance(low, float) or isinstance(high, float):
        # NaN has no order: a writer that takes it for a bound may have left out others. If one is zero, both zeros are
        # within.
        has_nan = any(bound is not None and isnan(bound) for bound in (low, high))
        low = None if has_nan else -0.0 if low == 0 else low
        high = None if has_nan else 0.0 if high == 0 else high
    if low is not None and high is not None and low > high:
        return None
    return ColumnRange(_scalar(low, leaf), _scalar(high, leaf), may_be_null=nulls != 0 or leaf.is_inner)


def _value(data: bytes | None, leaf: _Leaf) -> Any:
    """Decode a bound; None: it is none, or of no use.

    A timestamp or date becomes its number, a decimal its digits as a number, and text stays UTF-8: these have the order
    of the values.
    """
    if data is None:
        return None
    physical, size = leaf.physical, len(data)
    if pa.types.is_string(leaf.found) or pa.types.is_large_string(leaf.found):
        return data if physical == "BYTE_ARRAY" else None
    if pa.types.is_boolean(leaf.found):
        return {b"\0": False, b"\1": True}.get(data) if physical == "BOOLEAN" else None
    if physical in _FLOATS:
        is_whole = size == struct.calcsize(_FLOATS[physical]) and pa.types.is_floating(leaf.found)
        return float(struct.unpack(_FLOATS[physical], data)[0]) if is_whole else None
    if physical in _INTEGERS:
        return int.from_bytes(data, "little", signed=True) if size == _INTEGERS[physical] else None
    return None


def _scalar(value: Any, leaf: _Leaf) -> pa.Scalar | None:
    """Return a bound as a value of the table; None where it is none, or would not be read."""
    if value is None:
        return None
    file_type, wanted = leaf.found, leaf.wanted
    try:
        if isinstance(value, bytes):
            return pa.scalar(value.decode(), wanted)
        if pa.types.is_decimal(file_type):
            digits = tuple(map(int, str(abs(int(value)))))
            scalar = pa.scalar(Decimal((int(value < 0), digits, -file_type.scale)), file_type)
        elif pa.types.is_date32(file_type):
            scalar = pa.scalar(value, pa.int32()).cast(file_type)
        elif pa.types.is_timestamp(file_type):
            scalar = pa.scalar(value, pa.int64()).cast(file_type)
        else:
            scalar = pa.scalar(value, file_type)
        return scalar if file_type.equals(wanted) else scalar.cast(wanted)
    except (pa.ArrowException, ValueError, OverflowError):
        return None

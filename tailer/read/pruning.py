"""Files that cannot have a row for a condition, by what the log says of their values before they are read.

Statistics of a file in Delta's log are as whichever writer wrote them (PROTOCOL.md, "Per-file Statistics"). They are
JSON, under physical names. Only those of columns that are asked for are decoded: a table may have hundreds. Writers
shorten bounds, round them, and compare texts in several ways, so bounds are moved outwards by as much as that may be.
Whatever may mean several things is unknown: a file that is read for nothing costs less than a row that is lost.
"""

import json
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from math import isnan
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict

import msgspec
import pyarrow as pa

from tailer.errors import ChangesUnavailable
from tailer.events import is_struct
from tailer.files.partition_values import days_since_epoch, micros_since_epoch, partition_scalar
from tailer.plan import HELD, ROW_TRACKING, ChangePlan, ChangeTask, SkippedFiles
from tailer.schema.columns import CHAR, ColumnRange, Ranges, physical_name
from tailer.schema.variant_paths import path_of

if TYPE_CHECKING:
    from tailer.shape.condition import Condition

__all__ = [
    "LogStatistics",
    "LoggedColumns",
    "fields_of",
    "partition_range",
    "paths_of",
    "prune",
    "shows_values",
]

# From here on, old Spark's calendar is ours, and zones have no local mean times.
_FIRST_DAY: Final = -25_567  # 1900-01-01, in days since 1970
_FIRST_MICROS: Final = _FIRST_DAY * 86_400_000_000
# Timestamps are cut to milliseconds, towards 1970 or downwards, and offsets of zones to minutes, towards UTC.
_CUT_MICROS: Final = 59_999_999
_ZONE: Final = re.compile(r".*[T ].*(?:Z|UTC|GMT|[+-]\d\d?(?::?\d\d)?)")
_DOUBLE_DIGITS: Final = 15  # of a decimal that a floating point number keeps,
_DOUBLE_BITS: Final = 52  # and of an integer, after the first one
_CUT_BYTES: Final = 32  # from here on, a text may be the beginning of a longer one
_JSON: Final = json.JSONDecoder(parse_float=Decimal)
_EXACT: Final = Context(prec=100)
_FOUR_BYTES: Final = re.compile("[\U00010000-\U0010ffff]")
_AFTER_SURROGATES: Final = re.compile("[\ue000-\uffff]")
_LAST: Final = "\U0010ffff"
_FLOAT_LIMIT: Final = 3.4e38  # numbers of 32 bits are below, but for the last of them,
_NO_FLOAT: Final = 3.5e38  # and there are none from here on


_Paths = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """The statistics of one file. `values`: an object of the names that the protocol defines, with JSON of values."""

    values: dict[str, Any]

    @classmethod
    def parse(cls, text: str, paths: _Paths) -> Self | None:
        """Return the statistics in a text, of the columns with these paths of physical names; None: it has none."""
        try:
            return cls(_decoder(paths).decode(text))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None

    def range(self, fields: Sequence[pa.Field], path: Sequence[str]) -> ColumnRange | None:
        """Return what is known of the last of `fields`, which is a field of the struct before it, and so on.

        `path`: their physical names. None where nothing is known, or what is known contradicts itself. Deletion vectors
        need no look: `numRecords` counts all rows of the file. `nullCount` may count all or only those that are left,
        and rows are deleted either way.
        """
        try:
            nulls, low, high = (_value(self._of(key, path)) for key in _PER_COLUMN)
            records = _value(self.values.get("numRecords"))
        except (ValueError, ArithmeticError, RecursionError):
            return None
        if nulls is None and low is None and high is None:
            return None
        if nulls is not None and not (_is_count(nulls) and (records is None or _is_count(records))):
            return None
        if nulls is not None and records is not None and nulls >= records:
            has_others = self.values.get("minValues") is not None and self.values.get("maxValues") is not None
            is_alone = nulls == records > 0 and low is None and high is None
            is_sound = is_alone and has_others and shows_values(fields[-1].type)
            return ColumnRange(None, None, may_have_values=False) if is_sound else None
        first, last = _bound(low, fields[-1], is_high=False), _bound(high, fields[-1], is_high=True)
        if first is not None and last is not None:
            from tailer.shape.comparisons import less  # noqa: PLC0415 - only for a condition

            if less(last, first).as_py():
                return None
        # Some writers do not count the nulls of a struct as those of its fields.
        return ColumnRange(first, last, may_be_null=nulls != 0 or len(path) > 1)

    def _of(self, key: str, path: Sequence[str]) -> Any:
        value = self.values.get(key)
        for name in path:
            value = None if value is None else value.get(name)
        return value


@lru_cache(maxsize=64)
def _decoder(paths: _Paths) -> msgspec.json.Decoder[dict[str, Any]]:
    """Return what decodes the statistics of some columns, and passes over those of others."""
    columns = _object(paths) | None
    kinds = {"numRecords": msgspec.Raw, **dict.fromkeys(_PER_COLUMN, columns)}
    return msgspec.json.Decoder(TypedDict("_Statistics", kinds, total=False))  # type: ignore[operator]


def _object(paths: Collection[tuple[str, ...]]) -> Any:
    """Return the type of an object with values at these paths."""
    below: dict[str, list[tuple[str, ...]]] = {}
    for name, *rest in paths:
        below.setdefault(name, []).append(tuple(rest))
    kinds = {name: _object(rest) | None if rest[0] else msgspec.Raw for name, rest in below.items()}
    return TypedDict("_Columns", kinds, total=False)  # type: ignore[operator]


def _value(text: msgspec.Raw | None) -> Any:
    return None if text is None else _JSON.decode(bytes(text).decode())


_PER_COLUMN: Final = ("nullCount", "minValues", "maxValues")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _bound(value: Any, field: pa.Field, *, is_high: bool) -> pa.Scalar | None:
    """Return a bound that holds for all values of which `value` may be the bound; None: it is none, or unclear."""
    kind = field.type
    try:
        if type(value) in (int, Decimal):
            return _number(value, kind, is_high)
        if type(value) is bool:
            return pa.scalar(value, kind) if pa.types.is_boolean(kind) else None
        if type(value) is not str:
            return None
        if pa.types.is_string(kind):
            is_padded = CHAR in (field.metadata or {})
            return None if is_padded else _text(value, kind, is_high)
        if pa.types.is_date32(kind):
            days = days_since_epoch(value)
            return None if days is None or days < _FIRST_DAY else pa.scalar(days, pa.int32()).cast(kind)
        if pa.types.is_timestamp(kind) and kind.unit == "us":
            return _timestamp(value, kind, is_high)
    except (pa.ArrowException, ValueError, ArithmeticError):
        return None
    return None


def _number(value: int | Decimal, kind: pa.DataType, is_high: bool) -> pa.Scalar | None:
    if pa.types.is_signed_integer(kind):
        error = abs(int(value)) >> _DOUBLE_BITS
        return pa.scalar(value + (error if is_high else -error), kind) if isinstance(value, int) else None
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _float(float(value), kind, is_high)
    return _decimal(Decimal(value), kind, is_high) if pa.types.is_decimal128(kind) else None


def _float(number: float, kind: pa.DataType, is_high: bool) -> pa.Scalar | None:
    """Return a bound with all numbers of 32 bits within that `number` may stand for, and both zeros if it is one.

    A column of 64 bits may have files from a time when it had 32. The text of a number of 32 bits names another one of
    64.
    """
    if abs(number) < _FLOAT_LIMIT:
        nearest = struct.unpack("<f", struct.pack("<f", number))[0]
        step = max(abs(nearest) * 2**-23, 2**-149)
        number = max(number, nearest + step) if is_high else min(number, nearest - step)
    elif pa.types.is_float32(kind) or not _NO_FLOAT <= abs(number) < float("inf"):
        return None
    return pa.scalar(number, kind)


def _decimal(number: Decimal, kind: pa.Decimal128Type, is_high: bool) -> pa.Scalar:
    """Return a bound of decimals. Some writers make a floating point number of a decimal."""
    if kind.precision > _DOUBLE_DIGITS:
        error = abs(number).scaleb(-_DOUBLE_DIGITS, _EXACT)
        number = _EXACT.add(number, error) if is_high else _EXACT.subtract(number, error)
    last_digit, rounding = Decimal((0, (1,), -kind.scale)), ROUND_CEILING if is_high else ROUND_FLOOR
    return pa.scalar(number.quantize(last_digit, rounding, _EXACT), kind)


def _timestamp(text: str, kind: pa.TimestampType, is_high: bool) -> pa.Scalar | None:
    is_zoned = kind.tz is not None
    if (_ZONE.fullmatch(text) is not None) is not is_zoned:
        return None
    micros = micros_since_epoch(text, zoned=is_zoned)
    if micros is None or micros < _FIRST_MICROS:
        return None
    return pa.scalar(micros + (_CUT_MICROS if is_high else -_CUT_MICROS), pa.int64()).cast(kind)


def _text(text: str, kind: pa.DataType, is_high: bool) -> pa.Scalar | None:
    """Return a bound of texts in the order of their bytes.

    For a writer that compares UTF-16, characters of four bytes come before those from U+E000 on, and older Delta ends a
    text that it cut with U+FFFD, as if that were the last character. So a text counts up to the first character that
    has another place there.
    """
    if not is_high:
        return pa.scalar(_FOUR_BYTES.split(text, maxsplit=1)[0], kind)
    begin = _AFTER_SURROGATES.split(text, maxsplit=1)[0]
    if begin == text and len(text.encode()) < _CUT_BYTES:
        return pa.scalar(text, kind)
    begin = begin.rstrip(_LAST)  # none comes after it: all that begin so are before the next text without it
    if not begin:
        return None
    following = ord(begin[-1]) + 1
    return pa.scalar(begin[:-1] + chr(0xE000 if following == 0xD800 else following), kind)


def shows_values(kind: pa.DataType) -> bool:
    """Return whether all writers have bounds for a column of `kind` that has a value, where they count nulls.

    Without bounds, a number of nulls proves nothing: polars counted them once for each page of a file.
    """
    return any(check(kind) for check in _WITH_BOUNDS)


_WITH_BOUNDS: Final = (pa.types.is_signed_integer, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_string)


_Path = tuple[str, ...]


def prune(plan: ChangePlan) -> ChangePlan:
    """Leave out the tasks of files without a row that can fulfil the task's condition. The others keep their numbers.

    Of the columns of a condition, those that the rows of a task do not have are unknown. The tasks that stay lose
    their statistics: they are large, and nobody needs them again.
    """
    kept, skipped = [], {}
    pruners: dict[tuple[int, int], _Pruner] = {}
    for task in plan.tasks:
        if task.where is not None:
            key = id(task.where), id(task.schema)
            if key not in pruners:
                pruners[key] = _Pruner(task.where, task.schema)
            if not pruners[key].may_hold(task):
                skipped[task.uri, task.fragment] = task.size_bytes
                continue
        kept.append(task if task.stats is None else replace(task, stats=HELD))
    read = {(task.uri, task.fragment) for task in kept}  # a file may have several tasks
    sizes = [size for file, size in skipped.items() if file not in read]
    return replace(plan, tasks=tuple(kept), skipped=SkippedFiles(len(sizes), sum(sizes)) if skipped else None)


class _Pruner:
    """A condition, held against the files with rows of one schema."""

    def __init__(self, condition: "Condition", schema: pa.Schema) -> None:
        from tailer.shape.tree import columns_of  # noqa: PLC0415 - only for a condition

        own = set(map(physical_name, schema))
        fields = pa.schema([field for field in condition.fields if physical_name(field) in own])
        self._condition = condition
        self._columns = LoggedColumns(fields, {column.path for column in columns_of(condition.expression)})
        self._by_partition: dict[tuple[str | None, ...], bool] = {}

    def may_hold(self, task: ChangeTask) -> bool:
        """Return False only where no row of the task's file fulfils the condition."""
        texts = self._columns.partition_texts(task)
        if texts is None:
            return self._condition.may_hold(self._columns.ranges(task))
        if texts not in self._by_partition:
            self._by_partition[texts] = self._condition.may_hold(self._columns.ranges(task))
        return self._by_partition[texts]


class LoggedColumns:
    """Values of some columns in each file, as far as the log has them, by their `paths`.

    `fields`: the columns of the table at the time of the rows, with metadata as in `ChangeTask.schema`.
    """

    def __init__(self, fields: pa.Schema, paths: Iterable[_Path]) -> None:
        by_path = {path: columns for path in paths if (columns := fields_of(fields, path))}
        self._columns = {path: (columns, tuple(map(physical_name, columns))) for path, columns in by_path.items()}
        leaves = (names for columns, names in self._columns.values() if not is_struct(columns[-1].type))
        self._leaves: _Paths = tuple(sorted(leaves))

    def partition_texts(self, task: ChangeTask) -> tuple[str | None, ...] | None:
        """Return the values in the log if all columns are partition columns; None: they are not."""
        logged = dict(task.partition_values)
        names = [names[0] for _, names in self._columns.values()]
        return tuple(logged[name] for name in names) if all(name in logged for name in names) else None

    def ranges(self, task: ChangeTask) -> Ranges:
        """Return what the log says of the values in a task's file."""
        logged, ranges = dict(task.partition_values), {}
        stats = None if task.stats is None else LogStatistics.parse(task.stats, self._leaves)
        for path, (columns, names) in self._columns.items():
            if names[0] in logged:
                column_range = partition_range(task, columns[0], logged[names[0]]) if len(columns) == 1 else None
            else:
                column_range = None if stats is None or names not in self._leaves else stats.range(columns, names)
            if column_range is not None:
                ranges[path] = column_range
        return ranges


def partition_range(task: ChangeTask, field: pa.Field, text: str | None) -> ColumnRange | None:
    """Return the value of a partition column as a range; None where the log has a text that is no value of it.

    Reading the rows raises an error about such a text.
    """
    try:
        value = partition_scalar(text, field, task.table, task.version, task.uri)
    except ChangesUnavailable:
        return None
    if not value.is_valid:
        return ColumnRange(None, None, may_have_values=False)
    if pa.types.is_floating(field.type):
        number = value.as_py()
        if isnan(number):
            return ColumnRange(None, None, may_be_null=False)
        if number == 0:
            return ColumnRange(pa.scalar(-0.0, field.type), pa.scalar(0.0, field.type), may_be_null=False)
    return ColumnRange(value, value, may_be_null=False)


def fields_of(fields: pa.Schema, path: tuple[str, ...]) -> list[pa.Field]:
    """Return the field of each name of a path through structs; none where the table has no such column of its own."""
    columns: list[pa.Field] = []
    level = list(fields)
    for name in path:
        named = [field for field in level if field.name == name]
        if len(named) != 1:
            return []
        columns.append(named[0])
        level = list(named[0].type) if is_struct(named[0].type) else []
    is_own = bool(columns) and ROW_TRACKING not in (columns[0].metadata or {}) and path_of(columns[0]) is None
    return columns if is_own else []


def paths_of(fields: pa.Schema | pa.StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all columns and of their fields in structs."""
    for field in fields:
        path = (*above, field.name)
        yield path
        if is_struct(field.type):
            yield from paths_of(field.type, path)

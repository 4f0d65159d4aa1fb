"""Projection of a Parquet file's columns to the table's: found by field id or physical name, cast without loss.

A file may be older than the table's schema: columns it lacks are null, or have the default that the schema names, and
values of narrower types are cast up, on every level of nesting (PROTOCOL.md, "Type Widening"). `reads_as` knows the
types of a file that can be read as a type of the table; any other type stops the task (invariant 5).

Variants are shredded in each file as its writer liked, and put together again here. CHARs are padded.

Row ids come from the file, or from the log where the file has none (PROTOCOL.md, "Row Tracking").

Metadata columns whose value is one for many rows are made once, and shared by all batches.
"""

import struct
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import DataCorrupt, UnsupportedFeature
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ROW_ID, VARIANT, ChangeType, has_variant, is_variant
from tailer.files.partition_values import partition_scalar
from tailer.plan import ROW_TRACKING, ChangeTask, RowTracking, TaskKind, output_schema
from tailer.read.parquet.batch_sizes import MAX_ROWS
from tailer.read.parquet.file_fields import Corrupt, FileFields, are_raw, reads_as
from tailer.read.parquet.legacy_datetimes import OldCalendar, decoder
from tailer.schema.columns import DEFAULT, bare_type, physical_name
from tailer.schema.text_types import char_lengths, padding
from tailer.schema.variant_paths import path_of, source_of
from tailer.variant import InvalidVariant, at_path, unshred
from tailer.variant.nested import Change, Changes, changed

__all__ = ["CHANGE_FILES", "Projection", "repeated", "stamps"]

_TIMESTAMP: Final = METADATA_FIELDS[-1].type


@dataclass(frozen=True, slots=True)
class _Rows:
    """Consecutive rows of the file: position of the first, their number, their columns by name."""

    position: int
    count: int
    columns: Mapping[str, pa.Array]


_Column = Callable[[_Rows], pa.Array]
_REWRITE: Final = "It is not guessed. Write the rows again with their types, and start after that version."
CHANGE_FILES: Final = (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)


class Projection:
    """Converts batches of one file to the task's columns.

    `columns` are the columns of the file it needs, `schema` is that of the change rows. `padded`: of those columns that
    have CHARs, the greatest length of these. `decoders`: of those columns that have timestamps of 96 bits, what decodes
    them from binary; `int96` are the paths of the timestamps. `annotated`: the schema of the file with its UUIDs
    (`tailer.read.parquet.layout`), which Variants may be shredded to.
    When made, raises `DataCorrupt` where the file cannot hold the task's rows, and `UnsupportedFeature` where it does
    not say what its numbers mean.
    """

    def __init__(
        self,
        task: ChangeTask,
        file: pa.Schema,
        calendar: OldCalendar | None = None,
        int96: Collection[str] = (),
        annotated: pa.Schema | None = None,
    ) -> None:
        self._task = task
        self._annotated = file if annotated is None else annotated
        self._calendar = calendar
        self._int96 = int96
        values = dict(task.partition_values)
        self._there = there = FileFields(file, self._corrupt)
        self._logged: list[tuple[int, pa.Field, pa.Field]] = []
        self._sources: list[_Column] = []
        self.columns: list[str] = []
        self.padded: dict[str, int] = {}
        self.schema = output_schema(task.schema)
        if task.kind in CHANGE_FILES:
            if file.names.count(CHANGE_TYPE) != 1 or not reads_as(file.field(CHANGE_TYPE).type, pa.string()):
                raise self._corrupt(f"a change file must have one {CHANGE_TYPE} column, of text")
            self.columns.append(CHANGE_TYPE)
        for index, (field, bare) in enumerate(zip(task.schema, self.schema, strict=False)):
            name = physical_name(field)
            if field.metadata and ROW_TRACKING in field.metadata:
                self._logged.append((index, field, bare))
                self._sources.append(self._tracked(bare, there))
            elif name in values:
                self._logged.append((index, field, bare))
                self._sources.append(self._partition(field, values[name]))
            else:
                self._sources.append(self._column(field, bare.type, there))
        self._wanted = tuple(self.columns)
        self.decoders = {name: decoder(file.field(name).type) for name in self._wanted if self._int96_in(name)}
        if not self.columns:
            # Row counts come from batches, and a batch needs a column to have rows.
            self.columns.extend(file.names[:1])

    def of(self, task: ChangeTask) -> "Projection":
        """Return the projection for `task`, which differs only in values that the log has for its file; maybe `self`.

        These are the values of the same partition columns, and the numbers of `RowTracking`. Raises
        `ChangesUnavailable` for a text that is no value of its column.
        """
        if not self._logged:
            return self
        other = copy(self)
        other.set_task(task)
        return other

    def set_task(self, task: ChangeTask) -> None:
        """Take the values that the log has for `task`. Raises as `of`."""
        self._task, self._sources, values = task, list(self._sources), dict(task.partition_values)
        for index, field, bare in self._logged:
            if field.metadata and ROW_TRACKING in field.metadata:
                self._sources[index] = self._tracked(bare, self._there)
            else:
                self._sources[index] = self._partition(field, values[physical_name(field)])

    def apply(self, batch: pa.RecordBatch, position: int) -> list[pa.Array]:
        """Return the task's columns for the rows of `batch`, the first of which is at `position` in the file.

        Raises `UnsupportedFeature` for values in a calendar that is not ours (`calendar`), `ArrowInvalid` for any other
        value that cannot be read.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= {name: decode(columns[name]) for name, decode in self.decoders.items()}
        if self._calendar is not None:
            self._calendar.check({name: columns[name] for name in self._wanted})
        rows = _Rows(position, batch.num_rows, columns)
        return [source(rows) for source in self._sources]

    def _partition(self, field: pa.Field, text: str | None) -> _Column:
        return _constant(partition_scalar(text, field, self._task.table, self._task.version, self._task.uri))

    def _int96_in(self, column: str) -> list[str]:
        return [path for path in self._int96 if f"{path}.".startswith(f"{column}.")]

    def _column(self, field: pa.Field, bare: pa.DataType, there: "FileFields") -> _Column:
        match = there.find(source_of(field))
        if match is None or pa.types.is_null(field.type):
            return _constant(self._default(field, bare))
        if match.name not in self.columns:
            self.columns.append(match.name)
        if has_variant(field.type):
            column = self._with_variants(field, match, bare)
        else:
            column = _cast(match.name, self._in_file(field, match.type), bare)
        if defaults := self._defaults(field.type, match.type):
            return lambda rows: changed(column(rows), defaults)
        lengths = char_lengths(field)
        if not lengths:
            return column
        self.padded[match.name] = max(lengths)
        changes = padding(field)
        return lambda rows: changed(column(rows), changes)

    def _with_variants(self, field: pa.Field, match: pa.Field, bare: pa.DataType) -> _Column:
        if any("typed_value" in path.split(".") for path in self._int96_in(match.name)):
            # Parquet does not allow them: nothing says whether they have a time zone.
            raise self._corrupt(f"column {field.name} has Variants that are shredded to timestamps of 96 bits")
        stored = self._annotated.field(match.name).type
        changes = _variants(field.type, match.type, stored, field.name, self._corrupt)
        none = changed(pa.nulls(0, match.type), changes)
        cast = _cast(match.name, self._in_file(field, none.type), bare)
        path = None if pa.types.is_null(none.type) else path_of(field)

        def column(rows: _Rows) -> pa.Array:
            try:
                values = changed(rows.columns[match.name], changes)
                values = values if path is None else at_path(values, path).cast(VARIANT)
            except InvalidVariant as error:
                # Whoever reads the file names it: a projection serves all files that are alike.
                reason = f"column {field.name}, in the rows from {rows.position} on: {error}"
                raise pa.ArrowInvalid(reason) from error
            return cast(_Rows(rows.position, rows.count, {match.name: values}))

        return column

    def _tracked(self, field: pa.Field, there: "FileFields") -> _Column:
        """Return a row tracking column: from the file if it has a value for the row, else from the log."""
        tracking = (None if self._task.kind in CHANGE_FILES else self._task.tracking) or RowTracking()
        if field.name == ROW_ID:
            name, first = tracking.id_column, tracking.base_row_id
            from_log = _constant(pa.scalar(None, pa.int64())) if first is None else _numbered(first)
        else:
            name = tracking.version_column
            from_log = _constant(pa.scalar(tracking.default_row_commit_version, pa.int64()))
        if name is None:
            return from_log
        stored = self._column(pa.field(name, pa.int64()), pa.int64(), there)
        return lambda rows: pc.coalesce(stored(rows), from_log(rows))

    def _default(self, field: pa.Field, bare: pa.DataType) -> pa.Scalar:
        text = (field.metadata or {}).get(DEFAULT)
        if text is None:
            return pa.scalar(None, bare)
        value = text.decode(errors="surrogateescape")
        return partition_scalar(value, field, self._task.table, self._task.version, self._task.uri)

    def _defaults(self, wanted: pa.DataType, file_type: pa.DataType) -> Changes:
        """Return what gives fields of structs that the file lacks their defaults, on every level."""
        changes: dict[int, Changes | Change] = {}
        if is_variant(wanted):
            return changes
        if pa.types.is_struct(wanted) and pa.types.is_struct(file_type):
            there = FileFields(file_type, self._corrupt)
            for index, field in enumerate(wanted):
                match = there.find(field)
                if match is not None:
                    changes[index] = self._defaults(field.type, match.type)
                elif DEFAULT in (field.metadata or {}):
                    changes[index] = partial(_repeat, self._default(field, bare_type(field.type)))
        elif pa.types.is_list(wanted) and _is_list(file_type):
            changes[0] = self._defaults(wanted.value_type, file_type.value_type)
        elif pa.types.is_map(wanted) and pa.types.is_map(file_type):
            changes[1] = self._defaults(wanted.item_type, file_type.item_type)
        return {index: change for index, change in changes.items() if change}

    def _in_file(self, field: pa.Field, file_type: pa.DataType) -> pa.DataType:
        try:
            return _as_in_file(field.type, file_type, field.name, self._corrupt)
        except _RawNumbersError as error:
            feature, reason = "the meaning of plain numbers", f"{error} ({self._task.uri})"
            raise UnsupportedFeature(self._task.table, feature, self._task.version, reason, _REWRITE) from None

    def _corrupt(self, reason: str) -> DataCorrupt:
        return DataCorrupt(self._task.table, self._task.version, self._task.uri, reason)


def _repeat(value: pa.Scalar, column: pa.Array) -> pa.Array:
    return pa.repeat(value, len(column))


def _constant(value: pa.Scalar) -> _Column:
    return lambda rows: pa.repeat(value, rows.count)


def _numbered(first: int) -> _Column:
    def column(rows: _Rows) -> pa.Array:
        positions = pa.array(range(rows.position, rows.position + rows.count), pa.int64())
        return pc.add_checked(positions, pa.scalar(first, pa.int64()))

    return column


def _cast(name: str, in_file: pa.DataType, wanted: pa.DataType) -> _Column:
    def column(rows: _Rows) -> pa.Array:
        array = rows.columns[name]
        if not array.type.equals(in_file):
            try:
                array = array.cast(in_file)
            except pa.ArrowInvalid:  # whose text has the value
                raise pa.ArrowInvalid(f"column {name} has a value that is no {in_file}") from None
        # From physical to logical names: another label for the same buffers.
        return array if array.type.equals(wanted, check_metadata=True) else array.view(wanted)

    return column


class _RawNumbersError(Exception):
    """A column that is stored as plain numbers, and has another type in the table."""


def _as_in_file(wanted: pa.DataType, file_type: pa.DataType, path: str, corrupt: Corrupt) -> pa.DataType:
    """Return `wanted` with the names of its fields in the file, so that a cast can match them.

    Raises unless values of `file_type` read as `wanted`, on every level.
    """
    if is_variant(wanted) and is_variant(file_type):
        return wanted
    if pa.types.is_struct(wanted) and pa.types.is_struct(file_type):
        there = FileFields(file_type, corrupt)
        fields = []
        for field in wanted:
            match, name = there.find(field), f"{path}.{field.name}"
            if match is None:
                fields.append(pa.field(physical_name(field), field.type))
            else:
                fields.append(pa.field(match.name, _as_in_file(field.type, match.type, name, corrupt)))
        return pa.struct(fields)
    if pa.types.is_list(wanted) and _is_list(file_type):
        element = _as_in_file(wanted.value_type, file_type.value_type, f"{path}.element", corrupt)
        return pa.list_(pa.field("element", element))
    if pa.types.is_large_list(wanted) and pa.types.is_large_list(file_type):
        element = _as_in_file(wanted.value_type, file_type.value_type, f"{path}.element", corrupt)
        return pa.large_list(pa.field("element", element))
    if pa.types.is_map(wanted) and pa.types.is_map(file_type):
        key = _as_in_file(wanted.key_type, file_type.key_type, f"{path}.key", corrupt)
        return pa.map_(key, _as_in_file(wanted.item_type, file_type.item_type, f"{path}.value", corrupt))
    if not reads_as(file_type, wanted):
        reason = f"column {path} is {file_type} in the file, {wanted} in the table"
        raise _RawNumbersError(reason) if are_raw(file_type, wanted) else corrupt(reason)
    return wanted


def _variants(
    wanted: pa.DataType, file_type: pa.DataType, stored: pa.DataType, path: str, corrupt: Corrupt
) -> Changes | Change:
    """Return what turns values of `file_type` into Variants wherever `wanted` has Variants, on every level.

    `stored`: `file_type` with UUIDs.
    """
    if is_variant(wanted) and not pa.types.is_null(file_type):
        try:
            unshred(pa.nulls(0, file_type).cast(stored))
        except InvalidVariant as error:
            raise corrupt(f"column {path}: {error}") from error
        return lambda column: unshred(column.cast(stored)).cast(VARIANT)
    children: list[tuple[int, pa.DataType, pa.DataType, pa.DataType, str]] = []
    if pa.types.is_struct(wanted) and pa.types.is_struct(file_type):
        there, names = FileFields(file_type, corrupt), [field.name for field in file_type]
        matches = ((field, there.find(field)) for field in wanted)
        children = [
            (index := names.index(match.name), field.type, match.type, stored.field(index).type, field.name)
            for field, match in matches
            if match is not None
        ]
    elif pa.types.is_list(wanted) and _is_list(file_type):
        children = [(0, wanted.value_type, file_type.value_type, stored.value_type, "element")]
    elif pa.types.is_map(wanted) and pa.types.is_map(file_type):
        children = [
            (0, wanted.key_type, file_type.key_type, stored.key_type, "key"),
            (1, wanted.item_type, file_type.item_type, stored.item_type, "value"),
        ]
    return {
        index: _variants(kind, other, annotated, f"{path}.{name}", corrupt)
        for index, kind, other, annotated, name in children
        if has_variant(kind)
    }


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


@lru_cache(maxsize=16)
def stamps(version: int, timestamp_ms: int, count: int) -> tuple[pa.Array, pa.Array]:
    """Return the columns of the commit's version and timestamp for `count` rows."""
    return _repeated_int64(version, pa.int64(), count), _repeated_int64(timestamp_ms * 1000, _TIMESTAMP, count)


@cache
def repeated(kind: ChangeType) -> pa.Array:
    """Return one change type for `MAX_ROWS` rows."""
    # Given plain text, Arrow looks for `dateutil`, which costs more than opening a small file.
    return pa.repeat(pa.scalar(kind.value, pa.string()), MAX_ROWS)


def _repeated_int64(value: int, kind: pa.DataType, count: int) -> pa.Array:
    # Twelve times as fast as `pa.repeat`, which appends one value after the other.
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(struct.pack("=q", value) * count)])

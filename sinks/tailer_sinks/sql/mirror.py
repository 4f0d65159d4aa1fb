"""A mirror: a table that equals the source at a version. Rows are identified by a key.

A version deletes a key at most once and inserts it at most once, after that. So the rows of a version need no order.
Rows of several versions are merged at once: of each key, the first change says whether the table must have it, and the
last one whether the table has it afterwards. Of a key that comes and goes again, the table is asked whether it has it.
Whatever contradicts that stops the pipeline: two rows with one key, a key that is null, an insert of a key that is
there, a delete of one that is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    METADATA_FIELDS,
    ChangeBatch,
    ChangeType,
    Gap,
    is_struct,
    joined_rows,
)
from tailer.plan import END, SNAPSHOT_TASKS
from tailer.sink import Progress
from tailer_sinks.encoding.typed import fits
from tailer_sinks.mirrors import (
    CONTRADICTED,
    RESNAPSHOT,
    check_never_null,
    chosen_key,
    deleted_and_inserted,
    key_faults,
)
from tailer_sinks.sql.adoption import check_types, faults, fitted, followed
from tailer_sinks.sql.databases.dialect import (
    Columns,
    Connection,
    Dialect,
    UniqueViolationError,
    column_list,
    quoted,
)
from tailer_sinks.sql.databases.existing import ExistingTable
from tailer_sinks.sql.databases.texts import cast_or_kept, holds_json
from tailer_sinks.sql.target import Rows, Target, column_faults, exact_types, insert, plain_schema

__all__ = ["IS_INSERT", "Mirror"]

_METADATA: Final = frozenset(each.name for each in METADATA_FIELDS)
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
IS_INSERT: Final = CHANGE_TYPE  # of rows that wait: 1 or 0


class Mirror(Target):
    """See the module and `Target`. `own`: the columns that the table has beside those of the source.

    `among`: the condition of rows that their key identifies.
    `configured`: the key of the options; empty: row ids, or else the columns of `source_key`, if rows have all of them.
    """

    mode = "mirror"
    may_differ = False
    keeps_rows = False
    own: ClassVar[tuple[pa.Field, ...]] = ()
    among: ClassVar[str] = "1 = 1"

    def __init__(
        self,
        name: str,
        dialect: Dialect,
        table: str,
        configured: Sequence[str],
        source_key: Sequence[str] = (),
        *,
        adopts: bool = False,
    ) -> None:
        self.table = table
        self.key: tuple[str, ...] = tuple(configured)
        self.adopts = adopts
        self.existing: ExistingTable | None = None
        self._source_key = tuple(source_key)
        self._name = name
        self._dialect = dialect

    @property
    @override
    def rows_now(self) -> str:
        return self._dialect.name_of(self.table)

    @override
    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        columns = _without_metadata(schema)
        yield from column_faults(self._name, self._dialect, columns)
        key = chosen_key(columns.names, self.key, self._source_key)
        yield from key_faults(self._name, self.table, columns, key, holds_json)
        if self.existing is not None:
            yield from faults(self._name, self._dialect, self.table, self.existing, exact_types(columns), key)

    @override
    def start(self, schema: pa.Schema) -> pa.Schema:
        for fault in self.faults(schema):
            raise fault
        shape = self._plain(schema)
        self.key = chosen_key(shape.names, self.key, self._source_key)
        return shape if self.existing is None else fitted(self.existing, shape)

    @override
    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        plain = self._plain(after)
        wanted = plain if self.existing is None else fitted(self.existing, plain)
        if origins is None:
            origins = {field.name: field.name for field in wanted if shape.get_field_index(field.name) >= 0}
        kept = {new: old for new, old in origins.items() if shape.get_field_index(old) >= 0}
        dropped = [field.name for field in shape if field.name not in kept.values()]
        if lost := [column for column in self.key if column in dropped]:
            remedy = "Set key to other columns, and run `tailer resnapshot PIPELINE`."
            reason = "; ".join(f"the key column {column} of {self.table} was dropped" for column in lost)
            raise SinkRejected(self._name, reason, remedy)
        widened, added, emptied = [], [], []
        for field in wanted:
            if field.name not in kept:
                added.append(field)
                continue
            kind = shape.field(kept[field.name]).type
            nested = holds_json(kind) and holds_json(field.type)
            if kind == field.type or (nested and _only_adds(kind, field.type)):
                continue
            if not (holds_json(kind) or holds_json(field.type)) and fits(kind, field.type):
                widened.append((field.name, kind, field.type))
            else:
                emptied.append(field.name)
        renamed = [(old, new) for new, old in kept.items() if old != new and new not in emptied]
        names = {old: new for new, old in kept.items()}
        self.key = tuple(names[column] for column in self.key)
        if lost := [column for column in self.key if column in emptied]:
            reason = "; ".join(f"the key column {column} of {self.table} has another type now" for column in lost)
            raise SinkRejected(self._name, reason, RESNAPSHOT)
        dropped += [kept[name] for name in emptied]
        added += [wanted.field(name) for name in emptied]
        change = Columns(wanted, dropped, renamed, widened, added, emptied, self.key)
        if self.existing is None:
            return change
        return followed(self._name, self._dialect, self.table, self.existing, change, plain)

    @override
    def staging(self, shape: pa.Schema, schema: pa.Schema) -> pa.Schema:
        return pa.schema([*shape, pa.field(COMMIT_VERSION, pa.int64()), pa.field(IS_INSERT, pa.int16())])

    @override
    def staged(self, batches: Sequence[ChangeBatch], staging: pa.Schema, rows: Rows) -> list[pa.RecordBatch]:
        """Of deleted rows only the key is kept."""
        joined = joined_rows(batches)
        check_never_null(self._name, self.table, joined, self.key)
        if SNAPSHOT_TASKS <= batches[0].task < END:
            rows.replace = True
        parts = self._parted(batches, joined)
        rows.note(batches, deletes=bool(len(parts[0])))
        return [self._waiting(part, staging, is_insert=is_insert) for is_insert, part in enumerate(parts) if len(part)]

    @override
    def gap(self, gap: Gap, staging: pa.Schema) -> None:
        """A mirror cannot leave changes out."""
        if not gap.snapshot:
            reason = f"versions {gap.first_version} to {gap.version} are lost, and {self.table} would not be a mirror"
            remedy = 'Set on_data_loss = "resnapshot", or ask for it: `tailer resnapshot PIPELINE`.'
            raise SinkRejected(self._name, reason, remedy)

    @override
    def constraint(self) -> str:
        return f"PRIMARY KEY ({column_list(self.key)})"

    def shape_now(self, shape: pa.Schema) -> pa.Schema:
        """Return the columns of `shape` with the types of the table, which a user may have widened meanwhile.

        Raises `SinkRejected` for a type that does not hold their values.
        """
        if self.existing is None:
            return shape
        check_types(self._name, self._dialect, self.table, self.existing, shape)
        return fitted(self.existing, shape)

    def rows_of(self, version: int, *, is_newest: bool) -> str:
        """Return the condition of the rows of the source at `version`. `is_newest`: of all that the table has."""
        return "1 = 1"

    def repair(
        self, connection: Connection, removed: str, added: str, names: Sequence[str], version: int, time_us: int
    ) -> None:
        """Remove the rows at `version` with keys of the table `removed`, and add those of the table `added`.

        `time_us`: of the version.
        """
        key = column_list(self.key)
        table = self._dialect.name_of(self.table)
        connection.execute(f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {removed})")
        insert(connection, self._dialect, self.table, names, self.key, added)

    @override
    def merge(self, connection: Connection, waiting: str, staging: pa.Schema, rows: Rows) -> None:
        table = self._dialect.name_of(self.table)
        if rows.replace:
            connection.execute(f"DELETE FROM {table}")
        if rows.versions is None:
            return
        source, inserted = self._delete(connection, waiting, rows) if rows.deletes else (waiting, "1 = 1")
        names = [name for name in staging.names if name not in (COMMIT_VERSION, IS_INSERT)]
        self.insert(connection, f"{source} WHERE {inserted}", names, rows)

    def insert(
        self, connection: Connection, source: str, names: Sequence[str], rows: Rows, values: Mapping[str, str] = _NONE
    ) -> None:
        """Insert the rows of `source`, see `insert`. Raises `SinkRejected` for a key that is there, or twice."""
        try:
            insert(connection, self._dialect, self.table, names, self.key, source, values=values, among=self.among)
        except UniqueViolationError as error:
            if self.existing is not None and error.index and error.index not in self.existing.key_indexes(self.key):
                reason = f"{_versions(rows)} have rows that the unique index {error.index} of {self.table} refuses"
                raise SinkRejected(self._name, reason, "Drop the index, if the source may have such rows.") from error
            raise self.there_already(rows) from error

    @override
    def reset_refusal(self, connection: Connection, there: Progress | None, wanted: Progress) -> tuple[str, str] | None:
        """The table cannot get to another version without rows.

        A source that gets an id back that it had before goes on from where the table is under the other one.
        """
        if there is not None and there.app_id != wanted.app_id and there.position == wanted.position:
            return None
        return f"{self.table} would not be a mirror of version {wanted.position.version}", RESNAPSHOT

    def _delete(self, connection: Connection, waiting: str, rows: Rows) -> tuple[str, str]:
        """Delete the keys that the table must have. Return the source of the changes, and which of them insert keys.

        Raises `SinkRejected` where the table, or changes of one key, contradict that.
        """
        table, key, is_insert = self._dialect.name_of(self.table), column_list(self.key), quoted(IS_INSERT)
        source, inserted, deleted = waiting, f"{is_insert} = 1", f"{is_insert} = 0"
        gone = "1 = 0"
        if rows.several:
            window = f"OVER (PARTITION BY {key} ORDER BY {quoted(COMMIT_VERSION)}, {is_insert})"
            source = (
                f"(SELECT *, lag({is_insert}) {window} AS lake_tailer_before, "
                f"lead({is_insert}) {window} AS lake_tailer_after FROM {waiting}) AS changes"
            )
            gone = f"{deleted} AND lake_tailer_before IS NOT NULL AND lake_tailer_after IS NULL"
            inserted += " AND lake_tailer_after IS NULL"
            deleted += " AND lake_tailer_before IS NULL"
        wanted, asked = self.counts(connection, source, rows, deleted, gone)
        done = connection.execute(f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {source} WHERE {deleted})")
        if done != wanted:
            raise self.not_there(rows, wanted, done)
        # A key that comes and goes is neither deleted nor inserted here, and must not have been there before.
        keys = f"SELECT {key} FROM {source} WHERE {gone}"
        if asked and connection.query(f"SELECT 1 FROM {table} WHERE ({key}) IN ({keys}) LIMIT 1"):
            raise self.there_already(rows)
        return source, inserted

    def counts(self, connection: Connection, changes: str, rows: Rows, *conditions: str) -> list[int]:
        """Return how many changes fulfil each condition.

        Raises `SinkRejected` if a key of several versions is deleted or inserted twice, with nothing in between.
        """
        twice = f"{quoted(IS_INSERT)} = lake_tailer_before" if rows.several and rows.deletes else "1 = 0"
        selected = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in (twice, *conditions))
        ((contradictions, *numbers),) = connection.query(f"SELECT {selected} FROM {changes}")
        if contradictions:
            raise self._contradiction(f"{_versions(rows)} insert or delete a key twice")
        return numbers

    def there_already(self, rows: Rows) -> SinkRejected:
        """Return the error of a key that cannot be inserted."""
        return self._contradiction(f"{_versions(rows)} insert a key that {self.table} has, or insert it twice")

    def not_there(self, rows: Rows, wanted: int, done: int) -> SinkRejected:
        """Return the error of keys that cannot be deleted: of those that are `wanted`, only `done` are there."""
        return self._contradiction(f"of {wanted} keys that {_versions(rows)} delete, {done} are in {self.table}")

    def _contradiction(self, reason: str) -> SinkRejected:
        return SinkRejected(self._name, f"{reason}; the key is {', '.join(self.key)}", CONTRADICTED)

    def _plain(self, schema: pa.Schema) -> pa.Schema:
        return plain_schema(self._name, self._dialect, _without_metadata(schema))

    def _parted(self, batches: Sequence[ChangeBatch], rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows that are deleted, and those that are inserted."""
        kinds = {batch.kind for batch in batches}
        if kinds <= {ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE}:
            return rows.slice(0, 0), rows
        if kinds <= {ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE}:
            return rows, rows.slice(0, 0)
        deleted, inserted = deleted_and_inserted(self._name, rows)
        return rows.filter(deleted), rows.filter(inserted)

    def _waiting(self, rows: pa.RecordBatch, staging: pa.Schema, *, is_insert: int) -> pa.RecordBatch:
        columns = []
        for field in staging:
            if field.name == IS_INSERT:
                columns.append(pa.repeat(pa.scalar(is_insert, pa.int16()), len(rows)))
            elif not is_insert and field.name not in (*self.key, COMMIT_VERSION, COMMIT_TIMESTAMP):
                columns.append(pa.nulls(len(rows), field.type))
            else:
                columns.append(cast_or_kept(rows.column(field.name), field.type))
        return pa.record_batch(columns, staging.names)


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([column for column in schema if column.name not in _METADATA])


def _only_adds(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether JSON of `old` is JSON of `new`, where fields that are added are null."""
    if old == new:
        return True
    if is_struct(old) and is_struct(new):
        return all(
            (index := new.get_field_index(field.name)) >= 0 and _only_adds(field.type, new.field(index).type)
            for field in old
        )
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _only_adds(old.value_type, new.value_type)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return old.key_type == new.key_type and _only_adds(old.item_type, new.item_type)
    integers = pa.types.is_signed_integer(old) and pa.types.is_signed_integer(new)
    return bool(integers and old.bit_width < new.bit_width)


def _versions(rows: Rows) -> str:
    first, last = rows.versions or (0, 0)
    return f"the changes of version {first}" if first == last else f"the changes of versions {first} to {last}"

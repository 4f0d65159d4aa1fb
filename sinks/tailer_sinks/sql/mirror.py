"""A mirror: a table that equals the source at a version. Rows are identified by a key.

A version deletes a key at most once and inserts it at most once, after that. So the rows of a version need no order.
Rows of several versions are merged at once: of each key, the first change says whether the table must have it, and the
last one whether the table has it afterwards. Of a key that comes and goes again, the table is asked whether it has it.
Whatever contradicts that stops the pipeline: two rows with one key, a key that is null, an insert of a key that is
there, a delete of one that is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected, did_you_mean
from tailer.events import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    METADATA_FIELDS,
    ROW_ID,
    ChangeBatch,
    ChangeType,
    Gap,
    is_struct,
    joined_rows,
)
from tailer.plan import END, SNAPSHOT_TASKS, Position
from tailer_sinks.encoding.typed import fits
from tailer_sinks.sql.databases.dialect import (
    Columns,
    Connection,
    Dialect,
    UniqueViolationError,
    column_list,
    quoted,
)
from tailer_sinks.sql.databases.texts import holds_json
from tailer_sinks.sql.target import Rows, column_faults, insert, plain_schema

__all__ = ["Mirror"]

_METADATA: Final = frozenset(each.name for each in METADATA_FIELDS)
_INSERTS: Final = pa.array([ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE], pa.string())
_DELETES: Final = pa.array([ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE], pa.string())
_IS_INSERT: Final = CHANGE_TYPE  # of rows that wait: 1 or 0
_RESNAPSHOT: Final = "Ask for a snapshot with `tailer resnapshot PIPELINE`."


class Mirror:
    """See the module and `Target`.

    `configured`: the key of the options; empty: row ids, or else the columns of `source_key`, if rows have all of them.
    """

    mode: Final = "mirror"
    may_differ: Final = False

    def __init__(
        self, name: str, dialect: Dialect, table: str, configured: Sequence[str], source_key: Sequence[str] = ()
    ) -> None:
        self.table = table
        self.key: tuple[str, ...] = tuple(configured)
        self._source_key = tuple(source_key)
        self._name = name
        self._dialect = dialect

    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        """See `Target.faults`."""
        columns = _without_metadata(schema)
        yield from column_faults(self._name, self._dialect, columns)
        key = self._key_in(columns)
        if not key:
            yield self._no_key()
        for column in key:
            at = columns.get_field_index(column)
            if at < 0:
                known = f"The columns are: {', '.join(columns.names)}."
                near = did_you_mean(column, columns.names)
                step = "Set key to some of them, and run `tailer resnapshot PIPELINE`."
                remedy = " ".join(filter(None, (known, near, step)))
                yield SinkRejected(self._name, f"the key column {column} is not a column of {self.table}", remedy)
            elif _identifies_nothing(columns.field(at).type):
                reason = f"the key column {column} has type {columns.field(at).type}, whose values identify no row"
                yield SinkRejected(self._name, reason, "Set key to columns of other types.")

    def start(self, schema: pa.Schema) -> pa.Schema:
        """See `Target.start`."""
        for fault in self.faults(schema):
            raise fault
        shape = self._plain(schema)
        self.key = self._key_in(shape)
        return shape

    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        """See `Target.change`."""
        wanted = self._plain(after)
        if origins is None:
            origins = {each.name: each.name for each in wanted if shape.get_field_index(each.name) >= 0}
        kept = {new: old for new, old in origins.items() if shape.get_field_index(old) >= 0}
        dropped = [each.name for each in shape if each.name not in kept.values()]
        if lost := [column for column in self.key if column in dropped]:
            remedy = "Set key to other columns, and run `tailer resnapshot PIPELINE`."
            reason = "; ".join(f"the key column {column} of {self.table} was dropped" for column in lost)
            raise SinkRejected(self._name, reason, remedy)
        widened, added, emptied = [], [], []
        for each in wanted:
            if each.name not in kept:
                added.append(each)
                continue
            known = shape.field(kept[each.name]).type
            nested = holds_json(known) and holds_json(each.type)
            if known == each.type or (nested and _only_adds(known, each.type)):
                continue
            if not (holds_json(known) or holds_json(each.type)) and fits(known, each.type):
                widened.append((each.name, known, each.type))
            else:
                emptied.append(each.name)
        renamed = [(old, new) for new, old in kept.items() if old != new and new not in emptied]
        names = {old: new for new, old in kept.items()}
        self.key = tuple(names[column] for column in self.key)
        if lost := [column for column in self.key if column in emptied]:
            reason = "; ".join(f"the key column {column} of {self.table} has another type now" for column in lost)
            raise SinkRejected(self._name, reason, _RESNAPSHOT)
        dropped += [kept[name] for name in emptied]
        added += [wanted.field(name) for name in emptied]
        return Columns(wanted, dropped, renamed, widened, added, emptied, self.key)

    def staging(self, shape: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """See `Target.staging`."""
        return pa.schema([*shape, pa.field(COMMIT_VERSION, pa.int64()), pa.field(_IS_INSERT, pa.int16())])

    def staged(self, batches: Sequence[ChangeBatch], staging: pa.Schema, rows: Rows) -> list[pa.RecordBatch]:
        """See `Target.staged`. Of deleted rows only the key is kept."""
        joined = joined_rows(batches)
        for column in self.key:
            if (values := joined.column(column)).null_count:
                if column == ROW_ID:
                    raise self._no_key()
                version = joined.column(COMMIT_VERSION).filter(values.is_null())[0]
                reason = f"the key column {column} of {self.table} is null in version {version}"
                raise SinkRejected(self._name, reason, "Set key to columns that are never null.")
        if SNAPSHOT_TASKS <= batches[0].task < END:
            rows.replace = True
        parts = self._parted(batches, joined)
        rows.note(batches, deletes=bool(len(parts[0])))
        return [self._waiting(part, staging, is_insert=at) for at, part in enumerate(parts) if len(part)]

    def gap(self, gap: Gap, staging: pa.Schema) -> None:
        """See `Target.gap`. A mirror cannot leave changes out."""
        if not gap.snapshot:
            reason = f"versions {gap.first_version} to {gap.version} are lost, and {self.table} would not be a mirror"
            remedy = 'Set on_data_loss = "resnapshot", or ask for it: `tailer resnapshot PIPELINE`.'
            raise SinkRejected(self._name, reason, remedy)

    def constraint(self) -> str:
        """See `Target.constraint`."""
        return f"PRIMARY KEY ({column_list(self.key)})"

    def merge(self, connection: Connection, waiting: str, staging: pa.Schema, rows: Rows) -> None:
        """See `Target.merge`."""
        table = self._dialect.name_of(self.table)
        if rows.replace:
            connection.execute(f"DELETE FROM {table}")
        if rows.versions is None:
            return
        source, inserted = self._delete(connection, waiting, rows) if rows.deletes else (waiting, "1 = 1")
        names = [name for name in staging.names if name not in (COMMIT_VERSION, _IS_INSERT)]
        try:
            insert(connection, self._dialect, self.table, names, self.key, f"{source} WHERE {inserted}")
        except UniqueViolationError as error:
            raise self._contradiction(self._there_already(rows)) from error

    def reset_refusal(self, connection: Connection, is_known: bool, position: Position) -> tuple[str, str] | None:
        """See `Target.reset_refusal`. The table is at one version, and cannot become another one without rows."""
        return (f"{self.table} would not be a mirror of version {position.version}", _RESNAPSHOT) if is_known else None

    def _delete(self, connection: Connection, waiting: str, rows: Rows) -> tuple[str, str]:
        """Delete the keys that the table must have. Return the source of the changes, and which of them insert keys.

        Raises `SinkRejected` where the table, or changes of one key, contradict that.
        """
        table, key, is_insert = self._dialect.name_of(self.table), column_list(self.key), quoted(_IS_INSERT)
        source, inserted, deleted = waiting, f"{is_insert} = 1", f"{is_insert} = 0"
        twice = gone = "1 = 0"
        assert rows.versions is not None, "there are rows"
        if rows.versions[0] < rows.versions[1]:
            window = f"OVER (PARTITION BY {key} ORDER BY {quoted(COMMIT_VERSION)}, {is_insert})"
            source = (
                f"(SELECT *, lag({is_insert}) {window} AS lake_tailer_before, "
                f"lead({is_insert}) {window} AS lake_tailer_after FROM {waiting}) AS changes"
            )
            twice = f"{is_insert} = lake_tailer_before"
            gone = f"{deleted} AND lake_tailer_before IS NOT NULL AND lake_tailer_after IS NULL"
            inserted += " AND lake_tailer_after IS NULL"
            deleted += " AND lake_tailer_before IS NULL"
        counts = ", ".join(f"count(*) FILTER (WHERE {each})" for each in (twice, deleted, gone))
        ((contradictions, wanted, asked),) = connection.query(f"SELECT {counts} FROM {source}")
        if contradictions:
            raise self._contradiction(f"{_versions(rows)} insert or delete a key twice")
        done = connection.execute(f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {source} WHERE {deleted})")
        if done != wanted:
            raise self._contradiction(f"of {wanted} keys that {_versions(rows)} delete, {done} are in {self.table}")
        # A key that comes and goes is neither deleted nor inserted here, and must not have been there before.
        keys = f"SELECT {key} FROM {source} WHERE {gone}"
        if asked and connection.query(f"SELECT 1 FROM {table} WHERE ({key}) IN ({keys}) LIMIT 1"):
            raise self._contradiction(self._there_already(rows))
        return source, inserted

    def _there_already(self, rows: Rows) -> str:
        return f"{_versions(rows)} insert a key that {self.table} has, or insert it twice"

    def _contradiction(self, reason: str) -> SinkRejected:
        next_step = (
            "Set key to columns whose values are unique in the source, and run `tailer resnapshot PIPELINE`. "
            "If they are unique, somebody else has changed the table: run it, too."
        )
        return SinkRejected(self._name, f"{reason}; the key is {', '.join(self.key)}", next_step)

    def _plain(self, schema: pa.Schema) -> pa.Schema:
        return plain_schema(self._name, self._dialect, _without_metadata(schema))

    def _no_key(self) -> SinkRejected:
        """Return the error for rows that nothing identifies, also where the table does not track them."""
        remedy = "Add key to the sink: the columns that identify a row. Or add row_ids = true to the pipeline, if the "
        return SinkRejected(self._name, f"{self.table} has no key", f"{remedy}table tracks rows.")

    def _key_in(self, columns: pa.Schema) -> tuple[str, ...]:
        """Return the columns that identify rows of a new table; none: nothing does."""
        if self.key or ROW_ID in columns.names:
            return self.key or (ROW_ID,)
        return self._source_key if set(self._source_key) <= set(columns.names) else ()

    def _parted(self, batches: Sequence[ChangeBatch], rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows that are deleted, and those that are inserted."""
        kinds = {batch.kind for batch in batches}
        if kinds <= {ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE}:
            return rows.slice(0, 0), rows
        if kinds <= {ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE}:
            return rows, rows.slice(0, 0)
        changes = rows.column(CHANGE_TYPE)
        inserted, deleted = pc.is_in(changes, _INSERTS), pc.is_in(changes, _DELETES)
        known = pc.or_(inserted, deleted)
        if not pc.all(known).as_py():
            version = rows.column(COMMIT_VERSION).filter(pc.invert(known))[0]
            reason = f"version {version} has rows of another change type than Delta defines"
            raise SinkRejected(self._name, reason, 'Set mode = "append".')
        return rows.filter(deleted), rows.filter(inserted)

    def _waiting(self, rows: pa.RecordBatch, staging: pa.Schema, *, is_insert: int) -> pa.RecordBatch:
        columns = []
        for each in staging:
            if each.name == _IS_INSERT:
                columns.append(pa.repeat(pa.scalar(is_insert, pa.int16()), len(rows)))
            elif not is_insert and each.name not in (*self.key, COMMIT_VERSION):
                columns.append(pa.nulls(len(rows), each.type))
            else:
                column = rows.column(each.name)
                columns.append(column if column.type == each.type else column.cast(each.type))
        return pa.record_batch(columns, schema=staging)


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each for each in schema if each.name not in _METADATA])


def _identifies_nothing(kind: pa.DataType) -> bool:
    return bool(holds_json(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _only_adds(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether JSON of `old` is JSON of `new`, where fields that are added are null."""
    if old == new:
        return True
    if is_struct(old) and is_struct(new):
        return all(
            (at := new.get_field_index(each.name)) >= 0 and _only_adds(each.type, new.field(at).type) for each in old
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

"""The base of all mirrors that keep rows of the past.

Of the rows of a key, at most one is live: the live rows are the mirror, and changes are checked against them alone. The
table has columns of its own, which say until when a row was live. No snapshot makes it again, so what it has no room
for is refused.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeBatch
from tailer_sinks.mirrors import ANOTHER_TABLE
from tailer_sinks.sql.databases.dialect import Columns, Connection, column_list, quoted
from tailer_sinks.sql.mirror import IS_INSERT, Mirror
from tailer_sinks.sql.target import Rows

__all__ = ["AFTER", "BEFORE", "MOMENT", "NEXT_TIME", "NEXT_VERSION", "THIRD", "TIME", "KeptMirror", "time_text"]

MOMENT: Final = pa.timestamp("us", "UTC")
# Of a change among those of its key: the kinds of the one before, of the next one, and of the one after that.
BEFORE: Final = "lake_tailer_before"
AFTER: Final = "lake_tailer_after"
THIRD: Final = "lake_tailer_third"
# The time of the version of a change, and the version of the next change of the key, and its time.
TIME: Final = "lake_tailer_time"
NEXT_VERSION: Final = "lake_tailer_next_version"
NEXT_TIME: Final = "lake_tailer_next_time"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class KeptMirror(Mirror):
    """See the module and `Mirror`. `is_live`: the condition of a row that is live."""

    keeps_rows = True
    is_live: ClassVar[str]

    @property
    @override
    def rows_now(self) -> str:
        return f"(SELECT * FROM {super().rows_now} WHERE {self.is_live}) AS live"

    @override
    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        yield from self._name_faults(schema)
        yield from super().faults(schema)

    @override
    def start(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([*super().start(schema), *self.own])

    @override
    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        for fault in self._name_faults(after):
            raise fault
        self._plain(after)  # the next step for types and names is not another table
        try:
            change = super().change(self.columns_of(shape), after, origins)
        except SinkRejected as error:
            raise SinkRejected(self._name, error.reason, ANOTHER_TABLE) from error
        if change.emptied:
            reason = f"columns {', '.join(change.emptied)} of {self.table} have another type, and it keeps its rows"
            raise SinkRejected(self._name, reason, ANOTHER_TABLE)
        return replace(change, after=pa.schema([*change.after, *self.own]))

    def _name_faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        own = {field.name for field in self.own}
        for name in schema.names:
            if name.lower() in own:
                reason = f"column {name} has the name of a column that the sink adds"
                yield SinkRejected(self._name, reason, "Give it another name with select.")

    @override
    def staging(self, shape: pa.Schema, schema: pa.Schema) -> pa.Schema:
        facts = (
            pa.field(COMMIT_TIMESTAMP, MOMENT),
            pa.field(COMMIT_VERSION, pa.int64()),
            pa.field(IS_INSERT, pa.int16()),
        )
        return pa.schema([*(field.remove_metadata() for field in self.columns_of(shape)), *facts])

    @override
    def staged(self, batches: Sequence[ChangeBatch], staging: pa.Schema, rows: Rows) -> list[pa.RecordBatch]:
        """The first row of a version has its time, for all of them: it would be the dearest value of a row."""
        return [timed for part in super().staged(batches, staging, rows) for timed in _first_and_others(part)]

    @override
    def merge(self, connection: Connection, waiting: str, staging: pa.Schema, rows: Rows) -> None:
        """The rows of a snapshot come before all others, and are those of a version."""
        if rows.versions is None:
            return
        first, last = rows.versions
        facts = (COMMIT_TIMESTAMP, COMMIT_VERSION, IS_INSERT)
        columns = pa.schema([field for field in staging if field.name not in facts])
        if not rows.replace:
            self.merge_changes(connection, waiting, columns, rows)
            return
        version = quoted(COMMIT_VERSION)
        self.merge_snapshot(connection, f"{waiting} WHERE {version} = {first}", columns, rows, first)
        if first < last:
            later = f"(SELECT * FROM {waiting} WHERE {version} > {first}) AS later"
            self.merge_changes(connection, later, columns, Rows((first + 1, last), rows.deletes))

    @abstractmethod
    def merge_changes(self, connection: Connection, waiting: str, columns: pa.Schema, rows: Rows) -> None:
        """Bring changes into the table. `waiting`: what follows FROM; `columns`: those of the source."""

    @abstractmethod
    def merge_snapshot(self, connection: Connection, source: str, columns: pa.Schema, rows: Rows, version: int) -> None:
        """Bring all rows of `version` into the table. `source`: what follows FROM, up to a condition."""

    def columns_of(self, shape: pa.Schema) -> pa.Schema:
        """Return the columns of the source, of those of the table."""
        own = {field.name for field in self.own}
        return pa.schema([field for field in shape if field.name not in own])

    def partial_index(self, name: str, condition: str, kind: str = "") -> str:
        """Return the statement that makes an index of the keys of some rows."""
        name = f"lake_tailer_{name}_{sha256(self.table.encode()).hexdigest()[:16]}"
        table, key = self._dialect.name_of(self.table), column_list(self.key)
        return f"CREATE {kind}INDEX {quoted(name)} ON {table} ({key}) WHERE {condition}"

    @property
    def same_key(self) -> str:
        """Return the condition that rows of the table, `kept`, and of others, `taken`, have the same key."""
        return " AND ".join(f"kept.{quoted(column)} = taken.{quoted(column)}" for column in self.key)

    def in_turn(self, waiting: str, rows: Rows) -> str:
        """Return changes that wait, if they are of several versions with what comes before and after each.

        That follows FROM, as `waiting` does.
        """
        if not (rows.several and rows.deletes):
            return waiting
        is_insert, version = quoted(IS_INSERT), quoted(COMMIT_VERSION)
        window = f"OVER (PARTITION BY {column_list(self.key)} ORDER BY {version}, {is_insert})"
        return (
            f"(SELECT *, lag({is_insert}) {window} AS {BEFORE}, lead({is_insert}) {window} AS {AFTER}, "
            f"lead({is_insert}, 2) {window} AS {THIRD}, lead({version}) {window} AS {NEXT_VERSION} "
            f"FROM {waiting}) AS changes"
        )

    def timed(self, waiting: str, changes: str, rows: Rows) -> str:
        """Return `changes` of those that are `waiting` with the times of their versions, and of the next ones."""
        version, moment = quoted(COMMIT_VERSION), f"max({quoted(COMMIT_TIMESTAMP)})"
        if not rows.several:
            return f"(SELECT *, (SELECT {moment} FROM {waiting}) AS {TIME} FROM {changes}) AS timed"
        times = f"(SELECT {version} AS version, {moment} AS moment FROM {waiting} GROUP BY {version})"
        selected = f"plain.*, own.moment AS {TIME}"
        joined = f"(SELECT * FROM {changes}) AS plain JOIN {times} AS own ON own.version = plain.{version}"
        if rows.deletes:
            selected += f", later.moment AS {NEXT_TIME}"
            joined += f" LEFT JOIN {times} AS later ON later.version = plain.{NEXT_VERSION}"
        return f"(SELECT {selected} FROM {joined}) AS timed"

    def counts(self, connection: Connection, changes: str, rows: Rows, *conditions: str) -> list[int]:
        """Return how many changes fulfil each condition.

        Raises `SinkRejected` if a key of several versions is deleted or inserted twice.
        """
        twice = f"{quoted(IS_INSERT)} = {BEFORE}" if rows.several and rows.deletes else "1 = 0"
        selected = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in (twice, *conditions))
        ((contradictions, *numbers),) = connection.query(f"SELECT {selected} FROM {changes}")
        if contradictions:
            raise self.contradiction(self.twice(rows))
        return numbers

    def snapshot_time(self, source: str, rows: Rows) -> str:
        """Return the time of the snapshot whose rows are `source`; without rows, that of the decision to take it."""
        _, moment_us = rows.began or (0, 0)
        decided = self.moment(time_text(moment_us))
        return f"COALESCE((SELECT max({quoted(COMMIT_TIMESTAMP)}) FROM {source}), {decided})"

    def moment(self, text: str) -> str:
        """Return the expression of a time."""
        return f"CAST('{text}' AS {self._dialect.type_of(MOMENT)})"


def time_text(moment_us: int) -> str:
    """Return a time, in microseconds since 1970, as mirrors have it."""
    return (_EPOCH + timedelta(microseconds=moment_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _first_and_others(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the first row of each version, and all others without its time. `rows` are in the order of versions."""
    versions = rows.column(COMMIT_VERSION)
    begins = pa.concat_arrays([pa.array([True]), pc.not_equal(versions.slice(1), versions.slice(0, len(rows) - 1))])
    yield rows.filter(begins)
    others = rows.filter(pc.invert(begins))
    index = rows.schema.get_field_index(COMMIT_TIMESTAMP)
    if len(others):
        yield others.set_column(index, rows.schema.field(index), pa.nulls(len(others), MOMENT))

"""A transaction of the `sql` sink: its segments, and what is done with them at the end. Blocking.

A position inside a version makes all versions before it visible. The rows of that version are stored, and become
visible with its last ones.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tailer.errors import SinkError, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent, Gap
from tailer.plan import Position
from tailer.sink import Progress, pipeline_of, refused
from tailer_sinks.mirrors import ANOTHER_TABLE, RESNAPSHOT
from tailer_sinks.sql.adoption import check_lengths, check_null, held
from tailer_sinks.sql.databases.dialect import Columns, Connection, UniqueViolationError, quoted
from tailer_sinks.sql.records import Entry, TableRecord
from tailer_sinks.sql.segments import (
    Segment,
    apart,
    count_earlier,
    described,
    first_known,
    name_parts,
    parts_from,
    store,
    widened_columns,
)
from tailer_sinks.sql.stream import Stream, other_case
from tailer_sinks.sql.target import Target, alter, create

__all__ = ["Work", "refusals", "reset"]

_Origins = Mapping[str, str] | None  # of `SchemaChange`
_Began = tuple[int, int] | None  # of `Rows`


class _Undone(Exception):
    """The end of a transaction that is rolled back."""


class Work:
    """An open transaction of `stream`, of which rows of `schema` come first.

    `configured`: the key of the options. `chunks`: whether a part of a version may be visible.
    Raises as entering `Sink.begin` does.
    """

    def __init__(
        self, stream: Stream, target: Target, configured: Sequence[str], schema: pa.Schema, *, chunks: bool
    ) -> None:
        self._stream = stream
        self._target = target
        self._configured = tuple(configured)
        self._record = stream.begin(target)
        self._chunks = chunks
        self._expected = stream.expected
        self._segments: list[Segment] = []
        self._obsolete: list[str] = []
        self._own_key = target.key
        if self._record is not None and self._key_stays(self._record):
            target.key = self._record.key
        self._values = stream.bad_values
        for part in parts_from(None if stream.expected is None else stream.expected.parts):
            segment = self._add(part["schema"], part["origins"], part["rows"].began, replace=part["rows"].replace)
            segment.rows, segment.stored, segment.stored_letters = part["rows"], part["table"], part["letters"]
            stream.check_stored(segment, target.table)
        if not self._segments or not self.schema.equals(schema):
            segment = self._add(schema, None, None, replace=False, announced=False)
            segment.refusal = other_case(stream, target, self._record, schema) or segment.refusal

    @property
    def schema(self) -> pa.Schema:
        """The schema of the next rows."""
        return self._segments[-1].schema

    def check(self) -> None:
        """Raise as the first `write`, or the first commit, if the table cannot be created. Changes nothing."""
        segment, stream = self._segments[-1], self._stream
        stream.check_place(self._segments, self._target.table)
        if segment.refusal is not None:
            raise segment.refusal
        if self._record is None and stream.dialect.has_users:
            with suppress(_Undone, UniqueViolationError), stream.connected() as connection:
                stream.staging(connection, segment.waits, [])
                with connection.transaction():
                    stream.records.create(connection)
                    if segment.is_new:  # no user made it
                        create(connection, stream.dialect, self._target, segment.shape)
                    raise _Undone

    def write(self, batches: Sequence[ChangeBatch]) -> None:
        """Take rows of `schema`. Raises as `SinkTransaction.write` does."""
        batches = [batch for batch in batches if len(batch)]
        if not batches:
            return
        segment = self._segments[-1]
        if not batches[0].rows.schema.equals(segment.schema):
            remedy = "This is a defect of the pipeline: every batch must have the schema that was announced last."
            raise SinkRejected(self._stream.name, f"rows of another schema at version {batches[0].version}", remedy)
        if segment.refusal is not None:
            raise segment.refusal
        self._load(segment, self._target.staged(batches, segment.staging, segment.rows))

    def announce(self, event: ControlEvent) -> None:
        """Take an event. Raises as `SinkTransaction.announce` does."""
        segment = self._segments[-1]
        began = (event.version, event.timestamp_ms * 1000) if self._target.keeps_rows else None
        if not isinstance(event, Gap):
            # A user's table may have been made ready for the rows that follow.
            if segment.refusal is not None and self._target.existing is None:
                raise segment.refusal
            self._add(event.after, event.origins, began, replace=False)
            return
        row = self._target.gap(event, segment.staging)
        if row is not None:
            self._load(segment, [row])
            segment.rows.reach(event.version, event.timestamp_ms * 1000)
            return
        # All rows follow, so nothing that waits is of use.
        self._obsolete += [part.stored for part in self._segments if part.stored is not None]
        self._segments = []
        snapshot = self._add(segment.schema, None, began, replace=True)
        if began is not None:  # also a snapshot without rows is one of a version
            snapshot.rows.reach(*began)
            self._load(snapshot, [])

    def commit(self, position: Position) -> None:
        """Make the rows visible with the progress; inside a version, those before it.

        Raises as `SinkTransaction.commit` does.
        """
        stream, before = self._stream, None if self._expected is None else self._expected.position
        stream.check_place(self._segments, self._target.table)
        if before is not None and position <= before:
            reason = f"progress of {stream.app_id} must continue after {before}, not at {position}"
            raise SinkRejected(stream.name, reason, "Use `tailer progress reset PIPELINE --to VERSION` to go back.")
        try:
            with stream.connected() as connection:
                for part in self._segments:
                    if part.waiting is not None and part.rows.deletes:
                        stream.dialect.analyze(connection, quoted(part.waiting.name), part.compared)
                ends = position.closes_version or self._chunks
                complete = self._segments if ends else self._segments[: count_earlier(self._segments, position.version)]
                if (widened := widened_columns(complete, self._record)) and not complete[0].is_new:
                    hold = partial(stream.hold_progress, connection)
                    stream.dialect.prepare(connection, self._target.table, widened, hold)
                with connection.transaction():
                    stream.records.create(connection)
                    entry = self._fill(connection, position)
        except UniqueViolationError as error:
            raise SinkUnavailable(stream.name, "another instance made the sink's tables at the same time") from error
        stream.expected = entry
        self._values.committed(position)

    def _fill(self, connection: Connection, position: Position) -> Entry:
        """Replace the progress, and bring rows to where they belong. Return the progress."""
        stream, version = self._stream, position.version
        stream.hold(connection)
        self._plan_again(connection)
        self._values.make_room(connection, self._segments)
        kept: list[Segment] = []
        complete = self._segments
        if not (position.closes_version or self._chunks):
            complete, kept = apart(self._segments, version)
            used = {part.stored for part in (*self._segments, *kept)} | set(self._obsolete)
            name_parts(kept, stream.app_id, used)
        entry = Entry(position, described(kept) if kept else None)
        stream.records.swap(connection, stream.app_id, self._expected, entry)
        if not stream.is_backfill:
            # The pipeline goes on only after its backfill. What waits is of one that was cancelled, or has failed.
            self._obsolete += stream.records.end_backfills(connection, pipeline_of(stream.app_id))
        for part in kept:
            store(connection, stream.dialect, part, version)
        widened = widened_columns(complete, self._record)
        if complete and not complete[0].is_new:
            stream.dialect.widen(connection, self._target.table, widened)
        place = stream.name, connection, stream.dialect, self._target.table
        existing, changes = self._target.existing if complete else None, [part.change for part in complete]
        with held(*place, existing, changes, is_new=self._record is None):
            for part in complete:
                self._publish(connection, part, {name: wide for name, _, wide in widened})
        for table in self._obsolete:
            connection.execute(f"DROP TABLE {stream.dialect.name_of(table)}")
        if complete:
            self._note(connection, complete, version if position.closes_version else version - 1)
        return entry

    def _publish(self, connection: Connection, segment: Segment, wider: Mapping[str, pa.DataType]) -> None:
        """Give the table the columns of a segment, and bring its rows into it.

        `wider`: the last types of columns that are widened, which a new table has from the beginning.
        """
        dialect, target = self._stream.dialect, self._target
        if segment.refusal is not None:
            if target.existing is not None and segment.rows.versions is None:
                return  # no row asks for it
            raise segment.refusal
        target.key = segment.key
        before = None if self._record is None else self._record.schema
        _give_columns(connection, self._stream, target, segment, before, wider if dialect.widens_first else {})
        source = None if segment.waiting is None else quoted(segment.waiting.name)
        if segment.stored is not None:
            stored = dialect.name_of(segment.stored)
            check_lengths(self._stream.name, connection, target.table, target.existing, stored, segment.shape.names)
            if source is not None:
                connection.execute(f"INSERT INTO {stored} SELECT * FROM {source}")
            source = stored
            self._obsolete.append(segment.stored)
        self._values.merge(connection, target, source, segment)
        if source is None and segment.rows.replace:
            connection.execute(f"DELETE FROM {dialect.name_of(target.table)}")

    def _note(self, connection: Connection, complete: Sequence[Segment], version: int) -> None:
        """Note the version of the table, and its columns."""
        stream, target, last = self._stream, self._target, complete[-1]
        app_id, shape = stream.main_app_id, last.shape
        record = TableRecord(target.table, pipeline_of(app_id), app_id, target.mode, shape, self._configured, last.key)
        record = replace(record, adopted=target.existing is not None)
        if target.mode == "history":
            record = replace(record, known_from=first_known(complete, self._record, version))
        changed = [segment.rows.changed_us for segment in complete if segment.rows.changed_us is not None]
        moment, moves = max(changed, default=None), not stream.is_backfill
        stream.records.note_table(connection, record, version, moment, moves=moves)

    def _add(
        self, schema: pa.Schema, origins: _Origins, began: _Began, *, replace: bool, announced: bool = True
    ) -> Segment:
        """Begin a segment, by the event that `began` says. Raises `SinkRejected` if the table has no room for it."""
        target, record = self._target, self._record
        before = self._segments[-1].shape if self._segments else None if record is None else record.schema
        is_new, change, refusal = before is None, None, None
        if before is None:
            shape = target.start(schema)
        else:
            try:
                announced = replace or origins is not None or (announced and bool(self._segments))
                change = self._change(before, schema, origins, announced=announced)
                shape = change.after
            except SinkRejected as error:
                if origins is not None or (replace and target.keeps_rows):
                    raise
                # The table as it is, or with what is stored, has no room for these rows. A snapshot makes it again.
                target.key, is_new, refusal = self._own_key, True, None if replace else error
                shape = before if refusal is not None and target.existing is not None else target.start(schema)
        if target.existing is not None:  # it is neither made nor made again
            is_new, change = False, change or Columns(shape, key=target.key)
        if target.key and not replace:
            refusal = refusal or self._values.refusal()
        segment = Segment(schema, shape, target.staging(shape, schema), target.key, origins, change, is_new, refusal)
        segment.rows.replace, segment.rows.began, segment.letters = replace, began, self._values.uses_letters
        self._segments.append(segment)
        return segment

    def _change(self, before: pa.Schema, schema: pa.Schema, origins: _Origins, *, announced: bool) -> Columns:
        """Return how the table gets room for rows of `schema`. Raises `SinkRejected`."""
        name, table, record = self._stream.name, self._target.table, self._record
        remedy = "If you chose other columns or another key, run `tailer resnapshot PIPELINE`."
        if record is not None and not self._key_stays(record):
            reason = f"the key of {table} is {', '.join(record.key)}, and another one is configured"
            raise SinkRejected(name, reason, ANOTHER_TABLE if self._target.keeps_rows else remedy)
        change = _with_room(self._stream, table, self._target.change(before, schema, origins))
        others = _others(before, change.after, may_widen=self._target.existing is not None)
        if others and not (announced or self._target.may_differ):
            raise SinkRejected(name, f"{table} has other columns than are delivered: {', '.join(others)}", remedy)
        return change

    def _key_stays(self, record: TableRecord) -> bool:
        return set(self._configured) in (set(record.configured), set(record.key))

    def _plan_again(self, connection: Connection) -> None:
        """Follow what another stream of the pipeline has made of the table meanwhile."""
        record = self._stream.records.table(connection, self._target.table)
        if record == self._record:
            return
        segments, self._segments, self._record = self._segments, [], record
        for former in segments:
            planned = self._add(former.schema, former.origins, former.rows.began, replace=former.rows.replace)
            if not planned.staging.equals(former.staging):
                reason = f"another stream has changed the columns of {self._target.table}"
                raise SinkUnavailable(self._stream.name, reason)
            planned.rows, planned.stored, planned.waiting = former.rows, former.stored, former.waiting
            planned.stored_letters, planned.refusal = former.stored_letters, planned.refusal or former.refusal

    def _load(self, segment: Segment, parts: Sequence[pa.RecordBatch]) -> None:
        with self._stream.connected() as connection:
            if segment.waiting is None:
                taken = [other.waiting for other in self._segments if other.waiting is not None]
                segment.waiting = self._stream.staging(connection, segment.waits, taken)
            for part in reversed(parts):  # deletes last: those of dead letters of these versions look for them
                self._values.load_waiting(connection, quoted(segment.waiting.name), part, segment)


def refusals(
    stream: Stream, make_target: Callable[[], Target], configured: Sequence[str], schema: pa.Schema
) -> list[SinkError]:
    """Return all errors with which a `Work`, its first rows or its commit would be refused. Changes nothing."""

    target, other = make_target(), make_target()

    def check() -> None:
        Work(stream, target, configured, schema, chunks=False).check()

    errors = refused(check)
    # The first fault of the schema hides the next ones, and a fault of the database hides all of them.
    other.existing = target.existing
    others = other.faults(schema) if errors else ()
    return [*errors, *(error for error in others if str(error) not in map(str, errors))]


def reset(stream: Stream, target: Target, configured: Sequence[str], position: Position) -> None:
    """Set the progress to `position`, which closes a version.

    Rows of a log that wait for the end of their version become visible if that counts as delivered. All others are
    removed: a mirror is at another version by now. Raises `SinkRejected` if the table would not be what it is.
    """
    stream.asked = False
    record = stream.begin(target)
    before = stream.expected
    with stream.connected() as connection:
        there = None
        if record is not None:
            there = Progress(record.app_id, Position.end(stream.records.version(connection, record.table)))
        if reason := target.reset_refusal(connection, there, Progress(stream.app_id, position)):
            raise SinkRejected(stream.name, *reason)
    parts = parts_from(None if before is None else before.parts)
    if parts and target.mode == "append" and before is not None and position > before.position:
        Work(stream, target, configured, parts[-1]["schema"], chunks=False).commit(position)
        return
    with stream.connected() as connection, connection.transaction():
        stream.records.create(connection)
        stream.hold(connection)
        stream.records.swap(connection, stream.app_id, before, Entry(position))
        for part in parts:
            connection.execute(f"DROP TABLE {stream.dialect.name_of(part['table'])}")
    stream.expected = Entry(position)


def _with_room(stream: Stream, table: str, change: Columns) -> Columns:
    """Return `change`. Raises `SinkRejected` if the table has no room for it."""
    if change.added or change.widened:
        with stream.connected() as connection:
            stream.dialect.check_room(connection, table, change)
    return change


def _give_columns(
    connection: Connection,
    stream: Stream,
    target: Target,
    segment: Segment,
    before: pa.Schema | None,
    kinds: Mapping[str, pa.DataType],
) -> None:
    """Make the table, or change its columns. `before`: those it has. `kinds`: other types than those of the segment."""
    dialect, replaces = stream.dialect, segment.rows.replace
    if target.existing is not None:  # a user's has them already
        if segment.origins is not None:
            check_null(stream.name, connection, dialect, target.table, segment.shape.names, segment.origins)
        return
    shape = pa.schema([column.with_type(kinds.get(column.name, column.type)) for column in segment.shape])
    make = partial(create, connection, dialect, target, shape)
    again = partial(dialect.make_again, connection, target.table)
    if segment.is_new and before is not None:
        again(before, Columns(shape, key=segment.key), make)
    elif segment.is_new:
        make()
    elif segment.change is not None:
        if replaces and not target.keeps_rows:  # then columns may get any type
            connection.execute(f"DELETE FROM {dialect.name_of(target.table)}")
        try:
            alter(stream.name, connection, dialect, target, segment.change)
        except SinkRejected as error:
            if target.keeps_rows and error.remedy == RESNAPSHOT:
                raise SinkRejected(stream.name, error.reason, ANOTHER_TABLE) from error
            if not replaces or dialect.widens_first or target.keeps_rows:
                raise
            again(shape, segment.change, make)


def _others(one: pa.Schema, other: pa.Schema, *, may_widen: bool) -> list[str]:
    """Return the columns that differ. `may_widen`: a user may have widened them, so that only names count."""
    names = sorted({*one.names, *other.names})
    if may_widen:
        return [name for name in names if (name in one.names) != (name in other.names)]
    return [name for name in names if _column(one, name) != _column(other, name)]


def _column(schema: pa.Schema, name: str) -> tuple[pa.DataType, dict[bytes, bytes] | None] | None:
    """Return the type of a column, and what a history notes of it."""
    index = schema.get_field_index(name)
    return None if index < 0 else (schema.field(index).type, schema.field(index).metadata or None)

"""One stream of the `sql` sink: its connection, and its progress. Blocking, for worker threads only.

Exactly once rests on this (invariants 1, 2, 6): the first statement of the transaction that makes rows visible replaces
the progress that this instance has read, and fails if it is another one by now. That also locks the progress, so that
a second instance waits, and is then refused. A backfill locks the pipeline's progress in the same way, and leaves it as
it is. Which stream of the pipeline has committed last is locked, compared and written in each of them, too, also where
rows wait for the end of their version: a pipeline whose source table was replaced has progress of its own for the new
one, and no commit about the former one may follow; nor may one come between the look at progress and the first commit
about the new one, for which the former progress is locked as well.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from tailer.errors import SinkFenced, SinkRejected
from tailer.sink import backfilled_app_id, main_app_id, pipeline_of, stream_number
from tailer_sinks.mirrors import ANOTHER_TABLE
from tailer_sinks.sql.adoption import described
from tailer_sinks.sql.bad_values.dead_letters import with_letters
from tailer_sinks.sql.bad_values.policy import BadValues
from tailer_sinks.sql.databases.dialect import Connection, Dialect, limited, quoted
from tailer_sinks.sql.records import Entry, LastStream, Records, TableRecord
from tailer_sinks.sql.segments import Segment, Staging, create_waiting, parts_from
from tailer_sinks.sql.target import Target

__all__ = ["Stream", "other_case"]

_ROWS = "lake_tailer_rows"
# The options of the modes of tables.
_OPTIONS = {
    "append": 'mode = "append"',
    "history": 'mode = "history"',
    "mark": 'mode = "mirror" and deletes = "mark"',
    "mirror": 'mode = "mirror" and deletes = "remove"',
}


class Stream:
    """The stream `app_id` of the sink called `name`. `timeout_s`: how long one call may take. `bad_values`: its policy.

    `expected`: the progress that was read last, or committed; None is no progress, if it was `asked` for.
    """

    def __init__(self, name: str, dialect: Dialect, app_id: str, timeout_s: float, bad_values: BadValues) -> None:
        self.name = name
        self.bad_values = bad_values
        self.dialect = dialect
        self.app_id = app_id
        self.is_backfill = backfilled_app_id(app_id) is not None
        self.main_app_id = main_app_id(app_id)
        self.records = Records(name, dialect)
        self.expected: Entry | None = None
        self.asked = False
        self._main: Entry | None = None
        self._last = LastStream()  # when progress was read
        self.timeout_s = timeout_s
        self._connection: Connection | None = None
        self._staging: list[Staging] = []
        self._made = 0
        self._elsewhere: str | None = None  # the table to which the progress belongs, if that is not the target

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Give the connection for one call, which may take `timeout_s`. After an error it is closed."""
        if self._connection is None:
            self._connection = self.dialect.connect()
        try:
            with limited(self._connection, self.timeout_s):
                yield self._connection
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; its temporary tables are gone."""
        connection, self._connection, self._staging = self._connection, None, []
        if connection is not None:
            connection.close()

    def progress(self) -> Entry | None:
        """Read the progress. Raises `SinkRejected` if there was some, and there is none now."""
        entry, last = None, LastStream()
        if self.dialect.is_there():
            with self.connected() as connection:
                entry = self.records.progress(connection, self.app_id)
                last = self.records.last_stream(connection, self.app_id)
        if entry is None and self.expected is not None:
            reason = f"the progress of {self.app_id} is gone; this instance left it at {self.expected.position}"
            raise SinkRejected(self.name, reason, "Restore the database. Or choose a new table and a new pipeline.")
        self.expected, self._last, self.asked = entry, last, True
        return entry

    def begin(self, target: Target) -> TableRecord | None:
        """Check that a transaction can begin, and return what is known of the table.

        Raises `SinkFenced`, `SinkRejected`, `SinkUnavailable`.
        """
        self.bad_values.begin()
        before, last, asked = self.expected, self._last, self.asked
        entry = self.progress()
        own, now = stream_number(self.app_id), self._last
        is_replaced = now.number not in (last.number, own)
        if asked and (entry != before or is_replaced or (now.number != own and now != last)):
            self.expected, self._last = before, last  # until the pipeline asks for progress again
            if is_replaced:
                raise self.records.replaced(self.app_id)
            places = [f"{self.app_id} is at {None if entry is None else entry.position} now"]
            places += [] if now.entry is None else [f"{now.app_id} at {now.entry.position}"]
            raise SinkFenced(self.name, ", and ".join(places))
        if not self.dialect.is_there():
            return None
        with self.connected() as connection:
            parts = parts_from(None if self.expected is None else self.expected.parts)
            self.bad_values.look(connection, [part["table"] for part in parts if part["letters"]])
            if self.is_backfill:
                self._main = self.records.progress(connection, self.main_app_id)
            record = self.record(connection, target, pipeline_of(self.main_app_id))
            later = self.records.later_table(connection, target.table, self.main_app_id, record)
            self._elsewhere = later if target.mode != "append" else None
            return record

    def hold(self, connection: Connection) -> None:
        """Lock the pipeline's progress in the open transaction: its streams change the table one after the other.

        Raises as `hold_progress`, and `SinkFenced` if the pipeline has gone on with another source table.
        """
        self.hold_progress(connection)
        self.records.hold_stream(connection, self.app_id, self._last.number)

    def hold_progress(self, connection: Connection) -> None:
        """Lock the pipeline's progress alone, and write nothing.

        Raises `SinkFenced` if it is another one than at `begin`, or if the source table before this one has moved on
        since.
        """
        self.records.hold(connection, self.main_app_id, self._main if self.is_backfill else self.expected)
        if self._last.app_id is not None:
            self.records.hold(connection, self._last.app_id, self._last.entry)

    def pipelines(self) -> set[str]:
        """Return the pipelines that have progress in the database."""
        if not self.dialect.is_there():
            return set()
        with self.connected() as connection:
            return self.records.pipelines(connection)

    def check_new(self, target: Target, pipeline: str) -> None:
        """Raise `SinkRejected` if `pipeline`, which has no progress, cannot begin to fill the table."""
        if not self.dialect.is_there():
            return
        with self.connected() as connection:
            if self.record(connection, target, pipeline) is not None:
                reason = f"the table {target.table} has rows of {pipeline}, but there is no progress"
                raise SinkRejected(self.name, reason, "Restore the progress, or set table to another name.")

    def staging(self, connection: Connection, schema: pa.Schema, taken: Sequence[Staging]) -> Staging:
        """Return an empty temporary table for rows of `schema`, not one of those `taken`."""
        for table in self._staging:
            if table.schema.equals(schema) and not any(table is other for other in taken):
                if table.used:
                    connection.execute(f"{self.dialect.emptying} {quoted(table.name)}")
                table.used = True
                return table
        for table in [table for table in self._staging if not any(table is other for other in taken)]:
            connection.execute(f"DROP TABLE {quoted(table.name)}")
            self._staging.remove(table)
        self._made += 1
        new = Staging(f"{_ROWS}_{self._made}", schema, used=True)
        create_waiting(connection, self.dialect, new.name, schema, stays=False)
        self._staging.append(new)
        return new

    def check_place(self, segments: Sequence[Segment], table: str) -> None:
        """Raise `SinkRejected` for a mirror that lacks what another table got, unless all rows of the source come."""
        if self._elsewhere is not None and not any(part.rows.replace for part in segments):
            reason = f"the pipeline has filled the table {self._elsewhere} until now, and {table} lacks its rows"
            remedy = f"Set table to {self._elsewhere} again. Or fill {table}: `tailer resnapshot PIPELINE`."
            raise SinkRejected(self.name, reason, remedy)

    def check_stored(self, segment: Segment, table: str) -> None:
        """Raise `SinkRejected` if the rows of a segment are stored as another mode of `table` stores them."""
        assert segment.stored is not None
        with self.connected() as connection:
            there = self.dialect.describe(connection, segment.stored)
        wanted = with_letters(segment.staging) if segment.stored_letters else segment.staging
        if there.columns and (len(there.columns) != len(wanted) or not all(map(there.column, wanted.names))):
            reason = (
                f"a part of version {segment.rows.last} waits for the rest of it, and is for {table} in another mode"
            )
            remedy = f"Set mode and deletes to what they were. Or keep these: {ANOTHER_TABLE}"
            raise SinkRejected(self.name, reason, remedy)

    def record(self, connection: Connection, target: Target, pipeline: str) -> TableRecord | None:
        """Return what is known of the table; None: it is not there.

        Raises `SinkRejected` if the table is not this pipeline's, or has another mode, or is gone.
        """
        table, remedy = target.table, "Set table to another name, or drop it if nobody needs it."
        record, is_there = self.records.table(connection, table), self.dialect.has_table(connection, table)
        reason, target.existing = None, None
        if is_there and (target.adopts if record is None else record.adopted):
            target.existing = described(connection, self.dialect, table, is_new=record is None)
        self.bad_values.existing = target.existing
        if record is None:
            is_taken = is_there and target.existing is None
            reason = f"there is a table {table} that lake-tailer did not make" if is_taken else None
            remedy += " Or set adopt = true, if it is empty and for this mirror."
        elif record.pipeline != pipeline:
            reason = f"pipeline {record.pipeline} fills the table {table}"
        elif record.mode != target.mode:
            reason = f"the table {table} was made with {_OPTIONS[record.mode]}"
            remedy = "Set that again, or set table to another name."
        elif not is_there:
            reason = f"the table {table} is gone, and the progress says that it has rows"
            remedy = "Restore it. Or choose a new table and a new pipeline."
        if reason is not None:
            raise SinkRejected(self.name, reason, remedy)
        return record


def other_case(stream: Stream, target: Target, record: TableRecord | None, schema: pa.Schema) -> SinkRejected | None:
    """Return why a table, known by `record`, cannot take rows of `schema`: names differ in upper or lower case.

    None: they do not. A log may get other columns, so that only names in lower case, as by the option, are refused.
    """
    if record is None or stream.is_backfill:
        return None
    shape = record.schema
    if target.may_differ and any(column != column.lower() for column in schema.names):
        return None
    former = {column.lower(): column for column in shape.names if column not in schema.names}
    new = [column for column in schema.names if column.lower() in former and column not in shape.names]
    if not new:
        return None
    reason = f"{target.table} has {', '.join(former[column.lower()] for column in new)}, not {', '.join(new)}"
    stays = target.keeps_rows or target.may_differ
    way = "deliver to another table, by a pipeline of another name" if stays else "run `tailer resnapshot PIPELINE`"
    return SinkRejected(stream.name, reason, f"If you have changed names or select, set it back, or {way}.")

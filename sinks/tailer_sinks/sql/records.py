"""The sink's own tables: the progress of streams, and what is known of the tables that they fill.

`lake_tailer_progress` has a row for each app_id. Its position is that of the last committed row. Inside a version whose
rows are not visible yet, `parts` describes the tables in which they wait (`tailer_sinks.sql.segments`). The row of a
pipeline is never deleted, so it also says that the pipeline has delivered. The version of `<pipeline>/#stream` is the
number of the stream that has committed last (`tailer.sink.stream_number`).

`lake_tailer_mirrors` has a row for each table that a pipeline fills, for people and programs that read the table: the
version that it has, the time of the last version that changed it, and the time when that was written. `columns` is the
schema of its rows as Arrow serializes it, `key_columns` the key as configured and as it is called now, of a history the
first version that it knows, and whether a user made the table.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from tailer.errors import SinkFenced, SinkRejected
from tailer.plan import Position
from tailer.sink import backfill_of, backfilled_app_id, main_app_id, pipeline_of, stream_name, stream_number, table_of
from tailer_sinks.sql.databases.dialect import Connection, Dialect

__all__ = ["MIRRORS", "PROGRESS", "Entry", "LastStream", "Records", "TableRecord", "schema_from_text", "schema_to_text"]

FORMAT: Final = 1
PROGRESS: Final = "lake_tailer_progress"
MIRRORS: Final = "lake_tailer_mirrors"

_AT: Final = "app_id = ? AND version = ? AND task = ? AND row = ?"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PROGRESS_COLUMNS: Final = (
    "format INTEGER NOT NULL, app_id TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, task BIGINT NOT NULL, "
    "row BIGINT NOT NULL, parts TEXT"
)
_MIRROR_COLUMNS: Final = (
    "table_name TEXT NOT NULL PRIMARY KEY, pipeline TEXT NOT NULL, app_id TEXT NOT NULL, mode TEXT NOT NULL, "
    "version BIGINT NOT NULL, changed_at {moment}, written_at {moment} NOT NULL, key_columns TEXT NOT NULL, "
    "columns TEXT NOT NULL"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The progress of a stream. `parts`: of a version that is not visible yet; None: nothing waits."""

    position: Position
    parts: str | None = None


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table that `pipeline` fills, last under `app_id`.

    `configured`: the key as it was given; `key`: as its columns are called now. `known_from`: of a history, the first
    version whose rows it has. `adopted`: whether a user made the table.
    """

    table: str
    pipeline: str
    app_id: str
    mode: str
    schema: pa.Schema
    configured: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    known_from: int | None = None
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class LastStream:
    """The stream of a pipeline that has committed last, by its number; None: none has.

    `app_id`, `entry`: of another stream than the one that asks, and its progress.
    """

    number: int | None = None
    app_id: str | None = None
    entry: Entry | None = None


class Records:
    """The sink's tables in a database. All methods block."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self._name = name
        self._dialect = dialect
        self._progress = dialect.name_of(PROGRESS)
        self._mirrors = dialect.name_of(MIRRORS)

    def exist(self, connection: Connection) -> bool:
        """Return whether the tables are there."""
        return self._dialect.has_table(connection, PROGRESS)

    def create(self, connection: Connection) -> None:
        """Create the tables, in the open transaction, where they are not there."""
        moment = self._dialect.type_of(pa.timestamp("us", "UTC"))
        connection.execute(f"CREATE TABLE IF NOT EXISTS {self._progress} ({_PROGRESS_COLUMNS})")
        connection.execute(f"CREATE TABLE IF NOT EXISTS {self._mirrors} ({_MIRROR_COLUMNS.format(moment=moment)})")

    def progress(self, connection: Connection, app_id: str) -> Entry | None:
        """Read the progress of `app_id`. Raises `SinkRejected` where a later release has written it."""
        if not self.exist(connection):
            return None
        rows = connection.query(
            f"SELECT format, version, task, row, parts FROM {self._progress} WHERE app_id = ?", [app_id]
        )
        if not rows:
            return None
        form, version, task, row, parts = rows[0]
        if form != FORMAT:
            reason = f"the progress of {app_id} has format {form}, and this release knows format {FORMAT}"
            raise SinkRejected(self._name, reason, "Install the release that wrote it, or a later one.")
        return Entry(Position(version, task, row), parts)

    def pipelines(self, connection: Connection) -> set[str]:
        """Return the pipelines that have progress."""
        if not self.exist(connection):
            return set()
        return {pipeline_of(app_id) for (app_id,) in connection.query(f"SELECT app_id FROM {self._progress}")}

    def hold(self, connection: Connection, app_id: str, entry: Entry | None) -> None:
        """Lock the progress `entry` in the open transaction. Raises `SinkFenced` if it is another one now."""
        if entry is None:
            is_same = self.progress(connection, app_id) is None
        else:
            statement = f"UPDATE {self._progress} SET task = task WHERE {_AT}"
            is_same = connection.execute(statement, [app_id, *astuple(entry.position)]) == 1
        if not is_same:
            raise self._fenced(app_id, entry)

    def last_stream(self, connection: Connection, app_id: str) -> LastStream:
        """Read which stream of the pipeline of `app_id` has committed last."""
        entry = self.progress(connection, stream_name(app_id))
        number = None if entry is None else entry.position.version
        if number not in (None, stream_number(app_id)):
            for (stream,) in connection.query(f"SELECT app_id FROM {self._progress}"):
                if main_app_id(stream) == stream and stream_number(stream) == number:
                    return LastStream(number, stream, self.progress(connection, stream))
        return LastStream(number)

    def hold_stream(self, connection: Connection, app_id: str, last: int | None) -> None:
        """Lock and write, in the open transaction, that the stream `app_id` commits last of those of its pipeline.

        Raises `SinkFenced` if one has committed since that is neither `last` nor this one: the pipeline has gone on
        with another source table.
        """
        own = stream_number(app_id)
        statement = f"UPDATE {self._progress} SET version = ? WHERE app_id = ? AND version IN (?, ?)"
        parameters = [own, stream_name(app_id), own, own if last is None else last]
        if connection.execute(statement, parameters) != 1 and not (
            last is None and self._insert(connection, stream_name(app_id), Entry(Position.end(own)))
        ):
            raise self.replaced(app_id)

    def replaced(self, app_id: str) -> SinkFenced:
        """Make the error of a stream whose pipeline has gone on with another source table."""
        return SinkFenced(self._name, f"another source table has taken the place of {table_of(app_id)}")

    def swap(self, connection: Connection, app_id: str, before: Entry | None, after: Entry) -> None:
        """Replace the progress `before`, in the open transaction. Raises `SinkFenced` if it is another one now."""
        if before is None:
            is_done = self._insert(connection, app_id, after)
        else:
            statement = f"UPDATE {self._progress} SET version = ?, task = ?, row = ?, parts = ? WHERE {_AT}"
            values = [*astuple(after.position), after.parts, app_id, *astuple(before.position)]
            is_done = connection.execute(statement, values) == 1
        if not is_done:
            raise self._fenced(app_id, before)

    def end_backfills(self, connection: Connection, pipeline: str) -> list[str]:
        """Remove the progress of backfills of which rows wait. Return the tables with these rows."""
        rows = connection.query(f"SELECT app_id, parts FROM {self._progress} WHERE parts IS NOT NULL")
        tables = []
        for app_id, parts in rows:
            main_app_id = backfilled_app_id(app_id)
            if main_app_id is not None and pipeline_of(main_app_id) == pipeline:
                connection.execute(f"DELETE FROM {self._progress} WHERE app_id = ?", [app_id])
                tables += [part["table"] for part in json.loads(parts)]
        return tables

    def complete_backfills(self, connection: Connection, pipeline: str) -> set[str]:
        """Return the ids of the backfills of a pipeline of which all rows are visible."""
        if not self.exist(connection):
            return set()
        rows = connection.query(f"SELECT app_id, version, task, row FROM {self._progress}")
        return {
            backfill
            for app_id, version, task, row in rows
            if Position(version, task, row).closes_version
            and (backfill := backfill_of(app_id)) is not None
            and pipeline_of(main_app_id(app_id)) == pipeline
        }

    def table(self, connection: Connection, table: str) -> TableRecord | None:
        """Read what is known of a table; None: no pipeline fills it."""
        if not self.exist(connection):
            return None
        rows = connection.query(
            f"SELECT pipeline, app_id, mode, columns, key_columns FROM {self._mirrors} WHERE table_name = ?", [table]
        )
        if not rows:
            return None
        pipeline, app_id, mode, columns, key = rows[0]
        keys = json.loads(key)
        configured, known_from = tuple(keys["configured"]), keys.get("known_from")
        current, adopted = tuple(keys["columns"]), keys.get("adopted", False)
        schema = schema_from_text(columns)
        return TableRecord(table, pipeline, app_id, mode, schema, configured, current, known_from, adopted)

    def version(self, connection: Connection, table: str) -> int:
        """Read the version of a table that `table` knows."""
        ((version,),) = connection.query(f"SELECT version FROM {self._mirrors} WHERE table_name = ?", [table])
        return int(version)

    def later_table(self, connection: Connection, table: str, app_id: str, record: TableRecord | None) -> str | None:
        """Return a table to which the stream has brought more than to `table`, whose record is `record`; None: none."""
        if not self.exist(connection):
            return None
        query = f"SELECT table_name FROM {self._mirrors} WHERE table_name <> ? AND "
        if record is None:
            tables = connection.query(f"{query} pipeline = ?", [table, pipeline_of(app_id)])
        else:
            newer = f"app_id = ? AND version > (SELECT version FROM {self._mirrors} WHERE table_name = ?)"
            tables = connection.query(f"{query} {newer}", [table, app_id, table])
        return tables[0][0] if tables else None

    def note_table(
        self, connection: Connection, record: TableRecord, version: int, changed_us: int | None, *, moves: bool
    ) -> None:
        """Write what is known of a table that is at `version` now. `changed_us`: when it changed last; None: before.

        `moves`: not if the table was at a version before, and stays there.
        """
        now = datetime.now(UTC)
        changed = None if changed_us is None else _EPOCH + timedelta(microseconds=changed_us)
        moved = "version = excluded.version, changed_at = COALESCE(excluded.changed_at, known.changed_at), "
        moved = moved if moves else ""
        first = {} if record.known_from is None else {"known_from": record.known_from}
        adopted = {"adopted": True} if record.adopted else {}
        keys = json.dumps({"configured": record.configured, "columns": record.key, **first, **adopted})
        values: Sequence[Any] = [
            record.table,
            record.pipeline,
            record.app_id,
            record.mode,
            version,
            None if changed is None else changed.isoformat(),
            now.isoformat(),
            keys,
            schema_to_text(record.schema),
        ]
        connection.execute(
            f"INSERT INTO {self._mirrors} AS known (table_name, pipeline, app_id, mode, version, changed_at, "
            "written_at, key_columns, columns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (table_name) DO UPDATE "
            f"SET app_id = excluded.app_id, {moved}written_at = excluded.written_at, "
            "key_columns = excluded.key_columns, columns = excluded.columns",
            values,
        )

    def _insert(self, connection: Connection, app_id: str, entry: Entry) -> bool:
        """Insert a row of progress. Return False if there is one: that of a transaction that is open is waited for."""
        statement = (
            f"INSERT INTO {self._progress} (format, app_id, version, task, row, parts) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (app_id) DO NOTHING"
        )
        return connection.execute(statement, [FORMAT, app_id, *astuple(entry.position), entry.parts]) == 1

    def _fenced(self, app_id: str, before: Entry | None) -> SinkFenced:
        position = None if before is None else before.position
        return SinkFenced(self._name, f"{app_id} is not at {position} any more")


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """Rebuild a schema from the text that `schema_to_text` returned."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))

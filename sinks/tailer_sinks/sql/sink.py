"""The `sql` sink for the pipeline; the package's docstring explains how it works."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
from anyio import CancelScope, to_thread
from typing_extensions import override

from tailer.errors import SinkError, SinkRejected
from tailer.events import ChangeBatch, ControlEvent, SchemaChange
from tailer.sink import Demands, Heartbeat, Heartbeats, MirrorRows, Progress, Sink, SinkTransaction
from tailer_sinks.access import read_secret
from tailer_sinks.heartbeats import (
    BlockingHeartbeats,
    FileHeartbeats,
    decode_heartbeat,
    encode_heartbeat,
    heartbeat_name,
)
from tailer_sinks.mirrors import one_version
from tailer_sinks.sql.append import ChangeLog
from tailer_sinks.sql.bad_values.policy import BadValues
from tailer_sinks.sql.databases.dialect import Connection, Dialect, UniqueViolationError, limited
from tailer_sinks.sql.databases.sqlite import Sqlite
from tailer_sinks.sql.mirror import Mirror
from tailer_sinks.sql.options import DUCKDB, Options, file_of, read
from tailer_sinks.sql.past import History, MarkedMirror
from tailer_sinks.sql.stream import Stream
from tailer_sinks.sql.verification import mirror_rows
from tailer_sinks.sql.work import Work, refusals, reset

__all__ = ["SqlSink"]

_OPERATOR: Final = ""  # of the stream that asks about all pipelines, which is no app_id
TABLE: Final = "lake_tailer_heartbeats"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of columns in the tables of the sink called `name`: those of the source, or these in lower case.

    Names change at the border of the sink, so that all behind it, and what is noted of a table, has those of the
    database. Fields of nested columns, which are JSON, keep their names. `lower`: whether they are in lower case.
    """

    name: str
    lower: bool

    def of(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the names of columns of the source in the table."""
        return tuple(column.lower() if self.lower else column for column in columns)

    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        """Yield which columns of the source would be one in the table."""
        if not self.lower:
            return
        columns: dict[str, list[str]] = {}
        for column, name in zip(schema.names, self.of(schema.names), strict=True):
            columns.setdefault(name, []).append(column)
        for name, same in columns.items():
            if len(same) > 1:
                reason = f'columns {" and ".join(same)} would all be {name}, by names = "lower"'
                yield SinkRejected(self.name, reason, "Choose one of them with columns.")

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return columns as the table has them. Raises `SinkRejected` for two that would be one."""
        if not self.lower:
            return schema
        for fault in self.faults(schema):
            raise fault
        columns = [column.with_name(name) for column, name in zip(schema, self.of(schema.names), strict=True)]
        return pa.schema(columns, schema.metadata)

    def batches(self, batches: Sequence[ChangeBatch]) -> Sequence[ChangeBatch]:
        """Return rows, which have the schema that came last, with the names in the table. No value is copied."""
        if not self.lower:
            return batches
        return [replace(batch, rows=batch.rows.rename_columns(self.of(batch.rows.schema.names))) for batch in batches]

    def event(self, event: ControlEvent) -> ControlEvent:
        """Return an event with the names in the table. Raises `SinkRejected` for two columns that would be one."""
        if not (self.lower and isinstance(event, SchemaChange)):
            return event
        origins = event.origins
        if origins is not None:
            origins = dict(zip(self.of(origins), self.of(origins.values()), strict=True))
        return replace(event, after=self.schema(event.after), origins=origins)


class TableHeartbeats(BlockingHeartbeats):
    """The heartbeats of `pipeline` in a table of a database server: a row, replaced in transactions of its own.

    A file of SQLite or DuckDB has one writer at a time, which may take minutes for a version. So heartbeats of these
    are in a file beside it. `sink`: the sink's name in errors. `timeout_s`: how long a call may take.
    `make_dialect`: called for each connection, because a password may have changed since the one before.
    """

    def __init__(self, sink: str, make_dialect: Callable[[], Dialect], pipeline: str, timeout_s: float) -> None:
        super().__init__()
        self._sink = sink
        self._make_dialect = make_dialect
        self._dialect = make_dialect()
        self._pipeline = pipeline
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._table = self._dialect.name_of(TABLE)

    @override
    def read_now(self) -> Heartbeat | None:
        with self._connected() as connection:
            if not self._dialect.has_table(connection, TABLE):
                return None
            rows = connection.query(f"SELECT heartbeat FROM {self._table} WHERE pipeline = ?", [self._pipeline])
        return decode_heartbeat(self._sink, f"the row of {self._pipeline} in {TABLE}", rows[0][0]) if rows else None

    @override
    def write_now(self, heartbeat: Heartbeat) -> None:
        with self._connected() as connection:
            if not self._dialect.has_table(connection, TABLE):
                with suppress(UniqueViolationError):  # another instance creates it, too
                    connection.execute(
                        f"CREATE TABLE IF NOT EXISTS {self._table} (pipeline TEXT NOT NULL PRIMARY KEY, "
                        "heartbeat TEXT NOT NULL)"
                    )
            connection.execute(
                f"INSERT INTO {self._table} (pipeline, heartbeat) VALUES (?, ?) "
                "ON CONFLICT (pipeline) DO UPDATE SET heartbeat = excluded.heartbeat",
                [self._pipeline, encode_heartbeat(heartbeat)],
            )

    @override
    def close_now(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Give the connection for one call. After an error it is closed."""
        if self._connection is None:
            self._dialect = self._make_dialect()
            self._connection = self._dialect.connect()
        try:
            with limited(self._connection, self._timeout_s):
                yield self._connection
        except BaseException:
            self.close_now()
            raise


class SqlSink(Sink):
    """A `Sink` that fills a table of a database."""

    splits_snapshots: Final = True
    splits_versions: Final = True

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        self._names = Names(name, lower=options.names == "lower")
        self._source_key: tuple[str, ...] = ()
        self._streams: dict[str, Stream] = {}

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Read the options, see `tailer_sinks.sql.options`; no I/O. Raises `ConfigError`."""
        return cls(name, read(name, options))

    @property
    def demands(self) -> Demands:
        """A mirror has all rows of the source, so it begins with a snapshot, or with the first version."""
        is_mirror = self._options.mode != "append"
        return Demands(whole=is_mirror, primary_key=is_mirror and not self._options.key)

    @override
    def use_key(self, key: tuple[str, ...]) -> None:
        self._source_key = self._names.of(key)

    async def progress(self, app_id: str) -> Progress | None:
        """Read the progress from the database. None: there is none.

        Raises `SinkUnavailable`, and `SinkRejected` if progress is gone.
        """
        entry = await to_thread.run_sync(self._stream(app_id).progress)
        return None if entry is None else Progress(app_id, entry.position)

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether the database has progress of the pipeline. Raises as `progress` does."""
        return pipeline in await to_thread.run_sync(self._stream(_OPERATOR).pipelines)

    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        """Refuse a table that is not this pipeline's, or that has rows of it without progress."""
        await to_thread.run_sync(self._stream(_OPERATOR).check_new, self._target(_OPERATOR), pipeline)

    @override
    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        """A table that a user must be allowed to create is created, and taken back."""
        if faults := list(self._names.faults(schema)):
            return faults
        parts = self._stream(app_id), partial(self._target, app_id), self._options.key, self._names.schema(schema)
        return await to_thread.run_sync(refusals, *parts)

    async def reset(self, progress: Progress) -> None:
        """Set progress without rows. Raises `SinkRejected` if rows would be there twice, or a mirror would be none."""
        if not progress.position.closes_version:
            raise SinkRejected(self.name, f"{progress.position} is in the middle of a version", "Name a whole version.")
        stream = self._stream(progress.app_id)
        await to_thread.run_sync(reset, stream, self._target(progress.app_id), self._options.key, progress.position)

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator["_SqlTransaction"]:
        """Begin a transaction on top of the progress that was read last, or else the current one.

        Entering raises `SinkFenced` if another instance has committed since, and `SinkRejected` if the table is not
        this pipeline's, or has no room for rows of `schema`.
        """
        stream, options, schema = self._stream(app_id), self._options, self._names.schema(schema)
        chunks = options.boundary == "chunk"
        begin = partial(Work, stream, self._target(app_id), options.key, schema, chunks=chunks)
        yield _SqlTransaction(self._names, app_id, await to_thread.run_sync(begin))

    @asynccontextmanager
    @override
    async def open_mirror(self, pipeline: str, version: int | None = None) -> AsyncIterator[MirrorRows]:
        """The state is that of a transaction of the database, with its version."""
        if version is not None and self._options.mode != "history":
            raise one_version(self.name, self._options.table)
        opened = mirror_rows(self._stream(_OPERATOR), self._target(_OPERATOR), pipeline, version)
        rows = await to_thread.run_sync(opened.__enter__)
        rows.lower_names = self._names.lower
        try:
            yield rows
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(opened.__exit__, None, None, None)

    @override
    def open_heartbeats(self, pipeline: str, timeout_s: float) -> Heartbeats:
        path = file_of(self._options)
        if path is not None:
            return FileHeartbeats(self.name, path.with_name(f".{path.name}") / heartbeat_name(pipeline))
        return TableHeartbeats(self.name, self._dialect, pipeline, timeout_s)

    async def aclose(self) -> None:
        """Close the connections."""
        with CancelScope(shield=True):
            for stream in self._streams.values():
                await to_thread.run_sync(stream.close)

    def _stream(self, app_id: str) -> Stream:
        if app_id not in self._streams:
            options, dialect = self._options, self._dialect()
            bad_values = BadValues(self.name, options.on_bad_value, dialect, options.table, app_id)
            self._streams[app_id] = Stream(self.name, dialect, app_id, options.timeout_s, bad_values)
        return self._streams[app_id]

    def _target(self, app_id: str) -> ChangeLog | Mirror:
        options, dialect = self._options, self._dialect()
        if options.mode == "append":
            return ChangeLog(self.name, dialect, options.table, app_id)
        kind = History if options.mode == "history" else MarkedMirror if options.deletes == "mark" else Mirror
        return kind(self.name, dialect, options.table, options.key, self._source_key, adopts=options.adopt)

    def _dialect(self) -> Dialect:
        options = self._options
        if (path := file_of(options)) is not None:
            if not options.url.startswith(DUCKDB):
                return Sqlite(self.name, path, options.timeout_s)
            from tailer_sinks.sql.databases.duckdb import DuckDb  # noqa: PLC0415 - its import takes 0.1 s

            return DuckDb(self.name, path)
        from tailer_sinks.sql.databases.postgresql import PostgreSql  # noqa: PLC0415 - its client is an extra

        password = partial(read_secret, self.name, options.password)
        return PostgreSql(self.name, options.url, password, options.schema, options.password.remedy("password"))


class _SqlTransaction(SinkTransaction):
    """Rows in tables of their own until `commit`."""

    writes_together = True

    def __init__(self, names: Names, app_id: str, work: Work) -> None:
        self._names = names
        self._app_id = app_id
        self._work = work

    @override
    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    @override
    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        await to_thread.run_sync(self._work.write, self._names.batches(batches))

    @override
    async def announce(self, event: ControlEvent) -> None:
        """Rows that would not fit the table are refused before they come."""
        await to_thread.run_sync(self._work.announce, self._names.event(event))

    @override
    async def commit(self, progress: Progress) -> None:
        """Not cancelled once begun.

        Raises `SinkFenced`, `SinkRejected`, `SinkUnavailable` (nothing was committed) or `CommitUnknown`.
        """
        if progress.app_id != self._app_id:
            raise SinkRejected(self._names.name, f"progress of {progress.app_id} in a transaction of {self._app_id}")
        await to_thread.run_sync(self._work.commit, progress.position)

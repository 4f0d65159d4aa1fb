"""The `sql` sink for the pipeline; the package's docstring explains how it works."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
from anyio import CancelScope, to_thread
from typing_extensions import override

from tailer.errors import SinkError, SinkRejected
from tailer.events import ChangeBatch, ControlEvent
from tailer.sink import Demands, Heartbeats, MirrorRows, Progress, Sink, SinkTransaction
from tailer_sinks.access import read_secret
from tailer_sinks.heartbeats import FileHeartbeats, heartbeat_name
from tailer_sinks.mirrors import one_version
from tailer_sinks.sql.append import ChangeLog
from tailer_sinks.sql.bad_values.policy import BadValues
from tailer_sinks.sql.databases.dialect import Dialect
from tailer_sinks.sql.databases.sqlite import Sqlite
from tailer_sinks.sql.heartbeats import TableHeartbeats
from tailer_sinks.sql.mirror import Mirror
from tailer_sinks.sql.names import Names
from tailer_sinks.sql.options import DUCKDB, Options, file_of, read
from tailer_sinks.sql.past.history import History
from tailer_sinks.sql.past.marked import MarkedMirror
from tailer_sinks.sql.stream import Stream
from tailer_sinks.sql.verification.mirror_rows import mirror_rows
from tailer_sinks.sql.work import Work, refusals, reset

__all__ = ["SqlSink"]

_OPERATOR: Final = ""  # of the stream that asks about all pipelines, which is no app_id


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

    @override
    def open_mirror(self, pipeline: str, version: int | None = None) -> AbstractAsyncContextManager[MirrorRows]:
        """The state is that of a transaction of the database, with its version."""
        if version is not None and self._options.mode != "history":
            raise one_version(self.name, self._options.table)
        return self._mirror_rows(pipeline, version)

    @asynccontextmanager
    async def _mirror_rows(self, pipeline: str, version: int | None) -> AsyncIterator[MirrorRows]:
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

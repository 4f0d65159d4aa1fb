"""Heartbeats in a table of a database server: a row for each pipeline, replaced in transactions of its own.

A file of SQLite or DuckDB has one writer at a time, which may take minutes for a version. So heartbeats of these are in
a file beside it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from typing_extensions import override

from tailer.sink import Heartbeat
from tailer_sinks.heartbeats import BlockingHeartbeats, decode_heartbeat, encode_heartbeat
from tailer_sinks.sql.databases.dialect import Connection, Dialect, UniqueViolationError

__all__ = ["TABLE", "TableHeartbeats"]

TABLE: Final = "lake_tailer_heartbeats"


class TableHeartbeats(BlockingHeartbeats):
    """The heartbeats of `pipeline`; `sink`: the sink's name in errors. `timeout_s`: how long a call may take.

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
        timer = threading.Timer(self._timeout_s, self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield self._connection
        except BaseException:
            self.close_now()
            raise
        finally:
            timer.cancel()

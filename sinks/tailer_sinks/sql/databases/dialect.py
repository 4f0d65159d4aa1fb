"""The port of a database: its types, its connections, and the few statements that databases spell in their own way.

Everything else is SQL that each of them takes: quoted names, row values, window functions, and `ALTER TABLE` in
transactions. Connections block, so they are used in worker threads only, by one thread at a time.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

__all__ = ["Connection", "Dialect", "UniqueViolationError", "column_list", "quoted"]


class Connection(Protocol):
    """A connection. Each method raises `SinkUnavailable` or `SinkRejected`, with no value of a row in its text."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement with a `?` for each parameter. Return the number of rows that it changed.

        Raises `UniqueViolationError`, too.
        """
        ...

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query with a `?` for each parameter."""
        ...

    def load(self, table: str, rows: pa.RecordBatch) -> None:
        """Append rows to a table, which is a quoted name. A value arrives as it is, or `SinkRejected` names its column.

        Raises `UniqueViolationError`, too.
        """
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Begin a transaction, committed at the end of the block. Raises `CommitUnknown` if that has no answer."""
        ...

    def interrupt(self) -> None:
        """End the call that another thread is in, with an error. The connection is of no use afterwards."""
        ...

    def close(self) -> None:
        """Close it. An open transaction is rolled back, and temporary tables are gone."""
        ...


class Dialect(Protocol):
    """A database. `name_bytes`: the most bytes of a name."""

    @property
    def name_bytes(self) -> int:
        """See the class."""
        ...

    def is_there(self) -> bool:
        """Return whether there may be a database; False: connecting would make an empty one."""
        ...

    def connect(self) -> Connection:
        """Open a connection. Raises `SinkUnavailable`, `SinkRejected`."""
        ...

    def type_of(self, kind: pa.DataType) -> str | None:
        """Return the type of columns that hold every value of `kind`; None: there is none."""
        ...

    def name_of(self, table: str) -> str:
        """Return the quoted name of a table that stays."""
        ...

    def has_table(self, connection: Connection, table: str) -> bool:
        """Return whether there is a table, or anything else, with this name."""
        ...

    def empty(self, connection: Connection, table: str) -> None:
        """Remove all rows of a temporary table."""
        ...

    def analyze(self, connection: Connection, table: str) -> None:
        """Count the values of a temporary table for the planner of queries, if it plans by them."""
        ...

    def widen(
        self, table: str, column: str, narrow: pa.DataType, wide: pa.DataType, *, is_key: bool
    ) -> list[str] | None:
        """Return the statements that turn the values of a column into a wider type; None: a key cannot be turned."""
        ...


class UniqueViolationError(Exception):
    """The database refuses a row whose key, or position, is there already."""


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def column_list(names: Sequence[str]) -> str:
    """Return names as a list of columns."""
    return ", ".join(map(quoted, names))

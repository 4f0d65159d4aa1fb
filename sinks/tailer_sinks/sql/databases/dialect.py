"""The port of a database: its types, its connections, and the few statements that databases spell in their own way.

Everything else is SQL that each of them takes: quoted names, row values, window functions, and statements that create
and drop tables within a transaction. Connections block, so they are used in worker threads only, by one thread at a
time.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from typing_extensions import override

from tailer_sinks.sql.databases.existing import ExistingTable

__all__ = [
    "Columns",
    "Connection",
    "Dialect",
    "Holds",
    "InFile",
    "UniqueViolationError",
    "altered_in_place",
    "column_list",
    "first_line",
    "limited",
    "quoted",
]

Widened = Sequence[tuple[str, pa.DataType, pa.DataType]]
Widen = Callable[[str, pa.DataType, pa.DataType], list[str]]


@dataclass(frozen=True, slots=True)
class Columns:
    """A change of a table's columns to those of `after`.

    `renamed`: old and new names. `widened`: name, old and new type, by new names. `emptied`: columns of other types,
    which need an empty table. `key`: the columns that identify a row, by new names.
    """

    after: pa.Schema
    dropped: Sequence[str] = ()
    renamed: Sequence[tuple[str, str]] = ()
    widened: Widened = ()
    added: Sequence[pa.Field] = ()
    emptied: Sequence[str] = ()
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The values of its types that a database holds.

    `row_bytes`: the most of the texts and bytes of a row, in each of which a byte counts `bytes_of_a_byte`. `has_nul`:
    whether texts may have U+0000. `days`, `micros`: the first and the last one, since 1970. `key_bytes`: the most of
    the values of a key.
    """

    row_bytes: int
    bytes_of_a_byte: int = 1
    has_nul: bool = True
    days: tuple[int, int] | None = None
    micros: tuple[int, int] | None = None
    key_bytes: int | None = None


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

    def texts(self, query: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, with a text for each value of `columns`: equal only for equal values.

        A null has no text.
        """
        ...

    def load(self, table: str, rows: pa.RecordBatch) -> None:
        """Append rows to a table, which is a quoted name. A value arrives as it is, or `SinkRejected` names its column.

        Raises `UniqueViolationError`, too.
        """
        ...

    def load_texts(self, table: str, rows: pa.RecordBatch, columns: pa.Schema) -> None:
        """Append rows that `texts` yielded for `columns`."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Begin a transaction, committed at the end of the block. Raises `CommitUnknown` if that has no answer."""
        ...

    def one_state(self, table: str) -> AbstractContextManager[None]:
        """Begin a transaction that only reads, and sees no later commit. `table`: a quoted name, of one to be read.

        Other connections may change its rows. Its columns stay.
        """
        ...

    def lock(self, table: str) -> None:
        """Let others only read the rows of a table until the open transaction ends."""
        ...

    def interrupt(self) -> None:
        """End the call that another thread is in, with an error. The connection is of no use afterwards."""
        ...

    def close(self) -> None:
        """Close it. An open transaction is rolled back, and temporary tables are gone."""
        ...


class Dialect(Protocol):
    """A database.

    `holds`: see `Holds`. `name_bytes`: the most bytes of a name. `enforces_keys`: whether a table has a constraint for
    its key; otherwise rows whose key is there twice are looked for after they were inserted. `has_users`: whether one
    may be refused what another one may do. `widens_first`: whether `widen` gives columns the last types that a
    transaction has for them, before all rows; otherwise `alter` widens them. `defers`: whether constraints can wait for
    the end of a transaction. `emptying`: begins the statement that removes all rows of a temporary table.
    """

    emptying: str
    holds: Holds
    name_bytes: int
    enforces_keys: bool
    has_users: bool
    widens_first: bool
    defers: bool

    def is_there(self) -> bool:
        """Return whether there may be a database; False: connecting would make an empty one."""
        ...

    def connect(self) -> Connection:
        """Open a connection. Raises `SinkUnavailable`, `SinkRejected`."""
        ...

    def type_of(self, kind: pa.DataType) -> str | None:
        """Return the type of columns that hold every value of `kind`; None: there is none."""
        ...

    def signed_text(self, value: str) -> str:
        """Return the expression of a text of a float: another one for 0.0 than for -0.0, which are equal."""
        return f"CAST({value} AS TEXT)"

    def name_of(self, table: str) -> str:
        """Return the quoted name of a table that stays."""
        ...

    def folded(self, column: str) -> str:
        """Return a text that is the same for all names of a column."""
        return column

    def has_table(self, connection: Connection, table: str) -> bool:
        """Return whether there is a table, or anything else, with this name."""
        ...

    def describe(self, connection: Connection, table: str) -> ExistingTable:
        """Describe a table that a user made."""
        ...

    def analyze(self, connection: Connection, table: str, columns: Sequence[str]) -> None:
        """Count the values of a temporary table for the planner of queries, if it plans by them."""
        ...

    def prepare(self, connection: Connection, table: str, widened: Widened, hold: Callable[[], None]) -> None:
        """Commit what must be there before the transaction that widens columns: name, former and last type.

        `hold` locks the progress in each transaction. Raises `SinkUnavailable`, and `SinkRejected` if they cannot be
        widened.
        """
        ...

    def widen(self, connection: Connection, table: str, widened: Widened) -> None:
        """Widen columns that were prepared, in the open transaction, if `widens_first`."""
        ...

    def check_room(self, connection: Connection, table: str, change: Columns) -> None:
        """Raise `SinkRejected` if a table cannot have so many columns."""
        ...

    def alter(self, table: str, change: Columns) -> Iterator[str]:
        """Yield the statements that change the columns of a table. Raises `SinkRejected` if they cannot be changed."""
        ...

    def make_again(
        self, connection: Connection, table: str, before: pa.Schema, after: Columns, create: Callable[[], None]
    ) -> None:
        """Empty a table and give it the columns and the key of `after` in place of `before`, in the open transaction.

        `create` makes it if it is not there.
        """
        ...


class InFile(Dialect):
    """The part of a `Dialect` of a database in the file at `path`: a reader has one state of it, with its columns.

    `name`: the sink's in errors.
    """

    emptying = "DELETE FROM"
    has_users = False
    name_bytes = 1 << 16
    widens_first = False
    defers = False

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    @override
    def is_there(self) -> bool:
        return self.path.exists()

    @override
    def analyze(self, connection: Connection, table: str, columns: Sequence[str]) -> None:
        pass

    @override
    def prepare(self, connection: Connection, table: str, widened: Widened, hold: Callable[[], None]) -> None:
        pass

    @override
    def widen(self, connection: Connection, table: str, widened: Widened) -> None:
        pass

    @override
    def check_room(self, connection: Connection, table: str, change: Columns) -> None:
        pass

    @override
    def name_of(self, table: str) -> str:
        return quoted(table)

    @override
    def folded(self, column: str) -> str:
        return column.encode().lower().decode()  # of ASCII alone

    @override
    def make_again(
        self, connection: Connection, table: str, before: pa.Schema, after: Columns, create: Callable[[], None]
    ) -> None:
        connection.execute(f"DROP TABLE {self.name_of(table)}")
        create()


@contextmanager
def limited(connection: Connection, timeout_s: float) -> Iterator[None]:
    """Let the block take `timeout_s`. After that, `connection` is of no use, and what waits for it fails."""
    timer = threading.Timer(timeout_s, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class UniqueViolationError(Exception):
    """The database refuses a row whose key, or position, is there already. `index`: as `ExistingTable` names it."""

    def __init__(self, index: str = "") -> None:
        super().__init__("a key is there already")
        self.index = index


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def column_list(names: Sequence[str]) -> str:
    """Return names as a list of columns."""
    return ", ".join(map(quoted, names))


def altered_in_place(dialect: Dialect, table: str, change: Columns, widen: Widen) -> Iterator[str]:
    """Yield the statements that alter a table column by column. `widen`: returns those for one column."""
    table = dialect.name_of(table)
    for column in change.dropped:
        yield f"ALTER TABLE {table} DROP COLUMN {quoted(column)}"
    # By names that nobody has: columns may change their names with each other.
    between = [(old, f"lake_tailer_renamed_{number}", new) for number, (old, new) in enumerate(change.renamed)]
    for old, name_between, _ in between:
        yield f"ALTER TABLE {table} RENAME COLUMN {quoted(old)} TO {quoted(name_between)}"
    for _, name_between, new in between:
        yield f"ALTER TABLE {table} RENAME COLUMN {quoted(name_between)} TO {quoted(new)}"
    for widened in change.widened:
        yield from widen(*widened)
    for field in change.added:
        yield f"ALTER TABLE {table} ADD COLUMN {quoted(field.name)} {dialect.type_of(field.type)}"

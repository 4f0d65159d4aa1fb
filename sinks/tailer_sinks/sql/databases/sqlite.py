"""SQLite, by Python's own library.

A file of SQLite has few types, so decimals, dates and moments are text, and booleans are 0 and 1. Columns of floats are
declared without a type: SQLite would store -0.0 as 0 in a column of type REAL. It has no NaN, for which the column has
the text `NaN`. The journal is a write-ahead log, so that readers of the file never wait. It is not synced at each
commit: a loss of power may take the last commits back, rows and progress together.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.errors import CommitUnknown, SinkError, SinkRejected, SinkUnavailable
from tailer.sink import OTHER_CLASS
from tailer_sinks.encoding.flat import slices
from tailer_sinks.sql.databases.dialect import (
    Columns,
    Connection,
    Holds,
    InFile,
    UniqueViolationError,
    altered_in_place,
    column_list,
    quoted,
)
from tailer_sinks.sql.databases.existing import ExistingTable, described_in_sqlite
from tailer_sinks.sql.databases.texts import TEXT, NoText, bare_texts, holds_json, is_bytes, is_text, json_texts

__all__ = ["Sqlite"]

_NOT_A_DATABASE: Final = "Give another file: this one is not a database of SQLite, or is damaged."
# Errors that another attempt cannot get past.
_FINAL: Final = frozenset(
    {"SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_READONLY", "SQLITE_AUTH", "SQLITE_ERROR", "SQLITE_TOOBIG"}
)
_HEADER: Final = b"SQLite format 3\0"
_NAN: Final = "NaN"
_SIGNED_TEXT: Final = "lake_tailer_signed_text"  # SQLite's own texts of 0.0 and -0.0 are the same
_READ_ROWS: Final = 8192


class Sqlite(InFile):
    """The database in the file at `path`, for the sink called `name`. `timeout_s`: how long to wait for its lock."""

    holds = Holds(row_bytes=10**9)
    enforces_keys = True

    def __init__(self, name: str, path: Path, timeout_s: float) -> None:
        super().__init__(name, path)
        self.timeout_s = timeout_s

    @override
    def connect(self) -> Connection:
        """The file is made if it is not there.

        One that begins like a database and is none may be half written, as on a full disk: it is tried again.
        """
        with _translated(self.name):
            connection = sqlite3.connect(
                self.path, timeout=self.timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA schema_version")  # reads the file
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.create_function(_SIGNED_TEXT, 1, repr, deterministic=True)
            except sqlite3.DatabaseError as error:
                connection.close()
                if error.sqlite_errorname == "SQLITE_NOTADB" and self._begins_like_one():
                    raise SinkUnavailable(self.name, f"SQLite: {self.path} is not written whole") from error
                raise
            except BaseException:
                connection.close()
                raise
        return _SqliteConnection(self.name, connection)

    def _begins_like_one(self) -> bool:
        with suppress(OSError), self.path.open("rb") as file:
            return file.read(len(_HEADER)) == _HEADER
        return False

    @override
    def type_of(self, kind: pa.DataType) -> str | None:
        if pa.types.is_floating(kind):
            return ""
        if pa.types.is_duration(kind):
            return None
        names = ((pa.types.is_boolean, "BOOLEAN"), (pa.types.is_integer, "INTEGER"), (is_bytes, "BLOB"))
        return next((name for applies, name in names if applies(kind)), "TEXT" if _converter(kind) else None)

    @override
    def signed_text(self, value: str) -> str:
        return f"{_SIGNED_TEXT}({value})"

    @override
    def has_table(self, connection: Connection, table: str) -> bool:
        return bool(connection.query("SELECT 1 FROM main.sqlite_master WHERE lower(name) = lower(?)", [table]))

    @override
    def describe(self, connection: Connection, table: str) -> ExistingTable:
        return described_in_sqlite(connection.query, table, self.type_of)

    @override
    def alter(self, table: str, change: Columns) -> Iterator[str]:
        """Columns of text are widened in place, others are replaced, which a key cannot be."""
        for column, narrow, wide in change.widened:
            if column in change.key and self._is_replaced(column, narrow, wide):
                reason = f"column {column} of the key of {table} was widened to {wide}"
                raise SinkRejected(self.name, reason, "Ask for a snapshot with `tailer resnapshot PIPELINE`.")
        return altered_in_place(self, table, change, partial(self._widen, self.name_of(table)))

    def _is_replaced(self, column: str, narrow: pa.DataType, wide: pa.DataType) -> bool:
        is_other = self.type_of(narrow) != self.type_of(wide)
        return is_other and _widened(quoted(column), narrow, wide) is not None

    def _widen(self, table: str, column: str, narrow: pa.DataType, wide: pa.DataType) -> list[str]:
        value = _widened(quoted(column), narrow, wide)
        if value is None:
            return []
        if not self._is_replaced(column, narrow, wide):
            return [f"UPDATE {table} SET {quoted(column)} = {value}"]
        wider = quoted(f"lake_tailer_wider {column}")
        return [
            f"ALTER TABLE {table} ADD COLUMN {wider} {self.type_of(wide)}",
            f"UPDATE {table} SET {wider} = {value}",
            f"ALTER TABLE {table} DROP COLUMN {quoted(column)}",
            f"ALTER TABLE {table} RENAME COLUMN {wider} TO {quoted(column)}",
        ]


class _SqliteConnection:
    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self._name = name
        self._connection = connection
        self._has_log = False

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        with _translated(self._name):
            return self._connection.execute(statement, parameters).rowcount

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with _translated(self._name):
            return self._connection.execute(statement, parameters).fetchall()

    def texts(self, query: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        with _translated(self._name):
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_READ_ROWS):
                arrays = [
                    _texts(field.type, values) for field, values in zip(columns, zip(*rows, strict=True), strict=True)
                ]
                yield pa.record_batch(arrays, columns.names)

    def load(self, table: str, rows: pa.RecordBatch) -> None:
        # Of deleted rows only the key is there. Python's library takes longer for a null than for most values.
        names = [name for name in rows.schema.names if rows.column(name).null_count < len(rows)] or rows.schema.names
        parts = ([_values(self._name, name, part.column(name)) for name in names] for part in slices(rows))
        self._insert(table, names, parts)

    def load_texts(self, table: str, rows: pa.RecordBatch, columns: pa.Schema) -> None:
        values = [
            [None if text is None else _from_text(own, text) for text in column.to_pylist()]
            for own, column in zip(map(_stored_class, columns.types), rows.columns, strict=True)
        ]
        self._insert(table, rows.schema.names, [values])

    def _insert(self, table: str, names: Sequence[str], parts: Iterable[Sequence[Sequence[Any]]]) -> None:
        statement = f"INSERT INTO {table} ({column_list(names)}) VALUES ({', '.join('?' * len(names))})"
        with _translated(self._name):
            # One transaction for all of them, which locks only the temporary tables.
            self._connection.execute("BEGIN")
            try:
                for columns in parts:
                    self._connection.executemany(statement, zip(*columns, strict=True))
            except BaseException:
                self._roll_back()
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if not self._has_log:  # it is kept in the file, which a look leaves as it is
            self.execute("PRAGMA journal_mode = WAL")
            self._has_log = True
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        try:
            self.execute("COMMIT")
        except SinkError as error:
            if not self._connection.in_transaction:
                raise CommitUnknown(self._name, error.reason) from error
            self._roll_back()
            raise

    @contextmanager
    def one_state(self, table: str) -> Iterator[None]:
        self.execute("BEGIN")  # the first statement that reads decides which state it is
        try:
            yield
        finally:
            with suppress(SinkError):
                self._roll_back()

    def lock(self, table: str) -> None:
        """Do nothing: a transaction that writes is the only one that does."""

    def interrupt(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:
        if "UNIQUE" in error.sqlite_errorname or "PRIMARYKEY" in error.sqlite_errorname:
            named = str(error).rpartition(": ")[2].split(", ")
            raise UniqueViolationError(", ".join(column.partition(".")[2] for column in named)) from error
        raise SinkRejected(name, f"a constraint of the table refuses a row: {error}", "Drop the constraint.") from error
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorname", "")
        if any(code.startswith(final) for final in _FINAL):
            remedy = _NOT_A_DATABASE if code in ("SQLITE_NOTADB", "SQLITE_CORRUPT") else "See what the database says."
            raise SinkRejected(name, f"SQLite refuses: {error}", remedy) from error
        raise SinkUnavailable(name, f"SQLite: {error}") from error


def _values(name: str, column: str, values: pa.Array) -> list[Any]:
    """Return the values of a column as SQLite's library takes them."""
    convert = _converter(values.type)
    assert convert is not None, "a column of the table"
    try:
        return convert(values)
    except NoText as error:
        raise SinkRejected(name, f"column {column} {error}", "Leave the column out.") from error
    except UnicodeDecodeError:
        reason = f"column {column} has a text that is not UTF-8, which SQLite cannot have"
        raise SinkRejected(name, reason, "Leave the column out.") from None


def _texts(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Return the texts of a column's values. Any value may be of any class, so its class is part of its text.

    Only values of the class that the sink stores for `kind` go without.
    """
    own = _stored_class(kind)
    classes = set(map(type, values)) - {type(None)}
    if classes <= {str} and own is str:
        texts = pa.array(values, TEXT)
        if not pc.any(pc.starts_with(texts, OTHER_CLASS)).as_py():
            return texts
    if classes <= {int} and own is int:
        return pa.array(values, pa.int64()).cast(TEXT)
    return pa.array([None if value is None else _text(own, value) for value in values], TEXT)


def _text(own: type, value: Any) -> str:
    text = value.hex() if isinstance(value, bytes) else value if isinstance(value, str) else repr(value)
    is_own = type(value) is own or (own is float and value == _NAN)
    return text if is_own and not text.startswith(OTHER_CLASS) else f"{OTHER_CLASS}{type(value).__name__} {text}"


def _from_text(own: type, text: str) -> Any:
    """Return the value of a text that `_texts` returned, of a column of a key."""
    name = own.__name__
    if text.startswith(OTHER_CLASS):
        name, _, text = text.removeprefix(OTHER_CLASS).partition(" ")
    return bytes.fromhex(text) if name == "bytes" else {"int": int, "float": float}.get(name, str)(text)


def _stored_class(kind: pa.DataType) -> type:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return int
    if pa.types.is_floating(kind):
        return float
    return bytes if is_bytes(kind) else str


def _converter(kind: pa.DataType) -> Callable[[pa.Array], list[Any]] | None:
    """Return what turns a column of `kind` into values of SQLite; None: no type of it holds them."""
    plain = (pa.types.is_boolean, pa.types.is_integer, is_text, is_bytes, pa.types.is_null)
    if any(applies(kind) for applies in plain):
        return _plain
    if pa.types.is_floating(kind):
        return _floats
    try:
        convert = json_texts(kind) if holds_json(kind) else bare_texts(kind)
    except NoText:
        return None
    return lambda column: _plain(convert(column))


def _plain(column: pa.Array) -> list[Any]:
    return list(column.to_pylist())


def _floats(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pc.any(pc.is_nan(column)).as_py():
        values = [_NAN if value is not None and value != value else value for value in values]  # noqa: PLR0124 - NaN
    return values


def _widened(column: str, narrow: pa.DataType, wide: pa.DataType) -> str | None:
    """Return the expression of a column's values in a wider type; None: they are the same there."""
    if pa.types.is_null(narrow):
        return "NULL"
    if pa.types.is_decimal(wide):
        scale = narrow.scale if pa.types.is_decimal(narrow) else 0
        zeros = ("." if scale == 0 and wide.scale else "") + "0" * (wide.scale - scale)
        return f"CAST({column} AS TEXT) || '{zeros}'"
    if pa.types.is_integer(narrow) and pa.types.is_floating(wide):
        return f"CAST({column} AS REAL)"
    if pa.types.is_date(narrow) and pa.types.is_timestamp(wide):
        return f"{column} || 'T00:00:00.000000'"
    return None

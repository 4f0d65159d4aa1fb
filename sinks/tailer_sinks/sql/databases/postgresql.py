"""PostgreSQL, by psycopg 3.

Rows are sent by `COPY` (`postgresql_copy`), and columns change beside readers (`postgresql_columns`).
"""

import io
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import dup
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyarrow import csv
from typing_extensions import override

from tailer.errors import CommitUnknown, SinkAccessRefused, SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.encoding.flat import slices
from tailer_sinks.sql.databases.dialect import (
    Columns,
    Connection,
    Dialect,
    UniqueViolationError,
    Widened,
    altered_in_place,
    column_list,
    first_line,
    quoted,
)
from tailer_sinks.sql.databases.existing import ExistingTable, described_in_postgresql
from tailer_sinks.sql.databases.postgresql_columns import (
    DROP_DEPENDENTS,
    columns_left,
    forget_dropped,
    kept_dependents,
    make_again,
    prepare_wider,
    take_wider,
)
from tailer_sinks.sql.databases.postgresql_copy import HOLDS, copied
from tailer_sinks.sql.databases.texts import TEXT, NoText, holds_json, json_texts

__all__ = ["PostgreSql", "prepared"]

# What values need, whatever the url says.
_OPTIONS: Final = "-c timezone=UTC -c datestyle=ISO -c extra_float_digits=1"
_DEFAULTS: Final[dict[str, Any]] = {
    "application_name": "lake-tailer",
    "connect_timeout": 10,
    # A connection whose other end is silent is given up after a minute.
    "keepalives_idle": 15,
    "keepalives_interval": 15,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
# A client that is frozen or cut off inside a transaction keeps its locks until the server ends its session.
_BEGIN: Final = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '5s'"
_AGAIN: Final = "lake_tailer_again"  # a table that takes the place of another one
_READ_BYTES: Final = 4 * 2**20  # of texts that are read at a time
_MARK: Final = re.compile(r'"(?:[^"]|"")*"|\?|%')
# Classes of errors that may pass: connection, rollback of a transaction, resources, operators, the system.
_MAY_PASS: Final = ("08", "40", "53", "55", "57", "58", "25")
_NO_ACCESS: Final = ("28", "42501")  # the login, a permission
# What servers and poolers say of a login: libpq gives no code of an error before the connection is made.
_REFUSALS: Final = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|is not permitted to log in"
    r"|permission denied for database|no such user"
)
# What a server says itself, not libpq: its severity and its text, in its language.
_SAID: Final = re.compile(r"failed: \S+: {2}(.*)")
_ENGLISH: Final = re.compile(r"\b(the|is|are|does|to|many|failed|cannot|server|database|connections?)\b")
# Errors of statements that change columns, with their next steps.
_OF_DEPENDENTS: Final = ("2BP01", "0A000")
_REMEDIES: Final = {
    "54011": "Dropped columns count, too, until `tailer resnapshot PIPELINE` makes the table again. Or make it again "
    "yourself: CREATE TABLE copy (LIKE it INCLUDING ALL), INSERT INTO copy SELECT * FROM it, DROP it, rename the copy, "
    "and run `tailer resume PIPELINE`.",
}
_TOO_LARGE: Final = "54000"  # of a row, or its part in an index; the message has sizes and the name of the index
_FEWER: Final = (
    "Leave columns out with select: only long values are outside of a page. Or choose a key of shorter values."
)
# Errors of rows that the table's own constraints refuse.
_OF_ROWS: Final = dict.fromkeys(("23514", "23P01"), "Drop it, or make a partition for the row") | {
    "23502": "Let it be null, with ALTER COLUMN ... DROP NOT NULL",
    "23503": "Give the other table the rows that the key asks for, or drop it",
}
_TYPES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.null(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.time64("us"): "time",
}


class PostgreSql(Dialect):
    """The database at `url`, for the sink called `name`. `schema`: of the tables; None: the user's.

    `password`: reads the password for a connection; None: in the ways of libpq. `remedy`: how to correct it.
    """

    emptying = "TRUNCATE"
    holds = HOLDS
    name_bytes = 63
    enforces_keys = True
    has_users = True
    widens_first = True
    defers = True

    def __init__(
        self, name: str, url: str, password: Callable[[], str | None], schema: str | None, remedy: str = ""
    ) -> None:
        self.name = name
        self.url = url
        self.schema = schema
        self._password = password
        self._remedy = remedy

    @override
    def is_there(self) -> bool:
        return True

    @override
    def connect(self) -> Connection:
        try:
            given = conninfo_to_dict(self.url)
            options = f"{given.get('options', '')} {_OPTIONS}".strip()
            settings = {**_DEFAULTS, **given, "client_encoding": "utf8", "options": options}
            if (password := self._password()) is not None:
                settings["password"] = password
            connection = psycopg.connect(make_conninfo(**settings), autocommit=True)
        except psycopg.OperationalError as error:
            if (refusal := _refusal(error)) is not None:
                remedy = f"{self._remedy} Or let the server admit the user of url.".strip()
                raise SinkAccessRefused(self.name, f"PostgreSQL refuses the login: {refusal}", remedy) from None
            raise SinkUnavailable(self.name, f"no connection to PostgreSQL: {first_line(error)}") from None
        except psycopg.ProgrammingError as error:
            reason = f"the url has an option that libpq does not take: {first_line(error)}"
            raise SinkRejected(self.name, reason, "See PostgreSQL's page on connection URIs.") from None
        return _PostgreSqlConnection(self.name, connection)

    @override
    def type_of(self, kind: pa.DataType) -> str | None:
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision}, {kind.scale})"
        if holds_json(kind):
            try:
                json_texts(kind)
            except NoText:
                return None
            return "jsonb"
        return "bytea" if pa.types.is_fixed_size_binary(kind) else _TYPES.get(kind)

    @override
    def name_of(self, table: str) -> str:
        return quoted(table) if self.schema is None else f"{quoted(self.schema)}.{quoted(table)}"

    @override
    def has_table(self, connection: Connection, table: str) -> bool:
        return connection.query("SELECT to_regclass(?) IS NOT NULL", [self.name_of(table)]) == [(True,)]

    @override
    def describe(self, connection: Connection, table: str) -> ExistingTable:
        return described_in_postgresql(connection.query, self.name_of(table), self.type_of)

    @override
    def analyze(self, connection: Connection, table: str, columns: Sequence[str]) -> None:
        # A sample of 3,000 rows is enough.
        connection.execute(f"SET default_statistics_target = 10; ANALYZE {table} ({column_list(columns)})")

    @override
    def prepare(self, connection: Connection, table: str, widened: Widened, hold: Callable[[], None]) -> None:
        if replaced := self._replaced(widened):
            prepare_wider(self.name, connection, self.name_of(table), replaced, hold)

    @override
    def widen(self, connection: Connection, table: str, widened: Widened) -> None:
        in_place = [(column, self.type_of(wide)) for column, narrow, wide in widened if _is_in_place(narrow, wide)]
        replaced, name = self._replaced(widened), self.name_of(table)
        columns = [column for column, *_ in in_place + replaced]
        with kept_dependents(self.name, connection, name, columns):
            for column, kind in in_place:
                connection.execute(f"ALTER TABLE {name} ALTER COLUMN {quoted(column)} TYPE {kind}")
            if replaced:
                take_wider(self.name, connection, name, replaced)

    @override
    def check_room(self, connection: Connection, table: str, change: Columns) -> None:
        needed = len(change.added) + len(self._replaced(change.widened))
        if (left := columns_left(connection, self.name_of(table))) < needed:
            reason = f"{table} may get {left} more columns before it has had 1600 columns, and {needed} are needed"
            raise SinkRejected(self.name, reason, _REMEDIES["54011"])

    @override
    def alter(self, table: str, change: Columns) -> Iterator[str]:
        """Columns are widened before, by `widen`."""
        return altered_in_place(self, table, change, lambda *_: [])

    @override
    def make_again(
        self, connection: Connection, table: str, before: pa.Schema, after: Columns, create: Callable[[], None]
    ) -> None:
        kinds = [{column.name: str(self.type_of(column.type)) for column in schema} for schema in (before, after.after)]
        name, added = self.name_of(table), kinds[1].items() - kinds[0].items()
        if columns_left(connection, name) < len(added):
            forget_dropped(self.name, connection, name, table, self.name_of(_AGAIN))
        make_again(self.name, connection, name, kinds[0], kinds[1], after.key)

    def _replaced(self, widened: Widened) -> list[tuple[str, str, str]]:
        """Return the columns that another one replaces, with its type and values; all others are widened in place."""
        columns = []
        for column, narrow, wide in widened:
            kind = self.type_of(wide)
            if kind is not None and kind != self.type_of(narrow) and not _is_in_place(narrow, wide):
                columns.append((column, kind, f"{'NULL' if pa.types.is_null(narrow) else quoted(column)}::{kind}"))
        return columns


class _PostgreSqlConnection:
    def __init__(self, name: str, connection: psycopg.Connection[Any]) -> None:
        self._name = name
        self._connection = connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        with self._translated():
            return self._connection.execute(*prepared(statement, parameters)).rowcount

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._connection.execute(*prepared(statement, parameters)).fetchall()

    def texts(self, query: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        # With quotes around every value but null.
        statement = f"COPY ({query}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)".encode()
        with self._translated(), self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            part = bytearray()
            for row in copy:
                part += row
                if len(part) > _READ_BYTES:
                    yield from _read_texts(part, columns.names)
                    part = bytearray()
            if part:
                yield from _read_texts(part, columns.names)

    def load(self, table: str, rows: pa.RecordBatch) -> None:
        if not len(rows):
            return
        # Of deleted rows only the key is there, and what is not sent need not be read.
        given = [name for name in rows.schema.names if rows.column(name).null_count < len(rows)]
        rows = rows.select(given or rows.schema.names)
        statement = f"COPY {table} ({column_list(rows.schema.names)}) FROM STDIN".encode()
        with (
            self._translated(rows.schema.names),
            self._connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for part in slices(rows):
                copy.write(copied(self._name, part))

    def load_texts(self, table: str, rows: pa.RecordBatch, columns: pa.Schema) -> None:
        self.load(table, rows)  # COPY reads each text by the type of its column

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute(_BEGIN)
        try:
            yield
        except BaseException:
            # A connection that is lost has no transaction any more.
            with suppress(SinkError):
                self.execute("ROLLBACK")
            raise
        try:
            self.execute("COMMIT")
        except SinkUnavailable as error:
            raise CommitUnknown(self._name, error.reason) from error

    @contextmanager
    def one_state(self, table: str) -> Iterator[None]:
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            # Before the first query, which decides the state: the columns of the table are those of now.
            self.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
            yield
        finally:
            with suppress(SinkError):
                self.execute("ROLLBACK")

    def lock(self, table: str) -> None:
        self.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")

    def interrupt(self) -> None:
        # The server may be the one that does not answer, so no request is sent to it.
        with suppress(OSError, psycopg.Error), socket.socket(fileno=dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translated(self, columns: Sequence[str] = ()) -> Iterator[None]:
        """Translate errors. Details of PostgreSQL's errors have values of rows, and are left out."""
        try:
            yield
        except psycopg.errors.UniqueViolation as error:
            raise UniqueViolationError(error.diag.constraint_name or "") from None
        except psycopg.Error as error:
            state = error.sqlstate or ""
            if not state or state.startswith(_MAY_PASS):
                raise SinkUnavailable(self._name, f"PostgreSQL: {first_line(error)}") from None
            what = f"{type(error).__name__}, {state}"
            if state == _TOO_LARGE:
                reason = f"PostgreSQL refuses a row: {error.diag.message_primary} ({what})"
                raise SinkRejected(self._name, reason, _FEWER) from None
            if state in _OF_ROWS:
                reason = f"PostgreSQL refuses a row of {error.diag.table_name}: {_broken(error)} ({what})"
                raise SinkRejected(self._name, reason, f"{_OF_ROWS[state]}; then `tailer resume PIPELINE`.") from None
            if state.startswith(("22", "23", "54")) and state not in _REMEDIES:  # of values, which messages may have
                match = re.search(r"column (.*?)(?:: |$)", error.diag.context or "")
                column = error.diag.column_name or (match[1] if match else "")
                place = f"a value of column {column}" if column in columns else "a value of a row"
                remedy = "Leave the column out, or change it with select."
                raise SinkRejected(self._name, f"PostgreSQL refuses {place} ({what})", remedy) from None
            if state.startswith(_NO_ACCESS):
                reason = f"PostgreSQL refuses access: {error.diag.message_primary} ({what})"
                raise SinkAccessRefused(self._name, reason, "Grant it to the user of url.") from None
            reason, remedy = f"PostgreSQL refuses: {error.diag.message_primary} ({what})", "See what the database says."
            detail = error.diag.message_detail
            if state in _OF_DEPENDENTS and detail:  # which has names alone
                reason, remedy = f"{reason}: {', '.join(detail.splitlines())}", DROP_DEPENDENTS
            raise SinkRejected(self._name, reason, _REMEDIES.get(state, remedy)) from None


def _is_in_place(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether PostgreSQL widens a column without writing the table again."""
    return bool(pa.types.is_decimal(narrow) and pa.types.is_decimal(wide) and narrow.scale == wide.scale)


def _broken(error: psycopg.Error) -> str:
    """Return what refuses a row. A partitioned table without a place for it has no constraint."""
    named, column = error.diag.constraint_name, error.diag.column_name
    return f"the constraint {named}" if named else f"column {column} is null" if column else "no partition is for it"


def _refusal(error: psycopg.OperationalError) -> str | None:
    """Return the line that says that a login is refused, of whichever host; None: it is not.

    In another language than English, a server refuses the login with all that it says to a password.
    """
    lines = [line.strip().removeprefix("connection failed: ") for line in str(error).splitlines()]
    if (refusal := next(filter(_REFUSALS.search, lines), None)) is not None:
        return refusal
    login = error.pgconn
    said = _SAID.search(lines[0]) if lines and login is not None and login.used_password else None
    return lines[0] if said is not None and not _ENGLISH.search(said[1]) else None


def prepared(statement: str, parameters: Sequence[Any]) -> tuple[bytes, Sequence[Any] | None]:
    """Return a statement as psycopg takes it. Without parameters it is sent as it is."""
    if not parameters:
        return statement.encode(), None
    marks = {"?": "%s", "%": "%%"}
    return _MARK.sub(lambda found: marks.get(found[0], found[0].replace("%", "%%")), statement).encode(), parameters


def _read_texts(rows: bytearray, columns: Sequence[str]) -> list[pa.RecordBatch]:
    table: pa.Table = csv.read_csv(
        io.BytesIO(rows),
        csv.ReadOptions(column_names=list(columns), use_threads=False, block_size=len(rows) + 1),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(columns, TEXT),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches

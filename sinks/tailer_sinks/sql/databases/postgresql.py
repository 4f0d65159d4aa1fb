"""PostgreSQL, by psycopg 3.

Rows are sent by `COPY`, in its text format, which Arrow builds a column at a time. Dates and moments are sent as Julian
days, because PostgreSQL reads these for all years that it has. Texts of PostgreSQL cannot have the character U+0000.
"""

import io
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from os import dup
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyarrow import csv

from tailer.errors import CommitUnknown, SinkAccessRefused, SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.encoding.flat import slices
from tailer_sinks.sql.databases.dialect import (
    Columns,
    Connection,
    UniqueViolationError,
    altered_in_place,
    column_list,
    quoted,
)
from tailer_sinks.sql.databases.texts import TEXT, Convert, NoText, holds_json, json_texts

__all__ = ["PostgreSql", "copied", "prepared"]

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
_READ_BYTES: Final = 4 * 2**20  # of texts that are read at a time
_EPOCH_DAY: Final = pa.scalar(2_440_588, pa.int64())  # the Julian day of 1970-01-01
_US_PER_DAY: Final = 86_400_000_000
_MARK: Final = re.compile(r'"(?:[^"]|"")*"|\?|%')
_NUL: Final = "\0"
_NUL_IN_JSON: Final = r"(^|[^\\])(\\\\)*\\u0000"
# Classes of errors that may pass: connection, rollback of a transaction, resources, operators, the system.
_MAY_PASS: Final = ("08", "40", "53", "55", "57", "58", "25")
_NO_ACCESS: Final = ("28", "42501")  # the login, a permission
# What servers and poolers say of a login: libpq gives no code of an error before the connection is made.
_REFUSALS: Final = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|is not permitted to log in"
    r"|permission denied for database|no such user"
)
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


class PostgreSql:
    """The database at `url`, for the sink called `name`. `schema`: of the tables; None: the user's.

    `password`: reads the password for a connection; None: in the ways of libpq. `remedy`: how to correct it.
    """

    name_bytes: Final = 63
    enforces_keys: Final = True
    has_users: Final = True

    def __init__(
        self, name: str, url: str, password: Callable[[], str | None], schema: str | None, remedy: str = ""
    ) -> None:
        self.name = name
        self.url = url
        self.schema = schema
        self._password = password
        self._remedy = remedy

    def is_there(self) -> bool:
        """See `Dialect.is_there`."""
        return True

    def connect(self) -> Connection:
        """See `Dialect.connect`."""
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
            raise SinkUnavailable(self.name, f"no connection to PostgreSQL: {_first_line(error)}") from None
        except psycopg.ProgrammingError as error:
            reason = f"the url has an option that libpq does not take: {_first_line(error)}"
            raise SinkRejected(self.name, reason, "See PostgreSQL's page on connection URIs.") from None
        return _PostgreSqlConnection(self.name, connection)

    def type_of(self, kind: pa.DataType) -> str | None:
        """See `Dialect.type_of`."""
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision}, {kind.scale})"
        if holds_json(kind):
            try:
                json_texts(kind)
            except NoText:
                return None
            return "jsonb"
        return "bytea" if pa.types.is_fixed_size_binary(kind) else _TYPES.get(kind)

    def name_of(self, table: str) -> str:
        """See `Dialect.name_of`."""
        return quoted(table) if self.schema is None else f"{quoted(self.schema)}.{quoted(table)}"

    def has_table(self, connection: Connection, table: str) -> bool:
        """See `Dialect.has_table`."""
        return connection.query("SELECT to_regclass(?) IS NOT NULL", [self.name_of(table)]) == [(True,)]

    def empty(self, connection: Connection, table: str) -> None:
        """See `Dialect.empty`."""
        connection.execute(f"TRUNCATE {table}")

    def analyze(self, connection: Connection, table: str, columns: Sequence[str]) -> None:
        """See `Dialect.analyze`."""
        # A sample of 3,000 rows is enough.
        connection.execute(f"SET default_statistics_target = 10; ANALYZE {table} ({column_list(columns)})")

    def alter(self, table: str, change: Columns) -> Iterator[str]:
        """See `Dialect.alter`."""
        return altered_in_place(self, table, change, partial(self._widen, self.name_of(table)))

    def _widen(self, table: str, column: str, narrow: pa.DataType, wide: pa.DataType) -> list[str]:
        kind = self.type_of(wide)
        if kind == self.type_of(narrow):
            return []
        value = "NULL" if pa.types.is_null(narrow) else f"{quoted(column)}::{kind}"
        return [f"ALTER TABLE {table} ALTER COLUMN {quoted(column)} TYPE {kind} USING {value}"]


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
        given = [each for each in rows.schema.names if rows.column(each).null_count < len(rows)]
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
            # Before the first query, which decides the state: a table that is rewritten later would seem to be empty.
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
        except psycopg.errors.UniqueViolation:
            raise UniqueViolationError from None
        except psycopg.Error as error:
            state = error.sqlstate or ""
            if not state or state.startswith(_MAY_PASS):
                raise SinkUnavailable(self._name, f"PostgreSQL: {_first_line(error)}") from None
            what = f"{type(error).__name__}, {state}"
            if state.startswith(("22", "23", "54")):  # of values, whose messages may have them
                found = re.search(r"column (.*?)(?:: |$)", error.diag.context or "")
                column = error.diag.column_name or (found[1] if found else "")
                place = f"a value of column {column}" if column in columns else "a value of a row"
                remedy = "Leave the column out, or change it with select."
                raise SinkRejected(self._name, f"PostgreSQL refuses {place} ({what})", remedy) from None
            if state.startswith(_NO_ACCESS):
                reason = f"PostgreSQL refuses access: {error.diag.message_primary} ({what})"
                raise SinkAccessRefused(self._name, reason, "Grant it to the user of url.") from None
            reason = f"PostgreSQL refuses: {error.diag.message_primary} ({what})"
            raise SinkRejected(self._name, reason, "See what the database says.") from None


def _refusal(error: psycopg.OperationalError) -> str | None:
    """Return the line that says that a login is refused, of whichever host; None: it is not."""
    lines = (line.strip().removeprefix("connection failed: ") for line in str(error).splitlines())
    return next(filter(_REFUSALS.search, lines), None)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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


def copied(name: str, rows: pa.RecordBatch) -> pa.Buffer:
    """Return rows in the text format of COPY."""
    columns = [_texts(name, field, column) for field, column in zip(rows.schema, rows.columns, strict=True)]
    lines = pc.binary_join_element_wise(
        *columns, pa.scalar("\t", TEXT), null_handling="replace", null_replacement="\\N"
    )
    lines = pc.binary_join_element_wise(lines, pa.scalar("\n", TEXT), pa.scalar("", TEXT))
    return lines.buffers()[2]


def _texts(name: str, field: pa.Field, column: pa.Array) -> pa.Array:
    kind = column.type
    try:
        texts = _converter(kind)(column)
    except NoText as error:
        raise SinkRejected(name, f"column {field.name} {error}", "Leave the column out.") from error
    if not (holds_json(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return texts
    is_json = holds_json(kind)
    has_nul = pc.match_substring_regex(texts, _NUL_IN_JSON) if is_json else pc.match_substring(texts, _NUL)
    if pc.any(has_nul).as_py():
        reason = f"column {field.name} has a text with the character U+0000, which texts of PostgreSQL cannot have"
        raise SinkRejected(name, reason, "Leave the column out, or replace the character with select.")
    return _escaped(texts)


def _escaped(texts: pa.Array) -> pa.Array:
    """Return texts with the characters escaped that COPY would take for something else."""
    if pc.any(pc.match_substring_regex(texts, r"[\\\t\n\r]")).as_py():
        for character, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
            texts = pc.replace_substring(texts, character, escape)
    return texts


@cache
def _converter(kind: pa.DataType) -> Convert:
    """Return what turns a column into texts that PostgreSQL reads."""
    if holds_json(kind):
        return json_texts(kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hex
    if pa.types.is_date(kind):
        return lambda column: _days(column.cast(pa.int32()).cast(pa.int64()))
    if pa.types.is_timestamp(kind):
        return _moments
    return lambda column: column.cast(TEXT)


def _hex(column: pa.Array) -> pa.Array:
    """Return bytes in hexadecimal; all of them are converted at once."""
    column = pa.concat_arrays([column.cast(pa.large_binary())])
    _, offsets, data = column.buffers()
    start = column.offset
    places = pa.Array.from_buffers(pa.int64(), len(column) + 1, [None, offsets], offset=start)
    doubled = pc.multiply(places, 2)
    digits = pa.py_buffer((data.to_pybytes() if data is not None else b"").hex().encode())
    texts = pa.LargeStringArray.from_buffers(len(column), doubled.buffers()[1], digits)
    with_mark = pc.binary_join_element_wise(pa.scalar("\\\\x", TEXT), texts, pa.scalar("", TEXT))
    return with_mark if column.null_count == 0 else pc.if_else(column.is_valid(), with_mark, pa.scalar(None, TEXT))


def _days(days: pa.Array) -> pa.Array:
    """Return days since 1970 as Julian days."""
    return pc.binary_join_element_wise(pa.scalar("J", TEXT), pc.add(days, _EPOCH_DAY).cast(TEXT), pa.scalar("", TEXT))


def _moments(column: pa.Array) -> pa.Array:
    """Return moments in microseconds as Julian days and times of the day."""
    micros = column.cast(pa.int64())
    days = pc.divide(micros, _US_PER_DAY)
    days = pc.if_else(pc.less(micros, pc.multiply(days, _US_PER_DAY)), pc.subtract(days, 1), days)
    times = pc.subtract(micros, pc.multiply(days, _US_PER_DAY)).cast(pa.time64("us")).cast(TEXT)
    return pc.binary_join_element_wise(_days(days), times, pa.scalar(" ", TEXT))

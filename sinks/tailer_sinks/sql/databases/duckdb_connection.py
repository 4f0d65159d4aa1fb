"""Connections to files of DuckDB (`tailer_sinks.sql.databases.duckdb`), which import its library: that takes 0.1 s."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.changelog.spill import open_database, scratch_folder
from tailer.errors import CommitUnknown, SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.sql.databases.dialect import Connection, Holds, UniqueViolationError, first_line
from tailer_sinks.sql.databases.texts import TEXT, NoText, holds_json, is_bytes, is_text, json_texts

__all__ = ["DuckDbConnection"]

_LOADED: Final = "lake_tailer_loaded"
_ASK_AGAIN_S: Final = 0.02
_READ_ROWS: Final = 2**14
_MEMORY_BYTES: Final = 512 * 10**6
_LOCKED: Final = "Could not set lock"  # by another process; by this one it is a ResourceInUseException
_NOT_A_DATABASE: Final = ("not a valid DuckDB database", "version number")
_MAY_PASS: Final = (
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.TransactionException,
    duckdb.InterruptException,
    duckdb.ConnectionException,
    duckdb.FatalException,
)
# Errors whose texts may have values of rows.
_OF_VALUES: Final = (duckdb.DataError, duckdb.InvalidInputException, duckdb.ConstraintException)


class DuckDbConnection(Connection):
    """See `Connection`. `path`: of the file; `alias`: the name of its database in statements."""

    def __init__(self, name: str, path: Path, alias: str, holds: Holds) -> None:
        self._name = name
        self._path = path
        self._alias = alias
        self._holds = holds
        self._folder = str(scratch_folder())
        self._is_attached = False
        self._interrupted = threading.Event()
        with self._translated():
            self._connection = open_database(self._folder, _MEMORY_BYTES)

    @override
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        rows = self.query(statement, parameters)
        return rows[0][0] if rows else 0

    @override
    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The file is needed for statements that name its database."""
        with self._file() if self._alias in statement else nullcontext(), self._translated():
            return self._connection.execute(statement, parameters).fetchall()

    @override
    def texts(self, query: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._file() if self._alias in query else nullcontext(), self._translated():
            for rows in self._connection.sql(query).to_arrow_reader(_READ_ROWS):
                yield pa.record_batch(list(map(_texts, rows.columns)), columns.names)

    @override
    def load_texts(self, table: str, rows: pa.RecordBatch, columns: pa.Schema) -> None:
        values = [_from_texts(field.type, column) for field, column in zip(columns, rows.columns, strict=True)]
        self.load(table, pa.record_batch(values, columns.names))

    @override
    def load(self, table: str, rows: pa.RecordBatch) -> None:
        columns = [
            _converted(self._name, field.name, column, self._holds)
            for field, column in zip(rows.schema, rows.columns, strict=True)
        ]
        with self._translated():
            waiting = pa.Table.from_arrays(columns, rows.schema.names)
            self._connection.register(_LOADED, waiting)
            try:
                self._connection.execute(f"INSERT INTO {table} SELECT * FROM {_LOADED}")
            finally:
                self._connection.unregister(_LOADED)

    @contextmanager
    @override
    def transaction(self) -> Iterator[None]:
        with self._file():
            self.execute("BEGIN")
            try:
                yield
            except BaseException:
                with suppress(SinkError):
                    self.execute("ROLLBACK")
                raise
            with self._translated():
                try:
                    self._connection.execute("COMMIT")
                except (duckdb.TransactionException, duckdb.ConstraintException):
                    raise  # it was rolled back
                except duckdb.Error as error:
                    raise CommitUnknown(self._name, f"DuckDB: {first_line(error)}") from error

    @contextmanager
    @override
    def one_state(self, table: str) -> Iterator[None]:
        """Nobody else opens the file meanwhile."""
        with self._file():
            self.execute("BEGIN")
            try:
                yield
            finally:
                with suppress(SinkError):
                    self.execute("ROLLBACK")

    @override
    def lock(self, table: str) -> None:
        """Nothing to do: whoever has the file open is the only one."""

    @override
    def interrupt(self) -> None:
        self._interrupted.set()
        with suppress(duckdb.Error):  # it was closed meanwhile
            self._connection.interrupt()

    @override
    def close(self) -> None:
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def _file(self) -> Iterator[None]:
        """Attach the file for the block, unless a block around it has done so."""
        if self._is_attached:
            yield
            return
        self._attach()
        self._is_attached = True
        try:
            yield
        finally:
            self._is_attached = False
            try:
                self._connection.execute(f"DETACH {self._alias}")
            except duckdb.Error:
                self._connection.close()  # which lets go of the file, whatever is wrong; what was committed stays

    def _attach(self) -> None:
        path = str(self._path).replace("'", "''")
        while True:
            try:
                # Without the type, DuckDB looks into the file first. If this process has it open already, the lock that
                # keeps other processes out would be gone after that, because closing a file gives up its locks.
                self._connection.execute(f"ATTACH '{path}' AS {self._alias} (TYPE duckdb)")
            except duckdb.Error as error:
                if not isinstance(error, duckdb.ResourceInUseException) and _LOCKED not in str(error):
                    with self._translated():
                        raise
                if self._interrupted.wait(_ASK_AGAIN_S):
                    reason = f"another program has {self._path} open: {first_line(error)}"
                    raise SinkUnavailable(self._name, reason) from None
            else:
                return

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors. Texts that may have values of rows are left out."""
        try:
            yield
        except duckdb.ConstraintException as error:
            if "duplicate key" in str(error).lower():
                raise UniqueViolationError("that is there") from None  # the sink makes none, and the text has values
            raise self._refused(error) from None
        except _OF_VALUES as error:
            raise self._refused(error) from None
        except duckdb.Error as error:
            text = first_line(error)
            if any(words in text for words in _NOT_A_DATABASE):
                remedy = "Give another file: this one is not a database of DuckDB, or one of a later release."
                raise SinkRejected(self._name, f"DuckDB refuses {self._path}: {text}", remedy) from None
            if isinstance(error, _MAY_PASS):
                raise SinkUnavailable(self._name, f"DuckDB: {text}") from None
            raise SinkRejected(self._name, f"DuckDB refuses: {text}", "See what the database says.") from None

    def _refused(self, error: duckdb.Error) -> SinkRejected:
        remedy = "Leave the column out, or change it with select."
        return SinkRejected(self._name, f"DuckDB refuses a value of a row ({type(error).__name__})", remedy)


def _converted(name: str, column: str, values: pa.Array, holds: Holds) -> pa.Array:
    """Return the values of a column as DuckDB reads them from Arrow. Raises `SinkRejected`."""
    kind = values.type
    try:
        if holds_json(kind):
            return json_texts(kind)(values)
    except NoText as error:
        raise SinkRejected(name, f"column {column} {error}", "Leave the column out.") from error
    if pa.types.is_null(kind):
        return values.cast(pa.string())
    if is_text(kind):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            reason = f"column {column} has a text that is not UTF-8, which DuckDB cannot have"
            raise SinkRejected(name, reason, "Leave the column out.") from None
    if pa.types.is_date(kind) and holds.days is not None:
        _check_range(name, column, values.cast(pa.int32()), *holds.days)
    if pa.types.is_timestamp(kind) and holds.micros is not None:
        _check_range(name, column, values.cast(pa.int64()), *holds.micros)
    return values


def _texts(values: pa.Array) -> pa.Array:
    """Return a text for each value, equal only for equal values."""
    kind = values.type
    if is_bytes(kind):
        return pa.array([None if value is None else value.hex() for value in values.to_pylist()], TEXT)
    number = _number_of(kind)
    return (values if number is None else values.cast(number)).cast(TEXT)


def _from_texts(kind: pa.DataType, texts: pa.Array) -> pa.Array:
    """Return the values whose texts `_texts` returned, of a column that holds values of `kind`."""
    if is_bytes(kind):
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts.to_pylist()], kind)
    if holds_json(kind) or pa.types.is_null(kind):
        return texts.cast(pa.string())
    number = _number_of(kind)
    return (texts if number is None else texts.cast(number)).cast(kind)


def _number_of(kind: pa.DataType) -> pa.DataType | None:
    """Return the numbers by which moments are counted; None: values are no moments."""
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else None


def _check_range(name: str, column: str, numbers: pa.Array, first: int, last: int) -> None:
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None and (bounds["min"] < first or bounds["max"] > last):
        reason = f"column {column} has a date beyond those of DuckDB"
        raise SinkRejected(name, reason, "Leave the column out, or change it with select.")

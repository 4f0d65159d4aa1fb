"""Filters: the change rows that a reader wants, as a SQL predicate such as `amount > 10 AND _change_type <> 'delete'`.

The predicate is DuckDB's SQL over the columns of the rows and their metadata columns. Names are matched without regard
to case and may be in backticks or double quotes; text is in single quotes. Rows for which it is null are left out, as
in a WHERE clause. DuckDB only decides which rows are wanted; Arrow takes them from the batch.

The author of a filter may be another person than the one who runs it, and the same task must yield the same rows
everywhere and at any time (invariant 4). So a predicate is parsed before it is run. It may consist only of columns,
constants, operators and functions of their arguments: no clock, no randomness, no settings, no tables. The connection
also has no access to files, the network, extensions or variables of the program. Memory is that of one batch and of the
predicate's results: `repeat` and similar functions can make much.
"""

import atexit
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from threading import Lock
from typing import Any, Final

import duckdb
import pyarrow as pa

from tailer.errors import ConfigError, did_you_mean
from tailer.events import METADATA_FIELDS, ChangeBatch

__all__ = ["RowFilter"]

_WHERE: Final = "filter"
_CONNECTION: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,  # keeps the order of the rows
    "async_threads": 0,  # no files are read
    "memory_limit": "256MB",
    "enable_external_access": False,
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}
_EXAMPLE: Final = "Give a condition such as: amount > 10 AND _change_type <> 'delete'."
_ONE_ROW: Final = "A filter sees one row at a time: use its columns, constants, operators and functions of these."
_REPEATABLE: Final = "The same rows must come out whenever they are read: compare columns with constants."
_SQL: Final = "It is DuckDB's SQL: see its functions and types; cast(column AS type) makes one type of another."
_ON_ERROR: Final = "Handle such rows, for example with try_cast(column AS type) or coalesce(column, value)."


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A predicate over change rows. It survives pickle, and several threads may use it at once.

    Raises `ConfigError` if `text` is not one predicate, or depends on anything but the row.
    """

    text: str

    def __post_init__(self) -> None:
        _parsed(self.text)

    def columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of `names` that the predicate uses, in their order, and perhaps others."""
        named = _parsed(self.text).named
        return tuple(name for name in names if name.lower() in named)

    def check(self, schema: pa.Schema) -> None:
        """Raise `ConfigError` if the predicate does not fit rows of a table with `schema`.

        `schema` need not contain the metadata columns of change rows.
        """
        no_rows = pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema.names)
        _answer(_parsed(self.text), _completed(no_rows, METADATA_FIELDS), "")

    def apply(self, batch: ChangeBatch, schema: pa.Schema | None = None) -> ChangeBatch:
        """Return the rows of `batch` for which the predicate is true, in their order; there may be none.

        `schema`: the table's. Columns that it has and the batch lacks, because its rows are older, are null for the
        predicate.

        Raises `ConfigError` if the rows lack a column that the predicate uses, or if it cannot be computed for one of
        them (invariant 5).
        """
        predicate = _parsed(self.text)
        older = () if schema is None else [column for column in schema if column.name.lower() in predicate.named]
        wanted = _answer(predicate, _completed(batch.rows, older), f" at version {batch.version}")
        if wanted.true_count == len(batch):
            return batch
        kept, index = batch.rows.filter(wanted), batch.row_index.filter(wanted)
        return ChangeBatch(batch.table_id, batch.version, batch.task, kept, index)


def _completed(rows: pa.RecordBatch, columns: Collection[pa.Field]) -> pa.RecordBatch:
    there = {name.lower() for name in rows.schema.names} if columns else set()
    for column in columns:
        if column.name.lower() not in there:
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, column.type))
    return rows


def _answer(predicate: "_Predicate", rows: pa.RecordBatch, place: str) -> pa.BooleanArray:
    """Return for each row whether it is wanted: true, false or null. `place`: the place to name in errors."""
    # A name that the predicate cannot contain.
    table = "rows" + "_" * max(map(len, predicate.named), default=0)
    seen = _seen(rows, predicate.resolve(rows.schema.names, place), table)
    with _connected() as connection, _translated(predicate.text, place):
        connection.register(table, pa.Table.from_batches([seen]))
        try:
            question = connection.sql(f"SELECT (\n{predicate.text}\n) FROM {table}")
            if str(question.types[0]) != "BOOLEAN":
                reason = f"{predicate.text!r} is {question.types[0]}, not true or false"
                raise ConfigError(_WHERE, reason, _EXAMPLE)
            return question.to_arrow_table().column(0).combine_chunks()
        finally:
            connection.unregister(table)


def _seen(rows: pa.RecordBatch, named: Sequence[int], table: str) -> pa.RecordBatch:
    """Return the columns of `rows` that the predicate uses: others may have types that DuckDB lacks."""
    if not named:
        return pa.RecordBatch.from_arrays([pa.repeat(True, rows.num_rows)], [table])
    columns = [rows.column(index) for index in named]
    for place, column in enumerate(columns):
        if column.offset and pa.types.is_nested(column.type):
            # Nested columns of a slice may begin at any offset.
            columns[place] = column.take(pa.array(range(len(column)), pa.int64()))
    return pa.RecordBatch.from_arrays(columns, [rows.schema.names[index] for index in named])


_LOCK: Final = Lock()


@contextmanager
def _connected() -> Iterator[duckdb.DuckDBPyConnection]:
    """Lend the connection of this process, to one thread at a time. One that fails is not used again."""
    with _LOCK:
        try:
            yield _connection()
        except BaseException:
            _connection.cache_clear()
            raise


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config=_CONNECTION)
    # Otherwise DuckDB writes to standard output, where rows may go, when a query takes two seconds.
    connection.execute("SET enable_progress_bar = false").fetchall()
    # Text and times are converted in this zone, wherever the filter runs.
    connection.execute("SET TimeZone = 'UTC'").fetchall()
    connection.execute("SET lock_configuration = true").fetchall()
    # DuckDB warns about connections that outlive the interpreter's other objects.
    atexit.register(connection.close)
    return connection


@contextmanager
def _translated(text: str, place: str) -> Iterator[None]:
    try:
        yield
    # If a result fails while it is fetched, Arrow raises OSError.
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            _WHERE, f"{text!r} cannot be computed{place}: {reason}", _ON_ERROR if place else _SQL
        ) from error


@dataclass(frozen=True, slots=True)
class _Predicate:
    """The result of parsing a predicate: names in lower case.

    `required`: names that must be columns. `parameters`: names of lambda parameters, or columns, to the left of an
    arrow.
    """

    text: str
    required: frozenset[str]
    parameters: frozenset[str]

    @property
    def named(self) -> frozenset[str]:
        """All names that may be columns."""
        return self.required | self.parameters

    def resolve(self, names: Sequence[str], place: str) -> tuple[int, ...]:
        """Return the numbers of the columns in `names` that the predicate uses.

        Raises `ConfigError` for a name that is not among them.
        """
        folded = [name.lower() for name in names]
        for name in sorted(self.named):
            if folded.count(name) > 1:
                reason = f"several columns may be {name!r}{place}"
                raise ConfigError(_WHERE, reason, "Column names are matched without regard to case.")
            if name not in folded and (name in self.required or name in _BARE_FUNCTIONS):
                if name in _BARE_FUNCTIONS:
                    raise ConfigError(_WHERE, f"{name} depends on more than the row", _REPEATABLE)
                text = "Put text in single quotes." if f'"{name}"' in self.text.lower() else ""
                remedy = (f"The columns are: {', '.join(names)}.", did_you_mean(name, names), text)
                raise ConfigError(_WHERE, f"no column {name!r}{place}", " ".join(filter(None, remedy)))
        return tuple(index for index, name in enumerate(folded) if name in self.named)


@lru_cache(maxsize=16)
def _parsed(text: str) -> _Predicate:
    """Parse a predicate. Raises `ConfigError`."""
    with _connected() as connection:
        reading = _Reading(connection)
        try:
            reading.read(text, frozenset())
        except (duckdb.Error, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(_WHERE, f"{text!r} cannot be read: {reason}", _EXAMPLE) from error
    return _Predicate(text, frozenset(reading.required), frozenset(reading.parameters))


# Functions that are called without brackets, unless a column has their name.
_BARE_FUNCTIONS: Final = frozenset(
    [f"current_{of}" for of in ("catalog", "connection_id", "date", "localtime", "localtimestamp", "role", "schema")]
    + ["current_time", "current_timestamp", "current_user", "localtime", "localtimestamp", "session_user", "user"]
)
# The elements that a predicate may contain.
_PARTS: Final = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"}
    | {"LAMBDA", "OPERATOR", "TYPE"}
)
_OTHER_PARTS: Final = {
    "SUBQUERY": "a query",
    "WINDOW": "a window function",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column's number",
}
# DuckDB calls these consistent, but they depend on the clock, the version, or tables.
_INCONSISTENT: Final = frozenset(["current_localtime", "current_localtimestamp", "json_serialize_plan", "version"])
_SAMPLES: Final = "reservoir_quantile"


class _Reading:
    """A parser of the syntax tree of a predicate."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self.required: set[str] = set()
        self.parameters: set[str] = set()

    def read(self, text: str, scope: frozenset[str]) -> None:
        """Read `text`, in which the names in `scope` are not columns. Raises `ConfigError`."""
        # Text that parses both alone and in parentheses neither ends nor extends the query around it.
        alone, wrapped, nothing = (self._query(query, text) for query in (text, f"(\n{text}\n)", "NULL"))
        parts = wrapped["select_list"]
        rest = [{name: part for name, part in query.items() if name != "select_list"} for query in (alone, nothing)]
        if rest[0] != rest[1] or len(alone["select_list"]) != 1 or len(parts) != 1 or alone["select_list"][0]["alias"]:
            raise ConfigError(_WHERE, f"{text!r} is not one condition", _EXAMPLE)
        self._visit(parts, scope)

    def _query(self, expression: str, text: str) -> dict[str, Any]:
        found = self._connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {expression}"]).fetchall()
        tree = json.loads(found[0][0])
        reason = ": " + tree["error_message"].partition("\n")[0] if tree["error"] else ""
        if reason or len(tree["statements"]) != 1 or "select_list" not in tree["statements"][0]["node"]:
            raise ConfigError(_WHERE, f"{text!r} is not one condition{reason}", _EXAMPLE)
        return dict(tree["statements"][0]["node"])

    def _visit(self, part: Any, scope: frozenset[str]) -> None:
        if isinstance(part, list):
            for each in part:
                self._visit(each, scope)
        elif isinstance(part, dict):
            kind = part.get("class")
            if kind is not None and (kind not in _PARTS or part["type"] == "GROUPING_FUNCTION"):
                raise ConfigError(
                    _WHERE, f"{_OTHER_PARTS.get(kind, part['type'].lower())} is not allowed in it", _ONE_ROW
                )
            if kind == "LAMBDA":
                # `x -> x > 1` and `document -> 'field'` look the same.
                parameters = {name["column_names"][0].lower() for name in _references(part["lhs"])}
                self.parameters |= parameters - scope
                self._visit(part["expr"], scope | parameters)
                return
            if kind == "COLUMN_REF" and part["column_names"][0].lower() not in scope:
                self.required.add(part["column_names"][0].lower())
            if kind == "FUNCTION":
                self._check_function(part)
            self._visit(list(part.values()), scope)

    def _check_function(self, call: dict[str, Any]) -> None:
        name = str(call["function_name"]).lower()
        found = self._connection.execute(
            "SELECT function_type, stability, macro_definition, parameters FROM duckdb_functions()"
            " WHERE lower(function_name) = ? AND function_type NOT IN ('table', 'table_macro', 'pragma')",
            [name],
        ).fetchall()
        if not found:
            raise ConfigError(_WHERE, f"there is no function {name} of a row", _ONE_ROW)
        for kind, stability, definition, parameters in found:
            if kind == "macro":
                self.read(definition, frozenset(map(str.lower, parameters)))
            elif kind != "scalar":
                raise ConfigError(_WHERE, f"{name.removesuffix('_star')} is a function of several rows", _ONE_ROW)
            elif stability != "CONSISTENT" or name in _INCONSISTENT or name.startswith("__"):
                raise ConfigError(_WHERE, f"{name} depends on more than its arguments", _REPEATABLE)
        if name == "age" and len(call["arguments"]) == 1:
            raise ConfigError(_WHERE, "age with one argument depends on the clock", _REPEATABLE)
        if _SAMPLES in json.dumps(call["arguments"]).lower():
            raise ConfigError(_WHERE, f"{_SAMPLES} depends on chance", _REPEATABLE)


def _references(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, list):
        for each in part:
            yield from _references(each)
    elif isinstance(part, dict):
        if part.get("class") == "COLUMN_REF":
            yield part
        yield from _references(list(part.values()))

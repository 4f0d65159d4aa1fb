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

import json
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

import duckdb
import pyarrow as pa

from tailer.errors import ConfigError
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
        with _evaluator(self.text) as evaluator:
            evaluator.answer(_completed(_no_rows(schema), METADATA_FIELDS), "")

    def apply(self, batch: ChangeBatch, schema: pa.Schema | None = None) -> ChangeBatch:
        """Return the rows of `batch` for which the predicate is true, in their order; there may be none.

        `schema`: the table's. Columns that it has and the batch lacks, because its rows are older, are null for the
        predicate.

        Raises `ConfigError` if the rows lack a column that the predicate uses, or if it cannot be computed for one of
        them (invariant 5).
        """
        named = _parsed(self.text).named
        older = () if schema is None else [column for column in schema if column.name.lower() in named]
        with _evaluator(self.text) as evaluator:
            wanted = evaluator.answer(_completed(batch.rows, older), f" at version {batch.version}")
        if wanted.true_count == len(batch):
            return batch
        kept, index = batch.rows.filter(wanted), batch.row_index.filter(wanted)
        return ChangeBatch(batch.table_id, batch.version, batch.task, kept, index)


@contextmanager
def _evaluator(text: str) -> Iterator["_Evaluator"]:
    """Lend an evaluator that no other thread uses meanwhile. One that fails is not used again."""
    predicate = _parsed(text)
    try:
        evaluator = predicate.idle.pop()
    except IndexError:
        evaluator = _Evaluator(predicate)
    yield evaluator
    predicate.idle.append(evaluator)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema.names)


def _completed(rows: pa.RecordBatch, columns: Collection[pa.Field]) -> pa.RecordBatch:
    there = {name.lower() for name in rows.schema.names} if columns else set()
    for column in columns:
        if column.name.lower() not in there:
            rows = rows.append_column(column.name, pa.nulls(rows.num_rows, column.type))
    return rows


class _Evaluator:
    """A connection that sees only the current rows, with the query prepared for their schema."""

    def __init__(self, predicate: "_Predicate") -> None:
        self._predicate = predicate
        # DuckDB warns about connections that outlive the interpreter's other objects, as one in a traceback may.
        self._connections = [_connect()]
        weakref.finalize(self, _close, self._connections)
        self._at_hand = _AtHand()
        self._named: tuple[int, ...] = ()
        self._prepared: tuple[pa.Schema, duckdb.DuckDBPyRelation] | None = None
        # A name that the predicate cannot contain.
        self._table = "rows" + "_" * max(map(len, predicate.named), default=0)

    def answer(self, rows: pa.RecordBatch, place: str) -> pa.BooleanArray:
        """Return for each row whether it is wanted: true, false or null. `place`: the place to name in errors."""
        with _translated(self._predicate.text, place):
            if self._prepared is None or not self._prepared[0].equals(rows.schema):
                self._prepared = (rows.schema, self._prepare(rows.schema, place))
            self._at_hand.rows = self._seen(rows)
            return self._prepared[1].to_arrow_table().column(0).combine_chunks()

    def _prepare(self, schema: pa.Schema, place: str) -> duckdb.DuckDBPyRelation:
        self._named = self._predicate.resolve(schema.names, place)
        self._at_hand.rows = self._seen(_no_rows(schema))
        self._connections[0].register(self._table, self._at_hand)
        question = self._connections[0].sql(f"SELECT (\n{self._predicate.text}\n) FROM {self._table}")
        if str(question.types[0]) != "BOOLEAN":
            raise ConfigError(_WHERE, f"{self._predicate.text!r} is {question.types[0]}, not true or false", _EXAMPLE)
        return question

    def _seen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of `rows` that the predicate uses: others may have types that DuckDB lacks."""
        if not self._named:
            return pa.RecordBatch.from_arrays([pa.repeat(True, rows.num_rows)], [self._table])
        columns = [rows.column(index) for index in self._named]
        for place, column in enumerate(columns):
            if column.offset and pa.types.is_nested(column.type):
                # Nested columns of a slice may begin at any offset.
                columns[place] = column.take(pa.array(range(len(column)), pa.int64()))
        return pa.RecordBatch.from_arrays(columns, [rows.schema.names[index] for index in self._named])


class _AtHand:
    """The rows for the next run of the prepared query; DuckDB fetches them when it runs."""

    rows: pa.RecordBatch

    def __arrow_c_schema__(self) -> object:
        return self.rows.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.rows.schema, [self.rows]).__arrow_c_stream__(requested_schema)


def _connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config=_CONNECTION)
    # Otherwise DuckDB writes to standard output, where rows may go, when a query takes two seconds.
    connection.execute("SET enable_progress_bar = false").fetchall()
    # Text and times are converted in this zone, wherever the filter runs.
    connection.execute("SET TimeZone = 'UTC'").fetchall()
    connection.execute("SET lock_configuration = true").fetchall()
    return connection


def _close(connections: list[duckdb.DuckDBPyConnection]) -> None:
    connections.pop().close()


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
    arrow. `idle`: evaluators that are not in use. Every task of an executor has its own copy of a filter and need not
    make new ones.
    """

    text: str
    required: frozenset[str]
    parameters: frozenset[str]
    idle: list[_Evaluator] = field(default_factory=list, repr=False, compare=False)

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
                near = get_close_matches(name, folded, n=1)
                meant = f" Did you mean {names[folded.index(near[0])]!r}?" if near else ""
                text = " Put text in single quotes." if f'"{name}"' in self.text.lower() else ""
                remedy = f"The columns are: {', '.join(names)}.{meant}{text}"
                raise ConfigError(_WHERE, f"no column {name!r}{place}", remedy)
        return tuple(index for index, name in enumerate(folded) if name in self.named)


@lru_cache(maxsize=16)
def _parsed(text: str) -> _Predicate:
    """Parse a predicate. Raises `ConfigError`."""
    connections = [_connect()]
    try:
        reading = _Reading(connections[0])
        reading.read(text, frozenset())
        return _Predicate(text, frozenset(reading.required), frozenset(reading.parameters))
    except (duckdb.Error, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(_WHERE, f"{text!r} cannot be read: {reason}", _EXAMPLE) from error
    finally:
        _close(connections)


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

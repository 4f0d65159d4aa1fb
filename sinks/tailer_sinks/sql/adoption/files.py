"""Descriptions of tables that users made in SQLite and DuckDB.

Neither lets a foreign key wait as the sink needs it, so those are refused. In DuckDB a transaction cannot change rows
and then columns: its user adds columns.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tailer_sinks.encoding.typed import fits
from tailer_sinks.sql.adoption.existing import ExistingColumn, ExistingTable, Query, columns_by_name

__all__ = ["described_in_duckdb", "described_in_sqlite"]

_GENERATED: Final = (2, 3)  # of `hidden`: virtual, and stored
# Clauses by which SQLite leaves out rows, replaces others, or takes texts for equal, and says nothing.
_SILENT: Final = {
    r"\bON\s+CONFLICT\s+(IGNORE|REPLACE|FAIL|ROLLBACK)\b": "Make it without ON CONFLICT.",
    r"\bCOLLATE\s+(?!BINARY\b)": "Make it without COLLATE. An index may have it.",
    r"^\s*CREATE\s+VIRTUAL\b": "Name an ordinary table.",
}
_SKIPS: Final = re.compile(r"\bRAISE\s*\(\s*IGNORE\b", re.IGNORECASE)
_NO_KEYS: Final = "Drop it, or name a table without: the sink updates a row by deleting and inserting it."
_TABLES: Final = "SELECT name, type, sql FROM main.sqlite_master WHERE lower(name) = lower(?) AND type <> 'index'"
_TRIGGERS: Final = "SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?)"
_FOREIGN_KEYS: Final = """
SELECT DISTINCT owner.name FROM main.sqlite_master AS owner, pragma_foreign_key_list(owner.name) AS keys
WHERE owner.type = 'table' AND (lower(keys."table") = lower(?) OR lower(owner.name) = lower(?))
"""
_INDEXES: Final = """
SELECT indexes.name, columns.name, columns.coll FROM pragma_index_list(?) AS indexes,
    pragma_index_xinfo(indexes.name) AS columns
WHERE indexes."unique" AND NOT indexes.partial AND columns.key ORDER BY indexes.seq, columns.seqno
"""
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_WIDER: Final = {
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
}


def described_in_sqlite(query: Query, table: str, type_of: Callable[[pa.DataType], str | None]) -> ExistingTable:
    """Describe a table of SQLite. `type_of`: see `Dialect`."""
    rows: Any = query('SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)', [table])
    columns, numbers = [], []
    for name, kind, not_null, default, place, hidden in rows:
        is_generated = hidden in _GENERATED
        columns.append(
            ExistingColumn(
                name=name,
                kind=kind,
                waiting_type=partial(_waiting_in_sqlite, kind, type_of),
                needs_value=bool(not_null) and default is None and not is_generated,
                is_generated=is_generated,
            )
        )
        if place:
            numbers.append((name, kind))
    indexed: dict[str, list[tuple[Any, Any]]] = {}
    for index, name, collation in query(_INDEXES, [table]):
        indexed.setdefault(str(index), []).append((name, collation))
    # Errors name the columns of an index.
    named = [[name for name, _ in parts] for parts in indexed.values() if all(n and c == "BINARY" for n, c in parts)]
    if len(numbers) == 1 and numbers[0][1].upper() == "INTEGER":  # the row's number, which has no index
        named.append([numbers[0][0]])
    return ExistingTable(
        columns=columns_by_name(columns, folds=True),
        uniques={", ".join(names): frozenset(name.lower() for name in names) for names in named},
        obstacles=tuple(_obstacles_in_sqlite(query, table)),
        folds=True,
    )


def _obstacles_in_sqlite(query: Query, table: str) -> list[tuple[str, str]]:
    obstacles = []
    for _, kind, sql in query(_TABLES, [table]):
        if kind == "view":
            obstacles.append((f"{table} is a view", "Name a table."))
        obstacles += [
            (f"{table} was made with {match[0].strip()}", remedy)
            for clause, remedy in _SILENT.items()
            if kind == "table" and (match := re.search(clause, str(sql), re.IGNORECASE))
        ]
    obstacles += [
        (f"the trigger {name} may leave out rows of {table}", "Make it without RAISE(IGNORE).")
        for name, sql in query(_TRIGGERS, [table])
        if _SKIPS.search(str(sql))
    ]
    obstacles += [
        (f"the table {owner} has a foreign key to or from {table}", _NO_KEYS)
        for (owner,) in query(_FOREIGN_KEYS, [table, table])
    ]
    return obstacles


def _waiting_in_sqlite(
    declared: str, type_of: Callable[[pa.DataType], str | None], kind: pa.DataType
) -> pa.DataType | None:
    """Return `kind` if a column keeps its values as they are: SQLite converts by the affinity of the declared type."""
    affinity, usual = _affinity(declared), type_of(kind)
    if usual is None:
        return None
    is_moment = pa.types.is_date(kind) or pa.types.is_timestamp(kind)  # whose texts are no numbers
    keeping = ("TEXT", "NUMERIC") if is_moment else _KEEPING.get(usual, ())
    return kind if affinity == "BLOB" or affinity in keeping else None


_KEEPING: Final = {"BOOLEAN": ("INTEGER", "NUMERIC"), "INTEGER": ("INTEGER", "NUMERIC"), "TEXT": ("TEXT",)}


def _affinity(declared: str) -> str:
    """Return the affinity of a type, by SQLite's rules (https://www.sqlite.org/datatype3.html, 3.1)."""
    kind = declared.upper()
    rules = (("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB"))
    reals = (("REAL", "REAL"), ("FLOA", "REAL"), ("DOUB", "REAL"))
    usual = "NUMERIC" if kind else "BLOB"
    return next((affinity for part, affinity in (*rules, *reals) if part in kind), usual)


def described_in_duckdb(
    query: Query, database: str, table: str, type_of: Callable[[pa.DataType], str | None]
) -> ExistingTable:
    """Describe a table of `database` in DuckDB, which has no index for the key of a mirror."""
    where = f"database_name = '{database}' AND schema_name = 'main'"
    rows: Any = query(
        "SELECT column_name, data_type, is_nullable = 'YES' OR column_default IS NOT NULL, is_generated = 'ALWAYS' "
        f"FROM information_schema.columns WHERE table_catalog = '{database}' AND table_schema = 'main' "
        "AND lower(table_name) = lower(?) ORDER BY ordinal_position",
        [table],
    )
    keys = query(
        f"SELECT DISTINCT table_name FROM duckdb_constraints() WHERE {where} AND constraint_type = 'FOREIGN KEY' "
        "AND lower(referenced_table) = lower(?)",
        [table],
    )
    obstacles = [(f"the table {owner} has a foreign key to {table}", _NO_KEYS) for (owner,) in keys]
    if query(f"SELECT 1 FROM duckdb_views() WHERE {where} AND lower(view_name) = lower(?)", [table]):
        obstacles.append((f"{table} is a view", "Name a table."))
    columns = [
        ExistingColumn(
            name=name,
            kind=kind,
            waiting_type=partial(_waiting_in_duckdb, kind, type_of),
            needs_value=not may_lack,
            is_generated=is_generated,
        )
        for name, kind, may_lack, is_generated in rows
    ]
    return ExistingTable(
        columns=columns_by_name(columns, folds=True),
        uniques=None,
        obstacles=tuple(obstacles),
        folds=True,
        adds_columns=False,
    )


def _waiting_in_duckdb(
    declared: str, type_of: Callable[[pa.DataType], str | None], kind: pa.DataType
) -> pa.DataType | None:
    usual = type_of(kind)
    if usual in (declared, {"TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ"}.get(declared)):
        return kind
    if (digits := _DECIMAL.fullmatch(declared)) is None:
        wide = _WIDER.get(declared)
    else:
        wide = pa.decimal128(int(digits[1]), int(digits[2]))
        if type_of(kind) == type_of(wide):
            return kind
    return wide if wide is not None and fits(kind, wide) else None

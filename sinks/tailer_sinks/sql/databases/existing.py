"""Facts about tables that users made, as each database describes them.

Neither SQLite nor DuckDB lets a foreign key wait as the sink needs it, so those are refused. In DuckDB a transaction
cannot change rows and then columns: its user adds columns.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tailer_sinks.encoding.typed import fits

__all__ = ["ExistingTable", "described_in_duckdb", "described_in_postgresql", "described_in_sqlite"]

Query = Callable[[str, Sequence[object]], list[tuple[object, ...]]]
TypeOf = Callable[[pa.DataType], str | None]  # of `Dialect`


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingColumn:
    """A column. `kind`: its type as the database spells it.

    `waiting_type`: returns the type in which values of another type wait for the column; None: it cannot hold all of
    them as they are. `needs_value`: rows without a value are refused. `is_generated`: values are refused. `longest`:
    the most characters of a text. `is_exact`: whether two values are equal only if they are the same.
    """

    name: str
    kind: str
    waiting_type: Callable[[pa.DataType], pa.DataType | None] = field(compare=False)
    needs_value: bool = False
    is_generated: bool = False
    longest: int | None = None
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTable:
    """A table. `columns`: by name, in lower case if it `folds` names.

    `uniques`: the columns of each unique index, by the name that errors give it; None: a mirror needs none.
    `obstacles`: what is in the way of a mirror, with the next step. `adds_columns`: whether it may get columns in a
    transaction that changes rows.
    """

    columns: Mapping[str, ExistingColumn]
    uniques: Mapping[str, frozenset[str]] | None
    obstacles: tuple[tuple[str, str], ...]
    folds: bool = False
    adds_columns: bool = True

    def column(self, name: str) -> ExistingColumn | None:
        """Return the column called `name`."""
        return self.columns.get(name.lower() if self.folds else name)

    def key_indexes(self, key: Iterable[str]) -> frozenset[str]:
        """Return the unique indexes on the columns of a key."""
        columns = frozenset(name.lower() if self.folds else name for name in key)
        return frozenset(name for name, indexed in (self.uniques or {}).items() if indexed == columns)


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
_WIDER_IN_DUCKDB: Final = {
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
}


def described_in_sqlite(query: Query, table: str, type_of: TypeOf) -> ExistingTable:
    """Describe a table of SQLite."""
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
        columns={column.name.lower(): column for column in columns},
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


def _waiting_in_sqlite(declared: str, type_of: TypeOf, kind: pa.DataType) -> pa.DataType | None:
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


def described_in_duckdb(query: Query, database: str, table: str, type_of: TypeOf) -> ExistingTable:
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
        columns={column.name.lower(): column for column in columns},
        uniques=None,
        obstacles=tuple(obstacles),
        folds=True,
        adds_columns=False,
    )


def _waiting_in_duckdb(declared: str, type_of: TypeOf, kind: pa.DataType) -> pa.DataType | None:
    usual = type_of(kind)
    if usual in (declared, {"TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ"}.get(declared)):
        return kind
    if (digits := _DECIMAL.fullmatch(declared)) is None:
        wide = _WIDER_IN_DUCKDB.get(declared)
    else:
        wide = pa.decimal128(int(digits[1]), int(digits[2]))
        if type_of(kind) == type_of(wide):
            return kind
    return wide if wide is not None and fits(kind, wide) else None


_COLUMNS_IN_POSTGRESQL: Final = """
SELECT attname::text, format_type(atttypid, atttypmod),
    attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = '', attgenerated <> '' OR attidentity = 'a',
    CASE WHEN atttypid = 'varchar'::regtype AND atttypmod > 0 THEN atttypmod - 4 END,
    coalesce(collisdeterministic, true)
FROM pg_attribute LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# An index that is checked at the end of a transaction says nothing of a key that is there twice. Errors name the index
# of a partition, where there are some.
_UNIQUES_IN_POSTGRESQL: Final = """
SELECT relname::text, ARRAY(
    SELECT attname::text FROM unnest(indkey) WITH ORDINALITY AS keys (number, place)
    JOIN pg_attribute ON attrelid = indrelid AND attnum = number WHERE place <= indnkeyatts
)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE (indrelid = to_regclass(?)
        OR relispartition AND indrelid IN (SELECT relid FROM pg_partition_tree(to_regclass(?))))
    AND indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL
"""
# A row that is updated is deleted and inserted. So a foreign key must wait for the end of the transaction, and must not
# change other rows. One may reference a partition alone; those to the whole table have a copy for each partition.
_OBSTACLES_IN_POSTGRESQL: Final = r"""
WITH own AS (SELECT *, pg_class.oid::regclass AS tab FROM pg_class WHERE oid = to_regclass(?)),
parts AS (
    SELECT pg_class.*, pg_class.oid::regclass AS tab FROM pg_class
    WHERE oid IN (SELECT own.oid FROM own UNION SELECT relid FROM own, pg_partition_tree(own.oid))
),
referencing AS (
    SELECT pg_constraint.*, tab FROM parts JOIN pg_constraint ON confrelid = parts.oid
    WHERE contype = 'f' AND (conparentid = 0 OR confrelid = (SELECT oid FROM own))
),
allowed AS (
    SELECT privilege, has_table_privilege(own.oid, privilege) AS is_held, tab
    FROM own, unnest(ARRAY['SELECT', 'INSERT', 'DELETE']) AS privileges (privilege)
)
SELECT reason, remedy FROM (
    SELECT format('%s is not an ordinary or partitioned table', tab), 'Name a table.' FROM parts
    WHERE relkind NOT IN ('r', 'p')
    UNION ALL
    SELECT format('%s is not logged, and a crash of the server would empty it', tab),
        format('Run: ALTER TABLE %s SET LOGGED', tab) FROM parts WHERE relpersistence <> 'p'
    UNION ALL
    SELECT format('the table %s inherits from %s, whose rows would be deleted with its own', inhrelid::regclass, tab),
        format('Run: ALTER TABLE %s NO INHERIT %s', inhrelid::regclass, tab)
    FROM own JOIN pg_inherits ON inhparent = own.oid WHERE relkind = 'r'
    UNION ALL
    SELECT format('policies of %s hide rows from the user of url', tab),
        format('Run: ALTER TABLE %s DISABLE ROW LEVEL SECURITY', tab) FROM parts WHERE row_security_active(oid)
    UNION ALL
    SELECT format('the rule %I changes what is written to %s', rulename, tab),
        format('Run: DROP RULE %I ON %s', rulename, tab)
    FROM parts JOIN pg_rewrite ON ev_class = parts.oid WHERE ev_type IN ('3', '4') AND relkind IN ('r', 'p')
    UNION ALL
    SELECT format('the trigger %I may change a row of %s before it is written', tgname, tab),
        format('Make it an AFTER trigger, or run: DROP TRIGGER %I ON %s', tgname, tab)
    FROM parts JOIN pg_trigger ON tgrelid = parts.oid
    WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 3 = 3 AND tgtype & 12 <> 0
    UNION ALL
    SELECT format('the foreign key %I of %s would change or refuse when a row of %s is updated, which deletes and '
            'inserts it', conname, conrelid::regclass, tab),
        format('Run: ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %I %s DEFERRABLE', conrelid::regclass, conname,
            conname, regexp_replace(pg_get_constraintdef(oid), ' ON DELETE (CASCADE|RESTRICT|SET NULL|SET DEFAULT)'
            '( \([^)]*\)|)| NOT DEFERRABLE| DEFERRABLE| INITIALLY \w+', '', 'g'))
    FROM referencing WHERE confdeltype <> 'a'
    UNION ALL
    SELECT format('the foreign key %I of %s cannot wait until a row of %s, which an update deletes, is inserted again',
            conname, conrelid::regclass, tab),
        format('Run: ALTER TABLE %s ALTER CONSTRAINT %I DEFERRABLE', conrelid::regclass, conname)
    FROM referencing WHERE confdeltype = 'a' AND NOT condeferrable
    UNION ALL
    SELECT format('the user of url may not %s rows of %s', lower(privilege), tab),
        format('Run: GRANT %s ON %s TO %I', privilege, tab, current_user) FROM allowed WHERE NOT is_held
) AS obstacles (reason, remedy) ORDER BY reason
"""
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_MOST_DIGITS: Final = 76
_TEXT: Final = re.compile(r"text|character varying(\(\d+\))?")
_SPELLED: Final = {
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "time without time zone": "time",
}
_WIDER_IN_POSTGRESQL: Final = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double precision": pa.float64(),
    "timestamp without time zone": pa.timestamp("us"),
}


def described_in_postgresql(query: Query, table: str, type_of: TypeOf) -> ExistingTable:
    """Describe `table`, a quoted name."""
    rows: Any = query(_COLUMNS_IN_POSTGRESQL, [table])
    columns = [
        ExistingColumn(
            name=name,
            kind=kind,
            waiting_type=partial(_waiting_in_postgresql, kind, type_of),
            needs_value=needs_value,
            is_generated=is_generated,
            longest=longest,
            is_exact=is_exact,
        )
        for name, kind, needs_value, is_generated, longest, is_exact in rows
    ]
    uniques: Any = query(_UNIQUES_IN_POSTGRESQL, [table, table])
    obstacles: Any = query(_OBSTACLES_IN_POSTGRESQL, [table])
    return ExistingTable(
        columns={column.name: column for column in columns},
        uniques={name: frozenset(indexed) for name, indexed in uniques},
        obstacles=tuple(obstacles),
    )


def _waiting_in_postgresql(declared: str, type_of: TypeOf, kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which values of `kind` wait. PostgreSQL gives the same texts for both, which are compared."""
    usual, declared = type_of(kind), declared.replace("(6)", "")  # the digits of a second that all moments have
    if usual == _SPELLED.get(declared, declared).replace(",", ", "):
        return kind
    if (usual == "text" and _TEXT.fullmatch(declared)) or (usual == "jsonb" and declared == "json"):
        return kind
    if declared == "numeric":
        return kind if pa.types.is_decimal(kind) or pa.types.is_signed_integer(kind) else None
    wide = _WIDER_IN_POSTGRESQL.get(declared)
    if (digits := _NUMERIC.fullmatch(declared)) and int(digits[1]) <= _MOST_DIGITS:
        wide = pa.decimal128(int(digits[1]), int(digits[2])) if int(digits[1]) <= 38 else None
        wide = wide or pa.decimal256(int(digits[1]), int(digits[2]))
    return wide if wide is not None and fits(kind, wide) else None

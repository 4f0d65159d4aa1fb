"""Descriptions of tables that users made in PostgreSQL."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tailer_sinks.encoding.typed import fits
from tailer_sinks.sql.adoption.existing import ExistingColumn, ExistingTable, Query, columns_by_name

__all__ = ["described"]

_COLUMNS: Final = """
SELECT attname::text, format_type(atttypid, atttypmod),
    attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = '', attgenerated <> '' OR attidentity = 'a',
    CASE WHEN atttypid = 'varchar'::regtype AND atttypmod > 0 THEN atttypmod - 4 END,
    coalesce(collisdeterministic, true)
FROM pg_attribute LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# An index that is checked at the end of a transaction says nothing of a key that is there twice. Errors name the index
# of a partition, where there are some.
_UNIQUES: Final = """
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
_OBSTACLES: Final = r"""
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
_DECIMAL: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_MOST_DIGITS: Final = 76
_TEXT: Final = re.compile(r"text|character varying(\(\d+\))?")
_SPELLED: Final = {
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "time without time zone": "time",
}
_WIDER: Final = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double precision": pa.float64(),
    "timestamp without time zone": pa.timestamp("us"),
}


def described(query: Query, table: str, type_of: Callable[[pa.DataType], str | None]) -> ExistingTable:
    """Describe `table`, a quoted name. `type_of`: see `Dialect`."""
    columns = [_column(row, type_of) for row in query(_COLUMNS, [table])]
    uniques: Any = query(_UNIQUES, [table, table])
    obstacles: Any = query(_OBSTACLES, [table])
    return ExistingTable(
        columns=columns_by_name(columns, folds=False),
        uniques={name: frozenset(indexed) for name, indexed in uniques},
        obstacles=tuple(obstacles),
    )


def _column(row: Any, type_of: Callable[[pa.DataType], str | None]) -> ExistingColumn:
    name, kind, needs_value, is_generated, longest, is_exact = row
    return ExistingColumn(
        name=name,
        kind=kind,
        waiting_type=partial(_waiting_type, kind, type_of),
        needs_value=needs_value,
        is_generated=is_generated,
        longest=longest,
        is_exact=is_exact,
    )


def _waiting_type(declared: str, type_of: Callable[[pa.DataType], str | None], kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which values of `kind` wait. PostgreSQL gives the same texts for both, which are compared."""
    usual, declared = type_of(kind), declared.replace("(6)", "")  # the digits of a second that all moments have
    if usual == _SPELLED.get(declared, declared).replace(",", ", "):
        return kind
    if (usual == "text" and _TEXT.fullmatch(declared)) or (usual == "jsonb" and declared == "json"):
        return kind
    if declared == "numeric":
        return kind if pa.types.is_decimal(kind) or pa.types.is_signed_integer(kind) else None
    wide = _WIDER.get(declared)
    if (digits := _DECIMAL.fullmatch(declared)) and int(digits[1]) <= _MOST_DIGITS:
        wide = pa.decimal128(int(digits[1]), int(digits[2])) if int(digits[1]) <= 38 else None
        wide = wide or pa.decimal256(int(digits[1]), int(digits[2]))
    return wide if wide is not None and fits(kind, wide) else None

"""Columns of a table of PostgreSQL that change while others read it, also with a snapshot of an earlier moment.

PostgreSQL has versions of rows, and none of tables: such a reader finds the columns that are there now. Statements that
write the table again, as `ALTER TYPE` and TRUNCATE do, leave it no rows at all. So a column is widened in three steps,
and a reader finds the rows of its moment, with their values, whatever step it has its snapshot from:

1. A column of the wider type is added and filled, and its comment says so. Readers are locked out of the first alone.
2. Whoever has a snapshot of before is waited for: the rows that it sees have nothing in that column.
3. In the transaction that shows the version, the column takes the place and the name of the narrow one.

A process that ends in between leaves the column for the next one. What belongs to the narrow column is made again:
grants, comment, default, NOT NULL, constraints, indexes, statistics; so is what depends on it, as views do
(`kept_dependents`). Step 1 tries whether that can be done, and nothing has changed then.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tailer.errors import SinkRejected, SinkUnavailable
from tailer_sinks.sql.databases.dialect import Connection, column_list, quoted

__all__ = [
    "DROP_DEPENDENTS",
    "columns_left",
    "forget_dropped",
    "kept_dependents",
    "make_again",
    "prepare_wider",
    "take_wider",
]

DROP_DEPENDENTS: Final = "Drop what depends on the column, run `tailer resume PIPELINE`, and make it again."
_COLUMNS: Final = """
SELECT a.attrelid, a.attnum, a.attname, a.attnotnull, a.attacl, a.attrelid::regclass AS tab FROM pg_attribute a
WHERE a.attrelid = to_regclass(?) AND a.attname = ANY(?) AND NOT a.attisdropped
"""
_GRANTEE: Final = "CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END"
_OPTION: Final = "CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END"
# The place of a statement, what it makes, the statement, and one that drops the same thing. A new view has the grants
# that are the default of whoever makes it: all are revoked.
_DEPENDENTS: Final = f"""
WITH RECURSIVE cols AS ({_COLUMNS}),
direct AS (
    SELECT DISTINCT classid, objid, attrelid FROM pg_depend JOIN cols
    ON refclassid = 'pg_class'::regclass AND refobjid = attrelid AND refobjsubid = attnum
),
queries AS (
    SELECT r.oid AS rule, c.oid AS view FROM pg_rewrite r JOIN pg_class c ON c.oid = ev_class
    WHERE rulename = '_RETURN' AND relkind = 'v' AND relpersistence = 'p' AND pg_has_role(relowner, 'USAGE')
),
above (view, depth) AS (
    SELECT view, 1 FROM direct JOIN queries ON classid = 'pg_rewrite'::regclass AND objid = rule
    UNION
    SELECT queries.view, depth + 1 FROM above JOIN pg_depend
    ON refclassid = 'pg_class'::regclass AND refobjid = above.view AND classid = 'pg_rewrite'::regclass
    JOIN queries ON objid = rule AND queries.view <> above.view
),
views AS (
    SELECT pg_class.*, format('%I.%I', nspname, relname) AS view, depth
    FROM (SELECT view AS oid, max(depth) AS depth FROM above GROUP BY view) AS places
    JOIN pg_class USING (oid) JOIN pg_namespace n ON n.oid = relnamespace
),
fields AS (
    SELECT attrelid, attnum, attname, attacl, view FROM pg_attribute JOIN views ON attrelid = views.oid
    WHERE attnum > 0 AND NOT attisdropped
),
triggers AS (
    SELECT oid, tgname, tgenabled, tgrelid::regclass AS tab FROM pg_trigger WHERE NOT tgisinternal AND (
        tgrelid IN (SELECT oid FROM views)
        OR (oid, tgrelid) IN (SELECT objid, attrelid FROM direct WHERE classid = 'pg_trigger'::regclass)
    )
),
policies AS (
    SELECT pg_policy.*, polrelid::regclass AS tab FROM pg_policy JOIN direct
    ON classid = 'pg_policy'::regclass AND objid = oid AND polrelid = attrelid
)
SELECT what, make, remove FROM (
    SELECT 1, depth, format('view %s', view), format(
        'CREATE VIEW %s %s AS %s', view, 'WITH (' || array_to_string(reloptions, ', ') || ')', pg_get_viewdef(oid)
    ), format('DROP VIEW %s', view) FROM views
    UNION ALL
    SELECT 2, 0, view, format('ALTER VIEW %s OWNER TO %I', view, pg_get_userbyid(relowner)), NULL FROM views
    UNION ALL
    SELECT 3, 0, view, format('COMMENT ON VIEW %s IS %L', view, obj_description(oid, 'pg_class')), NULL FROM views
    UNION ALL
    SELECT 3, 0, view, format('COMMENT ON COLUMN %s.%I IS %L', view, attname, col_description(attrelid, attnum)), NULL
    FROM fields WHERE col_description(attrelid, attnum) IS NOT NULL
    UNION ALL
    SELECT 3, 0, view, format(
        'ALTER VIEW %s ALTER COLUMN %I SET DEFAULT %s', view, attname, pg_get_expr(adbin, adrelid)
    ), NULL FROM fields JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    UNION ALL
    SELECT 3, 0, view, pg_get_ruledef(r.oid), NULL FROM pg_rewrite r JOIN views ON ev_class = views.oid
    WHERE rulename <> '_RETURN'
    UNION ALL
    SELECT 4, 0, view, format('REVOKE ALL ON %s FROM %s', view, {_GRANTEE}), NULL
    FROM views, (SELECT grantee FROM pg_default_acl, aclexplode(defaclacl)) AS others (grantee)
    UNION ALL
    SELECT 4, 0, view, format('REVOKE ALL ON %s FROM %I', view, pg_get_userbyid(relowner)), NULL FROM views
    UNION ALL
    SELECT 5, 0, view, format('GRANT %s ON %s TO %s%s', privilege_type, view, {_GRANTEE}, {_OPTION}), NULL
    FROM views, aclexplode(coalesce(relacl, acldefault('r', relowner)))
    UNION ALL
    SELECT 5, 0, view, format('GRANT %s (%I) ON %s TO %s%s', privilege_type, attname, view, {_GRANTEE}, {_OPTION}), NULL
    FROM fields, aclexplode(attacl)
    UNION ALL
    SELECT 6, 0, format('trigger %I of %s', tgname, tab), pg_get_triggerdef(oid),
    format('DROP TRIGGER %I ON %s', tgname, tab) FROM triggers
    UNION ALL
    SELECT 7, 0, tgname, format('ALTER TABLE %s %s TRIGGER %I', tab, CASE tgenabled
        WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, tgname), NULL
    FROM triggers WHERE tgenabled <> 'O'
    UNION ALL
    SELECT 7, 0, tgname, format('COMMENT ON TRIGGER %I ON %s IS %L', tgname, tab, obj_description(oid, 'pg_trigger')),
    NULL FROM triggers
    UNION ALL
    SELECT 6, 0, format('policy %I of %s', polname, tab), format(
        'CREATE POLICY %I ON %s AS %s FOR %s TO %s%s%s', polname, tab,
        CASE WHEN polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
        CASE polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
        ELSE 'ALL' END,
        (SELECT string_agg({_GRANTEE}, ', ') FROM unnest(polroles) AS grantee),
        ' USING (' || pg_get_expr(polqual, polrelid) || ')',
        ' WITH CHECK (' || pg_get_expr(polwithcheck, polrelid) || ')'
    ), format('DROP POLICY %I ON %s', polname, tab) FROM policies
    UNION ALL
    SELECT 7, 0, polname, format('COMMENT ON POLICY %I ON %s IS %L', polname, tab, obj_description(oid, 'pg_policy')),
    NULL FROM policies
) AS made (place, depth, what, make, remove) ORDER BY place, depth
"""


@contextmanager
def kept_dependents(name: str, connection: Connection, table: str, columns: Sequence[str]) -> Iterator[None]:
    """Drop views, triggers and policies that depend on columns of `table`, a quoted name; make them again at the end.

    All in the open transaction, from the texts that PostgreSQL has of them. A view gets back its owner, options,
    grants, comments, defaults, rules and triggers. Whatever else depends on a column or on such a view is left where it
    is, and PostgreSQL refuses to drop the column, and names it:

    - A materialized view: readers with an older snapshot would find the new one empty.
    - A generated column: adding one writes the table again.
    - A temporary view, or one whose owner the sink's user cannot stand for: no one else can make it.
    - Foreign keys of other tables, functions, publications: they have users of their own.

    `name`: the sink's. Raises `SinkRejected` where it does not go with the columns that are there then.
    """
    dependents = connection.query(_DEPENDENTS, [table, list(columns)])
    for _, _, remove in reversed(dependents):
        if remove is not None:
            connection.execute(remove)
    yield
    for what, make, _ in dependents:
        try:
            connection.execute(make)
        except SinkRejected as error:
            raise SinkRejected(name, f"{what} cannot be made again: {error.reason}", DROP_DEPENDENTS) from error


_MOST_COLUMNS: Final = 1600  # of a table, with those that were dropped

_WIDER: Final = "lake_tailer_wider_"
_COMMENT: Final = "The values of another column, whose place it takes with the next version."
_WAIT_S: Final = 30.0
_PAUSE_S: Final = 0.05

# What belongs to columns, as statements that make it again for others of their names.
_BELONGINGS: Final = f"""
WITH cols AS ({_COLUMNS}),
of_cols AS (
    SELECT DISTINCT d.classid, d.objid FROM pg_depend d JOIN cols
    ON d.refclassid = 'pg_class'::regclass AND d.refobjid = cols.attrelid AND d.refobjsubid = cols.attnum
)
SELECT statement FROM (
    SELECT 1, format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', tab, attname) FROM cols WHERE attnotnull
    UNION ALL
    SELECT 1, format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s', tab, attname, pg_get_expr(adbin, adrelid))
    FROM cols JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    UNION ALL
    SELECT 1, format('COMMENT ON COLUMN %s.%I IS %L', tab, attname, col_description(attrelid, attnum)) FROM cols
    UNION ALL
    SELECT 1, format(
        'GRANT %s (%I) ON %s TO %s%s', privilege_type, attname, tab, {_GRANTEE},
        CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
    ) FROM cols, aclexplode(attacl)
    UNION ALL
    SELECT CASE contype WHEN 'f' THEN 3 ELSE 2 END, format(
        'ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid)
    ) FROM pg_constraint JOIN of_cols ON classid = 'pg_constraint'::regclass AND objid = oid
    WHERE conrelid = to_regclass(?) AND contype <> 'n'
    UNION ALL
    SELECT 4, pg_get_indexdef(indexrelid)
    FROM pg_index JOIN of_cols ON classid = 'pg_class'::regclass AND objid = indexrelid
    WHERE NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
    UNION ALL
    SELECT 4, pg_get_statisticsobjdef(oid)
    FROM pg_statistic_ext JOIN of_cols ON classid = 'pg_statistic_ext'::regclass AND objid = oid
    UNION ALL
    SELECT 5, CASE classid
        WHEN 'pg_constraint'::regclass THEN format('COMMENT ON CONSTRAINT %s', identity)
        WHEN 'pg_class'::regclass THEN format('COMMENT ON INDEX %s', identity)
        ELSE format('COMMENT ON STATISTICS %s', identity)
    END || format(' IS %L', description)
    FROM of_cols JOIN pg_description ON classoid = classid AND objoid = objid, pg_identify_object(classid, objid, 0)
) AS made (place, statement) ORDER BY place
"""
_PRIMARY_KEY: Final = """
SELECT conname, ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY(conkey))
FROM pg_constraint WHERE conrelid = to_regclass(?) AND contype = 'p'
"""
# What a copy of a table lacks, beside what depends on its columns. A foreign key is of either side.
_NOT_COPIED: Final = """
SELECT what FROM pg_class t, LATERAL (
    SELECT format('the trigger %I', tgname) FROM pg_trigger WHERE tgrelid = t.oid AND NOT tgisinternal
    UNION ALL SELECT format('the policy %I', polname) FROM pg_policy WHERE polrelid = t.oid
    UNION ALL SELECT format('the foreign key %I of %s', conname, conrelid::regclass) FROM pg_constraint
    WHERE contype = 'f' AND t.oid IN (conrelid, confrelid)
    UNION ALL SELECT format('the rule %I', rulename) FROM pg_rewrite WHERE ev_class = t.oid
    UNION ALL SELECT format('the publication %I', pubname) FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid WHERE prrelid = t.oid
    UNION ALL SELECT 'its partitions, or its parent' FROM pg_inherits WHERE t.oid IN (inhrelid, inhparent)
) AS others (what) WHERE t.oid = to_regclass(?)
"""
_NAMES: Final = """
SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped
"""
_GRANTS: Final = f"""
WITH again AS (SELECT to_regclass(?) AS tab), own AS (SELECT * FROM pg_class WHERE oid = to_regclass(?))
SELECT format('ALTER TABLE %s OWNER TO %I', tab, pg_get_userbyid(relowner)) FROM again, own
UNION ALL SELECT format('COMMENT ON TABLE %s IS %L', tab, obj_description(oid, 'pg_class')) FROM again, own
UNION ALL SELECT format('GRANT %s ON %s TO %s%s', privilege_type, tab, {_GRANTEE},
    CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM again, own, aclexplode(relacl)
UNION ALL SELECT format('GRANT %s (%I) ON %s TO %s%s', privilege_type, attname, tab, {_GRANTEE},
    CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM again, own JOIN pg_attribute ON attrelid = oid AND NOT attisdropped, aclexplode(attacl)
"""
# Sessions that read the rows as they were before the columns were filled.
_OLDER: Final = f"""
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_backend_pid() AND age(backend_xmin) >= (
    SELECT min(age(description.xmin)) FROM pg_description description JOIN ({_COLUMNS}) AS cols
    ON classoid = 'pg_class'::regclass AND objoid = attrelid AND objsubid = attnum
)
ORDER BY pid
"""


def prepare_wider(
    name: str, connection: Connection, table: str, wider: Sequence[tuple[str, str, str]], hold: Callable[[], None]
) -> None:
    """Do the steps 1 and 2 for columns of `table`, a quoted name: their names, their types, and values of these.

    `name`: the sink's. `hold` locks the progress, first in each transaction. Raises `SinkRejected` where something is
    in the way, and `SinkUnavailable` where readers take too long: then it goes on at the next attempt.
    """
    names = [_wider_name(column, kind) for column, kind, _ in wider]
    pairs = list(zip(names, wider, strict=True))
    with connection.transaction():
        hold()
        connection.execute("SAVEPOINT lake_tailer")
        with kept_dependents(name, connection, table, [column for column, _, _ in wider]):
            for column, kind, _ in wider:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {quoted(column)}")
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {quoted(column)} {kind}")
        connection.execute("ROLLBACK TO SAVEPOINT lake_tailer")
        there = _wider_columns(connection, table)
        for left in there - set(names):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {quoted(left)}")
        for added, (_, kind, _) in pairs:
            if added not in there:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {quoted(added)} {kind}")
    with connection.transaction():
        hold()
        connection.lock(table)
        values = ", ".join(f"{quoted(added)} = {value}" for added, (_, _, value) in pairs)
        count = connection.execute(f"UPDATE {table} SET {values} WHERE {_differs(names, wider)}")
        if count or not _are_filled(connection, table, names):
            for added in names:
                connection.execute(f"COMMENT ON COLUMN {table}.{quoted(added)} IS '{_COMMENT}'")
    _wait_for_older(name, connection, table, names)


def take_wider(name: str, connection: Connection, table: str, wider: Sequence[tuple[str, str, str]]) -> None:
    """Do step 3, in the open transaction. Raises `SinkUnavailable` where step 1 has to be done again."""
    names = [_wider_name(column, kind) for column, kind, _ in wider]
    connection.lock(table)
    differing = f"SELECT 1 FROM {table} WHERE {_differs(names, wider)} LIMIT 1"
    if not _are_filled(connection, table, names) or connection.query(differing):
        raise SinkUnavailable(name, f"somebody has changed {table} while columns were widened")
    belongings = connection.query(_BELONGINGS, [table, [column for column, _, _ in wider], table])
    for added, (column, _, _) in zip(names, wider, strict=True):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {quoted(column)}")
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN {quoted(added)} TO {quoted(column)}")
    for (statement,) in belongings:
        connection.execute(statement)


def make_again(
    name: str,
    connection: Connection,
    table: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    key: Sequence[str],
) -> None:
    """Remove all rows of a table and give it other columns and another primary key, in the open transaction.

    `name`: the sink's. `before`, `after`: the types of columns by name. A table that is dropped and made again would
    have no rows for readers with an older snapshot, and neither views nor grants.
    """
    kept = {column for column, kind in before.items() if after.get(column) == kind}
    connection.execute(f"DELETE FROM {table}")
    for constraint, columns in connection.query(_PRIMARY_KEY, [table]):
        connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {quoted(constraint)}")
        for column in set(columns) & kept:
            connection.execute(f"ALTER TABLE {table} ALTER COLUMN {quoted(column)} DROP NOT NULL")
    for column in (before.keys() - after.keys()) | _wider_columns(connection, table):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {quoted(column)}")
    retyped = sorted(before.keys() & after.keys() - kept)
    with kept_dependents(name, connection, table, retyped):
        for column in retyped:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {quoted(column)}")
        for column, kind in after.items():
            if column not in kept:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {quoted(column)} {kind}")
        connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({column_list(key)})")


def columns_left(connection: Connection, table: str) -> int:
    """Return how many more columns a table may get."""
    rows = connection.query("SELECT max(attnum) FROM pg_attribute WHERE attrelid = to_regclass(?)", [table])
    return _MOST_COLUMNS - (rows[0][0] or 0)


def forget_dropped(name: str, connection: Connection, own: str, table: str, again: str) -> None:
    """Make `table`, whose quoted name is `own`, again without its rows, in the open transaction: as `again`.

    `name`: the sink's. Readers with an older snapshot find no rows. Raises `SinkRejected` for what would be lost.
    """
    if lost := connection.query(_NOT_COPIED, [own]):
        reason = f"{table} cannot be made again, because of {', '.join(what for (what,) in lost)}"
        raise SinkRejected(name, reason, "Drop it, run `tailer resume PIPELINE`, and make it again.")
    columns = [column for (column,) in connection.query(_NAMES, [own])]
    with kept_dependents(name, connection, own, columns):
        connection.execute(f"CREATE TABLE {again} (LIKE {own} INCLUDING ALL)")
        for (statement,) in connection.query(_GRANTS, [again, own]):
            connection.execute(statement)
        connection.execute(f"DROP TABLE {own}")
        connection.execute(f"ALTER TABLE {again} RENAME TO {quoted(table)}")


def _wait_for_older(name: str, connection: Connection, table: str, names: Sequence[str]) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    while older := connection.query(_OLDER, [table, names]):
        if time.monotonic() > deadline_s:
            sessions = ", ".join(str(pid) for (pid,) in older)
            raise SinkUnavailable(name, f"to widen {table}, earlier transactions must end: of processes {sessions}")
        time.sleep(_PAUSE_S)


def _wider_name(column: str, kind: str) -> str:
    return f"{_WIDER}{hashlib.sha256(f'{column} {kind}'.encode()).hexdigest()[:16]}"


def _wider_columns(connection: Connection, table: str) -> set[str]:
    query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(?) AND starts_with(attname::text, ?)"
    rows = connection.query(query, [table, _WIDER])
    return {column for (column,) in rows}


def _are_filled(connection: Connection, table: str, names: Sequence[str]) -> bool:
    query = f"SELECT count(*) FROM ({_COLUMNS}) AS cols WHERE col_description(attrelid, attnum) IS NOT NULL"
    return connection.query(query, [table, list(names)]) == [(len(names),)]


def _differs(names: Sequence[str], wider: Sequence[tuple[str, str, str]]) -> str:
    pairs = zip(names, wider, strict=True)
    return " OR ".join(f"{quoted(added)} IS DISTINCT FROM {value}" for added, (_, _, value) in pairs)

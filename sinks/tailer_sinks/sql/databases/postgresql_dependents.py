"""Dependents of columns of a table of PostgreSQL, which stand in the way of other columns in their place.

Views, views of these, triggers and policies are dropped, and made again at the end of the transaction, from the texts
that PostgreSQL has of them. A view gets back its owner, options, grants, comments, defaults, rules and triggers.
Whatever else depends on a column or on such a view is left where it is, and PostgreSQL refuses to drop the column, and
names it:

- A materialized view: readers with an older snapshot would find the new one empty.
- A generated column: adding one writes the table again.
- A temporary view, or one whose owner the sink's user cannot stand for: no one else can make it.
- Foreign keys of other tables, functions, publications: they have users of their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tailer.errors import SinkRejected
from tailer_sinks.sql.databases.dialect import Connection

__all__ = ["COLUMNS", "DROP_DEPENDENTS", "GRANTEE", "kept_dependents"]

DROP_DEPENDENTS: Final = "Drop what depends on the column, run `tailer resume PIPELINE`, and make it again."
COLUMNS: Final = """
SELECT a.attrelid, a.attnum, a.attname, a.attnotnull, a.attacl, a.attrelid::regclass AS tab FROM pg_attribute a
WHERE a.attrelid = to_regclass(?) AND a.attname = ANY(?) AND NOT a.attisdropped
"""
GRANTEE: Final = "CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END"
_OPTION: Final = "CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END"
# The place of a statement, what it makes, the statement, and one that drops the same thing. A new view has the grants
# that are the default of whoever makes it: all are revoked.
_DEPENDENTS: Final = f"""
WITH RECURSIVE cols AS ({COLUMNS}),
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
    SELECT 4, 0, view, format('REVOKE ALL ON %s FROM %s', view, {GRANTEE}), NULL
    FROM views, (SELECT grantee FROM pg_default_acl, aclexplode(defaclacl)) AS others (grantee)
    UNION ALL
    SELECT 4, 0, view, format('REVOKE ALL ON %s FROM %I', view, pg_get_userbyid(relowner)), NULL FROM views
    UNION ALL
    SELECT 5, 0, view, format('GRANT %s ON %s TO %s%s', privilege_type, view, {GRANTEE}, {_OPTION}), NULL
    FROM views, aclexplode(coalesce(relacl, acldefault('r', relowner)))
    UNION ALL
    SELECT 5, 0, view, format('GRANT %s (%I) ON %s TO %s%s', privilege_type, attname, view, {GRANTEE}, {_OPTION}), NULL
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
        (SELECT string_agg({GRANTEE}, ', ') FROM unnest(polroles) AS grantee),
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
    """Drop what depends on columns of `table`, a quoted name, and make it again at the end, in the open transaction.

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

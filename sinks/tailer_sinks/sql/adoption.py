"""Rules of a mirror in a table that a user made: the sink adds columns to it, and changes nothing else of it.

The user makes all other changes, before the version that needs them: the error has the statement.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa

from tailer.errors import SinkRejected, SinkUnavailable
from tailer_sinks.sql.databases.dialect import (
    Columns,
    Connection,
    Dialect,
    InFile,
    UniqueViolationError,
    column_list,
    quoted,
)
from tailer_sinks.sql.databases.existing import ExistingTable

__all__ = ["check_lengths", "check_types", "described", "faults", "fitted", "followed", "held"]

_RESUME: Final = "and then `tailer resume PIPELINE`."
_RESNAPSHOT: Final = "Ask for a snapshot with `tailer resnapshot PIPELINE`."


def described(connection: Connection, dialect: Dialect, table: str, *, is_new: bool) -> ExistingTable:
    """Describe a table that a user made. `is_new`: it is not adopted yet, so it must be empty."""
    existing = dialect.describe(connection, table)
    if is_new and connection.query(f"SELECT 1 FROM {dialect.name_of(table)} LIMIT 1"):
        reason = f"the table {table} has rows, which no mirror of the source would keep"
        remedy = "Empty it, or set table to another name."
        existing = replace(existing, obstacles=(*existing.obstacles, (reason, remedy)))
    return existing


def faults(
    name: str, dialect: Dialect, table: str, existing: ExistingTable, shape: pa.Schema, key: Sequence[str]
) -> Iterator[SinkRejected]:
    """Yield why `table` is no place for a mirror with the columns of `shape`, whose types are those of the source."""
    for reason, remedy in existing.obstacles:
        yield SinkRejected(name, reason, remedy)
    alter = f"ALTER TABLE {_shown(dialect, table)}"
    for column in shape:
        yield from _column_faults(name, dialect, table, existing, column, is_key=column.name in key)
    mirrored = {owned.name for column in shape if (owned := existing.column(column.name)) is not None}
    for owned in existing.columns.values():
        if owned.name not in mirrored and owned.needs_value:
            reason = f"column {owned.name} of {table} needs a value, and the source has no such column"
            remedy = f"Give it a default, or run: {alter} ALTER COLUMN {quoted(owned.name)} DROP NOT NULL"
            yield SinkRejected(name, reason, remedy)
    if key and existing.uniques is not None and not existing.key_indexes(key):
        remedy = f"Run: CREATE UNIQUE INDEX {quoted(f'{table}_key')} ON {_shown(dialect, table)} ({column_list(key)})"
        yield SinkRejected(name, f"{table} has no unique index on the key, {', '.join(key)}", remedy)


def fitted(existing: ExistingTable, shape: pa.Schema) -> pa.Schema:
    """Return columns with the types in which their values wait for the table."""
    owned = [existing.column(column.name) for column in shape]
    kinds = [None if own is None else own.waiting_type(column.type) for own, column in zip(owned, shape, strict=True)]
    return pa.schema([column.with_type(kind or column.type) for column, kind in zip(shape, kinds, strict=True)])


def followed(
    name: str, dialect: Dialect, table: str, existing: ExistingTable, change: Columns, shape: pa.Schema
) -> Columns:
    """Return what the sink does for a change of the source's columns to those of `shape`.

    Raises `SinkRejected` for what the user must do first.
    """
    alter = f"ALTER TABLE {_shown(dialect, table)}"
    _check_renamed(name, alter, table, existing, change, shape)
    added = [column for column in change.added if existing.column(column.name) is None]
    there = pa.schema([column for column in shape if column.name not in {column.name for column in added}])
    for lost in (column for column in there if existing.column(column.name) is None):
        added_again = f"{alter} ADD COLUMN {quoted(lost.name)} {dialect.type_of(lost.type)}"
        remedy = f"Run: {added_again}; and then `tailer resnapshot PIPELINE`, which fills it."
        raise SinkRejected(name, f"column {lost.name} of {table} is gone", remedy)
    for fault in faults(name, dialect, table, existing, there, change.key):
        raise fault
    for column in change.dropped:
        if column in shape.names:
            reason = f"column {column} of {table} is another one of that name in the source, or has another type"
            raise SinkRejected(name, reason, _RESNAPSHOT)
        if existing.column(column) is not None:
            remedy = f"Run: {alter} DROP COLUMN {quoted(column)}; {_RESUME} Or keep it without values: deliver "
            remedy = f"{remedy}CAST(NULL AS ...) AS {column} with select."
            raise SinkRejected(name, f"column {column} of {table} is not in the source any more", remedy)
    if added and not existing.adds_columns:
        parts = [f"{alter} ADD COLUMN {quoted(column.name)} {dialect.type_of(column.type)}" for column in added]
        reason = f"{table} has no column {', '.join(column.name for column in added)}"
        raise SinkRejected(name, reason, f"Run: {'; '.join(parts)}; {_RESUME}")
    return Columns(change.after, added=added, key=change.key)


def check_lengths(
    name: str, connection: Connection, table: str, existing: ExistingTable | None, stored: str, names: Sequence[str]
) -> None:
    """Raise `SinkRejected` for a text in `stored` that is longer than its column, as a user has changed it meanwhile.

    A database may cut off spaces without a word. `existing`: None: no user has made the table. `names`: of columns.
    """
    for column in filter(None, map(existing.column, names) if existing is not None else ()):
        query = f"SELECT 1 FROM {stored} WHERE length({quoted(column.name)}) > {column.longest} LIMIT 1"
        if column.longest is not None and connection.query(query):
            reason = (
                f"column {column.name} of {table} has {column.longest} characters now, and rows that wait have more"
            )
            raise SinkRejected(name, reason, f"Make it longer again, {_RESUME}")


def check_types(name: str, dialect: Dialect, table: str, existing: ExistingTable, shape: pa.Schema) -> None:
    """Raise `SinkRejected` for a column whose type may change values of `shape`."""
    for column in shape:
        for fault in _column_faults(name, dialect, table, existing, column, is_key=False):
            raise fault


def check_null(
    name: str, connection: Connection, dialect: Dialect, table: str, names: Sequence[str], origins: Mapping[str, str]
) -> None:
    """Raise `SinkRejected` if rows have values in a column that is new in the source: there it is null in all of them.

    `origins`: the columns among `names` that are not new.
    """
    for column in (column for column in names if column not in origins):
        if connection.query(f"SELECT 1 FROM {dialect.name_of(table)} WHERE {quoted(column)} IS NOT NULL LIMIT 1"):
            reason = f"column {column} of {table} has values, and it is new in the source, and null in earlier rows"
            remedy = f"Drop its default, run: UPDATE {_shown(dialect, table)} SET {quoted(column)} = NULL; {_RESUME}"
            raise SinkRejected(name, reason, remedy)


@contextmanager
def held(
    name: str,
    connection: Connection,
    dialect: Dialect,
    table: str,
    existing: ExistingTable | None,
    changes: Sequence[Columns | None],
    *,
    is_new: bool,
) -> Iterator[None]:
    """Keep a user's table as it is until the open transaction ends, for changes of its rows in the block.

    It gets the columns of `changes` first. `existing`: as it should be; None: it is the sink's own; do nothing.
    Raises `SinkRejected` for an obstacle, and `SinkUnavailable` if it is another one now. Constraints are checked at
    the end, where they can wait: a row that is updated is deleted and inserted. Raises `SinkRejected` for one that is
    broken then.
    """
    if existing is None:
        yield
        return
    for reason, remedy in existing.obstacles:
        raise SinkRejected(name, reason, remedy)
    own = dialect.name_of(table)
    connection.execute(f"DELETE FROM {own} WHERE 1 = 0")  # which locks its columns, indexes, triggers and keys
    if is_new:
        connection.lock(own)
    if described(connection, dialect, table, is_new=is_new) != existing:
        raise SinkUnavailable(name, f"somebody has changed the table {table} at the same time")
    for change in changes:
        for statement in () if change is None else dialect.alter(table, change):
            connection.execute(statement)
    if dialect.defers:
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
    yield
    if dialect.defers:
        try:
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except UniqueViolationError as error:
            reason = f"the constraint {error.index} refuses rows that the source has"
            raise SinkRejected(name, reason, "Drop it, if the source may have such rows.") from error


def _check_renamed(
    name: str, alter: str, table: str, existing: ExistingTable, change: Columns, shape: pa.Schema
) -> None:
    """Raise `SinkRejected` for a column that the user has not renamed yet. `alter`: begins a statement for it."""
    renamed = dict(change.renamed)
    for old, new in change.renamed:
        if existing.folds and old.lower() == new.lower():
            continue
        if existing.column(new) is None or (old not in shape.names and existing.column(old) is not None):
            remedy = f"Run: {alter} RENAME COLUMN {quoted(old)} TO {quoted(new)}; {_RESUME} Or keep {old} with select."
            raise SinkRejected(name, f"column {old} of {table} is called {new} in the source from now on", remedy)
        last = new
        while last != old and last in renamed:
            last = renamed[last]
        if last == old:  # nothing tells whether the user has done it
            reason = f"column {old} of {table} is called {new} in the source from now on, and another one {old}"
            raise SinkRejected(name, reason, _RESNAPSHOT)


def _column_faults(
    name: str, dialect: Dialect, table: str, existing: ExistingTable, column: pa.Field, *, is_key: bool
) -> Iterator[SinkRejected]:
    owned, kind = existing.column(column.name), dialect.type_of(column.type)
    waiting = None if owned is None else owned.waiting_type(column.type)
    alter = f"ALTER TABLE {_shown(dialect, table)}"
    if owned is None:
        remedy = f"Run: {alter} ADD COLUMN {quoted(column.name)} {kind}"
        yield SinkRejected(name, f"{table} has no column {column.name}", remedy)
    elif owned.is_generated:
        reason = f"column {column.name} of {table} is generated, and the source has values for it"
        yield SinkRejected(name, reason, "Give the source's column another name with select.")
    elif waiting is None or (is_key and (pa.types.is_floating(waiting) or not owned.is_exact)):
        reason = f"column {column.name} of {table} is {owned.kind or 'without a type'}, which may change values of "
        remedy = f"Make it {kind or 'a column without a type'} or wider, or change its type in the source with select."
        yield SinkRejected(name, f"{reason}{column.type}", remedy)


def _shown(dialect: Dialect, table: str) -> str:
    """Return the name of a table in statements of a user, for whom a file has one database."""
    return quoted(table) if isinstance(dialect, InFile) else dialect.name_of(table)

"""The port of a table that a pipeline fills, with what a mirror and a log of changes have in common.

A table is filled from *segments*: rows of one schema that wait in a table of their own (`tailer_sinks.sql.segments`).
A change of the schema begins another segment. The columns of the table change between the two.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import COMMIT_TIMESTAMP, ChangeBatch, Gap
from tailer.plan import Position
from tailer.schema.exact_types import exact_type
from tailer_sinks.sql.databases.dialect import (
    Columns,
    Connection,
    Dialect,
    UniqueViolationError,
    column_list,
    quoted,
)
from tailer_sinks.sql.databases.texts import holds_json

__all__ = ["Rows", "Target", "alter", "column_faults", "create", "insert", "plain_schema"]

OWN_PREFIX: Final = "lake_tailer_"


@dataclass(slots=True)
class Rows:
    """Facts about the rows of a segment.

    `versions`: the first and the last one; None: there are no rows. `replace`: they are all rows of the table, whatever
    it had before. `changed_us`: the time of the last version, in microseconds since 1970; `before_us`: that of the last
    but one.
    """

    versions: tuple[int, int] | None = None
    deletes: bool = False
    replace: bool = False
    changed_us: int | None = None
    before_us: int | None = None

    @property
    def last(self) -> int | None:
        """The last version."""
        return None if self.versions is None else self.versions[1]

    def note(self, batches: Sequence[ChangeBatch], *, deletes: bool) -> None:
        """Note rows, at least one."""
        last = batches[-1]
        before = next((each for each in reversed(batches) if each.version < last.version), None)
        for each in (batches[0], *([] if before is None else [before]), last):
            self.reach(each.version, each.rows.column(COMMIT_TIMESTAMP)[-1].cast(pa.int64()).as_py())
        self.deletes = self.deletes or deletes

    def reach(self, version: int, moment_us: int | None) -> None:
        """Note that there are rows of `version`, the last one until now."""
        if self.versions is not None and self.versions[1] < version:
            self.before_us = self.changed_us
        self.versions = (version if self.versions is None else self.versions[0], version)
        self.changed_us = moment_us

    def since(self, version: int) -> "Rows":
        """Return what is known of the rows of the last version, `version`."""
        return Rows((version, version), self.deletes, changed_us=self.changed_us)

    def until(self, version: int) -> "Rows":
        """Return what is known of the rows of the versions up to `version`, the last but one."""
        assert self.versions is not None, "rows of several versions"
        return Rows((self.versions[0], version), self.deletes, self.replace, self.before_us)


class Target(Protocol):
    """A table.

    `key`: the columns that identify a row; empty: not known yet, or there are none. `may_differ`: whether it may get
    the columns of other rows without an announcement.
    """

    table: str
    key: tuple[str, ...]

    @property
    def mode(self) -> str:
        """The option `mode`."""
        ...

    @property
    def may_differ(self) -> bool:
        """See the class."""
        ...

    def faults(self, schema: pa.Schema) -> Iterator[SinkRejected]:
        """Yield why no table can have rows of `schema`: `start` raises the first."""
        ...

    def start(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of a new table for rows of `schema`. Raises `SinkRejected`."""
        ...

    def change(self, shape: pa.Schema, after: pa.Schema, origins: Mapping[str, str] | None) -> Columns:
        """Return how a table with the columns of `shape` gets room for rows of `after`.

        `origins`: the former name of each column that was there; None: columns are known by name. Raises
        `SinkRejected`.
        """
        ...

    def staging(self, shape: pa.Schema, schema: pa.Schema) -> pa.Schema:
        """Return the schema of rows that wait, for a table with the columns of `shape` and rows of `schema`."""
        ...

    def staged(self, batches: Sequence[ChangeBatch], staging: pa.Schema, rows: Rows) -> list[pa.RecordBatch]:
        """Return rows as they wait, and note them in `rows`. Raises `SinkRejected`."""
        ...

    def gap(self, gap: Gap, staging: pa.Schema) -> pa.RecordBatch | None:
        """Return the row of a gap; None: all rows of the table follow. Raises `SinkRejected`."""
        ...

    def constraint(self) -> str:
        """Return the constraint of a new table."""
        ...

    def merge(self, connection: Connection, waiting: str, staging: pa.Schema, rows: Rows) -> None:
        """Bring rows that wait in a table into the table, in the open transaction. Raises `SinkRejected`."""
        ...

    def reset_refusal(self, connection: Connection, is_known: bool, position: Position) -> tuple[str, str] | None:
        """Return why progress cannot be set to `position`, and the next step; None: it can.

        `is_known`: whether the table is there, and was filled last under the app_id of that progress.
        """
        ...


def plain_schema(name: str, dialect: Dialect, schema: pa.Schema) -> pa.Schema:
    """Return the columns of `schema` with types of the database. Raises `SinkRejected` for a column without any."""
    for fault in column_faults(name, dialect, schema):
        raise fault
    return pa.schema([pa.field(each.name, _plain_type(each.type)) for each in schema])


def column_faults(name: str, dialect: Dialect, schema: pa.Schema) -> Iterator[SinkRejected]:
    """Yield why the database cannot have columns of `schema`."""
    for each in schema:
        if each.name.lower().startswith(OWN_PREFIX):
            reason = f"column {each.name} has a name that begins with {OWN_PREFIX}, as the sink's own columns do"
            yield SinkRejected(name, reason, "Give it another name with select.")
        if dialect.type_of(_plain_type(each.type)) is None:
            reason = f"column {each.name} has type {each.type}, for which the database has no exact type"
            yield SinkRejected(name, reason, "Leave the column out, or change its type with select.")
        if len(each.name.encode()) > dialect.name_bytes:
            reason = (
                f"column {each.name} has a name of more than {dialect.name_bytes} bytes, which the database would cut"
            )
            yield SinkRejected(name, reason, "Give it a shorter name with select.")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind if holds_json(kind) else exact_type(kind)


def create(connection: Connection, dialect: Dialect, target: Target, shape: pa.Schema) -> None:
    """Create the table, in the open transaction."""
    parts = [f"{quoted(each.name)} {dialect.type_of(each.type)}{_not_null(target, each.name)}" for each in shape]
    if dialect.enforces_keys:
        parts.append(target.constraint())
    connection.execute(f"CREATE TABLE {dialect.name_of(target.table)} ({', '.join(parts)})")


def alter(name: str, connection: Connection, dialect: Dialect, target: Target, change: Columns) -> None:
    """Change the columns of the table, in the open transaction. Raises `SinkRejected`."""
    if change.emptied and connection.query(f"SELECT 1 FROM {dialect.name_of(target.table)} LIMIT 1"):
        reason = f"columns {', '.join(change.emptied)} of {target.table} have another type, and there are rows"
        raise SinkRejected(name, reason, "Ask for a snapshot with `tailer resnapshot PIPELINE`, or name another table.")
    for statement in dialect.alter(target.table, change):
        connection.execute(statement)


def insert(
    connection: Connection, dialect: Dialect, table: str, names: Sequence[str], key: Sequence[str], source: str
) -> None:
    """Insert the rows of `source`, what follows FROM in a query. `key`: the columns that identify a row.

    Raises `UniqueViolationError` if a key is there already, or twice in these rows.
    """
    table, columns, keys = dialect.name_of(table), column_list(names), column_list(key)
    connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {source}")
    if not dialect.enforces_keys:
        inserted = f"SELECT {keys} FROM {source}"
        doubled = f"SELECT 1 FROM {table} WHERE ({keys}) IN ({inserted}) GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"
        if connection.query(doubled):
            raise UniqueViolationError


def _not_null(target: Target, column: str) -> str:
    return " NOT NULL" if column in target.key else ""

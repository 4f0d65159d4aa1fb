"""The port of a table that a pipeline fills, with what a mirror and a log of changes have in common.

A table is filled from *segments*: rows of one schema that wait in a table of their own (`tailer_sinks.sql.segments`).
A change of the schema begins another segment. The columns of the table change between the two.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import COMMIT_TIMESTAMP, ChangeBatch, Gap
from tailer.schema.exact_types import exact_type
from tailer.sink import Progress
from tailer_sinks.sql.databases.dialect import (
    Columns,
    Connection,
    Dialect,
    UniqueViolationError,
    column_list,
    quoted,
)
from tailer_sinks.sql.databases.existing import ExistingTable
from tailer_sinks.sql.databases.texts import holds_json

__all__ = ["Rows", "Target", "alter", "column_faults", "create", "exact_types", "insert", "plain_schema"]

OWN_PREFIX: Final = "lake_tailer_"


@dataclass(slots=True)
class Rows:
    """Facts about the rows of a segment.

    `versions`: the first and the last one; None: there are no rows. `replace`: they are all rows of the table, whatever
    it had before. `changed_us`: the time of the last version, in microseconds since 1970; `before_us`: that of the last
    but one. `began`: the version and the time of the event that began the segment, where rows of the past are kept.
    """

    versions: tuple[int, int] | None = None
    deletes: bool = False
    replace: bool = False
    changed_us: int | None = None
    before_us: int | None = None
    began: tuple[int, int] | None = None

    @property
    def last(self) -> int | None:
        """The last version."""
        return None if self.versions is None else self.versions[1]

    @property
    def several(self) -> bool:
        """Return whether the rows are of several versions."""
        return self.versions is not None and self.versions[0] < self.versions[1]

    def note(self, batches: Sequence[ChangeBatch], *, deletes: bool) -> None:
        """Note rows, at least one."""
        last = batches[-1]
        before = next((batch for batch in reversed(batches) if batch.version < last.version), None)
        for batch in (batches[0], *([] if before is None else [before]), last):
            self.reach(batch.version, batch.rows.column(COMMIT_TIMESTAMP)[-1].cast(pa.int64()).as_py())
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
        return Rows((self.versions[0], version), self.deletes, self.replace, self.before_us, began=self.began)


class Target(Protocol):
    """A table.

    `key`: the columns that identify a row; empty: not known yet, or there are none. `mode`: of the table.
    `may_differ`: whether it may get the columns of other rows without an announcement. `keeps_rows`: whether rows of
    former versions stay, so that no snapshot may remove them. `adopts`: whether it may be one that a user made.
    `existing`: what that one is like; None: it is the sink's own.
    """

    table: str
    key: tuple[str, ...]
    mode: str
    may_differ: bool
    keeps_rows: bool
    adopts: bool
    existing: ExistingTable | None

    @property
    def rows_now(self) -> str:
        """The rows that the source has, with the columns of the key: what follows FROM in a query."""
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

    def index(self) -> str | None:
        """Return the statement that makes the index of a new table whose database enforces keys; None: it has none."""
        return None

    def merge(self, connection: Connection, waiting: str, staging: pa.Schema, rows: Rows) -> None:
        """Bring rows that wait in a table into the table, in the open transaction. Raises `SinkRejected`."""
        ...

    def reset_refusal(self, connection: Connection, there: Progress | None, wanted: Progress) -> tuple[str, str] | None:
        """Return why progress cannot be set to `wanted`, and the next step; None: it can.

        `there`: the version that the table has, and the app_id under which it was filled last; None: there is no table.
        """
        ...


def plain_schema(name: str, dialect: Dialect, schema: pa.Schema) -> pa.Schema:
    """Return the columns of `schema` with types of the database. Raises `SinkRejected` for a column without any."""
    for fault in column_faults(name, dialect, schema):
        raise fault
    return exact_types(schema)


def exact_types(schema: pa.Schema) -> pa.Schema:
    """Return the columns of `schema` with types that hold their values, whether the database has them or not."""
    return pa.schema([pa.field(column.name, _plain_type(column.type)) for column in schema])


def column_faults(name: str, dialect: Dialect, schema: pa.Schema) -> Iterator[SinkRejected]:
    """Yield why the database cannot have columns of `schema`."""
    names: dict[str, str] = {}
    for column in schema:
        if (other := names.setdefault(dialect.folded(column.name), column.name)) != column.name:
            reason = f"columns {other} and {column.name} have one name in the database, which ignores case"
            yield SinkRejected(name, reason, "Leave one of them out, or give it another name, with select.")
        if column.name.lower().startswith(OWN_PREFIX):
            reason = f"column {column.name} has a name that begins with {OWN_PREFIX}, as the sink's own columns do"
            yield SinkRejected(name, reason, "Give it another name with select.")
        if dialect.type_of(_plain_type(column.type)) is None:
            reason = f"column {column.name} has type {column.type}, for which the database has no exact type"
            yield SinkRejected(name, reason, "Leave the column out, or change its type with select.")
        if len(column.name.encode()) > dialect.name_bytes:
            reason = (
                f"column {column.name} has a name of more than {dialect.name_bytes} bytes, which the database would cut"
            )
            yield SinkRejected(name, reason, "Give it a shorter name with select.")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind if holds_json(kind) else exact_type(kind)


def create(connection: Connection, dialect: Dialect, target: Target, shape: pa.Schema) -> None:
    """Create the table, in the open transaction."""
    not_null = dict.fromkeys(target.key, " NOT NULL")
    parts = [f"{quoted(column.name)} {dialect.type_of(column.type)}{not_null.get(column.name, '')}" for column in shape]
    if dialect.enforces_keys:
        parts.append(target.constraint())
    connection.execute(f"CREATE TABLE {dialect.name_of(target.table)} ({', '.join(parts)})")
    if dialect.enforces_keys and (index := target.index()) is not None:
        connection.execute(index)


def alter(name: str, connection: Connection, dialect: Dialect, target: Target, change: Columns) -> None:
    """Change the columns of the table, in the open transaction. Raises `SinkRejected`."""
    if change.emptied and connection.query(f"SELECT 1 FROM {dialect.name_of(target.table)} LIMIT 1"):
        reason = f"columns {', '.join(change.emptied)} of {target.table} have another type, and there are rows"
        raise SinkRejected(name, reason, "Ask for a snapshot with `tailer resnapshot PIPELINE`, or name another table.")
    for statement in dialect.alter(target.table, change):
        connection.execute(statement)


def insert(
    connection: Connection,
    dialect: Dialect,
    table: str,
    names: Sequence[str],
    key: Sequence[str],
    source: str,
    *,
    values: Mapping[str, str] = MappingProxyType({}),
    among: str = "1 = 1",
) -> None:
    """Insert the rows of `source`, what follows FROM in a query. `key`: the columns that identify a row.

    `values`: expressions for more columns than `names`. `among`: the condition of rows that their key identifies.
    Raises `UniqueViolationError` if a key is there already, or twice in these rows.
    """
    table, columns, keys = dialect.name_of(table), column_list([*names, *values]), column_list(key)
    selected = ", ".join([*map(quoted, names), *values.values()])
    connection.execute(f"INSERT INTO {table} ({columns}) SELECT {selected} FROM {source}")
    if not dialect.enforces_keys:
        rows = f"{table} WHERE {among} AND ({keys}) IN (SELECT {keys} FROM {source})"
        if connection.query(f"SELECT 1 FROM {rows} GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"):
            raise UniqueViolationError

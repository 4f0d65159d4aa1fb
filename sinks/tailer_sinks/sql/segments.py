"""Segments: rows of one schema on their way into a table, and the tables in which they wait.

Rows of a transaction wait in a temporary table of the connection. If the transaction ends inside a version, they move
to a table that stays, in the same commit as the progress, which describes the segments as JSON. So a large version
takes several transactions, and the last one brings all of its rows into the table.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tailer_sinks.sql.databases.dialect import Columns, Connection, Dialect, quoted
from tailer_sinks.sql.records import schema_from_text, schema_to_text
from tailer_sinks.sql.target import Rows

__all__ = ["Segment", "Staging", "create_waiting", "described", "part_table", "parts_from"]


@dataclass(slots=True)
class Staging:
    """A temporary table of a connection with the columns of `schema`. `used`: whether it may have rows."""

    name: str
    schema: pa.Schema
    used: bool = False


@dataclass(slots=True)
class Segment:
    """Rows of `schema` for a table with the columns of `shape`.

    `origins`: see `Target.change`, of the change that began the segment. `change`: how the table gets these columns;
    None: it has them, or is created. `key`: of the table then. `is_new`: the table is made again. `refusal`: why the
    table cannot take other rows than all of the source's. `stored`: the table with the rows of earlier transactions.
    """

    schema: pa.Schema
    shape: pa.Schema
    staging: pa.Schema
    key: tuple[str, ...]
    origins: Mapping[str, str] | None = None
    change: Columns | None = None
    is_new: bool = False
    refusal: Exception | None = None
    rows: Rows = field(default_factory=Rows)
    stored: str | None = None
    waiting: Staging | None = None

    @property
    def compared(self) -> list[str]:
        """The columns by which rows are found: the key, and those that the table does not have."""
        return [each for each in self.staging.names if each in self.key or each not in self.shape.names]


def described(segments: Sequence[Segment]) -> str:
    """Return segments whose rows are stored as text."""
    return json.dumps(
        [
            {
                "schema": schema_to_text(each.schema),
                "origins": each.origins,
                "table": each.stored,
                "versions": each.rows.versions,
                "deletes": each.rows.deletes,
                "replace": each.rows.replace,
                "changed_us": each.rows.changed_us,
            }
            for each in segments
        ]
    )


def parts_from(text: str | None) -> list[dict[str, Any]]:
    """Read what `described` wrote, with schemas and `Rows`."""
    found: list[dict[str, Any]] = []
    for each in json.loads(text or "[]"):
        versions = None if each["versions"] is None else (each["versions"][0], each["versions"][1])
        rows = Rows(versions, each["deletes"], each["replace"], each["changed_us"])
        found.append({**each, "schema": schema_from_text(each["schema"]), "rows": rows})
    return found


def part_table(app_id: str, number: int) -> str:
    """Return the name of the table for rows of a stream that wait for the end of their version."""
    return f"lake_tailer_part_{hashlib.sha256(app_id.encode()).hexdigest()[:16]}_{number}"


def create_waiting(connection: Connection, dialect: Dialect, name: str, schema: pa.Schema, *, stays: bool) -> None:
    """Create a table for rows that wait. `stays`: it is not that of the connection alone."""
    columns = ", ".join(f"{quoted(each.name)} {dialect.type_of(each.type)}" for each in schema)
    table = dialect.name_of(name) if stays else quoted(name)
    connection.execute(f"CREATE {'' if stays else 'TEMP '}TABLE {table} ({columns})")

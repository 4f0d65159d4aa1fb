"""Segments: rows of one schema on their way into a table, and the tables in which they wait.

Rows of a transaction wait in a temporary table of the connection. If the transaction ends inside a version, they move
to a table that stays, in the same commit as the progress, which describes the segments as JSON. So a large version
takes several transactions, and the last one brings all of its rows into the table.
"""

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tailer.events import COMMIT_VERSION
from tailer_sinks.sql.databases.dialect import Columns, Connection, Dialect, quoted
from tailer_sinks.sql.records import TableRecord, schema_from_text, schema_to_text
from tailer_sinks.sql.target import Rows

__all__ = [
    "Segment",
    "Staging",
    "count_earlier",
    "create_waiting",
    "described",
    "name_parts",
    "part_table",
    "parts_from",
    "store",
    "widened_columns",
]


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


def name_parts(segments: Sequence[Segment], app_id: str, used: Container[str | None]) -> None:
    """Give each segment a table for its rows, beside those that are `used`."""
    free = (name for number in range(1 << 16) if (name := part_table(app_id, number)) not in used)
    for each in segments:
        each.stored = each.stored or next(free)


def store(connection: Connection, dialect: Dialect, segment: Segment, version: int) -> None:
    """Move the rows of `version` to a table that stays."""
    assert segment.stored is not None, "it has a name"
    if not dialect.has_table(connection, segment.stored):
        create_waiting(connection, dialect, segment.stored, segment.staging, stays=True)
    if segment.waiting is not None:
        waiting, where = quoted(segment.waiting.name), f"WHERE {quoted(COMMIT_VERSION)} >= {version}"
        connection.execute(f"INSERT INTO {dialect.name_of(segment.stored)} SELECT * FROM {waiting} {where}")
        connection.execute(f"DELETE FROM {waiting} {where}")


def count_earlier(segments: Sequence[Segment], version: int) -> int:
    """Return how many segments there are up to the last one with rows of versions before `version`."""
    spans = [each.rows.versions for each in segments]
    return max((at for at, span in enumerate(spans, 1) if span is not None and span[0] < version), default=0)


def widened_columns(
    segments: Sequence[Segment], record: TableRecord | None
) -> list[tuple[str, pa.DataType, pa.DataType]]:
    """Return the columns that `segments` widen, of the table as it is, or is made: name, type, and last type."""
    if not segments:
        return []
    first = segments[0].shape if segments[0].is_new or record is None else record.schema
    former, wider = {name: name for name in first.names}, dict[str, pa.DataType]()
    for change in (each.change for each in segments if each.change is not None):
        added, renamed = {each.name for each in change.added}, {new: old for old, new in change.renamed}
        stay = [name for name in change.after.names if name not in added]
        former = {name: former[old] for name in stay if (old := renamed.get(name, name)) in former}
        wider |= {former[name]: wide for name, _, wide in change.widened if name in former}
    return [(name, first.field(name).type, wide) for name, wide in wider.items()]

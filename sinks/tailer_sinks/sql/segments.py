"""Segments: rows of one schema on their way into a table, and the tables in which they wait.

Rows of a transaction wait in a temporary table of the connection. If the transaction ends inside a version, they move
to a table that stays, in the same commit as the progress, which describes the segments as JSON. So a large version
takes several transactions, and the last one brings all of its rows into the table.
"""

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tailer.events import COMMIT_VERSION
from tailer_sinks.sql.bad_values.dead_letters import with_letters
from tailer_sinks.sql.databases.dialect import Columns, Connection, Dialect, quoted
from tailer_sinks.sql.records import TableRecord, schema_from_text, schema_to_text
from tailer_sinks.sql.target import Rows

__all__ = [
    "Segment",
    "Staging",
    "apart",
    "count_earlier",
    "create_waiting",
    "described",
    "first_known",
    "name_parts",
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
    `letters`: whether rows that wait have columns for dead letters; `stored_letters`: those that are stored.
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
    letters: bool = False
    stored_letters: bool = False

    @property
    def waits(self) -> pa.Schema:
        """The schema of the tables with rows that wait."""
        return with_letters(self.staging) if self.letters else self.staging

    @property
    def compared(self) -> list[str]:
        """The columns by which rows are found: the key, and those that the table does not have."""
        return [name for name in self.staging.names if name in self.key or name not in self.shape.names]


def described(segments: Sequence[Segment]) -> str:
    """Return segments whose rows are stored as text."""
    return json.dumps(
        [
            {
                "schema": schema_to_text(segment.schema),
                "origins": segment.origins,
                "table": segment.stored,
                "versions": segment.rows.versions,
                "deletes": segment.rows.deletes,
                "replace": segment.rows.replace,
                "changed_us": segment.rows.changed_us,
                **({} if segment.rows.began is None else {"began": segment.rows.began}),
                **({"letters": True} if segment.letters else {}),
            }
            for segment in segments
        ]
    )


def parts_from(text: str | None) -> list[dict[str, Any]]:
    """Read what `described` wrote, with schemas and `Rows`."""
    parts: list[dict[str, Any]] = []
    for part in json.loads(text or "[]"):
        versions = None if part["versions"] is None else (part["versions"][0], part["versions"][1])
        began = None if "began" not in part else (part["began"][0], part["began"][1])
        rows = Rows(versions, part["deletes"], part["replace"], part["changed_us"], began=began)
        parts.append({"letters": False, **part, "schema": schema_from_text(part["schema"]), "rows": rows})
    return parts


def create_waiting(connection: Connection, dialect: Dialect, name: str, schema: pa.Schema, *, stays: bool) -> None:
    """Create a table for rows that wait. `stays`: it is not that of the connection alone."""
    columns = ", ".join(f"{quoted(column.name)} {dialect.type_of(column.type)}" for column in schema)
    table = dialect.name_of(name) if stays else quoted(name)
    connection.execute(f"CREATE {'' if stays else 'TEMP '}TABLE {table} ({columns})")


def name_parts(segments: Sequence[Segment], app_id: str, used: Container[str | None]) -> None:
    """Give each segment a table for its rows, beside those that are `used`."""
    stem = f"lake_tailer_part_{hashlib.sha256(app_id.encode()).hexdigest()[:16]}"
    free = (name for number in range(1 << 16) if (name := f"{stem}_{number}") not in used)
    for segment in segments:
        segment.stored = segment.stored or next(free)


def store(connection: Connection, dialect: Dialect, segment: Segment, version: int) -> None:
    """Move the rows of `version` to a table that stays."""
    assert segment.stored is not None, "it has a name"
    if not dialect.has_table(connection, segment.stored):
        create_waiting(connection, dialect, segment.stored, segment.waits, stays=True)
    if segment.waiting is not None:
        waiting, where = quoted(segment.waiting.name), f"WHERE {quoted(COMMIT_VERSION)} >= {version}"
        connection.execute(f"INSERT INTO {dialect.name_of(segment.stored)} SELECT * FROM {waiting} {where}")
        connection.execute(f"DELETE FROM {waiting} {where}")


def count_earlier(segments: Sequence[Segment], version: int) -> int:
    """Return how many segments there are up to the last one with rows of versions before `version`."""
    spans = [segment.rows.versions for segment in segments]
    return max((number for number, span in enumerate(spans, 1) if span is not None and span[0] < version), default=0)


def first_known(complete: Sequence[Segment], record: TableRecord | None, version: int) -> int:
    """Return the first version that a history knows, with the rows of `complete`: that of its last snapshot."""
    begins = [(part.rows.replace, part.rows.versions[0]) for part in complete if part.rows.versions is not None]
    if snapshots := [first for replaces, first in begins if replaces]:
        return snapshots[-1]
    if record is not None and record.known_from is not None:
        return record.known_from
    return min([first for _, first in begins], default=version)


def apart(segments: list[Segment], version: int) -> tuple[list[Segment], list[Segment]]:
    """Return the segments with the rows of earlier versions, and those with the rows of `version`."""
    count = count_earlier(segments, version)
    complete, kept = segments[:count], segments[count:]
    last = complete[-1] if complete else None
    if last is not None and last.rows.last == version:
        # What earlier transactions stored is of one version, which is complete now.
        rows, last.rows = last.rows.since(version), last.rows.until(version - 1)
        kept = [replace(last, origins=None, change=None, is_new=False, stored=None, rows=rows), *kept]
    return complete, kept


def widened_columns(
    segments: Sequence[Segment], record: TableRecord | None
) -> list[tuple[str, pa.DataType, pa.DataType]]:
    """Return the columns that `segments` widen, of the table as it is, or is made: name, type, and last type."""
    if not segments:
        return []
    first = segments[0].shape if segments[0].is_new or record is None else record.schema
    former, wider = {name: name for name in first.names}, dict[str, pa.DataType]()
    for change in (part.change for part in segments if part.change is not None):
        added, renamed = {part.name for part in change.added}, {new: old for old, new in change.renamed}
        stay = [name for name in change.after.names if name not in added]
        former = {name: former[old] for name in stay if (old := renamed.get(name, name)) in former}
        wider |= {former[name]: wide for name, _, wide in change.widened if name in former}
    return [(name, first.field(name).type, wide) for name, wide in wider.items()]

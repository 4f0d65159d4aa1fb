"""The table's state at a version, advanced commit by commit.

A `Snapshot` holds only what planning the next version needs: protocol, metadata, schema and recent commit times.
Nothing in it grows with the table. Protocol and metadata of a commit apply to that commit's own files.

`timestamp_ms` is the commit's in-commit timestamp where it has one, else the modification time of the commit file, made
monotonic: a file not later than its predecessor counts as one millisecond later (PROTOCOL.md, "In-Commit Timestamps").
The calculation always begins `CLOCK_WINDOW` versions earlier, so that the timestamp of a version does not depend on
the version at which a reader started (invariant 4).

Retention says how long a lagging reader can still read a version. VACUUM deletes data, change and deletion-vector files
`delta.deletedFileRetentionDuration` after the commit that stopped using them. Log cleanup deletes a commit file
`delta.logRetentionDuration` after the commit. Change files and removed data files are used by one commit only, so both
may be deleted once the shorter period has passed since that commit. Durations use the syntax of Spark SQL:
`interval 1 week`, `interval 2 days 12 hours`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from operator import add
from typing import Final, Self

import pyarrow as pa

from tailer.errors import LogCorrupt
from tailer.formats.delta.features import check_protocol, maps_columns
from tailer.formats.delta.log.actions import Commit, Metadata, Protocol
from tailer.formats.delta.schema import arrow_schema
from tailer.schema.columns import physical_name

__all__ = ["CLOCK_WINDOW", "Snapshot", "clock_ms", "kept_ms", "lower_names", "parse_interval"]

CLOCK_WINDOW: Final = 100
_FEED: Final = "delta.enablechangedatafeed"
_LEGACY_FEED: Final = "delta.enablechangedatacapture"
_TRACKING: Final = "delta.enablerowtracking"
_ROW_ID_COLUMN: Final = "delta.rowtracking.materializedrowidcolumnname"
_ROW_VERSION_COLUMN: Final = "delta.rowtracking.materializedrowcommitversioncolumnname"
_MAPPING_MODE: Final = "delta.columnMapping.mode"
_SECOND_MS: Final = 1000
_DAY_MS: Final = 24 * 60 * 60 * _SECOND_MS
_UNITS_MS: Final[Mapping[str, float]] = {
    "microsecond": 0.001,
    "millisecond": 1,
    "second": _SECOND_MS,
    "minute": 60 * _SECOND_MS,
    "hour": 60 * 60 * _SECOND_MS,
    "day": _DAY_MS,
    "week": 7 * _DAY_MS,
    # Delta refuses months and years here because their length varies. Old tables may have them; assume the shortest.
    "month": 28 * _DAY_MS,
    "year": 365 * _DAY_MS,
}
# Of the properties of retention, in lower case.
_DEFAULTS: Final[Mapping[str, str]] = {
    "delta.deletedfileretentionduration": "interval 1 week",
    "delta.logretentionduration": "interval 30 days",
}
_PART: Final = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-z]+?)s?(?:\s+|$)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State at `version`. `modified_ms`: recent commit file times, for the timestamp; `schema`: as in `ChangeTask`."""

    table: str
    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    modified_ms: tuple[int, ...]
    timestamp_ms: int
    managed: bool = False

    @classmethod
    def begin(
        cls,
        table: str,
        version: int,
        protocol: Protocol | None,
        metadata: Metadata | None,
        modified_ms: Sequence[int],
        dated_ms: int | None = None,
        managed: bool = False,
    ) -> Self:
        """Build the state from files of the log; `modified_ms` are the times of the commits up to `version`, in order.

        `dated_ms` is the timestamp of `version` where these do not give it. `managed`: whether commits come from the
        table's catalog.

        Raises `LogCorrupt` where protocol or metadata is missing, `UnsupportedFeature` for an unsupported protocol.
        """
        if protocol is None or metadata is None:
            missing = "protocol" if protocol is None else "metaData"
            raise LogCorrupt(table, "_delta_log", f"no {missing} action up to this version", version)
        check_protocol(protocol, table, version, managed)
        schema = _schema(table, version, protocol, metadata)
        recent = tuple(modified_ms)[-CLOCK_WINDOW - 1 :]
        timestamp_ms = clock_ms(recent) if dated_ms is None else dated_ms
        return cls(table, version, protocol, metadata, schema, recent, timestamp_ms, managed)

    def advance(self, commit: Commit) -> "Snapshot":
        """Return the state after `commit`, of the next version. The commit may replace the table, changing its id.

        Raises `UnsupportedFeature` for an unsupported protocol, `LogCorrupt` for metadata that violates the protocol.
        """
        protocol, metadata = commit.protocol or self.protocol, commit.metadata or self.metadata
        if commit.protocol is not None:
            check_protocol(protocol, self.table, commit.version, self.managed)
        schema = self.schema
        if (protocol, metadata) != (self.protocol, self.metadata):
            schema = _schema(self.table, commit.version, protocol, metadata)
        recent = (*self.modified_ms, commit.modified_ms)[-CLOCK_WINDOW - 1 :]
        in_commit_ms = commit.info.in_commit_timestamp if commit.info is not None else None
        return replace(
            self,
            version=commit.version,
            protocol=protocol,
            metadata=metadata,
            schema=schema,
            modified_ms=recent,
            timestamp_ms=clock_ms(recent) if in_commit_ms is None else in_commit_ms,
        )

    @property
    def feed_enabled(self) -> bool:
        """Return whether writers must write change files: `delta.enableChangeDataFeed`, ignoring case."""
        folded = lower_names(self.metadata.configuration)
        return folded.get(_FEED, folded.get(_LEGACY_FEED, "")).lower() == "true"

    @property
    def tracked_columns(self) -> tuple[str | None, str | None] | None:
        """Physical names of the row-id and row-commit-version columns; None where rows are not tracked.

        PROTOCOL.md, "Row Tracking": `delta.enableRowTracking` says whether ids may be relied on.
        """
        folded = lower_names(self.metadata.configuration)
        if folded.get(_TRACKING, "").lower() != "true":
            return None
        return folded.get(_ROW_ID_COLUMN), folded.get(_ROW_VERSION_COLUMN)

    @property
    def partition_names(self) -> tuple[str, ...]:
        """Physical names of the partition columns, in the order of the table's columns."""
        columns = self.metadata.partition_columns
        return tuple(physical_name(column) for column in self.schema if column.name in columns) if columns else ()

    @property
    def retention_ms(self) -> int:
        """Minimum time that a commit file and the files it names are kept after the commit, in milliseconds."""
        return min(kept_ms(lower_names(self.metadata.configuration)))


def clock_ms(modified_ms: Sequence[int]) -> int:
    """Return the monotonic time of the last commit file: each counts as later than its predecessor."""
    return max(map(add, reversed(modified_ms), count()), default=0)


def lower_names(configuration: Mapping[str, str | None]) -> dict[str, str]:
    """Return table properties by their names in lower case."""
    return {key.lower(): value or "" for key, value in configuration.items()}


def _schema(table: str, version: int, protocol: Protocol, metadata: Metadata) -> pa.Schema:
    mode = (metadata.configuration.get(_MAPPING_MODE) or "none").lower()
    if mode not in ("none", "name", "id"):
        raise LogCorrupt(table, "metaData", f"column mapping mode {mode!r} is unknown", version)
    if metadata.format.provider != "parquet":
        raise LogCorrupt(table, "metaData", f"data files are {metadata.format.provider!r}, not Parquet", version)
    schema = arrow_schema(metadata.schema_string, mode, table, version, maps_columns(protocol))
    for column in metadata.partition_columns:
        if column not in schema.names and metadata.schema_string is not None:
            raise LogCorrupt(table, "metaData", f"partition column {column} is not in the schema", version)
    return schema


def kept_ms(properties: Mapping[str, str]) -> tuple[int, int]:
    """Return how long files that are not used any more are kept, and how long commits are, in milliseconds.

    `properties`: table properties by name in lower case. An invalid duration counts as the default.
    """
    files, log = (_length(properties.get(name, default), default) for name, default in _DEFAULTS.items())
    return files, log


def _length(text: str, default: str) -> int:
    length = parse_interval(text)
    return _length(default, "interval 0 days") if length is None else length


@lru_cache(maxsize=64)  # each look at a table asks
def parse_interval(text: str) -> int | None:
    """Return the length of an interval in milliseconds; None for text that is not one."""
    rest = text.strip().lower().removeprefix("interval").strip()
    total, position = 0.0, 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None or part[2] not in _UNITS_MS:
            return None
        total += float(part[1]) * _UNITS_MS[part[2]]
        position = part.end()
    return round(total) if rest else None

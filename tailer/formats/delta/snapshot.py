"""The table's state at a version, advanced commit by commit.

A `Snapshot` holds only what planning the next version needs: protocol, metadata, schema and recent commit times.
Nothing in it grows with the table. Protocol and metadata of a commit apply to that commit's own files.

`timestamp_ms` is the commit's in-commit timestamp where it has one, else the modification time of the commit file, made
monotonic: a file not later than its predecessor counts as one millisecond later (PROTOCOL.md, "In-Commit Timestamps").
The calculation always begins `CLOCK_WINDOW` versions earlier, so that the timestamp of a version does not depend on
the version at which a reader started (invariant 4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from operator import add
from typing import Final, Self

import pyarrow as pa

from tailer.errors import LogCorrupt
from tailer.formats.delta.features import check_protocol, maps_columns
from tailer.formats.delta.log.actions import Commit, Metadata, Protocol
from tailer.formats.delta.retention import retention_ms
from tailer.formats.delta.schema import arrow_schema
from tailer.schema.columns import physical_name

__all__ = ["CLOCK_WINDOW", "Snapshot", "clock_ms", "lower_names"]

CLOCK_WINDOW: Final = 100
_FEED: Final = "delta.enablechangedatafeed"
_LEGACY_FEED: Final = "delta.enablechangedatacapture"
_TRACKING: Final = "delta.enablerowtracking"
_ROW_ID_COLUMN: Final = "delta.rowtracking.materializedrowidcolumnname"
_ROW_VERSION_COLUMN: Final = "delta.rowtracking.materializedrowcommitversioncolumnname"
_MAPPING_MODE: Final = "delta.columnMapping.mode"


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
        return retention_ms(lower_names(self.metadata.configuration))


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

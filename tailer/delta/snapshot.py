"""The table's state at a version, advanced commit by commit.

A `Snapshot` holds what planning the next version needs and nothing that grows with the table: protocol, metadata,
schema and the clock. Protocol and metadata of a commit are in force for that commit's own files.

`timestamp_ms` is the commit's in-commit timestamp where it has one, else the modification time of the commit file made
monotonic: a file not later than its predecessor counts as one millisecond later (PROTOCOL.md, "In-Commit Timestamps";
the walk begins up to `CLOCK_WINDOW` versions back, which makes it the same for every reader and every start).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa

from tailer.delta.actions import Commit, Metadata, Protocol
from tailer.delta.features import check_protocol
from tailer.delta.schema import arrow_schema
from tailer.errors import LogCorrupt, TableReplaced

__all__ = ["CLOCK_WINDOW", "Snapshot", "monotonic_ms"]

CLOCK_WINDOW: Final = 100
_FEED: Final = "delta.enablechangedatafeed"
_LEGACY_FEED: Final = "delta.enablechangedatacapture"
_MAPPING_MODE: Final = "delta.columnMapping.mode"


def monotonic_ms(previous_ms: int | None, modified_ms: int) -> int:
    """A commit file's modification time, later than `previous_ms` (None: there is no earlier commit)."""
    if previous_ms is not None and modified_ms <= previous_ms:
        return previous_ms + 1
    return modified_ms


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State at `version`. `clock_ms` is the monotonic modification time of its commit, `schema` as in `ChangeTask`."""

    table: str
    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    clock_ms: int | None
    timestamp_ms: int

    @classmethod
    def begin(
        cls,
        table: str,
        version: int,
        protocol: Protocol | None,
        metadata: Metadata | None,
        modified_ms: Iterable[int],
        in_commit_ms: int | None = None,
    ) -> Self:
        """State read from files of the log; `modified_ms` are the times of the commits up to `version`, in order.

        Raises `LogCorrupt` where protocol or metadata is missing, `UnsupportedFeature` at the gate.
        """
        if protocol is None or metadata is None:
            missing = "protocol" if protocol is None else "metaData"
            raise LogCorrupt(table, "_delta_log", f"no {missing} action up to here", version)
        check_protocol(protocol, table, version)
        clock: int | None = None
        for modified in modified_ms:
            clock = monotonic_ms(clock, modified)
        schema = _schema(table, version, metadata)
        timestamp = clock or 0 if in_commit_ms is None else in_commit_ms
        return cls(table, version, protocol, metadata, schema, clock, timestamp)

    def advance(self, commit: Commit) -> "Snapshot":
        """State after `commit`, the next version's.

        Raises `UnsupportedFeature` at the gate, `TableReplaced` where the commit makes it another table.
        """
        protocol = commit.protocol or self.protocol
        if commit.protocol is not None:
            check_protocol(protocol, self.table, commit.version)
        schema, metadata = self.schema, self.metadata
        if commit.metadata is not None and commit.metadata != self.metadata:
            metadata = commit.metadata
            if metadata.id != self.metadata.id:
                raise TableReplaced(self.table, commit.version, self.metadata.id, metadata.id)
            schema = _schema(self.table, commit.version, metadata)
        clock = monotonic_ms(self.clock_ms, commit.modified_ms)
        in_commit = commit.info.in_commit_timestamp if commit.info is not None else None
        return replace(
            self,
            version=commit.version,
            protocol=protocol,
            metadata=metadata,
            schema=schema,
            clock_ms=clock,
            timestamp_ms=clock if in_commit is None else in_commit,
        )

    @property
    def feed_enabled(self) -> bool:
        """Whether writers must write change files: `delta.enableChangeDataFeed`, in any case of letters."""
        folded = _folded(self.metadata.configuration)
        return folded.get(_FEED, folded.get(_LEGACY_FEED, "")).lower() == "true"


def _folded(configuration: Mapping[str, str | None]) -> dict[str, str]:
    return {key.lower(): value or "" for key, value in configuration.items()}


def _schema(table: str, version: int, metadata: Metadata) -> pa.Schema:
    mode = (metadata.configuration.get(_MAPPING_MODE) or "none").lower()
    if mode not in ("none", "name", "id"):
        raise LogCorrupt(table, "metaData", f"column mapping mode {mode!r} is unknown", version)
    if metadata.format.provider != "parquet":
        raise LogCorrupt(table, "metaData", f"data files are {metadata.format.provider!r}, not Parquet", version)
    return arrow_schema(metadata.schema_string, mode, table, version)

"""The table's state at a version, advanced commit by commit.

A `Snapshot` holds what planning the next version needs and nothing that grows with the table: protocol, metadata,
schema and the clock. Protocol and metadata of a commit are in force for that commit's own files.

`timestamp_ms` is the commit's in-commit timestamp where it has one, else the modification time of the commit file made
monotonic: a file not later than its predecessor counts as one millisecond later (PROTOCOL.md, "In-Commit Timestamps").
The walk always begins `CLOCK_WINDOW` versions back, so that the time of a version does not depend on where a reader
began (invariant 4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa

from tailer.delta.actions import Commit, Metadata, Protocol
from tailer.delta.features import check_protocol
from tailer.delta.schema import arrow_schema, dropped_column
from tailer.errors import LogCorrupt, SchemaChanged, TableReplaced

__all__ = ["CLOCK_WINDOW", "Snapshot"]

CLOCK_WINDOW: Final = 100
_FEED: Final = "delta.enablechangedatafeed"
_LEGACY_FEED: Final = "delta.enablechangedatacapture"
_MAPPING_MODE: Final = "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State at `version`. `modified_ms`: times of the commit files its clock looks at; `schema`: as in `ChangeTask`.

    `repartitioned`: whether this very version changed the partition columns.
    """

    table: str
    version: int
    protocol: Protocol
    metadata: Metadata
    schema: pa.Schema
    modified_ms: tuple[int, ...]
    timestamp_ms: int
    repartitioned: bool = False

    @classmethod
    def begin(
        cls,
        table: str,
        version: int,
        protocol: Protocol | None,
        metadata: Metadata | None,
        modified_ms: Sequence[int],
        dated_ms: int | None = None,
    ) -> Self:
        """State read from files of the log; `modified_ms` are the times of the commits up to `version`, in order.

        `dated_ms` is the time of `version` where it is not to be told from those.

        Raises `LogCorrupt` where protocol or metadata is missing, `UnsupportedFeature` at the gate.
        """
        if protocol is None or metadata is None:
            missing = "protocol" if protocol is None else "metaData"
            raise LogCorrupt(table, "_delta_log", f"no {missing} action up to here", version)
        check_protocol(protocol, table, version)
        schema = _schema(table, version, metadata)
        recent = tuple(modified_ms)[-CLOCK_WINDOW - 1 :]
        timestamp_ms = _clock_ms(recent) if dated_ms is None else dated_ms
        return cls(table, version, protocol, metadata, schema, recent, timestamp_ms)

    def advance(self, commit: Commit) -> "Snapshot":
        """State after `commit`, the next version's.

        Raises `UnsupportedFeature` at the gate, `TableReplaced` where the commit makes it another table,
        `SchemaChanged` where it deletes rows together with columns they had.
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
            self._check_deleted_rows(commit, schema)
        recent = (*self.modified_ms, commit.modified_ms)[-CLOCK_WINDOW - 1 :]
        in_commit_ms = commit.info.in_commit_timestamp if commit.info is not None else None
        return replace(
            self,
            version=commit.version,
            protocol=protocol,
            metadata=metadata,
            schema=schema,
            modified_ms=recent,
            timestamp_ms=_clock_ms(recent) if in_commit_ms is None else in_commit_ms,
            repartitioned=metadata.partition_columns != self.metadata.partition_columns,
        )

    def _check_deleted_rows(self, commit: Commit, schema: pa.Schema) -> None:
        """Rows are given with the schema their commit leads to; a deleted row must not lose a column by that."""
        if commit.cdcs or any(remove.data_change for remove in commit.removes):
            gone = dropped_column(self.schema, schema)
            if gone is not None:
                reason = f"it drops column {gone} of rows that it deletes"
                raise SchemaChanged(self.table, commit.version, reason)

    @property
    def feed_enabled(self) -> bool:
        """Whether writers must write change files: `delta.enableChangeDataFeed`, in any case of letters."""
        folded = _folded(self.metadata.configuration)
        return folded.get(_FEED, folded.get(_LEGACY_FEED, "")).lower() == "true"


def _clock_ms(modified_ms: Sequence[int]) -> int:
    """The time of the last of some commit files, each made later than the one before it."""
    return max((ms + later for later, ms in enumerate(reversed(modified_ms))), default=0)


def _folded(configuration: Mapping[str, str | None]) -> dict[str, str]:
    return {key.lower(): value or "" for key, value in configuration.items()}


def _schema(table: str, version: int, metadata: Metadata) -> pa.Schema:
    mode = (metadata.configuration.get(_MAPPING_MODE) or "none").lower()
    if mode not in ("none", "name", "id"):
        raise LogCorrupt(table, "metaData", f"column mapping mode {mode!r} is unknown", version)
    if metadata.format.provider != "parquet":
        raise LogCorrupt(table, "metaData", f"data files are {metadata.format.provider!r}, not Parquet", version)
    return arrow_schema(metadata.schema_string, mode, table, version)

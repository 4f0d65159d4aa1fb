"""Actions of the Delta transaction log (PROTOCOL.md, "Actions"), parsed once into typed values.

A commit file is one JSON object per line, each holding one action. Actions we do not know are ignored, as the protocol
asks; an action we know that is not as the protocol has it stops us with `LogCorrupt`, naming file and line. Only what
reading changes needs is decoded: statistics and tags stay undecoded bytes.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from tailer.errors import LogCorrupt

__all__ = [
    "MALFORMED",
    "AddFile",
    "CdcFile",
    "CheckpointMetadata",
    "Commit",
    "CommitInfo",
    "DeletionVector",
    "Format",
    "Line",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "Sidecar",
    "Txn",
    "parse_commit",
    "parse_line",
]


# Numbers that are computed with are what the protocol's types can hold, and moments come before the year 10000.
_Int = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Long = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Signed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]


class _Action(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class DeletionVector(_Action, frozen=True):
    """Deletion Vector Descriptor Schema. `storage_type` is `u`, `i` or `p`."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: _Int
    cardinality: _Long
    offset: _Int | None = None


class AddFile(_Action, frozen=True):
    """Add File. `base_row_id` and `default_row_commit_version` are there where the table tracks rows."""

    path: str
    partition_values: dict[str, str | None]
    size: _Signed
    data_change: bool
    modification_time: _Signed = 0
    deletion_vector: DeletionVector | None = None
    base_row_id: _Long | None = None
    default_row_commit_version: _Long | None = None


class RemoveFile(_Action, frozen=True):
    """Remove File. Partition values are there when the writer wrote extended file metadata."""

    path: str
    data_change: bool
    partition_values: dict[str, str | None] | None = None
    size: _Signed | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: _Long | None = None
    default_row_commit_version: _Long | None = None


class CdcFile(_Action, frozen=True):
    """Add CDC File."""

    path: str
    partition_values: dict[str, str | None]
    size: _Signed


class Format(_Action, frozen=True):
    """Format Specification."""

    provider: str = "parquet"
    options: dict[str, str] = {}


class Metadata(_Action, frozen=True):
    """Change Metadata."""

    id: str
    schema_string: str
    partition_columns: list[str]
    configuration: dict[str, str | None] = {}
    name: str | None = None
    description: str | None = None
    format: Format = Format()
    created_time: _Signed | None = None


class Protocol(_Action, frozen=True):
    """Protocol Evolution."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Txn(_Action, frozen=True):
    """Transaction Identifiers. `last_updated` in milliseconds since 1970."""

    app_id: str
    version: _Signed
    last_updated: _Signed | None = None


class Sidecar(_Action, frozen=True):
    """Sidecar File Information, in V2 checkpoints only."""

    path: str
    size_in_bytes: _Long | None = None


class CheckpointMetadata(_Action, frozen=True):
    """Checkpoint Metadata, in V2 checkpoints only."""

    version: _Long


class CommitInfo(_Action, frozen=True):
    """Commit Provenance Information: free-form but for the in-commit timestamp, in milliseconds since 1970."""

    in_commit_timestamp: _Milliseconds | None = None
    operation: Any = None
    operation_metrics: Any = None
    txn_id: Any = None

    @property
    def operation_name(self) -> str | None:
        """What the writer called the operation, if it said so."""
        return self.operation if isinstance(self.operation, str) else None


class Line(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One line of a commit file or a checkpoint."""

    add: AddFile | None = None
    remove: RemoveFile | None = None
    cdc: CdcFile | None = None
    meta_data: Metadata | None = None
    protocol: Protocol | None = None
    commit_info: CommitInfo | None = None
    txn: Txn | None = None
    sidecar: Sidecar | None = None
    checkpoint_metadata: CheckpointMetadata | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One version's commit file. `modified_ms` is the file's modification time, in milliseconds since 1970."""

    version: int
    modified_ms: int
    protocol: Protocol | None
    metadata: Metadata | None
    info: CommitInfo | None
    adds: tuple[AddFile, ...]
    removes: tuple[RemoveFile, ...]
    cdcs: tuple[CdcFile, ...]
    txns: tuple[Txn, ...]


_LINES = msgspec.json.Decoder(Line)
# What decoding an action raises where it is not one.
MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def parse_line(data: bytes) -> Line:
    """Decode one action. Raises one of `MALFORMED`."""
    return _LINES.decode(data)


def parse_commit(data: bytes, table: str, path: str, version: int, modified_ms: int) -> Commit:
    """Decode the commit file of `version`.

    Raises `LogCorrupt` with path, version and line for anything malformed, for an empty file, and for a second
    `metaData`, `protocol` or `commitInfo`, which the protocol forbids. A file cut short is not waited for: commits
    appear whole, and where they do not, one may as well be cut between two lines, which nobody could tell.
    """
    if not data.strip():
        raise LogCorrupt(table, path, "the commit file is empty", version)
    try:
        lines = _LINES.decode_lines(data)
    except MALFORMED:
        raise _first_bad_line(data, table, path, version) from None
    protocols = [line.protocol for line in lines if line.protocol is not None]
    metadatas = [line.meta_data for line in lines if line.meta_data is not None]
    infos = [line.commit_info for line in lines if line.commit_info is not None]
    for name, found in (("protocol", protocols), ("metaData", metadatas), ("commitInfo", infos)):
        if len(found) > 1:
            raise LogCorrupt(table, path, f"{len(found)} {name} actions in one commit", version)
    return Commit(
        version=version,
        modified_ms=modified_ms,
        protocol=protocols[0] if protocols else None,
        metadata=metadatas[0] if metadatas else None,
        info=infos[0] if infos else None,
        adds=tuple(line.add for line in lines if line.add is not None),
        removes=tuple(line.remove for line in lines if line.remove is not None),
        cdcs=tuple(line.cdc for line in lines if line.cdc is not None),
        txns=tuple(line.txn for line in lines if line.txn is not None),
    )


def _first_bad_line(data: bytes, table: str, path: str, version: int) -> LogCorrupt:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                _LINES.decode(line)
            except MALFORMED as error:
                return LogCorrupt(table, path, f"malformed action: {error}", version, number)
    return LogCorrupt(table, path, "not one JSON object per line", version)

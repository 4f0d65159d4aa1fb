"""Actions of the Delta transaction log (PROTOCOL.md, "Actions"), parsed once into typed values.

A commit file is one JSON object per line, each holding one action. It may be long, so it is decoded some lines at a
time. Actions we do not know are ignored, as the protocol asks; an action we know that is not as the protocol has it
stops us with `LogCorrupt`, naming file and line. Only what reading changes needs is decoded: statistics and tags stay
undecoded bytes.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from tailer.errors import LogCorrupt

__all__ = [
    "CHUNK_BYTES",
    "MALFORMED",
    "AddFile",
    "CdcFile",
    "CheckpointMetadata",
    "Commit",
    "CommitInfo",
    "DeletionVector",
    "FileAction",
    "Format",
    "Line",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "Sidecar",
    "Txn",
    "explain_malformed",
    "parse_commit",
    "parse_line",
    "scan_commit",
]

CHUNK_BYTES: Final = 2**20  # of a commit file, decoded at a time


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


FileAction = AddFile | RemoveFile | CdcFile


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
    """Decode the commit file of `version`, given whole. Raises as `scan_commit` does."""
    return scan_commit(BytesIO(data), table, path, version, modified_ms)


def scan_commit(
    file: BinaryIO,
    table: str,
    path: str,
    version: int,
    modified_ms: int,
    keep: Callable[[FileAction], bool] = lambda _: True,
) -> Commit:
    """Decode the commit file of `version` some lines at a time.

    Holds `CHUNK_BYTES` of it and those actions about files that `keep` returns True for: it is asked of each in turn.

    Raises `LogCorrupt` with path, version and line for anything malformed, for an empty file, and for a second
    `metaData`, `protocol` or `commitInfo`, which the protocol forbids.
    """
    found = _Found()
    first = 1
    for chunk, rest in _chunks(file):
        try:
            lines = _LINES.decode_lines(chunk)
        except MALFORMED:
            # An action may be spread over lines, and this chunk end within one.
            whole = chunk + rest()
            try:
                lines = _LINES.decode_lines(whole)
            except MALFORMED:
                raise _first_bad_line(whole, table, path, version, first) from None
        found.take(lines, keep)
        first += chunk.count(b"\n")
    if not found.any_line:
        raise LogCorrupt(table, path, "the commit file is empty", version)
    for name, actions in (("protocol", found.protocols), ("metaData", found.metadatas), ("commitInfo", found.infos)):
        if len(actions) > 1:
            raise LogCorrupt(table, path, f"{len(actions)} {name} actions in one commit", version)
    return Commit(
        version=version,
        modified_ms=modified_ms,
        protocol=found.protocols[0] if found.protocols else None,
        metadata=found.metadatas[0] if found.metadatas else None,
        info=found.infos[0] if found.infos else None,
        adds=tuple(found.adds),
        removes=tuple(found.removes),
        cdcs=tuple(found.cdcs),
        txns=tuple(found.txns),
    )


@dataclass(slots=True)
class _Found:
    """The actions of the lines that were decoded so far."""

    any_line: bool = False
    protocols: list[Protocol] = field(default_factory=list)
    metadatas: list[Metadata] = field(default_factory=list)
    infos: list[CommitInfo] = field(default_factory=list)
    adds: list[AddFile] = field(default_factory=list)
    removes: list[RemoveFile] = field(default_factory=list)
    cdcs: list[CdcFile] = field(default_factory=list)
    txns: list[Txn] = field(default_factory=list)

    def take(self, lines: list[Line], keep: Callable[[FileAction], bool]) -> None:
        """Sort lines out."""
        self.any_line = self.any_line or bool(lines)
        for line in lines:
            if line.add is not None and keep(line.add):
                self.adds.append(line.add)
            if line.remove is not None and keep(line.remove):
                self.removes.append(line.remove)
            if line.cdc is not None and keep(line.cdc):
                self.cdcs.append(line.cdc)
            if line.protocol is not None:
                self.protocols.append(line.protocol)
            if line.meta_data is not None:
                self.metadatas.append(line.meta_data)
            if line.commit_info is not None:
                self.infos.append(line.commit_info)
            if line.txn is not None:
                self.txns.append(line.txn)


def _chunks(file: BinaryIO) -> Iterator[tuple[bytes, Callable[[], bytes]]]:
    """Whole lines of the file, about `CHUNK_BYTES` at a time, each chunk with a way to read all that is behind it."""
    behind = b""

    def rest() -> bytes:
        nonlocal behind
        behind, all_of_it = b"", behind + file.read()
        return all_of_it

    while data := file.read(CHUNK_BYTES):
        whole = data.rfind(b"\n") + 1
        if whole == 0:
            behind += data
            continue
        lines, behind = behind + data[:whole], data[whole:]
        yield lines, rest
    if behind:
        lines, behind = behind, b""
        yield lines, rest


def _first_bad_line(data: bytes, table: str, path: str, version: int, first: int) -> LogCorrupt:
    """The error about the first line of `data`, which begins with line `first` of the file, that is malformed."""
    for number, line in enumerate(data.split(b"\n"), start=first):
        if line.strip():
            try:
                _LINES.decode(line)
            except MALFORMED as error:
                return LogCorrupt(table, path, f"malformed action: {explain_malformed(error, line)}", version, number)
    return LogCorrupt(table, path, "not one JSON object per line", version)


def explain_malformed(error: Exception, data: bytes = b"") -> str:
    """Why decoding `data`, as far as it is at hand, raised `error`: one of `MALFORMED`, or any that says so itself."""
    if isinstance(error, RecursionError):
        return "its JSON is nested too deeply to be read"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        try:
            json.dumps(json.loads(data), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "a string in it has half of a surrogate pair, which is no character"
        except (ValueError, RecursionError):
            return str(error)
    return str(error)

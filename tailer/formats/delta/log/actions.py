"""Actions of the Delta transaction log (PROTOCOL.md, "Actions"), parsed once into typed values.

A commit file has one action of JSON per line, decoded in chunks of lines. Unknown actions are ignored, and a known one
that violates the protocol raises `LogCorrupt` with file and line. Only what reading changes needs is decoded: no tags.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from tailer.errors import LogCorrupt

__all__ = [
    "CHUNK_BYTES",
    "MALFORMED",
    "NOTHING_SET",
    "AddFile",
    "AddWithStatistics",
    "CdcFile",
    "Commit",
    "CommitInfo",
    "DeletionVector",
    "FileAction",
    "Line",
    "LineWithStatistics",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "RemoveWithStatistics",
    "Sidecar",
    "StateActions",
    "Txn",
    "explain_malformed",
    "parse_commit",
    "parse_line",
    "scan_commit",
    "scan_state",
]

CHUNK_BYTES: Final = 2**20  # of a commit file, decoded at once

# Numbers used in arithmetic must fit the protocol's types, and timestamps must be before the year 10000.
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

    @property
    def unique_id(self) -> str:
        """The vector's unique id (PROTOCOL.md, "Derived Fields")."""
        offset = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{offset}"


class AddFile(_Action, frozen=True):
    """Add File. `base_row_id` and `default_row_commit_version` are set where the table tracks rows."""

    path: str
    partition_values: dict[str, str | None]
    size: _Signed
    data_change: bool
    modification_time: _Signed = 0
    deletion_vector: DeletionVector | None = None
    base_row_id: _Long | None = None
    default_row_commit_version: _Long | None = None


class RemoveFile(_Action, frozen=True):
    """Remove File. Partition values are set where the writer wrote extended file metadata."""

    path: str
    data_change: bool
    partition_values: dict[str, str | None] | None = None
    size: _Signed | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: _Long | None = None
    default_row_commit_version: _Long | None = None


class AddWithStatistics(AddFile, frozen=True):
    """Add File with Per-file Statistics, which a writer may leave out. Other values than text say nothing."""

    stats: Any = None


class RemoveWithStatistics(RemoveFile, frozen=True):
    """Remove File, likewise."""

    stats: Any = None


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
    """Change Metadata. Without a schema, as Delta Live Tables write it before their first column, it has no columns."""

    id: str
    partition_columns: list[str]
    schema_string: str | None = None
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
    operation_parameters: Any = None
    txn_id: Any = None
    user_name: Any = None
    engine_info: Any = None

    @property
    def operation_name(self) -> str | None:
        """Name of the operation, if the writer gave one."""
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


class LineWithStatistics(Line, frozen=True):
    """The same with the statistics of files."""

    add: AddWithStatistics | None = None
    remove: RemoveWithStatistics | None = None


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

    @property
    def state_actions(self) -> "StateActions":
        """Protocol and metadata; `NOTHING_SET` itself where it sets neither."""
        return NOTHING_SET if self.protocol is None and self.metadata is None else (self.protocol, self.metadata)


StateActions = tuple[Protocol | None, Metadata | None]
NOTHING_SET: Final[StateActions] = (None, None)

_LINES: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line)
_LINES_WITH_STATISTICS: Final = msgspec.json.Decoder(LineWithStatistics)
MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # raised for a malformed action


def parse_line(data: bytes, statistics: bool = False) -> Line:
    """Decode one action, with `statistics` those of files too. Raises one of `MALFORMED`."""
    data.decode()  # in a key that it does not know, the decoder takes any bytes
    return (_LINES_WITH_STATISTICS if statistics else _LINES).decode(data)


def parse_commit(data: bytes, table: str, path: str, version: int, modified_ms: int) -> Commit:
    """Decode the commit file of `version` from its complete content. Raises as `scan_commit` does."""
    return scan_commit(BytesIO(data), table, path, version, modified_ms)


def scan_commit(
    file: BinaryIO,
    table: str,
    path: str,
    version: int,
    modified_ms: int,
    keep: Callable[[FileAction], bool] = lambda _: True,
    begun: bytes = b"",
    statistics: bool = False,
) -> Commit:
    """Decode the commit file of `version` in chunks of lines.

    Holds `CHUNK_BYTES` of the file and the file actions for which `keep` returns True. `keep` is called for every file
    action in order. `begun`: what was read before. `statistics`: whether to decode them, most of the memory of files.

    Raises `LogCorrupt` with path, version and line for anything malformed, for an empty file, and for a second
    `metaData`, `protocol` or `commitInfo`, which the protocol forbids.
    """
    parts, first = _Found(), 1
    decode_lines = (_LINES_WITH_STATISTICS if statistics else _LINES).decode_lines
    for chunk, rest in _chunks(file, begun):
        try:
            chunk.decode()
            lines = decode_lines(chunk)
        except MALFORMED:
            # An action may span lines, and this chunk may end within one.
            whole = chunk + rest()
            try:
                whole.decode()
                lines = decode_lines(whole)
            except MALFORMED:
                raise _first_bad_line(whole, table, path, version, first) from None
        parts.add(lines, keep)
        first += chunk.count(b"\n")
    if not parts.any_line:
        raise LogCorrupt(table, path, "the commit file is empty", version)
    for name, actions in (("protocol", parts.protocols), ("metaData", parts.metadatas), ("commitInfo", parts.infos)):
        if len(actions) > 1:
            raise LogCorrupt(table, path, f"{len(actions)} {name} actions in one commit", version)
    return Commit(
        version=version,
        modified_ms=modified_ms,
        protocol=parts.protocols[0] if parts.protocols else None,
        metadata=parts.metadatas[0] if parts.metadatas else None,
        info=parts.infos[0] if parts.infos else None,
        adds=tuple(parts.adds),
        removes=tuple(parts.removes),
        cdcs=tuple(parts.cdcs),
        txns=tuple(parts.txns),
    )


def scan_state(file: BinaryIO, table: str, path: str, version: int) -> StateActions:
    """Return protocol and metadata of the commit file of `version`. Decodes all of it, and raises as `scan_commit`.

    A long log has very many commits, and nearly all are short and set neither: those take less here.
    """
    data = file.read(CHUNK_BYTES)
    more = file.read(CHUNK_BYTES) if data else b""
    if not more:
        with suppress(*MALFORMED):  # reported below
            data.decode()
            lines = _LINES.decode_lines(data)
            sets_none = all(line.protocol is None and line.meta_data is None for line in lines)
            if lines and sets_none and sum(line.commit_info is not None for line in lines) <= 1:
                return NOTHING_SET
    return scan_commit(file, table, path, version, 0, lambda _: False, data + more).state_actions


@dataclass(slots=True)
class _Found:
    """Actions decoded so far."""

    any_line: bool = False
    protocols: list[Protocol] = field(default_factory=list)
    metadatas: list[Metadata] = field(default_factory=list)
    infos: list[CommitInfo] = field(default_factory=list)
    adds: list[AddFile] = field(default_factory=list)
    removes: list[RemoveFile] = field(default_factory=list)
    cdcs: list[CdcFile] = field(default_factory=list)
    txns: list[Txn] = field(default_factory=list)

    def add(self, lines: Sequence[Line], keep: Callable[[FileAction], bool]) -> None:
        """Add the actions of `lines`, with file actions only where `keep` returns True."""
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


def _chunks(file: BinaryIO, pending: bytes) -> Iterator[tuple[bytes, Callable[[], bytes]]]:
    """Yield chunks of whole lines, about `CHUNK_BYTES` each, and with each a function that reads the rest.

    The first begins with `pending`.
    """

    def rest() -> bytes:
        nonlocal pending
        pending, remaining = b"", pending + file.read()
        return remaining

    while data := file.read(CHUNK_BYTES):
        whole = data.rfind(b"\n") + 1
        if whole == 0:
            pending += data
            continue
        lines, pending = pending + data[:whole], data[whole:]
        yield lines, rest
    if pending:
        lines, pending = pending, b""
        yield lines, rest


def _first_bad_line(data: bytes, table: str, path: str, version: int, first: int) -> LogCorrupt:
    """Build the error for the first malformed line of `data`, which begins with line `first` of the file."""
    for number, line in enumerate(data.split(b"\n"), start=first):
        if line.strip():
            try:
                parse_line(line)
            except MALFORMED as error:
                return LogCorrupt(table, path, f"malformed action: {explain_malformed(error, line)}", version, number)
    return LogCorrupt(table, path, "not one JSON object per line", version)


def explain_malformed(error: Exception, data: bytes = b"") -> str:
    """Explain why decoding `data`, where available, raised `error`: one of `MALFORMED`, or any clear error."""
    if isinstance(error, RecursionError):
        return "its JSON is nested too deeply"
    if isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError):
        try:
            json.dumps(json.loads(data), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "one of its strings contains an unpaired surrogate, which is not a character"
        except (ValueError, RecursionError):
            return str(error)
    return str(error)

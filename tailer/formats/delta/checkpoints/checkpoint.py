"""Checkpoints: the state of a table without its history (PROTOCOL.md, "Checkpoints").

Reads classic and multi-part checkpoints, the top-level file of V2 checkpoints (Parquet or JSON), and V2 sidecars.
Files are streamed. Large ones are read a few pages of the needed columns at a time, because one row group may hold a
whole table.

A truncated checkpoint may still be a readable file. So every read checks for the actions that each complete checkpoint
has.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO, Final, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tailer.errors import LogCorrupt, ObjectNotFound, StorageUnavailable, VersionGone
from tailer.formats.delta.checkpoints.add_columns import ADD_COLUMNS, columns_of, json_values, read_columns
from tailer.formats.delta.log.actions import MALFORMED, Line, Metadata, Protocol, Sidecar, explain_malformed, parse_line
from tailer.formats.delta.log.listing import LOG, LogFileKind, LogListing, LogSegment
from tailer.stores.port import ObjectStore, OpenObject

__all__ = ["from_sound_checkpoint", "listed_before", "read_adds", "read_state"]

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
_BATCH_ROWS: Final = 4096
_BUFFER_BYTES: Final = 1 << 16
_WHOLE_BYTES: Final = 8 << 20  # of smaller files whole compressed columns are held in memory
_STATE_ACTIONS: Final = ("protocol", "metaData", "checkpointMetadata", "sidecar")

HandleAdds = Callable[[pa.StructArray], None]


class _WantedAdds(NamedTuple):
    """A receiver of the files of a checkpoint, and the columns that it wants."""

    handle: HandleAdds
    columns: pa.StructType


async def from_sound_checkpoint(
    relist: Callable[[], Awaitable[LogListing]],
    listing: LogListing,
    version: int,
    use: Callable[[LogSegment], Awaitable[T]],
) -> T:
    """Call `use` with the files of the state at `version` and return its result.

    If `use` finds the checkpoint corrupt, it is called again with an older checkpoint and all commits after it, as long
    as there is one. `relist` lists the whole log to find one. Without one, the error about the newest checkpoint is
    raised.
    """
    segment = listing.segment(version)
    broken: set[str] = set()
    first: LogCorrupt | None = None
    while True:
        try:
            return await use(segment)
        except LogCorrupt as error:
            if not segment.checkpoint or error.path in {path.name for path in segment.commits}:
                raise
            first = first or error
            broken |= {path.name for path in segment.checkpoint}
            listing = await relist() if listing.since else listing
            try:
                segment = listing.segment(version, without=broken)
            except VersionGone:
                raise first from None
            _log.warning("using an older checkpoint: %s", error)


async def read_state(store: ObjectStore, segment: LogSegment) -> tuple[Protocol | None, Metadata | None]:
    """Read protocol and metadata from the segment's checkpoint; None where the segment has no checkpoint.

    Raises `LogCorrupt` for a checkpoint without exactly one of each, and as `read_adds` does.
    """
    if not segment.checkpoint:
        return None, None
    required = await _read_required(store, segment)
    return required.protocols[0], required.metadatas[0]


async def read_adds(
    store: ObjectStore, segment: LogSegment, handle: HandleAdds, columns: pa.StructType = ADD_COLUMNS
) -> None:
    """Pass every file of the segment's checkpoint, sidecars included, to `handle` (called in a worker thread).

    `handle` gets some files at a time, as `columns`: `ADD_COLUMNS`, with statistics or without.

    Raises `LogCorrupt` for a file that violates the protocol, an incomplete checkpoint, a missing sidecar, and where
    `handle` raises `ValueError`. After an error the files passed so far are invalid. Raises `StorageUnavailable` also
    where the checkpoint no longer exists.
    """
    if not segment.checkpoint:
        return
    wanted = _WantedAdds(handle, columns)
    required = await _read_required(store, segment, wanted)
    for sidecar in required.sidecars:
        # It is in the table's own folder even if its full path is given.
        base = unquote(sidecar.path).rpartition("/")[2]
        if base in ("", ".", "..") or "\0" in base:
            reason = f"sidecar {sidecar.path!r} is not a file name"
            raise LogCorrupt(segment.table, segment.checkpoint[0].name, reason, segment.version)
        name = f"{LOG}/_sidecars/{base}"
        try:
            await _scan(store, segment, name, None, wanted, sidecar.size_in_bytes)
        except ObjectNotFound as error:
            with listed_before():
                await store.stat(segment.checkpoint[0].name)
            reason = f"a sidecar of the checkpoint of version {segment.checkpoint[0].version} is missing"
            raise LogCorrupt(segment.table, name, reason, segment.version) from error


@contextmanager
def listed_before() -> Iterator[None]:
    """Raise `StorageUnavailable` for a listed file that no longer exists: it was cleaned up, so a retry lists again."""
    try:
        yield
    except ObjectNotFound as error:
        raise StorageUnavailable(error.path, "it was removed while the log was being read") from error


@dataclass(frozen=True, slots=True)
class _RequiredActions:
    """Actions of a checkpoint other than file actions. A truncated checkpoint lacks required ones."""

    protocols: list[Protocol] = field(default_factory=list)
    metadatas: list[Metadata] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of `checkpointMetadata`
    sidecars: list[Sidecar] = field(default_factory=list)

    def add(self, line: Line) -> None:
        """Keep the line's action if it is one of these."""
        if line.protocol is not None:
            self.protocols.append(line.protocol)
        if line.meta_data is not None:
            self.metadatas.append(line.meta_data)
        if line.checkpoint_metadata is not None:
            self.versions.append(line.checkpoint_metadata.version)
        if line.sidecar is not None:
            self.sidecars.append(line.sidecar)

    def check(self, segment: LogSegment) -> None:
        """Raise `LogCorrupt` unless these complete the segment's checkpoint (PROTOCOL.md, "V1 Spec", "V2 Spec").

        A V2 checkpoint names its version. It may have the file name of a classic one, which does not name its version.
        """
        first = segment.checkpoint[0]
        reason = ""
        for name, count in (("protocol", len(self.protocols)), ("metaData", len(self.metadatas))):
            if count != 1:
                reason = reason or f"a checkpoint has one {name} action, this one {count}"
        is_v2 = first.kind is LogFileKind.CHECKPOINT_V2 or self.sidecars or self.versions
        if is_v2 and self.versions != [first.version]:
            versions = ", ".join(map(str, self.versions)) or "none"
            reason = reason or f"a V2 checkpoint has checkpointMetadata of version {first.version}, this one {versions}"
        if reason:
            raise LogCorrupt(segment.table, first.name, reason, segment.version)


async def _read_required(store: ObjectStore, segment: LogSegment, adds: _WantedAdds | None = None) -> _RequiredActions:
    """Read and check a checkpoint's required actions. `adds`: what its files are passed to."""
    required = _RequiredActions()
    for path in segment.checkpoint:
        with listed_before():
            await _scan(store, segment, path.name, required, adds)
    required.check(segment)
    return required


async def _scan(
    store: ObjectStore,
    segment: LogSegment,
    name: str,
    required: _RequiredActions | None,
    adds: _WantedAdds | None,
    size_bytes: int | None = None,
) -> None:
    """Add a checkpoint file's actions to `required`, and pass its files to `adds`; None: these are not needed.

    `size_bytes`: expected, if known.
    """

    def work(opened: OpenObject) -> None:
        file, size = opened.file, opened.meta.size_bytes
        if size_bytes not in (None, size):
            reason = f"the checkpoint says {size_bytes} bytes, the file has {size}"
            raise LogCorrupt(segment.table, name, reason, segment.version)
        try:
            if name.endswith(".json"):
                _scan_json(file, required, adds)
            else:
                _scan_parquet(file, size, required, adds)
        except (*MALFORMED, pa.ArrowException, KeyError, ValueError, OverflowError, OSError) as error:
            # Arrow reports broken Parquet pages as an OSError without an errno; the system's own errors have one.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            cause = explain_malformed(error)
            raise LogCorrupt(segment.table, name, f"unreadable checkpoint: {cause}", segment.version) from error

    await store.scan(name, work)


def _scan_json(file: BinaryIO, required: _RequiredActions | None, adds: _WantedAdds | None) -> None:
    statistics = adds is not None and adds.columns != ADD_COLUMNS
    lines = (parse_line(line, statistics) for line in file if line.strip())
    while some := list(islice(lines, _BATCH_ROWS)):
        if required is not None:
            for line in some:
                required.add(line)
        files = [line.add for line in some if line.add is not None]
        if adds is not None and files:
            adds.handle(columns_of(files, adds.columns))


def _scan_parquet(file: BinaryIO, size: int, required: _RequiredActions | None, adds: _WantedAdds | None) -> None:
    # When buffering, Arrow trusts a page's declared size, up to 2 GiB; otherwise a page ends with its column.
    buffer_bytes = _BUFFER_BYTES if size > _WHOLE_BYTES else 0
    parquet = pq.ParquetFile(file, buffer_size=buffer_bytes, pre_buffer=False, page_checksum_verification=True)
    columns = (*(_STATE_ACTIONS if required is not None else ()), *(("add",) if adds is not None else ()))
    present = [column for column in columns if column in parquet.schema_arrow.names]
    if not present:
        return
    leaves = _leaves(parquet.schema_arrow, present, ADD_COLUMNS if adds is None else adds.columns)
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=leaves):
        for column in present:
            values = batch.column(column).drop_null()
            if column != "add":
                for line in msgspec.convert([{column: value} for value in json_values(values)], list[Line]):
                    assert required is not None
                    required.add(line)
            elif len(values):
                assert adds is not None
                adds.handle(read_columns(values, adds.columns))


def _leaves(schema: pa.Schema, columns: list[str], adds: pa.StructType) -> list[str]:
    """List the column paths to read; of files, only the fields `adds`."""
    wanted: list[str] = []
    for column in columns:
        kind = schema.field(column).type
        if column == "add" and pa.types.is_struct(kind):
            there = [child.name for child in kind]
            wanted.extend(f"add.{field.name}" for field in adds if field.name in there)
        else:
            wanted.append(column)
    return wanted

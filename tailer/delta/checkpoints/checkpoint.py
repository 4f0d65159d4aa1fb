"""Checkpoints: the state of a table without its history (PROTOCOL.md, "Checkpoints").

Classic and multi-part checkpoints and the top-level file of V2 ones are read here, Parquet or JSON; file actions of
V2 sidecars come from the sidecars. Files are streamed, large ones some pages of the needed columns at a
time: a row group may hold a whole table.

A checkpoint that was cut short may still be a readable file. So whoever reads one asks for what every whole one holds.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tailer.delta.log.actions import (
    MALFORMED,
    AddFile,
    Line,
    Metadata,
    Protocol,
    Sidecar,
    explain_malformed,
    parse_line,
)
from tailer.delta.log.listing import LOG, LogFileKind, LogListing, LogSegment
from tailer.errors import LogCorrupt, ObjectNotFound, StorageUnavailable, VersionGone
from tailer.stores.local import ObjectStore, OpenObject

__all__ = ["from_sound_checkpoint", "listed_before", "read_adds", "read_state"]

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
_BATCH_ROWS: Final = 4096
_BUFFER_BYTES: Final = 1 << 16
_WHOLE_BYTES: Final = 8 << 20  # of smaller files whole columns are held, before decompression
_FRAME: Final = ("protocol", "metaData", "checkpointMetadata", "sidecar")
_ADD_FIELDS: Final = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "dataChange",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
)


async def from_sound_checkpoint(
    relist: Callable[[], Awaitable[LogListing]],
    listing: LogListing,
    version: int,
    use: Callable[[LogSegment], Awaitable[T]],
) -> T:
    """What `use` makes of the files of the state at `version`.

    Where it finds the checkpoint corrupt, it is given an older one and all commits since, as long as there is one;
    `relist` lists the whole log for it. The error about the newest one is raised where there is none.
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
            _log.warning("an older checkpoint is used: %s", error)


async def read_state(store: ObjectStore, segment: LogSegment) -> tuple[Protocol | None, Metadata | None]:
    """Protocol and metadata as of the segment's checkpoint; None where it has none.

    Raises `LogCorrupt` for a checkpoint that does not hold one of each, and as `read_adds` does.
    """
    if not segment.checkpoint:
        return None, None
    frame = await _read_frame(store, segment)
    return frame.protocols[0], frame.metadatas[0]


async def read_adds(store: ObjectStore, segment: LogSegment, take: Callable[[AddFile], None]) -> None:
    """Hand every file of the segment's checkpoint, sidecars included, to `take` (called in a worker thread).

    Raises `LogCorrupt` for a file that is not as the protocol has it, one that does not hold the whole state, a missing
    sidecar, and where `take` raises `ValueError`; what was taken until then counts for nothing. Raises
    `StorageUnavailable` also where the checkpoint is gone.
    """

    def take_add(line: Line) -> None:
        if line.add is not None:
            take(line.add)

    if not segment.checkpoint:
        return
    frame = await _read_frame(store, segment, take_add)
    for sidecar in frame.sidecars:
        name = _sidecar_name(segment, sidecar)
        try:
            await _scan(store, segment, name, ("add",), take_add, sidecar.size_in_bytes)
        except ObjectNotFound as error:
            with listed_before():
                await store.stat(segment.checkpoint[0].name)
            reason = f"a sidecar of the checkpoint of version {segment.checkpoint[0].version} is missing"
            raise LogCorrupt(segment.table, name, reason, segment.version) from error


def _sidecar_name(segment: LogSegment, sidecar: Sidecar) -> str:
    """The object that a sidecar is. It may be named by its whole path, but lies in the table's own folder all the same.

    Raises `LogCorrupt` where that is no name a file can have.
    """
    name = unquote(sidecar.path).rpartition("/")[2]
    if name in ("", ".", "..") or "\0" in name:
        reason = f"sidecar {sidecar.path!r} is no name of a file"
        raise LogCorrupt(segment.table, segment.checkpoint[0].name, reason, segment.version)
    return f"{LOG}/_sidecars/{name}"


@contextmanager
def listed_before() -> Iterator[None]:
    """For reading what a listing named: where it is gone it was cleaned up since, and the next listing tells."""
    try:
        yield
    except ObjectNotFound as error:
        raise StorageUnavailable(error.path, "it was removed while the log was being read") from error


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a checkpoint holds once, whatever its files: by that one tells a whole one from what is left of one."""

    protocols: list[Protocol] = field(default_factory=list)
    metadatas: list[Metadata] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of `checkpointMetadata`
    sidecars: list[Sidecar] = field(default_factory=list)

    def take(self, line: Line) -> None:
        """Keep what belongs to the frame."""
        if line.protocol is not None:
            self.protocols.append(line.protocol)
        if line.meta_data is not None:
            self.metadatas.append(line.meta_data)
        if line.checkpoint_metadata is not None:
            self.versions.append(line.checkpoint_metadata.version)
        if line.sidecar is not None:
            self.sidecars.append(line.sidecar)

    def check(self, segment: LogSegment) -> None:
        """Raise `LogCorrupt` unless this is the frame of the segment's checkpoint (PROTOCOL.md, "V1 Spec", "V2 Spec").

        A V2 checkpoint tells its version. It may be called like a classic one, which has none to tell.
        """
        first = segment.checkpoint[0]
        reason = ""
        for name, count in (("protocol", len(self.protocols)), ("metaData", len(self.metadatas))):
            if count != 1:
                reason = reason or f"a checkpoint has one {name} action, this one {count}"
        is_v2 = first.kind is LogFileKind.CHECKPOINT_V2 or self.sidecars or self.versions
        if is_v2 and self.versions != [first.version]:
            found = ", ".join(map(str, self.versions)) or "none"
            reason = reason or f"a V2 checkpoint has checkpointMetadata of version {first.version}, this one {found}"
        if reason:
            raise LogCorrupt(segment.table, first.name, reason, segment.version)


async def _read_frame(store: ObjectStore, segment: LogSegment, take: Callable[[Line], None] | None = None) -> _Frame:
    """The checked frame of a segment's checkpoint. With `take`, its lines go there, those of files among them."""
    frame = _Frame()

    def take_both(line: Line) -> None:
        frame.take(line)
        if take is not None:
            take(line)

    for path in segment.checkpoint:
        with listed_before():
            await _scan(store, segment, path.name, _FRAME if take is None else (*_FRAME, "add"), take_both)
    frame.check(segment)
    return frame


async def _scan(
    store: ObjectStore,
    segment: LogSegment,
    name: str,
    columns: tuple[str, ...],
    take: Callable[[Line], None],
    size_bytes: int | None = None,
) -> None:
    """Hand the lines of one checkpoint file that have one of `columns` to `take`. `size_bytes`: its size, if known."""

    def work(opened: OpenObject) -> None:
        file, size = opened.file, opened.meta.size_bytes
        if size_bytes not in (None, size):
            reason = f"the checkpoint says {size_bytes} bytes, it has {size}"
            raise LogCorrupt(segment.table, name, reason, segment.version)
        try:
            for line in _json_lines(file) if name.endswith(".json") else _parquet_lines(file, size, columns):
                take(line)
        except (*MALFORMED, pa.ArrowException, KeyError, ValueError, OSError) as error:
            # Arrow reports broken Parquet pages as an OSError without an errno; the system's own errors have one.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            cause = explain_malformed(error)
            raise LogCorrupt(segment.table, name, f"unreadable checkpoint: {cause}", segment.version) from error

    await store.scan(name, work)


def _json_lines(file: BinaryIO) -> Iterator[Line]:
    for line in file:
        if line.strip():
            yield parse_line(line)


def _parquet_lines(file: BinaryIO, size: int, columns: tuple[str, ...]) -> Iterator[Line]:
    # Where it buffers, Arrow believes what a page says about its size, up to 2 GiB; else pages end with their column.
    buffer_bytes = _BUFFER_BYTES if size > _WHOLE_BYTES else 0
    parquet = pq.ParquetFile(file, buffer_size=buffer_bytes, pre_buffer=False, page_checksum_verification=True)
    present = [column for column in columns if column in parquet.schema_arrow.names]
    if not present:
        return
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=_leaves(parquet.schema_arrow, present)):
        for column in present:
            values = batch.column(column)
            for value in _values(values.filter(values.is_valid())):
                yield msgspec.convert({column: value}, Line)


def _leaves(schema: pa.Schema, columns: list[str]) -> list[str]:
    """Column paths to read: statistics and tags of files stay on disk."""
    wanted: list[str] = []
    for column in columns:
        kind = schema.field(column).type
        if column == "add" and pa.types.is_struct(kind):
            there = [child.name for child in kind]
            wanted.extend(f"add.{name}" for name in _ADD_FIELDS if name in there)
        else:
            wanted.append(column)
    return wanted


def _values(array: pa.Array) -> list[Any]:
    """The values of an array as the JSON form of an action has them: absent fields left out, maps as objects.

    Column by column, which is ten times as fast as `to_pylist` of structs and maps. Raises `ValueError` for a map with
    a key twice.
    """
    made: list[Any]
    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        rows = zip(*map(_values, array.flatten()), strict=True)
        made = [{name: item for name, item in zip(names, row, strict=True) if item is not None} for row in rows]
    elif pa.types.is_map(array.type):
        keys, items, offsets = _values(array.keys), _values(array.items), array.offsets.to_pylist()
        made = [dict(zip(keys[begin:end], items[begin:end], strict=True)) for begin, end in pairwise(offsets)]
        if any(len(value) != end - begin for value, (begin, end) in zip(made, pairwise(offsets), strict=True)):
            raise ValueError("a map has a key twice")
    else:
        made = array.to_pylist()
        return made
    if array.null_count:
        return [value if there else None for value, there in zip(made, array.is_valid().to_pylist(), strict=True)]
    return made

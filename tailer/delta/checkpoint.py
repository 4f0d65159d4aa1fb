"""Checkpoints: the state of a table without its history (PROTOCOL.md, "Checkpoints").

Classic and multi-part checkpoints and the top-level file of V2 ones are read here, Parquet or JSON; file actions of
V2 sidecars come from the sidecars. Files are streamed, a row group's needed columns at a time.
"""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tailer.delta.actions import MALFORMED, AddFile, Line, Metadata, Protocol, parse_line
from tailer.delta.log import LOG, LogSegment
from tailer.errors import LogCorrupt
from tailer.storage import ObjectStore

__all__ = ["read_adds", "read_state"]

_BATCH_ROWS: Final = 4096
_ADD_FIELDS: Final = ("path", "partitionValues", "size", "modificationTime", "dataChange", "deletionVector")


async def read_state(store: ObjectStore, segment: LogSegment) -> tuple[Protocol | None, Metadata | None]:
    """Protocol and metadata as of the segment's checkpoint; None for what it does not hold."""
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    for path in segment.checkpoint:
        lines: list[Line] = []
        await _scan(store, segment, path.name, ["protocol", "metaData"], lines.append)
        for line in lines:
            protocol = line.protocol or protocol
            metadata = line.meta_data or metadata
    return protocol, metadata


async def read_adds(store: ObjectStore, segment: LogSegment, take: Callable[[AddFile], None]) -> None:
    """Hand every file of the segment's checkpoint, sidecars included, to `take` (called in a worker thread)."""
    sidecars: list[str] = []

    def line(line: Line) -> None:
        if line.add is not None:
            take(line.add)
        if line.sidecar is not None:
            sidecars.append(line.sidecar.path)

    for path in segment.checkpoint:
        await _scan(store, segment, path.name, ["add", "sidecar"], line)
    for name in sidecars:
        await _scan(store, segment, f"{LOG}/_sidecars/{name.rpartition('/')[2]}", ["add"], line)


async def _scan(
    store: ObjectStore, segment: LogSegment, name: str, columns: list[str], take: Callable[[Line], None]
) -> None:
    """Hand the lines of one checkpoint file that have one of `columns` to `take`."""

    def work(file: BinaryIO) -> None:
        try:
            for line in _json_lines(file) if name.endswith(".json") else _parquet_lines(file, columns):
                take(line)
        except (*MALFORMED, pa.ArrowException, KeyError, OSError) as error:
            # Arrow reports broken Parquet pages as an OSError without an errno; the system's own errors have one.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise LogCorrupt(segment.table, name, f"unreadable checkpoint: {error}", segment.version) from error

    await store.scan(name, work)


def _json_lines(file: BinaryIO) -> Iterator[Line]:
    for line in file:
        if line.strip():
            yield parse_line(line)


def _parquet_lines(file: BinaryIO, columns: list[str]) -> Iterator[Line]:
    parquet = pq.ParquetFile(file)
    present = [column for column in columns if column in parquet.schema_arrow.names]
    if not present:
        return
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=_leaves(parquet.schema_arrow, present)):
        for column in present:
            values = batch.column(column)
            for value in values.filter(values.is_valid()).to_pylist(maps_as_pydicts="strict"):
                yield msgspec.convert({column: _plain(value) if isinstance(value, dict) else value}, Line)


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


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """A Parquet action as its JSON form would be: absent fields left out. In maps null is a value."""
    return {
        name: _plain(item) if isinstance(item, dict) and name not in _MAPS else item
        for name, item in value.items()
        if item is not None
    }


_MAPS: Final = frozenset({"partitionValues", "configuration", "options"})

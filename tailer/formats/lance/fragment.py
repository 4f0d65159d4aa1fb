"""Fragments: the rows of a dataset, as a manifest describes them (Lance format, "Fragments", `protos/table.proto`).

A fragment has data files, each with some of the columns for all of its rows, and at most one deletion file. Rows are
addressed by their offset in the data files, whether they are deleted or not.

Deletion files (Lance format, "Deletion"): an `.arrow` file is an Arrow IPC file with one batch and one column `row_id`
of offsets, unsorted. Writers use uint32 where the specification says Int32, and may compress. A `.bin` file is one
32-bit Roaring bitmap. The number of deleted rows in the manifest may be missing or wrong, so the file alone counts.
"""

from array import array
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from tailer.formats.lance.protobuf import InvalidMessage, Message

__all__ = ["DataFile", "DeletionFile", "Fragment", "parse_fragment", "read_deletions"]


class DeletionKind(StrEnum):
    """Encoding of a deletion file; the value is the extension of its name."""

    ARROW = "arrow"
    BITMAP = "bin"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with some of the columns of a fragment.

    `path` is relative to the folder `data` of the dataset, or of base path `base_id`. Negative `field_ids` are
    tombstones. `column_indices` is empty in files of version 1; `size_bytes` is None where it was not recorded.
    """

    path: str
    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]
    major_version: int
    size_bytes: int | None
    base_id: int | None


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """The file with the offsets of a fragment's deleted rows.

    `num_deleted_rows` is None where it was not recorded. Old writers recorded wrong numbers, so count the file.
    """

    kind: DeletionKind
    read_version: int
    id: int
    num_deleted_rows: int | None
    base_id: int | None

    def path(self, fragment_id: int) -> str:
        """Return the path of the file, relative to the dataset or to base path `base_id`."""
        return f"_deletions/{fragment_id}-{self.read_version}-{self.id}.{self.kind}"


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment in one version.

    `overlays`: new values for some rows of some columns, encoded. `physical_rows` is None where it was not recorded;
    old writers recorded wrong numbers. `row_ids_are_apart`: whether stable row ids are in a file of their own.
    """

    id: int
    files: tuple[DataFile, ...]
    deletion: DeletionFile | None
    overlays: tuple[bytes, ...]
    physical_rows: int | None
    row_ids_are_apart: bool


def parse_fragment(data: bytes) -> Fragment:
    """Read a message `DataFragment`. Raises `InvalidMessage`."""
    message = Message(data)
    deletion = message.optional_message(3)
    return Fragment(
        id=message.number(1),
        files=tuple(_data_file(part) for part in message.messages(2)),
        deletion=None if deletion is None else _deletion_file(deletion),
        overlays=message.all_data(11),
        physical_rows=message.number(4) or None,
        row_ids_are_apart=message.one_of(5, 6) == 6,
    )


def _data_file(message: Message) -> DataFile:
    path = message.text(1)
    if not path:
        raise InvalidMessage("a data file has no path")
    return DataFile(
        path=path,
        field_ids=message.all_signed(2),
        column_indices=message.all_signed(3),
        major_version=message.number(4, 32),
        size_bytes=message.number(6) or None,
        base_id=message.optional_number(7, 32),
    )


def _deletion_file(message: Message) -> DeletionFile:
    file_type = message.number(1)
    if file_type > 1:
        raise InvalidMessage(f"a deletion file has the type {file_type}, known are 0 and 1")
    return DeletionFile(
        kind=DeletionKind.BITMAP if file_type else DeletionKind.ARROW,
        read_version=message.number(2),
        id=message.number(3),
        num_deleted_rows=message.number(4) or None,
        base_id=message.optional_number(7, 32),
    )


def read_deletions(kind: DeletionKind, data: bytes) -> BitMap:
    """Return the offsets in a deletion file. Raises `InvalidMessage` for bytes that are no such file."""
    if kind is DeletionKind.BITMAP:
        try:
            return BitMap.deserialize(data)
        except (ValueError, IndexError) as error:
            raise InvalidMessage(f"not a Roaring bitmap: {error}") from error
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidMessage(f"not an Arrow file: {error}") from error
    if table.num_columns != 1:
        raise InvalidMessage(f"it has {table.num_columns} columns, not one")
    offsets = table.column(0)
    if not pa.types.is_integer(offsets.type) or offsets.null_count:
        raise InvalidMessage(f"its column holds {offsets.type} with {offsets.null_count} nulls, not offsets")
    try:
        numbers = pc.cast(offsets, pa.uint32())
    except pa.ArrowInvalid as error:
        raise InvalidMessage(f"an offset does not fit into 32 bits: {error}") from error
    deleted = BitMap()
    for chunk in numbers.chunks:
        buffer, start = chunk.buffers()[1], 4 * chunk.offset
        if len(chunk):
            deleted |= BitMap(array("I", buffer[start : start + 4 * len(chunk)].to_pybytes()))
    return deleted

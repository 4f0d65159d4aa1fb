"""Manifest lists and manifests, decoded from Avro (Iceberg specification, "Manifest Lists", "Manifests").

Only what decides about rows is kept. Numbers that a manifest leaves out are inherited from the entry of its list:
sequence numbers, and the ids of first rows.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import IntEnum
from io import BytesIO
from typing import Any, Final
from uuid import UUID

import fastavro

from tailer.errors import LogCorrupt, UnsupportedFeature

__all__ = [
    "Content",
    "FileEntry",
    "Manifest",
    "Place",
    "ValueRange",
    "parse_manifest",
    "parse_manifest_list",
]

Partition = tuple[tuple[int, Any], ...]
"""The value of each partition field by its id."""

Place = tuple[int, Partition]
"""A partition: its spec and its values, as `_comparable`. Those of different specs are never the same."""

_EPOCH: Final = date(1970, 1, 1)
_DELETED: Final = 2
_DELETES: Final = 1
_NOT_AVRO: Final = (ValueError, KeyError, TypeError, IndexError, EOFError, AttributeError, OverflowError, zlib.error)


class Content(IntEnum):
    """The content of a file."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values of a partition field in a manifest, as the bytes of bounds; None: no bound."""

    has_null: bool
    lower: bytes | None
    upper: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest as a manifest list names it.

    `sequence`: its own; `oldest`: of the data of its oldest file; both are 0 in tables of the first format version.
    `ranges`: of the values of each partition field; none where the list does not tell.
    """

    path: str
    spec_id: int
    has_deletes: bool
    sequence: int
    oldest: int = 0
    first_row_id: int | None
    ranges: tuple[ValueRange, ...] = ()

    @property
    def key(self) -> tuple[str, int | None]:
        """The facts that its entries depend on: an upgrade of a table lists an old manifest again, with row ids."""
        return self.path, self.first_row_id


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A live data or delete file.

    `sequence`: of its data, which decides about the deletes that apply. `equality_ids`: fields of an equality delete.
    `referenced`: the only data file that position deletes are of. `offset`, `length`: where a deletion vector is in the
    file; None: it is a file of positions. `lower`, `upper`: bounds of columns by field id. `nulls`: number of nulls.
    """

    path: str
    content: Content
    format: str
    spec_id: int
    partition: Partition | None
    records: int
    size_bytes: int
    sequence: int
    first_row_id: int | None = None
    equality_ids: tuple[int, ...] = ()
    referenced: str | None = None
    offset: int | None = None
    length: int | None = None
    lower: Mapping[int, bytes]
    upper: Mapping[int, bytes]
    nulls: Mapping[int, int]

    @property
    def key(self) -> tuple[str, int | None]:
        """The identity of the file, or of the vector in it."""
        return self.path, self.offset

    @property
    def place(self) -> Place:
        return self.spec_id, tuple((number, _comparable(value)) for number, value in self.partition or ())


def _comparable(value: Any) -> Any:
    """Return a value of a partition as what is equal where the partition is the same.

    Writers have dates, as days have them, with their Avro type or as numbers, and ids as ids or as bytes. NaN is equal
    to itself here, and the zeros are not equal.
    """
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - _EPOCH).days
    return value.bytes if isinstance(value, UUID) else value


def parse_manifest_list(
    data: bytes, table: str, name: str, version: int, before: Iterable[Manifest] = ()
) -> tuple[Manifest, ...]:
    """Decode a manifest list, in its order. `before`: manifests that it may name, too. No manifest ever changes.

    Raises `LogCorrupt`, `UnsupportedFeature`.
    """
    by_key = {manifest.key: manifest for manifest in before}
    try:
        return tuple(
            by_key.get((record["manifest_path"], record.get("first_row_id"))) or _manifest(record)
            for record in _records(data)
        )
    except _NOT_AVRO as error:
        raise _error(error, table, name, version) from error


def parse_manifest(data: bytes, manifest: Manifest, table: str, version: int) -> tuple[FileEntry, ...]:
    """Decode the live entries of a manifest, in its order. Raises `LogCorrupt`, `UnsupportedFeature`."""
    try:
        reader = _records(data)
        return tuple(_entries(reader, _partition_names(reader.writer_schema), manifest))
    except _NOT_AVRO as error:
        raise _error(error, table, manifest.path, version) from error


def _records(data: bytes) -> Any:
    return fastavro.reader(BytesIO(data))


def _error(error: Exception, table: str, name: str, version: int) -> LogCorrupt | UnsupportedFeature:
    if isinstance(error, ValueError) and "codec" in str(error):
        return UnsupportedFeature(table, f"the compression of {name}", version, str(error))
    return LogCorrupt(table, name, f"not a manifest: {error!r}", version)


def _manifest(record: Mapping[str, Any]) -> Manifest:
    return Manifest(
        path=record["manifest_path"],
        spec_id=record.get("partition_spec_id") or 0,
        has_deletes=record.get("content") == _DELETES,
        sequence=record.get("sequence_number") or 0,
        oldest=record.get("min_sequence_number") or 0,
        first_row_id=record.get("first_row_id"),
        ranges=tuple(
            ValueRange(field.get("contains_null", True), field.get("lower_bound"), field.get("upper_bound"))
            for field in record.get("partitions") or ()
        ),
    )


def _partition_names(schema: Any) -> Sequence[tuple[int | None, str]]:
    """Return the id and the name of each partition field in a manifest."""
    file = next(_record(field["type"]) for field in schema["fields"] if field["name"] == "data_file")
    partition = next((_record(field["type"]) for field in file["fields"] if field["name"] == "partition"), None)
    return [(field.get("field-id"), field["name"]) for field in (partition or {}).get("fields", ())]


def _record(kind: Any) -> Any:
    return next(branch for branch in kind if branch != "null") if isinstance(kind, list) else kind


def _entries(
    records: Iterator[Mapping[str, Any]], names: Sequence[tuple[int | None, str]], manifest: Manifest
) -> Iterator[FileEntry]:
    next_row_id = manifest.first_row_id
    for record in records:
        if record["status"] == _DELETED:
            continue
        entry = _entry(record, names, manifest, next_row_id)
        if next_row_id is not None and record["data_file"].get("first_row_id") is None:
            next_row_id += entry.records
        yield entry


def _entry(
    record: Mapping[str, Any], names: Sequence[tuple[int | None, str]], manifest: Manifest, next_row_id: int | None
) -> FileEntry:
    file, sequence = record["data_file"], record.get("sequence_number")
    first_row_id, values = file.get("first_row_id"), file.get("partition")
    content = Content(file.get("content") or 0)
    if (content is not Content.DATA) is not manifest.has_deletes:
        raise ValueError(f"{file['file_path']} is in a manifest of the other kind")
    if content is Content.EQUALITY_DELETES and not file.get("equality_ids"):
        raise ValueError(f"the equality delete {file['file_path']} names no column")
    if file.get("content_offset") is not None and file.get("referenced_data_file") is None:
        raise ValueError(f"the deletion vector in {file['file_path']} names no data file")
    fields = enumerate(names)
    return FileEntry(
        path=file["file_path"],
        content=content,
        format=file["file_format"].upper(),
        spec_id=manifest.spec_id,
        partition=None
        if values is None
        else tuple((1000 + place if number is None else number, values[name]) for place, (number, name) in fields),
        records=file["record_count"],
        size_bytes=file["file_size_in_bytes"],
        sequence=manifest.sequence if sequence is None else sequence,
        first_row_id=next_row_id if first_row_id is None else first_row_id,
        equality_ids=tuple(file.get("equality_ids") or ()),
        referenced=file.get("referenced_data_file"),
        offset=file.get("content_offset"),
        length=file.get("content_size_in_bytes"),
        lower=_by_field(file.get("lower_bounds")),
        upper=_by_field(file.get("upper_bounds")),
        nulls=_by_field(file.get("null_value_counts")),
    )


def _by_field(pairs: Any) -> Mapping[int, Any]:
    """Return a map of a file entry: a list of pairs, or of some writers a map with numbers as text."""
    if isinstance(pairs, dict):
        return {int(number): value for number, value in pairs.items()}
    return {pair["key"]: pair["value"] for pair in pairs or ()}

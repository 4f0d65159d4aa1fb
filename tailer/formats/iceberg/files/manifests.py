"""Manifest lists and manifests, decoded from Avro (Iceberg specification, "Manifest Lists", "Manifests").

Only what decides about rows is kept. Numbers that a manifest leaves out are inherited from the entry of its list:
sequence numbers, and the ids of first rows.

Tasks carry the statistics of a file (`ChangeTask.stats`). Bounds are those of whole numbers, dates and texts, in the
type that the file has. Bounds of a text that was cut are still bounds. Those of timestamps are left out: writers have
cut their last digits. Other types are left out, too.

Bounds of partition values in a manifest list say which manifests may have files of a partition. Those that are not
compared here, or are missing, leave out no manifest.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import IntEnum
from io import BytesIO
from typing import Any, Final
from uuid import UUID

import fastavro
import pyarrow as pa

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.schema.columns import physical_name

__all__ = [
    "Content",
    "FileEntry",
    "Manifest",
    "Place",
    "may_hold",
    "parse_manifest",
    "parse_manifest_list",
    "statistics",
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
        records: Any = fastavro.reader(BytesIO(data))
        return tuple(
            by_key.get((record["manifest_path"], record.get("first_row_id"))) or _manifest(record) for record in records
        )
    except _NOT_AVRO as error:
        raise _error(error, table, name, version) from error


def parse_manifest(data: bytes, manifest: Manifest, table: str, version: int) -> tuple[FileEntry, ...]:
    """Decode the live entries of a manifest, in its order. Raises `LogCorrupt`, `UnsupportedFeature`."""
    try:
        reader: Any = fastavro.reader(BytesIO(data))
        file = next(_record(field["type"]) for field in reader.writer_schema["fields"] if field["name"] == "data_file")
        partition = next((_record(field["type"]) for field in file["fields"] if field["name"] == "partition"), None)
        names = [(field.get("field-id"), field["name"]) for field in (partition or {}).get("fields", ())]
        return tuple(_entries(reader, names, manifest))
    except _NOT_AVRO as error:
        raise _error(error, table, manifest.path, version) from error


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


def may_hold(manifest: Manifest, places: Iterable[Place]) -> bool:
    """Return whether a manifest may have a file in one of some partitions."""
    return any(
        spec_id == manifest.spec_id
        and (
            len(partition) != len(manifest.ranges)
            or all(_may_have(field, value) for field, (_, value) in zip(manifest.ranges, partition, strict=True))
        )
        for spec_id, partition in places
    )


def _may_have(field: ValueRange, value: Any) -> bool:
    if value is None:
        return field.has_null
    if field.lower is None or field.upper is None:
        return True
    if isinstance(value, str):
        return field.lower <= value.encode() <= field.upper
    if isinstance(value, int) and not isinstance(value, bool):
        first, last = (int.from_bytes(bound, "little", signed=True) for bound in (field.lower, field.upper))
        return first <= value <= last
    return True


def statistics(entry: FileEntry, schema: pa.Schema) -> str:
    numbers = {int(physical_name(field)): field.type for field in schema}
    content = {
        "numRecords": entry.records,
        "minValues": _bounds(entry.lower, numbers),
        "maxValues": _bounds(entry.upper, numbers),
        "nullCount": {str(number): count for number, count in entry.nulls.items() if number in numbers},
    }
    return json.dumps(content)


def _bounds(bounds: Mapping[int, bytes], kinds: Mapping[int, pa.DataType]) -> dict[str, Any]:
    values = {str(number): _value(data, kinds[number]) for number, data in bounds.items() if number in kinds}
    return {number: value for number, value in values.items() if value is not None}


def _value(data: bytes, kind: pa.DataType) -> int | str | None:
    if pa.types.is_string(kind):
        try:
            return data.decode()
        except UnicodeDecodeError:  # cut within a character
            return None
    if not (pa.types.is_integer(kind) or pa.types.is_date(kind)):
        return None
    number = int.from_bytes(data, "little", signed=True)
    if pa.types.is_integer(kind):
        return number
    try:
        return (_EPOCH + timedelta(days=number)).isoformat()
    except OverflowError:
        return None

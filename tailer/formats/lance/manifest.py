"""Manifests: one version of a dataset (Lance format, "Dataset Directory", `protos/table.proto`).

A manifest file is, from its start::

    index section         skipped
    transaction section   u32 length, then the transaction that made the version; in newer files only
    manifest              u32 length, then the message Manifest
    footer                i64 offset of the manifest, u16 major version, u16 minor version, "LANC"

All numbers are little-endian.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from tailer.errors import LogCorrupt
from tailer.formats.lance.fragment import Fragment, parse_fragment
from tailer.formats.lance.protobuf import InvalidMessage, Message, delimited

__all__ = ["Field", "Manifest", "parse_manifest"]

_FOOTER: Final = struct.Struct("<qHH4s")
_LENGTH: Final = struct.Struct("<I")
_MAGIC: Final = b"LANC"
_TRANSACTION_FIELDS: Final = (23, 21)  # today's, and that of older writers
_FIELDS, _FRAGMENTS = 1, 2
_SMALL_BYTES: Final = 2048


@dataclass(frozen=True, slots=True)
class Field:
    """A column or a nested field. `parent_id` is -1 for a column.

    `key_position`: place in the unenforced primary key, from 1 on; 0 for a place after those, by field id; None if the
    field is not in the key.
    """

    id: int
    parent_id: int
    name: str
    logical_type: str
    nullable: bool
    metadata: Mapping[str, bytes]
    extension_name: str
    key_position: int | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a dataset.

    `transaction` holds the transaction if the manifest does, else `transaction_file` names a file in `_transactions`;
    it is empty if no file was written. `data_format` is the version of the data files ("2.0"), empty in old manifests.
    `fields` lists each field before the fields nested in it. `base_paths`: other places with files of the dataset, by
    their ids. `beginning`: of the message, with all fields and fragments; empty where these are not at the beginning,
    as every known writer has them.
    """

    version: int
    timestamp_ns: int
    reader_feature_flags: int
    writer_feature_flags: int
    fields: tuple[Field, ...]
    schema_metadata: Mapping[str, bytes]
    fragments: tuple[Fragment, ...]
    transaction_file: str
    transaction: bytes | None
    data_format: str
    config: Mapping[str, str]
    base_paths: Mapping[int, str]
    writer: str
    beginning: bytes = field(default=b"", repr=False, compare=False)

    @property
    def timestamp_ms(self) -> int:
        """Time of the commit in milliseconds since 1970, rounded down."""
        return self.timestamp_ns // 1_000_000

    def has_columns_of(self, other: "Manifest") -> bool:
        """Return whether the schemas of both are equal."""
        return self.fields == other.fields and self.schema_metadata == other.schema_metadata

    def fragments_by_id(self, table: str) -> dict[int, Fragment]:
        """Return the fragments by id. Raises `LogCorrupt` if two have the same: their rows have the same addresses."""
        fragments: dict[int, Fragment] = {}
        for fragment in self.fragments:
            if fragment.id in fragments:
                raise LogCorrupt(table, "_versions", f"two fragments have the id {fragment.id}", self.version)
            fragments[fragment.id] = fragment
        return fragments


def parse_manifest(data: bytes, uri: str, before: Manifest | None = None) -> Manifest:
    """Read the manifest file at `uri` from its bytes. Raises `LogCorrupt`.

    `before`: that of an earlier version. After an append, a manifest begins with all of it: that is not read again.
    """
    try:
        position = _manifest_position(data)
        encoded = _manifest_message(data, position)
        earlier = before if before is not None and encoded.startswith(before.beginning) else None
        message = Message(encoded[0 if earlier is None else len(earlier.beginning) :])
        if earlier is not None and (not earlier.beginning or message.has(_FIELDS)):
            message, earlier = Message(encoded), None
        offset = next((message.number(number) for number in _TRANSACTION_FIELDS if message.has(number)), None)
        return _manifest(message, None if offset is None else _section(data[:position], offset), encoded, earlier)
    except InvalidMessage as error:
        table, _, name = uri.rpartition("/_versions/")
        raise LogCorrupt(table or uri, f"_versions/{name}", str(error)) from error


def _manifest_position(data: bytes) -> int:
    if len(data) < _FOOTER.size:
        raise InvalidMessage(f"{len(data)} bytes are too short for a manifest")
    position, major, minor, magic = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if magic != _MAGIC:
        raise InvalidMessage(f"it ends with {magic!r}, not {_MAGIC!r}: it is no manifest, or not complete")
    if major != 0:
        raise InvalidMessage(f"a manifest file of version {major}.{minor}; only 0.x is known")
    if not 0 <= position <= len(data) - _FOOTER.size - _LENGTH.size:
        raise InvalidMessage(f"the manifest cannot begin at byte {position}")
    return int(position)


def _manifest_message(data: bytes, position: int) -> bytes:
    section = _section(data, position)
    if position + _LENGTH.size + len(section) + _FOOTER.size != len(data):
        raise InvalidMessage(f"the manifest has {len(section)} bytes, but the footer does not follow them")
    return section


def _section(data: bytes, position: int) -> bytes:
    """Return the bytes at a place, after their length."""
    end = position + _LENGTH.size
    if not 0 <= position <= end <= len(data):
        raise InvalidMessage(f"a section begins at byte {position} of {len(data)}")
    (size,) = _LENGTH.unpack_from(data, position)
    if size > len(data) - end:
        raise InvalidMessage(f"a section has {size} bytes, {size - len(data) + end} more than there are")
    return data[end : end + size]


def _manifest(message: Message, transaction: bytes | None, encoded: bytes, before: Manifest | None) -> Manifest:
    """Build a manifest from its message, `encoded`; `message` lacks the beginning of `before`, if that is given."""
    version = message.number(3)
    if version == 0:
        raise InvalidMessage("it has no version")
    columns, fragments = message.all_data(_FIELDS), message.all_data(_FRAGMENTS)
    parts = [delimited(_FIELDS, part) for part in columns] + [delimited(_FRAGMENTS, part) for part in fragments]
    beginning = b"".join([b"" if before is None else before.beginning, *parts])
    return Manifest(
        version=version,
        timestamp_ns=_timestamp_ns(message.optional_message(7)),
        reader_feature_flags=message.number(9),
        writer_feature_flags=message.number(10),
        fields=tuple(_field(Message(part)) for part in columns) if before is None else before.fields,
        schema_metadata=message.data_by_key(5),
        fragments=(() if before is None else before.fragments) + tuple(map(_shared_fragment, fragments)),
        transaction_file=message.text(12),
        transaction=transaction,
        data_format=_nested_text(message, 15, 2),
        config=message.text_by_key(16),
        base_paths={part.number(1, 32): part.text(4) for part in message.messages(18)},
        writer=_nested_text(message, 13, 2),
        beginning=beginning if encoded.startswith(beginning) else b"",
    )


def _nested_text(message: Message, field: int, nested: int) -> str:
    inner = message.optional_message(field)
    return "" if inner is None else inner.text(nested)


def _timestamp_ns(timestamp: Message | None) -> int:
    """Read a `google.protobuf.Timestamp`: seconds, and nanoseconds that count forward also before 1970."""
    return 0 if timestamp is None else timestamp.signed(1, 64) * 1_000_000_000 + timestamp.signed(2)


def _field(message: Message) -> Field:
    in_key = message.flag(12) or message.number(13, 32) > 0
    return Field(
        id=message.signed(3),
        parent_id=message.signed(4),
        name=message.text(2),
        logical_type=message.text(5),
        nullable=message.flag(6),
        metadata=message.data_by_key(10),
        extension_name=message.text(9),
        key_position=message.number(13, 32) if in_key else None,
    )


def _shared_fragment(data: bytes) -> Fragment:
    """Return the fragment, the same object as in other versions that hold it unchanged, if it is not large."""
    return _known_fragment(data) if len(data) <= _SMALL_BYTES else parse_fragment(data)


_known_fragment: Final = lru_cache(maxsize=2**14)(parse_fragment)

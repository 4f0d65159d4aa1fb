"""Manifests: one version of a dataset (Lance format, "Dataset Directory", `protos/table.proto`).

A manifest file is, from its start::

    index section         skipped
    transaction section   u32 length, then the transaction that made the version; in newer files only
    manifest              u32 length, then the message Manifest
    footer                i64 offset of the manifest, u16 major version, u16 minor version, "LANC"

All numbers are little-endian.

V1 names a manifest by its version. V2 subtracts the version from the largest unsigned 64-bit number and pads it to 20
digits, so that the newest version is listed first. A dataset uses one scheme: with both, a version could be missed.

Feature flags (Lance format, "Feature Flags") hold for one version and are checked at every version. Only flags of
readers matter here: a dataset whose writers need more can be read. An unknown flag is refused, because its meaning may
be that other files hold newer values. So are stable row ids outside the manifest, for which the format has no flag.
"""

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.formats.lance.fragment import Fragment, parse_fragment
from tailer.formats.lance.protobuf import InvalidMessage, Message, delimited

__all__ = [
    "FLAGS",
    "LARGEST",
    "Answer",
    "Field",
    "Manifest",
    "manifests",
    "parse_manifest",
    "refuse_unknown",
    "uses_stable_row_ids",
]

_FOOTER: Final = struct.Struct("<qHH4s")
_LENGTH: Final = struct.Struct("<I")
_MAGIC: Final = b"LANC"
_TRANSACTION_FIELDS: Final = (23, 21)  # today's, and that of older writers
_FIELDS, _FRAGMENTS = 1, 2
_SMALL_BYTES: Final = 2048
LARGEST: Final = 2**64 - 1
_DETACHED: Final = 2**63  # versions from here on belong to no history
_MANIFEST: Final = re.compile(r"([0-9]+)\.manifest")
_V2_DIGITS: Final = 20


def manifests(table: str, names: Iterable[str]) -> dict[int, str]:
    """Map each version to the name of its manifest, in ascending order.

    `names` are those in the `_versions` folder of `table`. Names that belong to no version are ignored: temporary,
    staged and detached manifests, and the hint. Raises `LogCorrupt` for a mixture of both schemes, and for a number
    that no writer gives to a version.
    """
    by_version: dict[int, str] = {}
    first: dict[bool, str] = {}
    for name in sorted(names):
        if (match := _MANIFEST.fullmatch(name)) is None:
            continue
        is_v2 = len(match[1]) == _V2_DIGITS
        version = LARGEST - int(match[1]) if is_v2 else int(match[1])
        if not 0 < version < _DETACHED or (not is_v2 and name.startswith("0")):
            raise LogCorrupt(table, f"_versions/{name}", "not the number of a version")
        first.setdefault(is_v2, name)
        by_version[version] = name
    if len(first) == 2:
        raise LogCorrupt(table, f"_versions/{first[False]}", f"named by version, but {first[True]} is not")
    return dict(sorted(by_version.items()))


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
    columns, fragments, time = message.all_data(_FIELDS), message.all_data(_FRAGMENTS), message.optional_message(7)
    parts = [delimited(_FIELDS, part) for part in columns] + [delimited(_FRAGMENTS, part) for part in fragments]
    beginning = b"".join([b"" if before is None else before.beginning, *parts])
    return Manifest(
        version=version,
        # Seconds, and nanoseconds that count forward also before 1970.
        timestamp_ns=0 if time is None else time.signed(1, 64) * 1_000_000_000 + time.signed(2),
        reader_feature_flags=message.number(9),
        writer_feature_flags=message.number(10),
        fields=tuple(_field(Message(part)) for part in columns) if before is None else before.fields,
        schema_metadata=message.data_by_key(5),
        fragments=(() if before is None else before.fragments)
        + tuple(_known_fragment(part) if len(part) <= _SMALL_BYTES else parse_fragment(part) for part in fragments),
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


# A fragment that is not large is the same object in all versions that hold it unchanged.
_known_fragment: Final = lru_cache(maxsize=2**14)(parse_fragment)


class Answer(StrEnum):
    """Treatment of a dataset that has the flag."""

    SUPPORTED = "supported"  # its rules are followed
    IGNORED = "ignored"  # it requires nothing of a reader of rows
    REFUSED = "refused"  # the pipeline stops with its name


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `why`: how it is supported, why it may be ignored, or why it is refused.

    `is_paired`: whether the format demands the same flag for writers.
    """

    name: str
    answer: Answer
    why: str
    is_paired: bool = False


_STABLE_ROW_IDS: Final = 1 << 1

FLAGS: Final = {
    1 << 0: Flag("deletion files", Answer.SUPPORTED, "deleted rows are those in the deletion files"),
    _STABLE_ROW_IDS: Flag("stable row ids", Answer.SUPPORTED, "a row that only moved is no change"),
    1 << 2: Flag("data files of version 2", Answer.IGNORED, "each data file names its version"),
    1 << 3: Flag("table config", Answer.IGNORED, "the configuration is for writers"),
    1 << 4: Flag("base paths", Answer.SUPPORTED, "files are read from the base path that they name"),
    1 << 5: Flag("no transaction files", Answer.IGNORED, "transactions are read from manifests too"),
    1 << 6: Flag("data overlay files", Answer.REFUSED, "the files of newer values are not stable yet in the format"),
    1 << 7: Flag("covering indexes", Answer.IGNORED, "no index is used"),
    1 << 8: Flag("mixed versions of data files", Answer.SUPPORTED, "each data file names its version", is_paired=True),
    1 << 9: Flag("fragment reuse with stable row ids", Answer.REFUSED, "the reader of rows does not know it"),
    1 << 10: Flag("fragment reuse index", Answer.IGNORED, "no index is used", is_paired=True),
    1 << 11: Flag("managed blobs", Answer.REFUSED, "blobs may lie in other places than the dataset's"),
}


def refuse_unknown(manifest: Manifest, table: str) -> None:
    """Raise `UnsupportedFeature` for the first feature of readers that is refused or unknown."""
    flags = manifest.reader_feature_flags
    for bit in (1 << place for place in range(64)):
        if not flags & bit:
            continue
        flag = FLAGS.get(bit)
        if flag is None:
            raise UnsupportedFeature(table, f"the reader feature flag {bit}", manifest.version)
        named = f"the reader feature flag {bit} ({flag.name})"
        if flag.answer is Answer.REFUSED:
            raise UnsupportedFeature(table, named, manifest.version, flag.why)
        if flag.is_paired and not manifest.writer_feature_flags & bit:
            raise UnsupportedFeature(table, named, manifest.version, "without the flag for writers it has no meaning")
    if uses_stable_row_ids(manifest) and any(part.row_ids_are_apart for part in manifest.fragments):
        reason = "the reader of rows finds them in manifests alone"
        raise UnsupportedFeature(table, "row ids in a file of their own", manifest.version, reason)


def uses_stable_row_ids(manifest: Manifest) -> bool:
    """Return whether rows keep their ids when they move."""
    return bool(manifest.reader_feature_flags & _STABLE_ROW_IDS)

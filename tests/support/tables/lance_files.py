"""Lance's metadata files by hand: messages in the wire format, manifests around them, and damaged copies of both."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

__all__ = [
    "change_fragments",
    "drop_transaction",
    "field",
    "fields_of",
    "manifest_file",
    "message_of",
    "reflagged",
    "varint",
]

FOOTER: Final = struct.Struct("<qHH4s")
_FRAGMENT: Final = 2
_TRANSACTION: Final = {12, 21, 23}  # the name of its file, and where it is in the manifest, formerly and now


def varint(number: int) -> bytes:
    """Encode an unsigned number."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number: int, value: int | bytes | str) -> bytes:
    """Encode a field: a number, bytes, text or an encoded message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value % 2**64)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def manifest_file(message: bytes, before: bytes = b"") -> bytes:
    """Return a manifest file with the message after some other sections."""
    return before + struct.pack("<I", len(message)) + message + FOOTER.pack(len(before), 0, 2, b"LANC")


def message_of(file: bytes) -> bytes:
    """Return the message of a manifest file."""
    position = FOOTER.unpack(file[-FOOTER.size :])[0]
    return file[position + 4 : -FOOTER.size]


def reflagged(path: Path, *, reader: int | None = None, writer: int | None = None) -> None:
    """Set the feature flags of the manifest at a path. A later field wins."""
    file = path.read_bytes()
    flags = [field(number, value) for number, value in ((9, reader), (10, writer)) if value is not None]
    position = FOOTER.unpack(file[-FOOTER.size :])[0]
    path.write_bytes(manifest_file(message_of(file) + b"".join(flags), file[:position]))


def drop_transaction(path: Path) -> None:
    """Let the manifest at a path know of no transaction. Other sections keep their places."""
    file = path.read_bytes()
    position = FOOTER.unpack(file[-FOOTER.size :])[0]
    kept = (encoded for number, _, encoded in fields_of(message_of(file)) if number not in _TRANSACTION)
    path.write_bytes(manifest_file(b"".join(kept), file[:position]))


def change_fragments(path: Path, change: Callable[[int, bytes, bytes], bytes]) -> None:
    """Replace each field of the fragments in the manifest at a path by what `change` makes of `fields_of`."""
    file = path.read_bytes()
    position = FOOTER.unpack(file[-FOOTER.size :])[0]
    changed = (
        field(number, b"".join(change(*inner) for inner in fields_of(content))) if number == _FRAGMENT else encoded
        for number, content, encoded in fields_of(message_of(file))
    )
    path.write_bytes(manifest_file(b"".join(changed), file[:position]))


def fields_of(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield each field: its number, its content without the length (nothing for numbers), and all its bytes."""
    at = 0
    while at < len(message):
        start = at
        key, at = _read_varint(message, at)
        number, at = (0, at + 8) if key & 7 == 1 else (0, at + 4) if key & 7 == 5 else _read_varint(message, at)
        length = number if key & 7 == 2 else 0
        at += length
        yield key >> 3, message[at - length : at], message[start:at]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and the place after it."""
    number = shift = 0
    while data[at] > 127:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1

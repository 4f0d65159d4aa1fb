"""Deletion vectors: from a reference to the physical row positions it marks (Delta's PROTOCOL.md, "Deletion Vectors").

Three checked steps: find the bytes (a slice of a file, or Z85 text in the log), unframe them (size, CRC-32), decode the
bitmap (magic number, portable 64-bit Roaring, cardinality). A vector that fails a check stops the version with
`DataCorrupt`. A missing file stops it with `FileVacuumed`.

Two facts are not in the specification. Some Rust writers pad the last block of inline text with '#', which no legal Z85
block begins with. The first Delta writers used another magic number and layout.
"""

import base64
import struct
import zlib
from collections.abc import Callable
from typing import Final

from pyroaring import BitMap64

from tailer.errors import DataCorrupt
from tailer.plan import ChangeTask, DeletionVectorRef

__all__ = ["VERSION", "encode", "inline", "load", "z85_decode"]

# (uri, offset, length) -> bytes; fewer bytes than requested mean that the file ends there.
ReadSlice = Callable[[str, int, int], bytes]

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
# Python's base 85 has the same digits in other letters.
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85: Final = bytes.maketrans(_B85, _ALPHABET.encode())
_DIGITS: Final = {character: digit for digit, character in enumerate(_ALPHABET)}
_PORTABLE_MAGIC: Final = 1681511377
_NATIVE_MAGIC: Final = 1681511376
VERSION: Final = 1
_NEAR_BYTES: Final = 2**16  # to a vector that begins before, one request reads all of the file


def load(ref: DeletionVectorRef, task: ChangeTask, read: ReadSlice) -> BitMap64:
    """Read the positions that `ref` marks. Raises `DataCorrupt`; errors of `read` pass through."""
    name = ref.uri if ref.uri is not None else "inline deletion vector"
    try:
        data = _framed(ref, ref.uri, read) if ref.uri is not None else z85_decode(ref.inline or "", ref.size_bytes)
        return _decode(data, ref.cardinality)
    except (ValueError, IndexError, struct.error) as error:
        raise DataCorrupt(task.table, task.version, name, f"deletion vector of {task.uri}: {error}") from error


def encode(bitmap: BitMap64) -> bytes:
    """Encode a bitmap for a deletion vector file, after the version byte: size, data, CRC-32.

    The first four and the last four bytes are not part of `DeletionVectorRef.size_bytes`.
    """
    data = struct.pack("<i", _PORTABLE_MAGIC) + bitmap.serialize()
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def inline(bitmap: BitMap64) -> DeletionVectorRef:
    """Return a reference that contains the positions themselves."""
    data = encode(bitmap)[4:-4]
    text = base64.b85encode(data + bytes(-len(data) % 4)).translate(_TO_Z85).decode("ascii")
    return DeletionVectorRef(None, text, None, len(data), len(bitmap))


def z85_decode(text: str, size: int) -> bytes:
    """Decode the first `size` bytes of a Z85 text. The last block may be padded with zeros or with leading '#'.

    Raises `ValueError` for characters outside the alphabet, blocks that overflow, and texts of the wrong length.
    """
    if len(text) % 5 or len(text) // 5 * 4 < size:
        raise ValueError(f"{len(text)} characters of Z85 cannot hold {size} bytes")
    decoded = bytearray()
    for start in range(0, len(text), 5):
        decoded += _z85_block(text[start : start + 5], last=start + 5 == len(text))
    if len(decoded) < size or len(decoded) - size >= 4:
        raise ValueError(f"Z85 text holds {len(decoded)} bytes, the log says {size}")
    return bytes(decoded[:size])


def _z85_block(block: str, last: bool) -> bytes:
    padding = len(block) - len(block.lstrip("#")) if last else 0
    try:
        value = 0
        for character in block[padding:]:
            value = value * 85 + _DIGITS[character]
    except KeyError:
        raise ValueError(f"{block!r} is not Z85") from None
    size = 4 - padding
    if size <= 0 or value >= 1 << (8 * size):
        raise ValueError(f"Z85 block {block!r} overflows")
    return value.to_bytes(size, "big")


def _framed(ref: DeletionVectorRef, uri: str, read: ReadSlice) -> bytes:
    """Read a bitmap's bytes from a deletion vector file: version byte at 0; size, data and CRC-32 at the offset."""
    offset, length = 1 if ref.offset is None else ref.offset, ref.size_bytes + 8
    near = 0 <= offset <= _NEAR_BYTES
    head = read(uri, 0, offset + length if near else 1)
    if head[:1] != bytes([VERSION]):
        raise ValueError(f"deletion vector file version {head[:1].hex() or 'missing'}, expected 01")
    framed = head[offset:] if near else read(uri, offset, length)
    if len(framed) != ref.size_bytes + 8:
        raise ValueError(f"the file ends before the vector at offset {offset} does")
    (size,) = struct.unpack_from(">i", framed)
    if size != ref.size_bytes:
        raise ValueError(f"the file says {size} bytes, the log {ref.size_bytes}")
    data = framed[4:-4]
    (checksum,) = struct.unpack_from(">I", framed, len(framed) - 4)
    if zlib.crc32(data) != checksum:
        raise ValueError("CRC-32 does not match")
    return data


def _decode(data: bytes, cardinality: int) -> BitMap64:
    (magic,) = struct.unpack_from("<i", data)
    if magic not in (_PORTABLE_MAGIC, _NATIVE_MAGIC):
        raise ValueError(f"magic number {magic} is not a deletion vector's")
    portable = data[4:] if magic == _PORTABLE_MAGIC else _native_to_portable(data[4:])
    bitmap = BitMap64.deserialize(portable)
    if len(bitmap) != cardinality:
        raise ValueError(f"holds {len(bitmap)} positions, the log says {cardinality}")
    return bitmap


def _native_to_portable(data: bytes) -> bytes:
    """Convert the old layout, little-endian: a count, then each bitmap's size and bytes. The key is the ordinal."""
    (count,) = struct.unpack_from("<i", data)
    if not 0 <= count <= len(data) // 4:
        raise ValueError(f"{count} bitmaps in {len(data)} bytes")
    portable = bytearray(struct.pack("<Q", count))
    offset = 4
    for key in range(count):
        (size,) = struct.unpack_from("<i", data, offset)
        if size < 0 or offset + 4 + size > len(data):
            raise ValueError("a bitmap ends after its deletion vector")
        portable += struct.pack("<I", key) + data[offset + 4 : offset + 4 + size]
        offset += 4 + size
    return bytes(portable)

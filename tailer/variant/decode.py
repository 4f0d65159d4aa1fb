"""Decode a value with everything inside it (Variant Encoding, "Value encoding").

Sizes are compared with what is left of the buffer before anything is allocated. Children may not take more bytes than
the values of their container, whatever their offsets say: a few hundred bytes whose children share one place could
otherwise stand for billions of values. With that, time and memory are linear in the size of the value.

The fields of an object come out in the order of their names' UTF-8 bytes. Writers use other orders, too (Java's), and
the order of a JSON text should not depend on the writer.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from tailer.variant.metadata import InvalidVariant, Metadata, unsigned
from tailer.variant.scalars import Primitive

__all__ = [
    "ARRAY",
    "MAX_DEPTH",
    "OBJECT",
    "SHORT_TEXT",
    "SIZES",
    "decode",
    "decode_at",
    "fields",
    "items",
    "ordered",
    "size_at",
]

MAX_DEPTH: Final = 128

# The bytes of each primitive type after its header; those of binary and string say their size.
SIZES: Final = (0, 0, 0, 1, 2, 4, 8, 8, 5, 9, 17, 4, 8, 8, 4, 4, 4, 8, 8, 8, 16)

# Basic types, the two lowest bits of a header.
SHORT_TEXT: Final = 1
OBJECT: Final = 2
ARRAY: Final = 3


def decode(metadata: Metadata, value: bytes, decoders: Sequence[Primitive]) -> Any:
    """Decode all of `value` with the primitives of a form. Raises `InvalidVariant`, also for bytes after the value."""
    decoded, end = decode_at(metadata, value, 0, len(value), decoders)
    if end != len(value):
        raise InvalidVariant(f"{len(value) - end} bytes follow the value")
    return decoded


def decode_at(
    metadata: Metadata, data: bytes, start: int, limit: int, decoders: Sequence[Primitive]
) -> tuple[Any, int]:
    """Decode the value at `start`, which ends at `limit` or before; return it and its end. Raises `InvalidVariant`."""
    try:
        return _value(data, start, limit, metadata.names, decoders, 1)
    except struct.error:
        raise InvalidVariant("the value ends early") from None
    except UnicodeDecodeError:
        raise InvalidVariant("a text is not UTF-8") from None


def _value(
    data: bytes, start: int, limit: int, names: Sequence[str], decoders: Sequence[Primitive], depth: int
) -> tuple[Any, int]:
    if start >= limit:
        raise InvalidVariant("the value ends early")
    if depth > MAX_DEPTH:
        raise InvalidVariant(f"values are nested deeper than {MAX_DEPTH} levels")
    header = data[start]
    kind = header & 3
    decoded: Any
    if kind == SHORT_TEXT:
        end = start + 1 + (header >> 2)
        decoded = str(data[start + 1 : end], "utf-8")
    elif kind == OBJECT:
        ids, offsets, first, end = fields(data, start, limit, len(names))
        keys = [names[number] for number in ids]
        children = _children(data, offsets, first, end, names, decoders, depth + 1)
        decoded = ordered(keys, children)
    elif kind == ARRAY:
        offsets, first, end = items(data, start, limit)
        decoded = _children(data, offsets, first, end, names, decoders, depth + 1)
    else:
        decoded, end = decoders[header >> 2](data, start + 1)
    if end > limit:
        raise InvalidVariant("a value is longer than what holds it")
    return decoded, end


def ordered(keys: list[str], values: list[Any]) -> dict[str, Any]:
    """Make an object, in the order of its keys. Raises `InvalidVariant` for a key that comes twice."""
    members = dict(zip(keys, values, strict=True))
    if len(members) != len(keys):
        raise InvalidVariant("an object has two fields of one name")
    in_order = sorted(keys)
    return members if in_order == keys else {key: members[key] for key in in_order}


def fields(data: bytes, start: int, limit: int, names: int) -> tuple[Sequence[int], Sequence[int], int, int]:
    """Read the head of an object: the ids of its names, offsets of its values, their first byte, and its end.

    `names`: how many the metadata has. Raises `InvalidVariant`.
    """
    header = data[start]
    id_size = (header >> 4 & 3) + 1
    count, ids_at = _count(data, start, limit, 4 if header & 0x40 else 1)
    offsets_at = ids_at + count * id_size
    offsets, first, end = _offsets(data, offsets_at, count, (header >> 2 & 3) + 1, limit)
    ids = unsigned(data, ids_at, count, id_size)
    if count and max(ids) >= names:
        raise InvalidVariant(f"a field has the name number {max(ids)} of {names}")
    return ids, offsets, first, end


def items(data: bytes, start: int, limit: int) -> tuple[Sequence[int], int, int]:
    """Read the head of an array: the offsets of its values, their first byte, and its end. Raises `InvalidVariant`."""
    header = data[start]
    count, offsets_at = _count(data, start, limit, 4 if header & 0x10 else 1)
    return _offsets(data, offsets_at, count, (header >> 2 & 3) + 1, limit)


def size_at(data: bytes, start: int, limit: int, names: int) -> int:
    """Return the size of the value at `start`, without looking into what it holds. Raises `InvalidVariant`."""
    if start >= limit:
        raise InvalidVariant("the value ends early")
    header = data[start]
    match header & 3:
        case 0:
            number = header >> 2
            if number >= len(SIZES):
                raise InvalidVariant(f"a value has the unknown type {number}")
            size = 1 + SIZES[number]
            if number in (15, 16):
                size = 5 + int.from_bytes(data[start + 1 : start + 5], "little")
        case 1:
            size = 1 + (header >> 2)
        case 2:
            size = fields(data, start, limit, names)[-1] - start
        case _:
            size = items(data, start, limit)[-1] - start
    if start + size > limit:
        raise InvalidVariant("a value is longer than what holds it")
    return size


def _count(data: bytes, start: int, limit: int, size: int) -> tuple[int, int]:
    """Read the number of values of a container; return it and what follows it."""
    end = start + 1 + size
    if end > limit:
        raise InvalidVariant("an object or array ends early")
    return int.from_bytes(data[start + 1 : end], "little"), end


def _offsets(data: bytes, start: int, count: int, size: int, limit: int) -> tuple[Sequence[int], int, int]:
    """Read the offsets of `count` values; return them, the place of the values and their end."""
    first = start + (count + 1) * size
    if first > limit:
        raise InvalidVariant(f"an object or array of {count} values does not fit into what holds it")
    offsets = unsigned(data, start, count + 1, size)
    end = first + offsets[count]
    if end > limit:
        raise InvalidVariant("an object or array is longer than what holds it")
    return offsets, first, end


def _children(
    data: bytes,
    offsets: Sequence[int],
    first: int,
    end: int,
    names: Sequence[str],
    decoders: Sequence[Primitive],
    depth: int,
) -> list[Any]:
    """Decode the values at all offsets but the last, which is their end."""
    left = end - first
    values = []
    for number in range(len(offsets) - 1):
        start = first + offsets[number]
        value, next_at = _value(data, start, end, names, decoders, depth)
        left -= next_at - start
        if left < 0:
            raise InvalidVariant("values of an object or array share their bytes")
        values.append(value)
    return values

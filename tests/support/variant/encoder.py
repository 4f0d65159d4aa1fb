"""Encode Variants, for tests alone: every type, every width of counts, ids and offsets, values in any order."""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

__all__ = ["Encoded", "Layout", "Scalar", "array", "encode", "metadata", "names_in", "object_of"]

STRUCTS: Final = {3: "<b", 4: "<h", 5: "<i", 6: "<q", 7: "<d", 11: "<i", 12: "<q", 13: "<q", 14: "<f", 17: "<q"} | {
    18: "<q",
    19: "<q",
}


@dataclass(frozen=True)
class Scalar:
    """A primitive value of type `number`, and its JSON text. A `short` string has its size in the header."""

    number: int
    value: Any
    json: str
    short: bool = False


@dataclass(frozen=True)
class Encoded:
    """A value that is encoded already."""

    data: bytes


@dataclass(frozen=True)
class Layout:
    """Choices of a writer: widths in bytes, at least what the numbers need, and the order of the values."""

    ids: int = 1
    offsets: int = 1
    large: bool = False
    backwards: bool = False


def metadata(names: Sequence[str], size: int = 1, sorted_flag: bool = False) -> bytes:
    """Encode the names."""
    texts = [name.encode() for name in names]
    size = max(size, _width(len(texts)), _width(sum(map(len, texts))))
    header = 1 | sorted_flag << 4 | (size - 1) << 6
    places = [0]
    for text in texts:
        places.append(places[-1] + len(text))
    numbers = b"".join(number.to_bytes(size, "little") for number in (len(texts), *places))
    return bytes([header]) + numbers + b"".join(texts)


def names_in(value: Any) -> set[str]:
    """Return the names of all fields of a value."""
    if isinstance(value, Mapping):
        return set(value) | {name for child in value.values() for name in names_in(child)}
    return {name for child in value for name in names_in(child)} if isinstance(value, list) else set()


def encode(value: Any, names: Sequence[str], layouts: Iterator[Layout]) -> bytes:
    """Encode a `Scalar`, `Encoded`, or a dict or list of them."""
    if isinstance(value, Encoded):
        return value.data
    if isinstance(value, Mapping):
        fields = sorted(value.items(), key=lambda item: item[0].encode())
        layout = next(layouts)
        children = [encode(child, names, layouts) for _, child in fields]
        return object_of([names.index(name) for name, _ in fields], children, layout)
    if isinstance(value, list):
        layout = next(layouts)
        return array([encode(child, names, layouts) for child in value], layout)
    assert isinstance(value, Scalar)
    return _scalar(value)


def object_of(ids: Sequence[int], children: Sequence[bytes], layout: Layout = Layout()) -> bytes:
    """Encode an object."""
    places, body = _placed(children, layout.backwards)
    id_size = max([layout.ids, *map(_width, ids)])
    offset_size = max(layout.offsets, _width(len(body)))
    large = layout.large or len(ids) > 255
    header = 2 | (offset_size - 1) << 2 | (id_size - 1) << 4 | large << 6
    return bytes([header]) + _count(ids, large) + _numbers(ids, id_size) + _numbers(places, offset_size) + body


def array(children: Sequence[bytes], layout: Layout = Layout()) -> bytes:
    """Encode an array."""
    places, body = _placed(children, layout.backwards)
    offset_size = max(layout.offsets, _width(len(body)))
    large = layout.large or len(children) > 255
    header = 3 | (offset_size - 1) << 2 | large << 4
    return bytes([header]) + _count(children, large) + _numbers(places, offset_size) + body


def _placed(children: Sequence[bytes], backwards: bool) -> tuple[list[int], bytes]:
    """Return the offsets of the children and the total, and the bytes."""
    places, body = [0] * len(children), b""
    order = range(len(children))
    for index in reversed(order) if backwards else order:
        places[index] = len(body)
        body += children[index]
    return [*places, len(body)], body


def _scalar(value: Scalar) -> bytes:
    header = bytes([value.number << 2])
    if value.number <= 2:
        return header
    if value.number in STRUCTS:
        return header + struct.pack(STRUCTS[value.number], value.value)
    if value.number in (8, 9, 10):
        sign, digits, exponent = Decimal(value.value).as_tuple()
        assert isinstance(exponent, int)
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        size = {8: 4, 9: 8, 10: 16}[value.number]
        return header + bytes([-exponent]) + unscaled.to_bytes(size, "little", signed=True)
    if value.number == 20:
        return header + bytes(value.value)
    data = value.value.encode() if isinstance(value.value, str) else value.value
    if value.short:
        return bytes([1 | len(data) << 2]) + bytes(data)
    return header + struct.pack("<I", len(data)) + bytes(data)


def _width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _count(found: Sequence[Any], large: bool) -> bytes:
    return len(found).to_bytes(4 if large else 1, "little")


def _numbers(found: Iterable[int], size: int) -> bytes:
    return b"".join(number.to_bytes(size, "little") for number in found)

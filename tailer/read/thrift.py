"""Just enough of Thrift's compact protocol to find fields in Parquet's footers and page headers, and to write some.

Functions raise `IndexError` or `ValueError` for bytes that are no such structure.
"""

from collections.abc import Iterator

__all__ = ["behind", "fields", "list_size", "number", "zigzag"]

_STOP, _STRUCT = 0, 12


def number(data: bytes, at: int) -> tuple[int, int]:
    """The variable-length number at a place, not zigzag-decoded, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def zigzag(value: int) -> bytes:
    """The bytes of a number that is not negative, as fields of all widths have it."""
    value, encoded = value << 1, bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def list_size(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of elements of the list whose header is at a place, and where they begin."""
    size = data[at] >> 4
    return (size, at + 1) if size < 15 else number(data, at + 1)


def fields(data: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """The fields of the struct at a place: number, type, place of the value. The value is skipped, not read."""
    field = 0
    while data[at] != _STOP:
        header = data[at]
        if header >> 4:
            field, at = field + (header >> 4), at + 1
        else:
            encoded, at = number(data, at + 1)
            field = encoded >> 1
        yield field, header & 15, at
        at = behind(data, at, header & 15)


def behind(data: bytes, at: int, kind: int) -> int:
    """The place behind a value of a type."""
    if kind in (1, 2):  # true and false are in the header
        return at
    if kind in (4, 5, 6):
        return number(data, at)[1]
    if kind in (3, 7):
        return at + (1 if kind == 3 else 8)
    if kind == 8:
        size, at = number(data, at)
        return at + size
    if kind in (9, 10):
        element = data[at] & 15
        size, at = list_size(data, at)
        for _ in range(size):
            at = at + 1 if element in (1, 2) else behind(data, at, element)
        return at
    if kind == _STRUCT:
        while data[at] != _STOP:
            header = data[at]
            at = behind(data, at + 1 if header >> 4 else number(data, at + 1)[1], header & 15)
        return at + 1
    raise ValueError(kind)

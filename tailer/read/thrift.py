"""Just enough of Thrift's compact protocol to find fields in Parquet's footers and page headers, and to write some.

Functions raise `IndexError` or `ValueError` for bytes that are no such structure. A footer has dozens of fields for
each column, so those that skip values call as little as possible.
"""

from collections.abc import Iterator

__all__ = ["behind", "fields", "list_size", "number", "places", "signed", "zigzag"]

_STOP, _I16, _I64, _BINARY, _STRUCT = 0, 4, 6, 8, 12


def number(data: bytes, at: int) -> tuple[int, int]:
    """Return the variable-length number at a place, not zigzag-decoded, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def signed(data: bytes, at: int) -> int:
    """Return the number at a place, zigzag-decoded."""
    value = number(data, at)[0]
    return value >> 1 ^ -(value & 1)


def zigzag(value: int) -> bytes:
    """Encode a number that is not negative, for a field of any width."""
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
    """Yield number, type and place of the value for each field of the struct at a place."""
    field = 0
    while (header := data[at]) != _STOP:
        if header >> 4:
            field, at = field + (header >> 4), at + 1
        else:
            encoded, at = number(data, at + 1)
            field = encoded >> 1
        yield field, header & 15, at
        at = behind(data, at, header & 15)


def places(data: bytes, at: int, inner: int = 0) -> tuple[dict[int, int], int]:
    """Return the places of the values of the struct at a place, by field number, and the place behind the struct.

    If field `inner` is a struct, the places of its values are returned instead.
    """
    found: dict[int, int] = {}
    result, field = found, 0
    while (header := data[at]) != _STOP:
        at += 1
        field += header >> 4
        if header < 16:
            encoded, at = number(data, at)
            field = encoded >> 1
        kind = header & 15
        if field == inner and kind == _STRUCT:
            result, at = places(data, at)
            continue
        found[field] = at
        if _I16 <= kind <= _I64:
            while data[at] > 127:
                at += 1
            at += 1
        else:
            at = behind(data, at, kind)
    return result, at + 1


def behind(data: bytes, at: int, kind: int) -> int:
    """Return the place behind a value of a type."""
    if kind == _STRUCT:
        return _behind_struct(data, at)
    if kind in (9, 10):
        return _behind_list(data, at)
    if kind == _BINARY:
        size, at = number(data, at)
        return at + size
    if _I16 <= kind <= _I64:
        return number(data, at)[1]
    if kind in (1, 2):  # true and false are in the header
        return at
    if kind in (3, 7):
        return at + (1 if kind == 3 else 8)
    raise ValueError(kind)


def _behind_struct(data: bytes, at: int) -> int:
    while (header := data[at]) != _STOP:
        at += 1
        if header < 16:  # the number of the field follows
            at = number(data, at)[1]
        kind = header & 15
        if _I16 <= kind <= _I64:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind == _BINARY and data[at] < 128:
            at += 1 + data[at]
        else:
            at = behind(data, at, kind)
    return at + 1


def _behind_list(data: bytes, at: int) -> int:
    kind = data[at] & 15
    size, at = list_size(data, at)
    for _ in range(size):
        if _I16 <= kind <= _I64:
            while data[at] > 127:
                at += 1
            at += 1
        else:
            at = at + 1 if kind in (1, 2) else behind(data, at, kind)
    return at

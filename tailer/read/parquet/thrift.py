"""Just enough of Thrift's compact protocol to find fields in Parquet's footers and page headers, and to write some.

Functions raise `IndexError`, `ValueError` or `RecursionError` for bytes that are no such structure. A footer has dozens
of fields for each column, so the functions that skip values call as little as possible.
"""

from typing import Final

__all__ = [
    "BINARY",
    "I32",
    "I64",
    "LIST",
    "STRUCT",
    "binary",
    "list_offset",
    "list_size",
    "number",
    "offsets",
    "signed",
    "skip",
    "zigzag",
]

_STOP, _FALSE, _I16, I32, I64, BINARY, LIST, STRUCT = 0, 2, 4, 5, 6, 8, 9, 12
_WIDTHS: Final = {1: 1, 2: 1, 3: 1, 7: 8}  # bytes of an element of a list, where all have as many


def number(data: bytes, at: int) -> tuple[int, int]:
    """Return the variable-length number at offset `at`, not zigzag-decoded, and the offset after it."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128 and value < 2**64:
            return value, at
    raise ValueError(value)


def signed(data: bytes, at: int) -> int:
    """Return the number at offset `at`, zigzag-decoded."""
    value = number(data, at)[0]
    return value >> 1 ^ -(value & 1)


def binary(data: bytes, at: int) -> bytes:
    """Return the bytes whose length is at offset `at`."""
    size, at = number(data, at)
    if at + size > len(data):
        raise IndexError(at)
    return data[at : at + size]


def zigzag(value: int) -> bytes:
    """Encode a number that is not negative, for a field of any width."""
    value, encoded = value << 1, bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def list_size(data: bytes, at: int, kind: int | None = None) -> tuple[int, int]:
    """Return the number of elements of the list whose header is at offset `at`, and the offset of the first one.

    Raises `ValueError` if the elements are of another type than `kind`: Arrow would not look at their type.
    """
    header = data[at]
    if kind is not None and header >> 4 and header & 15 != kind:
        raise ValueError(header)
    return (header >> 4, at + 1) if header < 240 else number(data, at + 1)


def list_offset(data: bytes, at: int, wanted: int) -> int:
    """Return the offset of the list that is field number `wanted` of the struct at offset `at`.

    Raises `LookupError` if the struct has no such list.
    """
    field = 0
    while (header := data[at]) != _STOP:
        if header >> 4:
            field, at = field + (header >> 4), at + 1
        else:
            field, at = _field_number(data, at + 1)
        if (field, header & 15) == (wanted, LIST):
            return at
        at = skip(data, at, header & 15)
    raise LookupError(wanted)


def offsets(data: bytes, at: int, inner: int = -1) -> tuple[dict[int, int], int]:
    """Return the offsets of the values of the struct at offset `at`, and the offset after the struct.

    The key of a value is sixteen times the number of its field, plus its type. If field `inner` is a struct, return the
    offsets of its values instead.
    """
    found: dict[int, int] = {}
    result, field = found, 0
    while (header := data[at]) != _STOP:
        at += 1
        field += header >> 4
        if header < 16:
            field, at = _field_number(data, at)
        kind = header & 15
        if field == inner and kind == STRUCT:
            if result is not found:
                raise ValueError(field)
            result, at = offsets(data, at)
            continue
        key = field << 4 | kind
        if key in found:
            raise ValueError(field)
        found[key] = at
        if _I16 <= kind <= I64:
            while data[at] > 127:
                at += 1
            at += 1
        else:
            at = skip(data, at, kind)
    return result, at + 1


def _field_number(data: bytes, at: int) -> tuple[int, int]:
    encoded, at = number(data, at)
    if encoded & 1 or encoded > 65535:
        raise ValueError(encoded)
    return encoded >> 1, at


def skip(data: bytes, at: int, kind: int) -> int:
    """Return the offset after a value of type `kind`."""
    if kind == STRUCT:
        return _skip_struct(data, at)
    if kind in (LIST, 10):
        return _skip_list(data, at)
    if kind == BINARY:
        size, at = number(data, at)
        return at + size
    if _I16 <= kind <= I64:
        return number(data, at)[1]
    if kind in (1, 2):  # true and false are in the header
        return at
    if kind in (3, 7):
        return at + (1 if kind == 3 else 8)
    raise ValueError(kind)


def _skip_struct(data: bytes, at: int) -> int:
    while (header := data[at]) != _STOP:
        at += 1
        if header < 16:  # the number of the field follows
            at = number(data, at)[1]
        kind = header & 15
        if _I16 <= kind <= I64:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind == BINARY and data[at] < 128:
            at += 1 + data[at]
        else:
            at = skip(data, at, kind)
    return at + 1


def _skip_list(data: bytes, at: int) -> int:
    kind = data[at] & 15
    size, at = list_size(data, at)
    if kind in _WIDTHS:
        at += size * _WIDTHS[kind]
        if at > len(data):
            raise IndexError(at)
        return at
    for _ in range(size):
        if _I16 <= kind <= I64:
            while data[at] > 127:
                at += 1
            at += 1
        else:
            at = skip(data, at, kind)
    return at

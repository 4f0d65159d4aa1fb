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


def number(data: bytes, offset: int) -> tuple[int, int]:
    """Return the variable-length number at `offset`, not zigzag-decoded, and the offset after it."""
    value = shift = 0
    while shift < 70:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128 and value < 2**64:
            return value, offset
    raise ValueError(value)


def signed(data: bytes, offset: int) -> int:
    """Return the number at `offset`, zigzag-decoded."""
    value = number(data, offset)[0]
    return value >> 1 ^ -(value & 1)


def binary(data: bytes, offset: int) -> bytes:
    """Return the bytes whose length is at `offset`."""
    size, offset = number(data, offset)
    if offset + size > len(data):
        raise IndexError(offset)
    return data[offset : offset + size]


def zigzag(value: int) -> bytes:
    """Encode a number that is not negative, for a field of any width."""
    value, encoded = value << 1, bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def list_size(data: bytes, offset: int, kind: int | None = None) -> tuple[int, int]:
    """Return the number of elements of the list whose header is at `offset`, and the offset of the first one.

    Raises `ValueError` if the elements are of another type than `kind`: Arrow would not look at their type.
    """
    header = data[offset]
    if kind is not None and header >> 4 and header & 15 != kind:
        raise ValueError(header)
    return (header >> 4, offset + 1) if header < 240 else number(data, offset + 1)


def list_offset(data: bytes, offset: int, wanted: int) -> int:
    """Return the offset of the list that is field number `wanted` of the struct at `offset`.

    Raises `LookupError` if the struct has no such list.
    """
    field = 0
    while (header := data[offset]) != _STOP:
        if header >> 4:
            field, offset = field + (header >> 4), offset + 1
        else:
            field, offset = _field_number(data, offset + 1)
        if (field, header & 15) == (wanted, LIST):
            return offset
        offset = skip(data, offset, header & 15)
    raise LookupError(wanted)


def offsets(data: bytes, offset: int, inner: int = -1) -> tuple[dict[int, int], int]:
    """Return the offsets of the values of the struct at `offset`, and the offset after the struct.

    The key of a value is sixteen times the number of its field, plus its type. If field `inner` is a struct, return the
    offsets of its values instead.
    """
    fields: dict[int, int] = {}
    result, field = fields, 0
    while (header := data[offset]) != _STOP:
        offset += 1
        field += header >> 4
        if header < 16:
            field, offset = _field_number(data, offset)
        kind = header & 15
        if field == inner and kind == STRUCT:
            if result is not fields:
                raise ValueError(field)
            result, offset = offsets(data, offset)
            continue
        key = field << 4 | kind
        if key in fields:
            raise ValueError(field)
        fields[key] = offset
        if _I16 <= kind <= I64:
            while data[offset] > 127:
                offset += 1
            offset += 1
        else:
            offset = skip(data, offset, kind)
    return result, offset + 1


def _field_number(data: bytes, offset: int) -> tuple[int, int]:
    encoded, offset = number(data, offset)
    if encoded & 1 or encoded > 65535:
        raise ValueError(encoded)
    return encoded >> 1, offset


def skip(data: bytes, offset: int, kind: int) -> int:
    """Return the offset after a value of type `kind`."""
    if kind == STRUCT:
        return _skip_struct(data, offset)
    if kind in (LIST, 10):
        return _skip_list(data, offset)
    if kind == BINARY:
        size, offset = number(data, offset)
        return offset + size
    if _I16 <= kind <= I64:
        return number(data, offset)[1]
    if kind in (1, 2):  # true and false are in the header
        return offset
    if kind in (3, 7):
        return offset + (1 if kind == 3 else 8)
    raise ValueError(kind)


def _skip_struct(data: bytes, offset: int) -> int:
    while (header := data[offset]) != _STOP:
        offset += 1
        if header < 16:  # the number of the field follows
            offset = number(data, offset)[1]
        kind = header & 15
        if _I16 <= kind <= I64:
            while data[offset] > 127:
                offset += 1
            offset += 1
        elif kind == BINARY and data[offset] < 128:
            offset += 1 + data[offset]
        else:
            offset = skip(data, offset, kind)
    return offset + 1


def _skip_list(data: bytes, offset: int) -> int:
    kind = data[offset] & 15
    size, offset = list_size(data, offset)
    if kind in _WIDTHS:
        offset += size * _WIDTHS[kind]
        if offset > len(data):
            raise IndexError(offset)
        return offset
    for _ in range(size):
        if _I16 <= kind <= I64:
            while data[offset] > 127:
                offset += 1
            offset += 1
        else:
            offset = skip(data, offset, kind)
    return offset

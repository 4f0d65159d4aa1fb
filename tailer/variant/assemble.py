"""The forms into which columns of Variants are read: decoded values, or one binary value per row."""

import struct
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, Final

from tailer.variant.decode import OBJECT, decode, fields, ordered, size_at
from tailer.variant.errors import InvalidVariant
from tailer.variant.metadata import Metadata
from tailer.variant.scalars import Form, check_time, primitives

__all__ = ["BinaryAssembler", "DecodedAssembler"]


class DecodedAssembler:
    """An `Assembler` of decoded values in a `Form`."""

    null: Final = None

    def __init__(self, form: Form) -> None:
        self._form = form
        self._known = primitives(form)

    def primitive(self, number: int) -> Callable[[Any], Any]:
        """See `Assembler.primitive`."""
        form = self._form
        forms: dict[int, Callable[[Any], Any]] = {
            7: form.double,
            8: form.decimal,
            9: form.decimal,
            10: form.decimal,
            11: form.date,
            12: lambda count: form.timestamp(count, 6, True),
            13: lambda count: form.timestamp(count, 6, False),
            14: form.single,
            15: form.binary,
            17: lambda us: form.time(check_time(us)),
            18: lambda count: form.timestamp(count, 9, True),
            19: lambda count: form.timestamp(count, 9, False),
            20: form.uuid,
        }
        return forms.get(number, _unchanged)

    def value(self, metadata: Metadata, data: bytes) -> Any:
        """See `Assembler.value`."""
        return decode(metadata, data, self._known)

    def array(self, items: Sequence[Any]) -> Any:
        """See `Assembler.array`."""
        return list(items)

    def object(self, metadata: Metadata, fields: Mapping[str, Any]) -> Any:
        """See `Assembler.object`."""
        metadata.ids_of(fields)
        return ordered(list(fields), list(fields.values()))

    def merge(self, metadata: Metadata, rest: bytes, fields: Mapping[str, Any], columns: Set[str]) -> Any:
        """See `Assembler.merge`."""
        found = decode(metadata, rest, self._known)
        if not isinstance(found, dict):
            raise _not_an_object()
        _check_apart(found.keys(), columns)
        metadata.ids_of(fields)
        return ordered([*found, *fields], [*found.values(), *fields.values()])


class BinaryAssembler:
    """An `Assembler` of encoded values, which refer to the metadata of their row.

    Values that are encoded already are taken over without being decoded.
    """

    null: Final = b"\x00"

    def primitive(self, number: int) -> Callable[[Any], Any]:
        """See `Assembler.primitive`."""
        return _ENCODERS[number]

    def value(self, metadata: Metadata, data: bytes) -> Any:
        """See `Assembler.value`."""
        if size_at(data, 0, len(data), len(metadata.names)) != len(data):
            raise InvalidVariant("bytes follow the value")
        return data

    def array(self, items: Sequence[Any]) -> Any:
        """See `Assembler.array`."""
        return _container(3, 4, items)

    def object(self, metadata: Metadata, fields: Mapping[str, Any]) -> Any:
        """See `Assembler.object`."""
        names = sorted(fields)
        ids = metadata.ids_of(names)
        id_size = _width(max(ids, default=0))
        packed = b"".join(number.to_bytes(id_size, "little") for number in ids)
        return _container(2 | (id_size - 1) << 4, 6, [fields[name] for name in names], packed)

    def merge(self, metadata: Metadata, rest: bytes, fields: Mapping[str, Any], columns: Set[str]) -> Any:
        """See `Assembler.merge`."""
        self.value(metadata, rest)
        found = _raw_fields(metadata, rest)
        _check_apart(found.keys(), columns)
        return self.object(metadata, {**found, **fields})


def _raw_fields(metadata: Metadata, data: bytes) -> dict[str, bytes]:
    """Split an object into its encoded values."""
    if data[0] & 3 != OBJECT:
        raise _not_an_object()
    count = len(metadata.names)
    ids, offsets, first, end = fields(data, 0, len(data), count)
    found: dict[str, bytes] = {}
    left = end - first
    for number, offset in zip(ids, offsets, strict=False):
        at = first + offset
        size = size_at(data, at, end, count)
        left -= size
        if left < 0:
            raise InvalidVariant("values of an object or array share their bytes")
        found[metadata.names[number]] = data[at : at + size]
    if len(found) != len(ids):
        raise InvalidVariant("an object has two fields of one name")
    return found


def _check_apart(found: Set[str], columns: Set[str]) -> None:
    if both := found & columns:
        raise InvalidVariant(f"the field {min(both)!r} is in `value` and in `typed_value`")


def _not_an_object() -> InvalidVariant:
    return InvalidVariant("`value` and `typed_value` are both set, and are not of one object")


def _container(header: int, large_bit: int, values: Sequence[bytes], ids: bytes = b"") -> bytes:
    """Encode an object or array in the smallest widths. `large_bit`: the bit of the header for counts of four bytes."""
    places, total = [], 0
    for value in values:
        places.append(total)
        total += len(value)
    width = _width(total)
    is_large = len(values) > 255
    head = header | (width - 1) << 2 | is_large << large_bit
    count = len(values).to_bytes(4 if is_large else 1, "little")
    offsets = b"".join(place.to_bytes(width, "little") for place in (*places, total))
    return b"".join((bytes((head,)), count, ids, offsets, *values))


def _width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _unchanged(value: Any) -> Any:
    return value


def _fixed(number: int, layout: str) -> Callable[[Any], bytes]:
    pack, header = struct.Struct(f"<B{layout}").pack, number << 2
    return lambda value: pack(header, value)


def _sized(number: int) -> Callable[[bytes], bytes]:
    return lambda data: struct.pack("<BI", number << 2, len(data)) + data


def _text(value: str) -> bytes:
    data = value.encode()
    return bytes((1 | len(data) << 2,)) + data if len(data) < 64 else _sized(16)(data)


def _decimal(number: int, size: int) -> Callable[[Decimal], bytes]:
    def encode(value: Decimal) -> bytes:
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        unscaled = int("".join(map(str, digits)))
        return bytes((number << 2, -exponent)) + (-unscaled if sign else unscaled).to_bytes(size, "little", signed=True)

    return encode


_ENCODERS: Final[dict[int, Callable[[Any], bytes]]] = {
    1: lambda value: b"\x04" if value else b"\x08",
    3: _fixed(3, "b"),
    4: _fixed(4, "h"),
    5: _fixed(5, "i"),
    6: _fixed(6, "q"),
    7: _fixed(7, "d"),
    8: _decimal(8, 4),
    9: _decimal(9, 8),
    10: _decimal(10, 16),
    11: _fixed(11, "i"),
    12: _fixed(12, "q"),
    13: _fixed(13, "q"),
    14: _fixed(14, "f"),
    15: _sized(15),
    16: _text,
    17: lambda us: struct.pack("<Bq", 17 << 2, check_time(us)),
    18: _fixed(18, "q"),
    19: _fixed(19, "q"),
    20: lambda data: bytes((20 << 2,)) + bytes(data),
}

"""Protocol Buffers' wire format: from the bytes of one message to its values by field number.

Lance's metadata needs about fifteen small messages. Generated classes would add a dependency and a build step to the
core, would accept values that do not fit their type, and would tie the messages that can be read to one release of the
definitions. This reader is a hundred lines, and each message's own module lists the fields that it uses, with their
numbers.

Reading is strict where a wrong answer would be possible: a truncated or overlong value, a wrong wire type, a number
that does not fit, or text that is not UTF-8 raises `InvalidMessage`. Fields that nobody asks for are skipped. Time and
memory are linear in the size of the message; a nested message is only decoded when it is asked for, so that no input
causes recursion.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

__all__ = ["InvalidMessage", "Message", "delimited"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES: Final = 10
_LARGEST: Final = 2**64 - 1

_Value: TypeAlias = int | bytes


class InvalidMessage(ValueError):
    """Bytes that are not a message of Lance's format. The caller names the file."""


class Message:
    """Values of one message by field number (https://protobuf.dev/programming-guides/encoding/).

    Each method asks for one field by its type in the definition. A missing field has the default of proto3, or None
    where the method's name starts with `optional`. If a singular field occurs repeatedly, the last one counts.
    """

    __slots__ = ("_values",)

    def __init__(self, data: bytes) -> None:
        values: dict[int, list[_Value]] = {}
        for field, value in _fields(data):
            values.setdefault(field, []).append(value)
        self._values = values

    def has(self, field: int) -> bool:
        """Return whether the field is there."""
        return field in self._values

    def fields(self) -> list[int]:
        """Return the numbers of the fields that are there."""
        return list(self._values)

    def optional_number(self, field: int, bits: int = 64) -> int | None:
        """Return an unsigned number of up to `bits` bits; None if it is missing."""
        if field not in self._values:
            return None
        return _unsigned(field, self._values[field][-1], bits)

    def number(self, field: int, bits: int = 64) -> int:
        """Return an unsigned number of up to `bits` bits, or a member of an enum."""
        return self.optional_number(field, bits) or 0

    def signed(self, field: int, bits: int = 32) -> int:
        """Return a number of type `int32` or `int64`."""
        return _signed(field, self._values[field][-1], bits) if field in self._values else 0

    def flag(self, field: int) -> bool:
        """Return a number of type `bool`."""
        return self.number(field, 1) == 1

    def all_signed(self, field: int) -> tuple[int, ...]:
        """Return all numbers of a repeated field of type `int32`, packed or not."""
        values = self._values.get(field, ())
        numbers = (number for value in values for number in (_packed(value) if isinstance(value, bytes) else (value,)))
        return tuple(_signed(field, number, 32) for number in numbers)

    def data(self, field: int) -> bytes:
        return _bytes(field, self._values[field][-1]) if field in self._values else b""

    def all_data(self, field: int) -> tuple[bytes, ...]:
        """Return the bytes of all elements of a repeated field."""
        return tuple(_bytes(field, value) for value in self._values.get(field, ()))

    def text(self, field: int) -> str:
        try:
            return self.data(field).decode()
        except UnicodeDecodeError:
            raise InvalidMessage(f"field {field} holds text that is not UTF-8") from None

    def optional_message(self, field: int) -> "Message | None":
        """Return a nested message; None if it is missing. Repeated occurrences are merged, as the format demands."""
        if field not in self._values:
            return None
        return Message(b"".join(self.all_data(field)))

    def messages(self, field: int) -> "Iterator[Message]":
        """Yield the nested messages of a repeated field."""
        return (Message(data) for data in self.all_data(field))

    def data_by_key(self, field: int) -> dict[str, bytes]:
        """Return a map from text to bytes."""
        return {entry.text(1): entry.data(2) for entry in self.messages(field)}

    def text_by_key(self, field: int) -> dict[str, str]:
        return {entry.text(1): entry.text(2) for entry in self.messages(field)}

    def one_of(self, *fields: int) -> int | None:
        """Return the field of a `oneof` that is there. More than one is refused: nothing says which one counts."""
        present = [field for field in fields if field in self._values]
        if len(present) > 1:
            raise InvalidMessage(f"fields {present[0]} and {present[1]} exclude each other")
        return present[0] if present else None


def delimited(field: int, data: bytes) -> bytes:
    """Return bytes, or a nested message, as the field of a message: with the number of the field and their length."""
    encoded, size = bytearray([field << 3 | _BYTES]), len(data)
    while size > 127:
        encoded.append(size & 127 | 128)
        size >>= 7
    encoded.append(size)
    return bytes(encoded) + data


def _fields(data: bytes) -> Iterator[tuple[int, _Value]]:
    """Yield field number and value of each field, in order."""
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        field, wire_type = key >> 3, key & 7
        if not 0 < field < 2**29:
            raise InvalidMessage(f"{field} is not the number of a field")
        if wire_type == _VARINT:
            value, place = _varint(data, place)
            yield field, value
            continue
        if wire_type == _BYTES:
            size, place = _varint(data, place)
        elif wire_type in _WIDTHS:
            size = _WIDTHS[wire_type]
        else:
            raise InvalidMessage(f"field {field} has the wire type {wire_type}, which is not in use")
        if size > end - place:
            raise InvalidMessage(f"field {field} has {size} bytes, {size - end + place} more than there are")
        yield field, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the variable-length number at a place, and the place after it."""
    try:
        value = data[place]
        if value < 128:
            return value, place + 1
        value &= 127
        for shift in range(7, 7 * _VARINT_BYTES, 7):
            place += 1
            byte = data[place]
            value |= (byte & 127) << shift
            if byte < 128:
                break
        else:
            raise InvalidMessage(f"a number has more than {_VARINT_BYTES} bytes")
    except IndexError:
        raise InvalidMessage("the message ends within a number") from None
    if value > _LARGEST:
        raise InvalidMessage("a number has more than 64 bits")
    return value, place + 1


def _packed(data: bytes) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _varint(data, place)
        yield value


def _unsigned(field: int, value: _Value, bits: int) -> int:
    if isinstance(value, bytes):
        raise InvalidMessage(f"field {field} holds bytes, not a number")
    if value >> bits:
        raise InvalidMessage(f"field {field} holds {value}, which does not fit into {bits} bits")
    return value


def _signed(field: int, value: _Value, bits: int) -> int:
    """Return a number that was written as 64 bits, in two's complement."""
    number = _unsigned(field, value, 64)
    if number >> 63:
        number -= 2**64
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise InvalidMessage(f"field {field} holds {number}, which does not fit into {bits} bits")
    return number


def _bytes(field: int, value: _Value) -> bytes:
    if isinstance(value, int):
        raise InvalidMessage(f"field {field} holds a number, not bytes")
    return value

"""One value, decoded as far as it is asked for."""

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import Any, Final

import msgspec

from tailer.variant.decode import ARRAY, OBJECT, SHORT_TEXT, decode, decode_at, fields, items, size_at
from tailer.variant.metadata import InvalidVariant, Metadata
from tailer.variant.scalars import JsonForm, Primitive, PythonForm, primitives

__all__ = ["Variant", "VariantType", "parse_path"]

_PYTHON: Final = primitives(PythonForm())
_JSON: Final = primitives(JsonForm())
_JSON_PLAIN_DECIMALS: Final = primitives(JsonForm(quotes_decimals=False))

_STEP: Final = re.compile(
    r"\.(?P<name>[^.\[\]]+)|\[(?P<index>\d{1,9})\]|\[(?P<quote>['\"])(?P<quoted>.*?)(?P=quote)\]", re.DOTALL
)


class VariantType(StrEnum):
    """The types of values, in the order of their numbers; then objects and arrays."""

    NULL = "null"
    TRUE = "true"
    FALSE = "false"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    DOUBLE = "double"
    DECIMAL4 = "decimal4"
    DECIMAL8 = "decimal8"
    DECIMAL16 = "decimal16"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    FLOAT = "float"
    BINARY = "binary"
    STRING = "string"
    TIME = "time"
    TIMESTAMP_NANOS = "timestamp_nanos"
    TIMESTAMP_NTZ_NANOS = "timestamp_ntz_nanos"
    UUID = "uuid"
    OBJECT = "object"
    ARRAY = "array"


_BASIC: Final = {SHORT_TEXT: VariantType.STRING, OBJECT: VariantType.OBJECT, ARRAY: VariantType.ARRAY}
_PRIMITIVES: Final = tuple(VariantType)[:-2]


class Variant:
    """A value and the metadata with its names.

    Nothing is decoded before it is asked for. Methods raise `InvalidVariant` for what they meet.
    """

    __slots__ = ("_at", "_data", "_limit", "_metadata")

    def __init__(self, metadata: bytes | Metadata, value: bytes) -> None:
        self._metadata = metadata if isinstance(metadata, Metadata) else Metadata.parse(metadata)
        self._data = value
        self._at = 0
        self._limit = len(value)

    @property
    def type(self) -> VariantType:
        """The type of the value; a short string is a string."""
        if self._at >= self._limit:
            raise InvalidVariant("the value ends early")
        header = self._data[self._at]
        if (kind := header & 3) in _BASIC:
            return _BASIC[kind]
        number = header >> 2
        if number >= len(_PRIMITIVES):
            raise InvalidVariant(f"a value has the unknown type {number}")
        return _PRIMITIVES[number]

    @property
    def encoded(self) -> bytes:
        """The bytes of the value, which go with the same metadata. They are checked no further than their size."""
        return self._data[self._at : self._at + size_at(self._data, self._at, self._limit, len(self._metadata.names))]

    def get(self, path: str) -> "Variant | None":
        """Return the value at a path such as `$.a.b[0]` or `$['a b']`; None where there is none.

        Only the containers on the way are read. Raises `ValueError` for a malformed path.
        """
        value: Variant | None = self
        for step in parse_path(path):
            value = value._child(step) if value is not None else None  # noqa: SLF001 - of the same class
        return value

    def to_python(self) -> Any:
        """Decode to Python's values: numbers, Decimal, str, bytes, UUID, date, time, datetime, list, dict and so on.

        What those cannot hold exactly is a `Date` or a `Timestamp`.
        """
        return self.decoded(_PYTHON)

    def to_json(self, *, quote_decimals: bool = True) -> str:
        """Return the value as JSON text.

        Decimals are strings unless `quote_decimals` is False. Bytes are base64; dates, times and timestamps ISO 8601;
        NaN and infinities strings.
        """
        return msgspec.json.encode(self.decoded(_JSON if quote_decimals else _JSON_PLAIN_DECIMALS)).decode()

    def decoded(self, decoders: Sequence[Primitive]) -> Any:
        """Decode with `tailer.variant.scalars.primitives` of any form."""
        if self._at == 0 and self._limit == len(self._data):
            return decode(self._metadata, self._data, decoders)
        return decode_at(self._metadata, self._data, self._at, self._limit, decoders)[0]

    def _child(self, step: str | int) -> "Variant | None":
        if self._at >= self._limit:
            raise InvalidVariant("the value ends early")
        kind = self._data[self._at] & 3
        if isinstance(step, str) and kind == OBJECT:
            names = self._metadata.names
            ids, offsets, first, end = fields(self._data, self._at, self._limit, len(names))
            places = [offset for number, offset in zip(ids, offsets, strict=False) if names[number] == step]
            if len(places) > 1:
                raise InvalidVariant("an object has two fields of one name")
        elif isinstance(step, int) and kind == ARRAY:
            offsets, first, end = items(self._data, self._at, self._limit)
            places = [offsets[step]] if step < len(offsets) - 1 else []
        else:
            return None
        if not places:
            return None
        child = Variant(self._metadata, self._data)
        child._at, child._limit = first + places[0], end
        return child


@cache
def parse_path(path: str) -> tuple[str | int, ...]:
    """Split a path such as `$.a['b c'][0]` into names and indexes. Raises `ValueError`."""
    steps: list[str | int] = []
    place = 1
    if not path.startswith("$"):
        raise ValueError(f"{path!r} does not begin with $")
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise ValueError(f"{path!r} is no path: write $.name, $['name'] or $[0]")
        if step["index"] is not None:
            steps.append(int(step["index"]))
        else:
            steps.append(step["name"] or step["quoted"])
        place = step.end()
    return tuple(steps)

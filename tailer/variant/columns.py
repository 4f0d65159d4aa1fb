"""Whole columns of Variants: as JSON, as keys for comparisons, and as unshredded columns.

Keys are texts that are equal if, and only if, the decoded values are.

Writers encode one value in several ways, and rewriting a file may change the encoding. The specification names the
types that are equivalent: all integers and decimals ("Exact Numeric"), short and long strings, and timestamps in
microseconds and nanoseconds. Everything else differs by its type: the float64 1.0 is no integer, and no float32.

A key looks like JSON. Types that JSON lacks are marked with letters that begin no JSON value. It is for comparisons
within one version of lake-tailer, and not to be stored.
"""

import struct
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw
from typing_extensions import override

from tailer.variant.decode import OBJECT, decode, fields, ordered, size_at
from tailer.variant.metadata import InvalidVariant, Metadata
from tailer.variant.scalars import Form, JsonForm, check_time, primitives
from tailer.variant.shredded import SQL_NULL, Assembler, ColumnReader
from tailer.variant.value import Variant

if TYPE_CHECKING:
    from tailer.variant.batch import BatchTexts

__all__ = ["UNSHREDDED", "at_path", "compare_keys", "json_texts", "unshred"]

_NANOS = 9


class KeyForm(Form):
    """Values that msgspec writes as keys. Null, booleans, integers, texts and containers are those of JSON."""

    @override
    def double(self, number: float) -> object:
        """Each NaN is the same; zero and minus zero are two values."""
        return Raw(b"D" + _bits("<d", number))

    @override
    def single(self, number: float) -> object:
        return Raw(b"F" + _bits("<f", number))

    @override
    def decimal(self, number: Decimal) -> object:
        """A whole number is that of an integer."""
        text = format(number, "f")
        if "." in text:
            text = text.rstrip("0").rstrip(".")
        return Raw("0" if text == "-0" else text)

    @override
    def date(self, days: int) -> object:
        return Raw(f"Y{days}")

    @override
    def time(self, us: int) -> object:
        return Raw(f"T{us}")

    @override
    def timestamp(self, count: int, digits: int, is_utc: bool) -> object:
        return Raw(f"{'Z' if is_utc else 'L'}{count * 10 ** (_NANOS - digits)}")

    @override
    def uuid(self, data: bytes) -> object:
        return Raw(f"U{data.hex()}")

    @override
    def binary(self, data: bytes) -> object:
        return Raw(f"B{data.hex()}")


def _bits(layout: str, number: float) -> bytes:
    return b"NaN" if number != number else struct.pack(layout, number).hex().encode()  # noqa: PLR0124 - NaN alone


class DecodedAssembler(Assembler):
    """An assembler of decoded values in a `Form`."""

    null: Final = None

    def __init__(self, form: Form) -> None:
        self._form = form
        self._known = primitives(form)

    @override
    def primitive(self, number: int) -> Callable[[Any], Any]:
        form = self._form
        forms: dict[int, Callable[[Any], Any]] = {
            6: form.int64,
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
        return forms.get(number, lambda value: value)

    @override
    def value(self, metadata: Metadata, data: bytes) -> Any:
        return decode(metadata, data, self._known)

    @override
    def array(self, items: Sequence[Any]) -> Any:
        return list(items)

    @override
    def object(self, metadata: Metadata, fields: Mapping[str, Any]) -> Any:
        metadata.ids_of(fields)
        return ordered(list(fields), list(fields.values()))

    @override
    def merge(self, metadata: Metadata, rest: bytes, fields: Mapping[str, Any], columns: Set[str]) -> Any:
        others = decode(metadata, rest, self._known)
        if not isinstance(others, dict):
            raise _not_an_object()
        _check_apart(others.keys(), columns)
        metadata.ids_of(fields)
        return ordered([*others, *fields], [*others.values(), *fields.values()])


class BinaryAssembler(Assembler):
    """An assembler of encoded values, which refer to the metadata of their row.

    Values that are encoded already are taken over without being decoded.
    """

    null: Final = b"\x00"

    @override
    def primitive(self, number: int) -> Callable[[Any], Any]:
        return _ENCODERS[number]

    @override
    def value(self, metadata: Metadata, data: bytes) -> Any:
        if size_at(data, 0, len(data), len(metadata.names)) != len(data):
            raise InvalidVariant("bytes follow the value")
        return data

    @override
    def array(self, items: Sequence[Any]) -> Any:
        return _container(3, 4, items)

    @override
    def object(self, metadata: Metadata, fields: Mapping[str, Any]) -> Any:
        names = sorted(fields)
        ids = metadata.ids_of(names)
        id_size = _width(max(ids, default=0))
        packed = b"".join(number.to_bytes(id_size, "little") for number in ids)
        return _container(2 | (id_size - 1) << 4, 6, [fields[name] for name in names], packed)

    @override
    def merge(self, metadata: Metadata, rest: bytes, fields: Mapping[str, Any], columns: Set[str]) -> Any:
        self.value(metadata, rest)
        others = _raw_fields(metadata, rest)
        _check_apart(others.keys(), columns)
        return self.object(metadata, {**others, **fields})


def _raw_fields(metadata: Metadata, data: bytes) -> dict[str, bytes]:
    """Split an object into its encoded values."""
    if data[0] & 3 != OBJECT:
        raise _not_an_object()
    count = len(metadata.names)
    ids, offsets, first, end = fields(data, 0, len(data), count)
    values: dict[str, bytes] = {}
    left = end - first
    for number, offset in zip(ids, offsets, strict=False):
        start = first + offset
        size = size_at(data, start, end, count)
        left -= size
        if left < 0:
            raise InvalidVariant("values of an object or array share their bytes")
        values[metadata.names[number]] = data[start : start + size]
    if len(values) != len(ids):
        raise InvalidVariant("an object has two fields of one name")
    return values


def _check_apart(names: Set[str], columns: Set[str]) -> None:
    if both := names & columns:
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


# The type of a column that is not shredded.
UNSHREDDED: Final = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)

# Fewer rows are decoded one by one.
_FEWEST_ROWS: Final = 16


def json_texts(
    column: pa.Array | pa.ChunkedArray, *, quote_decimals: bool = True, quote_int64: bool = False
) -> list[str | None]:
    """Return the JSON text of each Variant of a column as `Variant.to_json` does; None for SQL NULL.

    `quote_int64`: whether integers that are encoded in 64 bits are strings.

    Raises `InvalidVariant` naming the row, counted from the start of its chunk.
    """
    chunks: list[pa.Array] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    reader = _TextReader(column.type, JsonForm(quote_decimals, quote_int64))
    return [text for chunk in chunks for text in reader.read(chunk)]


def compare_keys(column: pa.StructArray) -> pa.LargeStringArray:
    """Return texts that are equal where the decoded Variants are, in any encoding; null for SQL NULL.

    Integers and decimals are equal by their numbers, timestamps of one kind by their moments, objects in any order.
    Everything else is equal only within its type. Raises `InvalidVariant` naming the row.
    """
    return pa.array(_TextReader(column.type, KeyForm()).read(column), pa.large_string())


def unshred(column: pa.StructArray) -> pa.StructArray:
    """Return a column with the same Variants and without `typed_value`, of the type `UNSHREDDED`.

    Encoded values are taken over without being decoded. Raises `InvalidVariant` naming the row.
    """
    values = ColumnReader(column.type, BinaryAssembler()).read(column)
    encoded = pa.array([None if data is SQL_NULL else data for data in values], pa.binary())
    is_null = column.is_null()
    metadata = pc.struct_field(column, "metadata")
    return pa.StructArray.from_arrays([metadata.cast(pa.binary()), encoded], fields=list(UNSHREDDED), mask=is_null)


def at_path(column: pa.StructArray, path: str) -> pa.StructArray:
    """Return the values at a path, such as `$.a.b`, in Variants that are not shredded; null where there is none.

    Only the containers on the way are decoded. Raises `ValueError` for a malformed path, and `InvalidVariant` naming
    the row.
    """
    metadata, values = (pc.struct_field(column, name).cast(pa.binary()) for name in ("metadata", "value"))
    parts: list[bytes | None] = []
    for row, (names, data) in enumerate(zip(metadata.to_pylist(), values.to_pylist(), strict=True)):
        try:
            value = None if names is None or data is None else Variant(names, data).get(path)
            parts.append(None if value is None else value.encoded)
        except InvalidVariant as error:
            raise InvalidVariant(f"row {row}: {error}") from None
    encoded = pa.array(parts, pa.binary())
    return pa.StructArray.from_arrays([metadata, encoded], fields=list(UNSHREDDED), mask=encoded.is_null())


class _TextReader:
    """Reads columns of one type into the texts of a form: many rows at once with numpy, if it is installed."""

    def __init__(self, kind: pa.DataType, form: Form) -> None:
        self._reader = ColumnReader(kind, DecodedAssembler(form))
        self._encode = msgspec.json.Encoder().encode
        types = {field.name: field.type for field in kind}
        # The fast path takes columns that are neither shredded nor of Arrow's views.
        is_batched = types.keys() == {"metadata", "value"} and {*types.values()} <= {pa.binary(), pa.large_binary()}
        self._batches = _batch_texts(form) if is_batched else None

    def read(self, column: pa.StructArray) -> list[str | None]:
        """Return the text of each row, None for SQL NULL."""
        if self._batches is None or len(column) < _FEWEST_ROWS:
            return self._read_by_row(column)
        texts, odd = self._batches.read(column)
        if odd:
            try:
                rest = self._read_by_row(column.take(pa.array(odd)))
            except InvalidVariant:
                return self._read_by_row(column)  # names the row
            for row, text in zip(odd, rest, strict=True):
                texts[row] = text
        return texts

    def _read_by_row(self, column: pa.StructArray) -> list[str | None]:
        return [None if value is SQL_NULL else self._encode(value).decode() for value in self._reader.read(column)]


def _batch_texts(form: Form) -> "BatchTexts | None":
    """Return the fast path, which needs numpy."""
    try:
        from tailer.variant.batch import BatchTexts  # noqa: PLC0415 - takes numpy in
    except ImportError:
        return None
    return BatchTexts(form)

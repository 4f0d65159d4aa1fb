"""Avro's binary encoding of whole columns at a time, with Arrow's own kernels.

A value in Avro is the bytes of its parts one after the other, without names or padding, so a row is the concatenation
of its columns. `writer_for` turns a type into a function from a column to such parts, and `joined` concatenates them,
once for a whole batch. Nothing here goes through Python's own dates, decimals or floats, so every Arrow value arrives
bit by bit: NaN, year 300000, 38 digits.

Only integers need work: Avro writes them zigzag in groups of 7 bits, with as many bytes as needed. They are looked up
14 bits at a time in a table with two bytes each.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tailer_sinks.encoding.columns import NoText, check_midnight, check_times
from tailer_sinks.encoding.values import DIGITS, MS_PER_DAY, is_binary, is_float, is_json, is_list, is_plain_string

__all__ = ["Part", "joined", "writer_for"]

BYTES: Final = pa.large_binary()
TEXT: Final = pa.large_string()
EMPTY: Final = pa.scalar(b"", BYTES)
NULL, SOME = b"\x00", b"\x02"  # the branch of ["null", type] that follows
BITS: Final = 14
GROUP: Final = 1 << BITS
MORE: Final = pa.scalar(GROUP, pa.uint64())
LOW_BITS: Final = pa.scalar(GROUP - 1, pa.uint64())
SHIFT: Final = pa.scalar(BITS, pa.uint64())
ONE: Final = pa.scalar(1, pa.uint64())
ZERO: Final = pa.scalar(0, pa.int64())

Part: TypeAlias = pa.Array | bytes
"""Bytes of each row: an array of `large_binary`, or what is the same in all rows."""
Writer: TypeAlias = Callable[[pa.Array], list[Part]]
"""From a column to the parts of its values; where the column is null they may be anything, also null."""


def writer_for(kind: pa.DataType, nullable: bool) -> Writer:
    """Make the writer of columns of type `kind`; `nullable`: as a union of null and the type. Raises `NoText`.

    A writer raises `NoText` for a value that its type cannot hold. It does not check for nulls in columns without
    nulls.
    """
    if pa.types.is_null(kind):
        return lambda _: []
    if pa.types.is_dictionary(kind):
        return _dictionaries(kind, nullable)
    for applies, write in _WRITERS:
        if applies(kind):
            return _optional(write) if nullable else write
    for applies, make in _MAKERS:
        if applies(kind):
            return _optional(make(kind)) if nullable else make(kind)
    raise NoText(f"has type {kind}, which has no Avro form")


def joined(parts: Sequence[Part], length: int) -> pa.Array:
    """Concatenate the parts row by row, `length` rows; a null part makes a null."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        elif not isinstance(part, bytes) or part:
            merged.append(part)
    if all(isinstance(part, bytes) for part in merged):
        return pa.repeat(pa.scalar(b"".join(merged), BYTES), length)
    if len(merged) == 1:
        return merged[0]
    return pc.binary_join_element_wise(*map(_operand, merged), EMPTY)


def varint(number: int) -> bytes:
    """Encode one integer as Avro does."""
    rest = _zigzag(number)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _groups(first: bool) -> pa.Array:
    """Map 14 bits to the bytes of an integer's last group; from `GROUP` on, to those of a group that others follow.

    No group follows if the bits above it are 0, so 0 has no bytes unless it is the first group.
    """
    last = [bytes([bits]) if bits < 128 else bytes([bits & 127 | 128, bits >> 7]) for bits in range(GROUP)]
    more = [bytes([bits & 127 | 128, bits >> 7 | 128]) for bits in range(GROUP)]
    if not first:
        last[0] = b""
    return pa.array(last + more, BYTES)


FIRST_GROUP: Final = _groups(first=True)
NEXT_GROUP: Final = _groups(first=False)


def _operand(part: Part) -> pa.Array | pa.Scalar:
    return pa.scalar(part, BYTES) if isinstance(part, bytes) else part


def _optional(write: Writer) -> Writer:
    """Make the writer of a union of null and `write`."""

    def parts(column: pa.Array) -> list[Part]:
        if column.null_count == 0:
            return [SOME, *write(column)]
        if column.null_count == len(column):
            return [NULL]
        present = column.is_valid()
        branch = pc.if_else(present, _operand(SOME), _operand(NULL))
        return [branch, *(pc.if_else(present, _operand(part), EMPTY) for part in write(column))]

    return parts


def _integers(column: pa.Array) -> list[Part]:
    return _varints(pc.cast(column, pa.int64()))


def _varints(numbers: pa.Array) -> list[Part]:
    """Encode integers (int64), one part for each 14 bits of the longest."""
    ends = pc.min_max(numbers).as_py()
    least, most = ends["min"], ends["max"]
    if least is None or least == most:
        return [varint(least or 0)]
    longest = max(_zigzag(least), _zigzag(most))
    rest = pc.shift_left(numbers.view(pa.uint64()), ONE)
    if least < 0:
        rest = pc.if_else(pc.less(numbers, ZERO), pc.bit_wise_not(rest), rest)
    parts: list[Part] = []
    table = FIRST_GROUP
    while longest >= GROUP:
        low = pc.bit_wise_or(pc.bit_wise_and(rest, LOW_BITS), MORE)
        parts.append(table.take(pc.if_else(pc.less(rest, MORE), rest, low)))
        rest, longest, table = pc.shift_right(rest, SHIFT), longest >> BITS, NEXT_GROUP
    return [*parts, table.take(rest)]


def _memory(column: pa.Array) -> pa.Array:
    """Return the bytes of fixed-width values as in memory, lowest first."""
    return pc.cast(column.view(pa.binary(column.type.byte_width)), BYTES)


def _long_integers(_: pa.DataType) -> Writer:
    kind = pa.decimal128(20, 0)
    write = _decimals(kind)
    return lambda column: write(pc.cast(column, kind))


def _decimals(kind: pa.DataType) -> Writer:
    """Make the writer of big-endian numbers with as many bytes as the greatest of the precision needs."""
    width = (10**kind.precision - 1).bit_length() // 8 + 1
    stored = kind.byte_width
    widest = pa.decimal256(kind.precision, kind.scale)

    def parts(column: pa.Array) -> list[Part]:
        ends = pc.min_max(column if stored >= 16 else pc.cast(column, widest)).as_py()
        for end in ends.values():
            if end is not None and len(end.as_tuple().digits) > kind.precision:
                raise NoText(f"holds a number of more than the {kind.precision} digits of its type")
        number = pc.binary_slice(pc.binary_reverse(_memory(column)), stored - width, stored)
        return [varint(width), number]

    return parts


def _strings(column: pa.Array) -> list[Part]:
    data = pc.cast(pc.cast(column, TEXT), BYTES)
    try:  # Arrow checks only casts from binary to text
        pc.cast(data, TEXT)
    except pa.ArrowInvalid as error:
        raise NoText("holds a string that is not UTF-8") from error
    return _binaries(data)


def _binaries(column: pa.Array) -> list[Part]:
    data = pc.cast(column, BYTES)
    return [*_varints(pc.binary_length(data)), data]


def _dictionaries(kind: pa.DataType, nullable: bool) -> Writer:
    write = writer_for(kind.value_type, nullable)
    plain = {pa.string_view(): TEXT, pa.binary_view(): BYTES}.get(kind.value_type, kind.value_type)

    def parts(column: pa.Array) -> list[Part]:
        values = column.dictionary
        if len(values) > len(column) or (nullable and column.null_count):
            return write(values.cast(plain).take(column.indices))
        return [joined(write(values), len(values)).take(column.indices)]

    return parts


def _structs(kind: pa.DataType) -> Writer:
    writers: list[tuple[pa.Field, Writer]] = []
    for field in kind:
        try:
            writers.append((field, writer_for(field.type, field.nullable)))
        except NoText as error:
            raise error.below(field.name) from None

    def parts(column: pa.Array) -> list[Part]:
        encoded: list[Part] = []
        for index, (field, write) in enumerate(writers):
            values = column.field(index)
            try:
                if not field.nullable:
                    _check_present(values, column.is_valid())
                encoded += write(values)
            except NoText as error:
                raise error.below(field.name) from error
        return encoded

    return parts


def _check_present(values: pa.Array, needed: pa.Array | None = None) -> None:
    """Check that there are no nulls where `needed`."""
    if pa.types.is_null(values.type):
        return
    missing = values.is_null()  # for dictionaries this also finds nulls among their values
    if pc.any(missing if needed is None else pc.and_(missing, needed)).as_py():
        raise NoText("holds null, but is declared without nulls")


def _lists(kind: pa.DataType) -> Writer:
    """Make the writer of a list: one block with its length and items, then an empty one; maps have the same form."""
    item = kind.value_field
    write = writer_for(item.type, item.nullable)

    def parts(column: pa.Array) -> list[Part]:
        items = pc.list_flatten(column)
        if not item.nullable:
            _check_present(items)
        lengths = pc.cast(pc.list_value_length(column), pa.int64())
        counts = pc.if_else(pc.greater(lengths, ZERO), joined(_varints(lengths), len(column)), EMPTY)
        ends = pc.cumulative_sum(pc.fill_null(lengths, ZERO))
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
        lists = pa.LargeListArray.from_arrays(offsets, joined(write(items), len(items)))
        return [counts, pc.binary_join(lists, EMPTY), b"\x00"]

    return parts


def _maps(kind: pa.DataType) -> Writer:
    entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    entries = pa.list_(pa.field("entry", entry, nullable=False))
    write = _lists(entries)
    return lambda column: write(pc.cast(column, entries))


def _days(column: pa.Array) -> list[Part]:
    if pa.types.is_date32(column.type):
        return _integers(column.view(pa.int32()))
    check_midnight(column)
    days = pc.divide(column.view(pa.int64()), pa.scalar(MS_PER_DAY, pa.int64()))
    try:
        return _integers(pc.cast(days, pa.int32()))
    except pa.ArrowInvalid as error:
        raise NoText("holds a date that Avro's days do not reach") from error


def _moments(column: pa.Array) -> list[Part]:
    return _counts(column, max(3, DIGITS[column.type.unit]))


def _counts(column: pa.Array, digits: int) -> list[Part]:
    """Encode counts of a unit of time as counts of 10^-`digits` seconds: the same unit, or a smaller one."""
    numbers = pc.cast(column.view(pa.int32() if column.type.bit_width == 32 else pa.int64()), pa.int64())
    if (more := digits - DIGITS[column.type.unit]) == 0:
        return _varints(numbers)
    try:
        return _varints(pc.multiply_checked(numbers, pa.scalar(10**more, pa.int64())))
    except pa.ArrowInvalid as error:
        raise NoText(f"holds a {column.type} that does not fit 64 bits with {digits} digits of a second") from error


_WRITERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Writer], ...]] = (
    (pa.types.is_boolean, lambda column: [pc.if_else(column, _operand(b"\x01"), _operand(b"\x00"))]),
    (lambda kind: pa.types.is_integer(kind) and kind != pa.uint64(), _integers),
    (pa.types.is_float16, lambda column: [_memory(pc.cast(column, pa.float32()))]),
    (is_float, lambda column: [_memory(column)]),
    (is_plain_string, _strings),
    (is_json, lambda column: _strings(column.storage)),
    (is_binary, _binaries),
    (pa.types.is_date, _days),
    (pa.types.is_timestamp, _moments),
    (pa.types.is_time, lambda column: _moments(check_times(column))),
    (pa.types.is_duration, lambda column: _counts(column, max(6, DIGITS[column.type.unit]))),
)
_MAKERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Writer]], ...]] = (
    (pa.types.is_uint64, _long_integers),
    (pa.types.is_decimal, _decimals),
    (is_list, _lists),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
)

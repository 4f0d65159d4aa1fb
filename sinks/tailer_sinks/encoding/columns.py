"""Whole columns at a time: the same JSON texts as `tailer_sinks.encoding.values`, built with Arrow's own kernels.

`writer_for` turns a type into a function from a column to its texts, once per schema. An unknown type is refused there,
before any row. Nested columns are composed: the texts of a struct's fields are joined row by row, those of a list's
items list by list, so only the rows of the current slice are ever encoded.

Each writer has a fast path that is exact for nearly all values, and *knows* the values for which it is not: dates and
timestamps outside years 0000 to 9999 (Arrow prints them otherwise, or not at all), strings that need escapes, decimals
that Arrow prints with an exponent, floats that are not finite. Those values are written one by one by the reference and
replace the fast text (`_patch`). Values that their type does not have are refused with `NoText`, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import is_variant
from tailer.variant import InvalidVariant, json_texts
from tailer_sinks.encoding.values import (
    DIGITS,
    FORMS,
    MS_PER_DAY,
    JsonForms,
    NoText,
    base64_text,
    date_text,
    decimal_text,
    escape,
    float_text,
    is_binary,
    is_float,
    is_json,
    is_list,
    is_plain_string,
    is_string,
    string_text,
    timestamp_text,
)

__all__ = ["TEXT", "NoText", "Texts", "check_midnight", "check_times", "join", "whole", "writer_for"]

TEXT: Final = pa.large_string()
NULL: Final = pa.scalar("null", TEXT)
EMPTY: Final = pa.scalar("", TEXT)
_PLAIN: Final = {pa.string_view(): TEXT, pa.binary_view(): pa.large_binary()}
# Scalars, because a Python number would be converted on every comparison with a column.
DAYS: Final = pa.scalar(-719_528, pa.int32()), pa.scalar(2_932_896, pa.int32())  # 0000-01-01, 9999-12-31
# The first and last moments of these days, by unit. All moments in nanoseconds are between them.
MOMENTS: Final = {
    unit: (pa.scalar(-719_528 * day, pa.int64()), pa.scalar(2_932_897 * day - 1, pa.int64()))
    for unit, day in (("s", 86_400), ("ms", MS_PER_DAY), ("us", MS_PER_DAY * 1000))
}
MS_OF_DAY: Final = pa.scalar(MS_PER_DAY, pa.int64())
ZERO: Final = pa.scalar(0, pa.int64())
MUST_ESCAPE: Final = r'["\\\x00-\x1f]'
QUOTE: Final = '"'
INT64: Final = frozenset({pa.int64(), pa.uint64()})


@dataclass(frozen=True, slots=True)
class Texts:
    """One JSON text per row: `before + middle[i] + after`; `middle` is of type `TEXT` and has no nulls.

    The text around every row is kept apart, because joining rows is then cheaper.
    """

    middle: pa.Array
    before: str = ""
    after: str = ""


Writer = Callable[[pa.Array], Texts]


def whole(texts: Texts) -> pa.Array:
    """Join `before`, `middle` and `after` into one array."""
    return join(texts.before, texts.middle, texts.after) if texts.before or texts.after else texts.middle


def writer_for(kind: pa.DataType, forms: JsonForms = FORMS) -> Writer:
    """Make the writer of columns of type `kind`. Raises `NoText`."""
    if forms.decimal == "number" and pa.types.is_decimal(kind):
        return lambda column: _enclose(_digits(column))
    if forms.int64 == "string" and kind in INT64:
        return _quoted
    for applies, write in _WRITERS:
        if applies(kind):
            return write
    for applies, make in _MAKERS:
        if applies(kind):
            return make(kind, forms)
    raise NoText(f"has type {kind}, which has no JSON form")


def join(*parts: pa.Array | pa.Scalar | str) -> pa.Array:
    """Concatenate the parts row by row; a string is the same in every row; a null makes a null."""
    arrays = [pa.scalar(part, TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*arrays, EMPTY)


def _enclose(middle: pa.Array, before: str = "", after: str = "") -> Texts:
    """Put `before` and `after` around the texts, except nulls."""
    if middle.null_count == 0:
        return Texts(middle, before, after)
    return Texts(pc.fill_null(whole(Texts(middle, before, after)), NULL))


def _patch(texts: pa.Array, odd: pa.Array, column: pa.Array, exact: Callable[[pa.Scalar], str]) -> pa.Array:
    """Replace `texts` by the `exact` text of the column's value wherever `odd`."""
    if not pc.any(odd).as_py():
        return texts
    odd = pc.fill_null(odd, pa.scalar(False))
    return pc.replace_with_mask(texts, odd, pa.array([exact(value) for value in column.filter(odd)], TEXT))


def _outside(numbers: pa.Array, first: pa.Scalar, last: pa.Scalar) -> pa.Array:
    return pc.or_(pc.less(numbers, first), pc.greater(numbers, last))


def _plain(column: pa.Array) -> Texts:
    return _enclose(pc.cast(column, TEXT))


def _quoted(column: pa.Array) -> Texts:
    return _enclose(pc.cast(column, TEXT), QUOTE, QUOTE)


def _floats(column: pa.Array) -> Texts:
    if pa.types.is_float16(column.type):
        column = pc.cast(column, pa.float32())
    texts = pc.cast(column, TEXT)
    integral = pc.equal(pc.floor(column), column)
    if pc.any(integral).as_py():
        bare = pc.and_not(integral, pc.match_substring(texts, "e"))
        texts = join(texts, pc.if_else(bare, pa.scalar(".0", TEXT), EMPTY))
    return _enclose(_patch(texts, pc.invert(pc.is_finite(column)), column, float_text))


def _digits(column: pa.Array) -> pa.Array:
    texts = pc.cast(column, TEXT)
    # Arrow uses an exponent if a scale is negative, or more than six zeros follow the point.
    if not 0 <= column.type.scale <= 6:
        texts = _patch(texts, pc.match_substring(texts, "E"), column, decimal_text)
    return texts


def _dates(column: pa.Array) -> Texts:
    if pa.types.is_date32(column.type):
        odd = _outside(column.view(pa.int32()), *DAYS)
    else:
        check_midnight(column)
        odd = _outside(column.view(pa.int64()), *MOMENTS["ms"])
    return _enclose(_patch(pc.cast(column, TEXT), odd, column, date_text), QUOTE, QUOTE)


def check_midnight(column: pa.Array) -> None:
    """Raise `NoText` if a date in milliseconds is not midnight."""
    ms = column.view(pa.int64())
    if not pc.all(pc.equal(pc.multiply(pc.divide(ms, MS_OF_DAY), MS_OF_DAY), ms), min_count=0).as_py():
        raise NoText("holds a date that is not midnight")


def _timestamps(column: pa.Array) -> Texts:
    # An Arrow zone only affects display, the instant is UTC; without it no zone data base is needed.
    plain = column.view(pa.timestamp(column.type.unit))
    texts = pc.binary_replace_slice(pc.cast(plain, TEXT), 10, 11, "T")
    if (moments := MOMENTS.get(plain.type.unit)) is not None:
        texts = _patch(texts, _outside(plain.view(pa.int64()), *moments), plain, timestamp_text)
    zone = "" if column.type.tz is None else "Z"
    return _enclose(texts, QUOTE, zone + QUOTE)


def check_times(column: pa.Array) -> pa.Array:
    """Return the column. Raises `NoText` if a time is not one of a day's."""
    ends = pc.min_max(column.view(pa.int32() if pa.types.is_time32(column.type) else pa.int64())).as_py()
    if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] < 86_400 * 10 ** DIGITS[column.type.unit]:
        raise NoText("holds a time that is not between 00:00 and 24:00")
    return column


def _durations(column: pa.Array) -> Texts:
    counts, digits = column.view(pa.int64()), DIGITS[column.type.unit]
    units = pc.abs(counts).view(pa.uint64())  # whose absolute values all have a place there
    second = pa.scalar(10**digits, pa.uint64())
    seconds = pc.divide(units, second)
    sign = pc.if_else(pc.less(counts, ZERO), pa.scalar("-", TEXT), EMPTY)
    parts: list[pa.Array | str] = [sign, "PT", pc.cast(seconds, TEXT)]
    if digits:
        rest = pc.cast(pc.subtract(units, pc.multiply(seconds, second)), TEXT)
        parts += [".", pc.utf8_lpad(rest, digits, "0")]
    return _enclose(join(*parts), QUOTE, f"S{QUOTE}")


def _strings(column: pa.Array) -> Texts:
    try:  # Arrow checks only casts from binary to text
        texts = pc.cast(pc.cast(pc.cast(column, TEXT), pa.large_binary()), TEXT)
    except pa.ArrowInvalid as error:
        raise NoText("holds a string that is not UTF-8") from error
    if _may_need_escapes(texts):
        odd = pc.match_substring_regex(texts, MUST_ESCAPE)
        texts = _patch(texts, odd, texts, lambda value: string_text(value)[1:-1])
    return _enclose(texts, QUOTE, QUOTE)


def _may_need_escapes(texts: pa.Array) -> bool:
    """Return whether a byte of the strings needs an escape; checking all bytes at once is much faster than a regex."""
    _, offsets, data = texts.buffers()
    if data is None or len(texts) == 0:
        return False
    positions = memoryview(offsets).cast("q")
    start = positions[texts.offset]
    data = data.slice(start, positions[texts.offset + len(texts)] - start)
    if data.size == 0:
        return False
    if pc.min(pa.Array.from_buffers(pa.uint8(), data.size, [None, data])).as_py() < 0x20:
        return True
    content = data.to_pybytes()
    return b'"' in content or b"\\" in content


def _binaries(column: pa.Array) -> Texts:
    texts = [None if value is None else base64_text(value) for value in column.to_pylist()]
    return _enclose(pa.array(texts, TEXT), QUOTE, QUOTE)


def _dictionaries(kind: pa.DataType, forms: JsonForms) -> Writer:
    write_values = writer_for(kind.value_type, forms)

    def write(column: pa.Array) -> Texts:
        values = column.dictionary
        if len(values) <= len(column):
            return _enclose(whole(write_values(values)).take(column.indices))
        # Arrow cannot take from views.
        return write_values(values.cast(_PLAIN.get(values.type, values.type)).take(column.indices))

    return write


def _variants(_: pa.DataType, forms: JsonForms) -> Writer:
    def write(column: pa.Array) -> Texts:
        try:
            texts = json_texts(column, quote_decimals=forms.decimal == "string", quote_int64=forms.int64 == "string")
        except InvalidVariant as error:
            raise NoText(f"holds a Variant that is not sound: {error}") from error
        return _enclose(pa.array(texts, TEXT))

    return write


def _structs(kind: pa.DataType, forms: JsonForms) -> Writer:
    writers: dict[str, Writer] = {}
    for field in kind:
        if field.name in writers:
            raise NoText("appears twice", field.name)
        try:
            writers[field.name] = writer_for(field.type, forms)
        except NoText as error:
            raise error.below(field.name) from None

    def write(column: pa.Array) -> Texts:
        texts = _objects(writers, column)
        return Texts(pc.if_else(column.is_valid(), whole(texts), NULL)) if column.null_count else texts

    return write


def _objects(writers: Mapping[str, Writer], column: pa.Array) -> Texts:
    """Build the objects of a struct column from its fields, also where the struct is null."""
    if not writers:
        return Texts(pa.repeat(EMPTY, len(column)), "{", "}")
    parts: list[pa.Array | str] = []
    literal = "{"
    # In a null struct a field may have any bytes: `flatten` makes it null.
    fields = column.flatten() if column.null_count else [column.field(index) for index in range(len(writers))]
    for (name, write), values in zip(writers.items(), fields, strict=True):
        same = _is_constant(values)
        try:
            texts = write(values.slice(0, 1) if same else values)
        except NoText as error:
            raise error.below(name) from error
        if same:
            literal += f"{escape(name)}:{whole(texts)[0]},"
            continue
        parts += [f"{literal}{escape(name)}:{texts.before}", texts.middle]
        literal = f"{texts.after},"
    end = f"{literal[:-1]}}}"
    return Texts(join(*parts[1:]), str(parts[0]), end) if parts else Texts(pa.repeat(EMPTY, len(column)), end)


def _is_constant(column: pa.Array) -> bool:
    """Return whether all values are equal, as in metadata and partition columns, so that one text is enough.

    Floats cannot be compared for this: zero has two texts.
    """
    kind = column.type
    if len(column) < 2 or column.null_count or not any(applies(kind) for applies in _COMPARABLE):
        return False
    first = column[0]
    return bool(first == column[-1] and pc.all(pc.equal(column, first)).as_py())


def _lists(kind: pa.DataType, forms: JsonForms) -> Writer:
    write_items = writer_for(kind.value_type, forms)

    def write(column: pa.Array) -> Texts:
        offsets, start, length = _extent(column)
        return _sequences(column, offsets, whole(write_items(column.values.slice(start, length))), "[", "]")

    return write


def _maps(kind: pa.DataType, forms: JsonForms) -> Writer:
    write_keys, write_items = writer_for(kind.key_type, forms), writer_for(kind.item_type, forms)
    as_object = is_string(kind.key_type)

    def write(column: pa.Array) -> Texts:
        offsets, start, length = _extent(column)
        keys = whole(write_keys(column.keys.slice(start, length)))
        items = whole(write_items(column.items.slice(start, length)))
        if as_object:
            return _sequences(column, offsets, join(keys, ":", items), "{", "}")
        entries = join('{"key":', keys, ',"value":', items, "}")
        return _sequences(column, offsets, entries, "[", "]")

    return write


def _extent(column: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the ends of a column's lists, counted from its first item; its first item; and the number of items."""
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        ends = [index * size for index in range(len(column) + 1)]
        return pa.array(ends, pa.int64()), column.offset * size, len(column) * size
    offsets = pc.cast(column.offsets, pa.int64())
    start = offsets[0].as_py()
    return pc.subtract(offsets, start), start, offsets[-1].as_py() - start


def _sequences(column: pa.Array, offsets: pa.Array, items: pa.Array, before: str, after: str) -> Texts:
    """Join the items' texts list by list, with commas between; null where the column is null."""
    mask = column.is_null() if column.null_count else None
    lists = pa.LargeListArray.from_arrays(offsets, items, mask=mask)
    return _enclose(pc.binary_join(lists, pa.scalar(",", TEXT)), before, after)


_COMPARABLE: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_time,
    pa.types.is_duration,
)
_WRITERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Writer], ...]] = (
    (pa.types.is_null, lambda column: Texts(pa.repeat(NULL, len(column)))),
    (pa.types.is_boolean, _plain),
    (pa.types.is_integer, _plain),
    (is_float, _floats),
    (pa.types.is_decimal, lambda column: _enclose(_digits(column), QUOTE, QUOTE)),
    (is_plain_string, _strings),
    (is_json, lambda column: _strings(column.storage)),
    (is_binary, _binaries),
    (pa.types.is_date, _dates),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_time, lambda column: _quoted(check_times(column))),
    (pa.types.is_duration, _durations),
)
_MAKERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, JsonForms], Writer]], ...]] = (
    (pa.types.is_dictionary, _dictionaries),
    (is_list, _lists),
    (is_variant, _variants),
    (pa.types.is_struct, _structs),
    (pa.types.is_map, _maps),
)

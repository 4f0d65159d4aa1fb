"""The JSON form of every Arrow value, one value at a time.

This is the reference. It is slow, has no cases for speed, and works on Arrow's own integers, so that dates and
timestamps beyond what `datetime` holds come out right. `tailer_sinks.encoding.columns` must give the same text for
whole columns; it calls the functions here for the few values that its fast ways do not cover, and property tests
compare the two.

===============  ===========================================================================================
Arrow            JSON
===============  ===========================================================================================
null, any null   `null`
bool, integers   as they are, with every digit
float, double    the shortest text that reads back as the same value *of that width*, always with a point or
                 an exponent (`1.0`, `-0.0`, `1e+10`); otherwise the strings "NaN", "Infinity", "-Infinity"
half float       that of the float of the same value, as readers have no half floats
decimal          a string with all digits of its scale, never an exponent
string           a string; only what JSON demands is escaped
binary           a string, base64
date             a string, `2026-03-01`
timestamp        a string, `2026-03-01T12:00:00.000000Z`, without a time zone no `Z`
time             a string, `12:00:00.000000`
duration         a string, `PT5400.000000S`, `-PT0.000001S`: ISO 8601, in seconds, as Java and JavaScript read it
list             an array
struct           an object
map              an object where keys are strings, otherwise an array of {"key": ..., "value": ...}
dictionary       the form of its value
JSON             its text, as a string
Variant          the JSON of its value, as `tailer.variant` writes it
===============  ===========================================================================================

Dates and timestamps are of the proleptic Gregorian calendar; years outside 0000 to 9999 carry a sign
(`+10000-01-01`, `-0001-12-31`), which is ISO 8601's expanded form and what Java's readers expect. Of a second there
are as many digits as the type has: none, three, six or nine, as its unit is seconds, milliseconds, microseconds or
nanoseconds. Any other type has no rule and is refused, not guessed; so is a time that no day has, and a date of
milliseconds that is not midnight.

Many readers take every number of JSON for a float of 64 bits, as JavaScript does, and round what has more digits. So
decimals are strings, and a sink may let users choose (`JsonForms`, which `tailer_sinks.encoding.columns` knows) that
integers of 64 bits are, too: wherever the type is, small values as well, so that a place has one form.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from json import JSONEncoder
from typing import Any, Final, Literal

import pyarrow as pa

from tailer.events import is_variant
from tailer.variant import Variant
from tailer.variant.text import day_text, double_text, duration_text, moment_text, single_text, time_text

__all__ = [
    "DIGITS",
    "FORMS",
    "MS_PER_DAY",
    "DecimalForm",
    "Int64Form",
    "JsonForms",
    "NoText",
    "base64_text",
    "date_text",
    "decimal_text",
    "escape",
    "float_text",
    "integer",
    "is_binary",
    "is_float",
    "is_json",
    "is_list",
    "is_plain_string",
    "is_string",
    "is_temporal",
    "json_bytes",
    "row_texts",
    "string_text",
    "timestamp_text",
    "value_text",
]

DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}  # of a second, by a type's unit
MS_PER_DAY: Final = 86_400_000
escape: Final = JSONEncoder(ensure_ascii=False).encode
_COMPACT: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


DecimalForm = Literal["string", "number"]
Int64Form = Literal["number", "string"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForms:
    """The forms of decimals, and of integers of 64 bits, also within lists, structs, maps and Variants."""

    decimal: DecimalForm = "string"
    int64: Int64Form = "number"


FORMS: Final = JsonForms()


class NoText(ValueError):
    """The error for a value without JSON text: of an unknown type, not UTF-8, or a time that no day has.

    `where` is the column, dotted if nested.
    """

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(f"column {where} {reason}")
        self.reason = reason
        self.where = where

    def below(self, name: str) -> "NoText":
        """Return the same error, seen from outside the column `name`."""
        return NoText(self.reason, f"{name}.{self.where}" if self.where else name)


def integer(number: int, form: Int64Form) -> int | str:
    """Return what a writer of JSON is given for an integer of 64 bits."""
    return str(number) if form == "string" else number


def json_bytes(value: Any) -> bytes:
    """Encode compact JSON. The escapes of bytes that are not text, as in paths, are legal JSON."""
    return _COMPACT(value).encode(errors="backslashreplace")


def row_texts(rows: pa.RecordBatch) -> Iterator[str]:
    """Yield each row as a JSON object, in column order."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for index in range(rows.num_rows):
        yield _members((name, column[index]) for name, column in columns.items())


def value_text(value: pa.Scalar) -> str:
    """Return the JSON text of `value`.

    Raises `TypeError` for an unknown type, `NoText` for a time or date that its type does not have, `InvalidVariant`.
    """
    if not value.is_valid:
        return "null"
    for applies, text in _RULES:
        if applies(value.type):
            return text(value)
    raise TypeError(f"no JSON form for {value.type}")


def is_string(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are text, directly or through a dictionary."""
    return is_plain_string(kind.value_type if pa.types.is_dictionary(kind) else kind)


def is_plain_string(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are text, in one of Arrow's layouts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_json(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are texts of JSON, marked as such by Arrow's own type."""
    return isinstance(kind, pa.JsonType)


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def is_float(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are floats, of any width."""
    return bool(pa.types.is_floating(kind))


def is_temporal(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are dates, times, timestamps or durations."""
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _members(members: Iterable[tuple[str, pa.Scalar]]) -> str:
    return "{" + ",".join(f"{escape(name)}:{value_text(value)}" for name, value in members) + "}"


def _map(value: pa.Scalar) -> str:
    entries = [(value_text(entry[0]), value_text(entry[1])) for entry in value.values]
    if is_string(value.type.key_type):
        return "{" + ",".join(f"{key}:{item}" for key, item in entries) + "}"
    return "[" + ",".join(f'{{"key":{key},"value":{item}}}' for key, item in entries) + "]"


def string_text(value: pa.Scalar) -> str:
    """Return a string in quotes, escaped. Raises `UnicodeDecodeError` if its bytes are not UTF-8."""
    return escape(value.as_py())


def base64_text(value: bytes) -> str:
    """Return bytes in base64, with padding."""
    return b2a_base64(value, newline=False).decode("ascii")


def decimal_text(value: pa.Scalar) -> str:
    """Return a decimal with all digits of its scale."""
    return format(value.as_py(), "f")


def date_text(value: pa.Scalar) -> str:
    """Return a date as year-month-day. Raises `NoText` for a date of milliseconds that is not midnight."""
    if pa.types.is_date32(value.type):
        return day_text(value.value)
    days, rest = divmod(value.value, MS_PER_DAY)
    if rest:
        raise NoText("holds a date that is not midnight")
    return day_text(days)


def timestamp_text(value: pa.Scalar) -> str:
    """Return a timestamp with all digits of its unit, without a zone."""
    return moment_text(value.value, DIGITS[value.type.unit])


def float_text(value: pa.Scalar) -> str:
    """Return a float in its shortest form, a half float as a float32; NaN and the infinities as strings."""
    return (double_text if pa.types.is_float64(value.type) else single_text)(value.as_py())


def _quoted(text: Callable[[pa.Scalar], str]) -> Callable[[pa.Scalar], str]:
    return lambda value: f'"{text(value)}"'


def _time(value: pa.Scalar) -> str:
    digits = DIGITS[value.type.unit]
    if not 0 <= value.value < 86_400 * 10**digits:
        raise NoText("holds a time that is not between 00:00 and 24:00")
    return time_text(value.value, digits)


def _moment(value: pa.Scalar) -> str:
    return timestamp_text(value) + ("Z" if value.type.tz is not None else "")


_RULES: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Scalar], str]], ...]] = (
    (pa.types.is_dictionary, lambda value: value_text(value.value)),
    (pa.types.is_boolean, lambda value: "true" if value.as_py() else "false"),
    (pa.types.is_integer, lambda value: str(value.as_py())),
    (is_float, float_text),
    (pa.types.is_decimal, _quoted(decimal_text)),
    (is_plain_string, string_text),
    (is_json, lambda value: string_text(value.value)),
    (is_binary, lambda value: f'"{base64_text(value.as_py())}"'),
    (pa.types.is_date, _quoted(date_text)),
    (pa.types.is_timestamp, _quoted(_moment)),
    (pa.types.is_time, _quoted(_time)),
    (pa.types.is_duration, _quoted(lambda value: duration_text(value.value, DIGITS[value.type.unit]))),
    (is_list, lambda value: "[" + ",".join(value_text(item) for item in value.values) + "]"),
    (is_variant, lambda value: Variant(value["metadata"].as_py(), value["value"].as_py()).to_json()),
    (
        pa.types.is_struct,
        lambda value: _members((field.name, value[index]) for index, field in enumerate(value.type)),
    ),
    (pa.types.is_map, _map),
)

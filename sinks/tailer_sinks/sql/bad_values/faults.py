"""The values of a batch that a database cannot hold, with the reasons.

A database refuses a batch as a whole, so this is asked only then: rows without such values cost nothing. The one
exception is a key that is too long for an index, which the table refuses and not the rows that wait.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer_sinks.sql.databases.dialect import Holds
from tailer_sinks.sql.databases.texts import TEXT, NoText, holds_json, json_texts

__all__ = ["NOT_UTF8", "NO_JSON", "TOO_LARGE", "Fault", "key_faults", "value_faults"]

NUL: Final = "has a text with the character U+0000"
NOT_UTF8: Final = "has a text that is not UTF-8"
OTHER_CALENDAR: Final = "has a date beyond those of the database"
NO_JSON: Final = "has a value without a JSON form"
TOO_LARGE: Final = "has a value that is too large"
LONG_KEY: Final = "has a key that is too long for an index"

_NUL: Final = "\0"
_REPLACEMENT: Final = "\ufffd"
_NUL_IN_JSON: Final = r"(^|[^\\])(\\\\)*\\u0000"
_EACH_NUL_IN_JSON: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")

Replace = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class Fault:
    """The `rows` with a value of `column` that does not fit. `replace`: puts others in their place; None: none fit."""

    column: str
    reason: str
    rows: pa.BooleanArray
    replace: Replace | None = None


def key_faults(holds: Holds, rows: pa.RecordBatch, key: Sequence[str]) -> Iterator[Fault]:
    """Yield the keys that are too long."""
    sized = [rows.column(column) for column in key if _is_sized(rows.schema.field(column).type)]
    if holds.key_bytes is not None and sized:
        too_long = pc.greater(_total([pc.binary_length(column) for column in sized]), holds.key_bytes)
        yield from _faults(key[0], LONG_KEY, too_long)


def value_faults(holds: Holds, rows: pa.RecordBatch) -> Iterator[Fault]:
    """Yield the values that the database refuses."""
    sizes: dict[str, pa.Array] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        kind = column.type
        if holds_json(kind):
            texts, has_none = _texts(column)
            yield from _faults(name, NO_JSON, has_none)
            if not holds.has_nul:
                yield from _faults(name, NUL, pc.match_substring_regex(texts, _NUL_IN_JSON), _replaced_in_json)
            sizes[name] = pc.binary_length(texts)
        elif _is_text(kind):
            yield from _faults(name, NOT_UTF8, _has_other_bytes(column), _decoded)
            if not holds.has_nul:
                yield from _faults(name, NUL, pc.match_substring(column, _NUL), _replaced)
            sizes[name] = pc.binary_length(column)
        elif _is_sized(kind):
            sizes[name] = pc.multiply(pc.binary_length(column), holds.bytes_of_a_byte)
        elif bounds := _bounds(holds, kind):
            numbers = column.cast(pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(pa.int64())
            outside = pc.or_(pc.less(numbers, bounds[0]), pc.greater(numbers, bounds[1]))
            yield from _faults(name, OTHER_CALENDAR, outside)
    yield from _too_large(sizes, holds.row_bytes)


def _faults(column: str, reason: str, rows: pa.Array, replace: Replace | None = None) -> Iterator[Fault]:
    if pc.any(rows).as_py():
        yield Fault(column, reason, pc.fill_null(rows, False), replace)


def _too_large(sizes: dict[str, pa.Array], limit: int) -> Iterator[Fault]:
    """Yield the largest value of each row that is too large as a whole."""
    if not sizes:
        return
    left = pc.greater(_total(list(sizes.values())), limit)
    largest = pc.max_element_wise(*sizes.values())
    for name, size in sizes.items():
        own = pc.and_(left, pc.fill_null(pc.equal(size, largest), False))
        left = pc.and_not(left, own)
        yield from _faults(name, TOO_LARGE, own)


def _total(sizes: Sequence[pa.Array]) -> pa.Array:
    total = pc.fill_null(sizes[0], 0).cast(pa.int64())
    for size in sizes[1:]:
        total = pc.add(total, pc.fill_null(size, 0).cast(pa.int64()))
    return total


def _texts(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the JSON texts of a column, null where there is none, and where that is."""
    convert = json_texts(column.type)
    try:
        return convert(column), pa.repeat(pa.scalar(False), len(column))
    except NoText:
        texts = [_text(convert, column.slice(row, 1)) for row in range(len(column))]
        joined = pa.array(texts, TEXT)
        return joined, pc.and_(joined.is_null(), column.is_valid())


def _text(convert: Replace, value: pa.Array) -> str | None:
    try:
        text: str | None = convert(value)[0].as_py()
    except NoText:
        return None
    return text


def _bounds(holds: Holds, kind: pa.DataType) -> tuple[int, int] | None:
    return holds.days if pa.types.is_date32(kind) else holds.micros if pa.types.is_timestamp(kind) else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_sized(kind: pa.DataType) -> bool:
    return bool(
        _is_text(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _has_other_bytes(column: pa.Array) -> pa.Array:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([value is not None and not _is_utf8(value) for value in _bytes(column)])
    return pa.repeat(pa.scalar(False), len(column))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bytes(column: pa.Array) -> list[bytes | None]:
    values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return values


def _decoded(column: pa.Array) -> pa.Array:
    return pa.array([None if value is None else value.decode(errors="replace") for value in _bytes(column)], TEXT)


def _replaced(column: pa.Array) -> pa.Array:
    return pc.replace_substring(column, _NUL, _REPLACEMENT)


def _replaced_in_json(column: pa.Array) -> pa.Array:
    texts = json_texts(column.type)(column)
    has_nul = pc.fill_null(pc.match_substring_regex(texts, _NUL_IN_JSON), False)
    replaced = [_EACH_NUL_IN_JSON.sub(rf"\1{_REPLACEMENT}", text) for text in texts.filter(has_nul).to_pylist()]
    return pc.replace_with_mask(texts, has_nul, pa.array(replaced, TEXT))

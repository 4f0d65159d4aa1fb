"""The values of a batch that a database cannot hold, with the reasons.

A database refuses a batch as a whole, so this is asked only then: rows without such values cost nothing. The
exceptions are keys that are too long for an index, and texts that are too long for a column of a user, which the table
refuses and not the rows that wait.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer_sinks.sql.databases.dialect import Holds
from tailer_sinks.sql.databases.existing import ExistingTable
from tailer_sinks.sql.databases.texts import NUL, NUL_IN_JSON, TEXT, NoText, holds_json, is_bytes, is_text, json_texts

__all__ = ["NOT_UTF8", "NO_JSON", "REMEDY", "TOO_LARGE", "Fault", "key_faults", "text_faults", "value_faults"]

HAS_NUL: Final = "has a text with the character U+0000"
NOT_UTF8: Final = "has a text that is not UTF-8"
OTHER_CALENDAR: Final = "has a date beyond those of the database"
NO_JSON: Final = "has a value without a JSON form"
TOO_LARGE: Final = "has a value that is too large"
LONG_KEY: Final = "has a key that is too long for an index"
LONG_TEXT: Final = "has a text of more than {} characters"

_REPLACEMENT: Final = "\ufffd"
_replaced_nul: Final = partial(pc.replace_substring, pattern=NUL, replacement=_REPLACEMENT)
_EACH_NUL_IN_JSON: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")

REMEDY: Final = 'Leave the column out, change it with select, or set on_bad_value = "dead_letter" (sql.md).'
_LONGER: Final = "Give the column a longer type, cut the text with select, or set on_bad_value (sql.md)."
# Microseconds of a number, by the unit of a moment.
_MICROS: Final = {"s": 10**6, "ms": 1000, "us": 1}
_DAY: Final = 86_400 * 10**6

Replace = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The `rows` with a value of `column` that does not fit. `replace`: puts others in their place; None: none fit."""

    column: str
    reason: str
    rows: pa.BooleanArray
    replace: Replace | None = None
    remedy: str = REMEDY


def key_faults(holds: Holds, rows: pa.RecordBatch, key: Sequence[str]) -> Iterator[Fault]:
    """Yield the keys that are too long."""
    sized = [rows.column(column) for column in key if is_text(kind := rows.schema.field(column).type) or is_bytes(kind)]
    if holds.key_bytes is not None and sized:
        too_long = pc.greater(_total([pc.binary_length(column) for column in sized]), holds.key_bytes)
        yield from _faults(key[0], LONG_KEY, too_long)


def text_faults(existing: ExistingTable, rows: pa.RecordBatch) -> Iterator[Fault]:
    """Yield the texts that are longer than their columns, of which a database may cut off spaces without a word."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        owned = existing.column(name)
        if owned is not None and owned.longest is not None and is_text(column.type):
            texts = column if not pc.any(_has_other_bytes(column)).as_py() else _decoded(column)
            too_long, cut = (
                pc.greater(pc.utf8_length(texts), owned.longest),
                partial(pc.utf8_slice_codeunits, start=0, stop=owned.longest),
            )
            yield from _faults(name, LONG_TEXT.format(owned.longest), too_long, cut, _LONGER)


def value_faults(holds: Holds, rows: pa.RecordBatch, schema: pa.Schema) -> Iterator[Fault]:
    """Yield the values that the database refuses. `schema`: the types that columns have there."""
    sizes: dict[str, pa.Array] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        kind = column.type
        if holds_json(kind):
            texts, has_none = _texts(column)
            yield from _faults(name, NO_JSON, has_none)
            if not holds.has_nul:
                yield from _faults(name, HAS_NUL, pc.match_substring_regex(texts, NUL_IN_JSON), _replaced_in_json)
            sizes[name] = pc.binary_length(texts)
        elif is_text(kind):
            yield from _faults(name, NOT_UTF8, _has_other_bytes(column), _decoded)
            if not holds.has_nul:
                yield from _faults(name, HAS_NUL, pc.match_substring(column, NUL), _replaced_nul)
            sizes[name] = pc.binary_length(column)
        elif is_bytes(kind):
            sizes[name] = pc.multiply(pc.binary_length(column), holds.bytes_of_a_byte)
        elif bounds := _bounds(holds, kind, schema.field(name).type):
            numbers = column.cast(pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(pa.int64())
            outside = pc.or_(pc.less(numbers, bounds[0]), pc.greater(numbers, bounds[1]))
            yield from _faults(name, OTHER_CALENDAR, outside)
    yield from _too_large(sizes, holds.row_bytes)


def _faults(
    column: str, reason: str, rows: pa.Array, replace: Replace | None = None, remedy: str = REMEDY
) -> Iterator[Fault]:
    if pc.any(rows).as_py():
        rows = pc.fill_null(rows, False)
        yield Fault(column=column, reason=reason, rows=rows, replace=replace, remedy=remedy)


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


def _bounds(holds: Holds, kind: pa.DataType, wide: pa.DataType) -> tuple[int, int] | None:
    """Return the first and the last number of `kind` that a column of type `wide` holds; None: all of them."""
    if kind == wide:
        return holds.days if pa.types.is_date32(kind) else holds.micros if pa.types.is_timestamp(kind) else None
    if not pa.types.is_timestamp(wide):
        return None
    first, last = holds.micros or (-(2**63), 2**63 - 1)
    step = _MICROS[kind.unit] if pa.types.is_timestamp(kind) else _DAY
    return -(-first // step), last // step


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


def _replaced_in_json(column: pa.Array) -> pa.Array:
    texts = json_texts(column.type)(column)
    has_nul = pc.fill_null(pc.match_substring_regex(texts, NUL_IN_JSON), False)
    replaced = [_EACH_NUL_IN_JSON.sub(rf"\1{_REPLACEMENT}", text) for text in texts.filter(has_nul).to_pylist()]
    return pc.replace_with_mask(texts, has_nul, pa.array(replaced, TEXT))

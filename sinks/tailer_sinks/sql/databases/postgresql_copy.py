"""Rows in the text format of PostgreSQL's `COPY`, which Arrow builds a column at a time.

Dates and moments are sent as Julian days, because PostgreSQL reads these for all years that it has. Texts of PostgreSQL
cannot have the character U+0000.
"""

from functools import cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected
from tailer_sinks.sql.databases.dialect import Holds
from tailer_sinks.sql.databases.texts import (
    NUL,
    NUL_IN_JSON,
    TEXT,
    Convert,
    NoText,
    holds_json,
    is_bytes,
    is_text,
    json_texts,
)

__all__ = ["HOLDS", "copied"]

# The calendar of PostgreSQL begins in 4714 BC. A line of COPY is less than 1 GB, with two digits for a byte.
HOLDS: Final = Holds(
    row_bytes=2**30 - 2**16,
    bytes_of_a_byte=2,
    has_nul=False,
    days=(-2_440_588, 2_145_042_905),
    micros=(-210_866_803_200_000_000, 2**63 - 1),
    key_bytes=2600,
)
_EPOCH_DAY: Final = pa.scalar(2_440_588, pa.int64())  # the Julian day of 1970-01-01
_US_PER_DAY: Final = 86_400_000_000


def copied(name: str, rows: pa.RecordBatch) -> pa.Buffer:
    """Return rows in the text format of COPY."""
    columns = [_texts(name, field, column) for field, column in zip(rows.schema, rows.columns, strict=True)]
    lines = pc.binary_join_element_wise(
        *columns, pa.scalar("\t", TEXT), null_handling="replace", null_replacement="\\N"
    )
    lines = pc.binary_join_element_wise(lines, pa.scalar("\n", TEXT), pa.scalar("", TEXT))
    return lines.buffers()[2]


def _texts(name: str, field: pa.Field, column: pa.Array) -> pa.Array:
    kind = column.type
    try:
        texts = _converter(kind)(column)
    except NoText as error:
        raise SinkRejected(name, f"column {field.name} {error}", "Leave the column out.") from error
    is_json = holds_json(kind)
    if not (is_json or is_text(kind)):
        return texts
    has_nul = pc.match_substring_regex(texts, NUL_IN_JSON) if is_json else pc.match_substring(texts, NUL)
    if pc.any(has_nul).as_py():
        reason = f"column {field.name} has a text with the character U+0000, which texts of PostgreSQL cannot have"
        raise SinkRejected(name, reason, "Leave the column out, or replace the character with select.")
    # Characters that COPY would take for something else.
    if pc.any(pc.match_substring_regex(texts, r"[\\\t\n\r]")).as_py():
        for character, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
            texts = pc.replace_substring(texts, character, escape)
    return texts


@cache
def _converter(kind: pa.DataType) -> Convert:
    """Return what turns a column into texts that PostgreSQL reads."""
    if holds_json(kind):
        return json_texts(kind)
    if is_bytes(kind):
        return _hex
    if pa.types.is_date(kind):
        return lambda column: _days(column.cast(pa.int32()).cast(pa.int64()))
    if pa.types.is_timestamp(kind):
        return _moments
    return lambda column: column.cast(TEXT)


def _hex(column: pa.Array) -> pa.Array:
    """Return bytes in hexadecimal; all of them are converted at once."""
    column = pa.concat_arrays([column.cast(pa.large_binary())])
    _, offsets, data = column.buffers()
    start = column.offset
    places = pa.Array.from_buffers(pa.int64(), len(column) + 1, [None, offsets], offset=start)
    doubled = pc.multiply(places, 2)
    digits = pa.py_buffer((data.to_pybytes() if data is not None else b"").hex().encode())
    texts = pa.LargeStringArray.from_buffers(len(column), doubled.buffers()[1], digits)
    with_mark = pc.binary_join_element_wise(pa.scalar("\\\\x", TEXT), texts, pa.scalar("", TEXT))
    return with_mark if column.null_count == 0 else pc.if_else(column.is_valid(), with_mark, pa.scalar(None, TEXT))


def _days(days: pa.Array) -> pa.Array:
    """Return days since 1970 as Julian days."""
    return pc.binary_join_element_wise(pa.scalar("J", TEXT), pc.add(days, _EPOCH_DAY).cast(TEXT), pa.scalar("", TEXT))


def _moments(column: pa.Array) -> pa.Array:
    """Return moments in microseconds as Julian days and times of the day."""
    micros = column.cast(pa.int64())
    days = pc.divide(micros, _US_PER_DAY)
    days = pc.if_else(pc.less(micros, pc.multiply(days, _US_PER_DAY)), pc.subtract(days, 1), days)
    times = pc.subtract(micros, pc.multiply(days, _US_PER_DAY)).cast(pa.time64("us")).cast(TEXT)
    return pc.binary_join_element_wise(_days(days), times, pa.scalar(" ", TEXT))

"""Assignment of rows to the shards of a pipeline.

A shard is a stream of its own over the same versions, without the rows of all other shards. If the sink identifies rows
by a key, all rows of a key belong to one shard, in order (`shard_numbers`). Otherwise a shard has whole tasks: those
whose number, modulo `TASKS` and then modulo the number of shards, is its own.

The assignment is the same in every process and with every library version, for as long as a pipeline keeps its number
of shards. It is the CRC-32 of a text that is built here from numbers as Arrow stores them. A number has the same text
in every width of its type, so a key column may be widened.
"""

from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import ConfigError, did_you_mean

__all__ = ["check_shard_key", "shard_numbers"]

_NAN: Final = pa.scalar(0x7FF8000000000000, pa.int64())
_NO_VALUE: Final = pa.scalar(b"n", pa.binary())
_VALUE: Final = pa.scalar(b"v", pa.binary())
_NOTHING: Final = pa.scalar(b"", pa.binary())
_BETWEEN: Final = pa.scalar(b"\x1f", pa.binary())


def check_shard_key(key: Sequence[str], schema: pa.Schema, table: str, version: int) -> None:
    """Raise `ConfigError` if rows with the columns `schema` cannot be assigned to shards by `key`."""
    for name in key:
        if name not in schema.names:
            columns = f"The columns of {table} are: {', '.join(schema.names)}."
            remedy = f"{columns} {did_you_mean(name, schema.names)}".rstrip()
            raise ConfigError("key", f"no column {name!r} at version {version}", remedy)
        kind = schema.field(name).type
        if pa.types.is_nested(kind):
            reason = f"rows cannot be assigned to shards by {name!r}, which has type {kind}"
            raise ConfigError("key", reason, 'Choose another key, or let one process write: write = "driver".')


def shard_numbers(key: list[pa.Array], shards: int) -> pa.Array:
    """Return the shard, from 0 to below `shards`, of each row whose key has these columns; int32.

    The columns are not nested and have types of tables.
    """
    texts = pc.binary_join_element_wise(*map(_text, key), _BETWEEN)
    return pa.array([crc32(text) % shards for text in texts.to_pylist()], pa.int32())


def _text(values: pa.Array) -> pa.Array:
    """Return the bytes of each value, and of null. Equal values have equal bytes, in any width of their types."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    forms = (form for applies, form in _FORMS if applies(values.type))
    form = next(forms, None)  # none for bytes
    text = pc.cast(values if form is None else form(values), pa.binary())
    return pc.fill_null(pc.binary_join_element_wise(_VALUE, text, _NOTHING), _NO_VALUE)


def _digits(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.string())


def _bits(values: pa.Array) -> pa.Array:
    """Return floating point numbers as the digits of their bits; NaN is one value."""
    wide = pc.cast(values, pa.float64())
    return _digits(pc.if_else(pc.is_nan(wide), _NAN, wide.view(pa.int64())))


def _is_time(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_timestamp, pa.types.is_time64, pa.types.is_duration, pa.types.is_date64)
    return any(applies(kind) for applies in kinds)


# Decimals are the bytes of their unscaled values; dates, times, durations and timestamps are their numbers.
_FORMS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...]] = (
    (pa.types.is_integer, _digits),
    (pa.types.is_floating, _bits),
    (pa.types.is_boolean, lambda values: _digits(pc.cast(values, pa.int8()))),
    (pa.types.is_date32, lambda values: _digits(values.view(pa.int32()))),
    (pa.types.is_time32, lambda values: _digits(values.view(pa.int32()))),
    (_is_time, lambda values: _digits(values.view(pa.int64()))),
    (pa.types.is_decimal, lambda values: values.view(pa.binary(values.type.byte_width))),
)

"""Texts of leaves: many of one type at once where Arrow's text is ours or nearly, one by one elsewhere.

A format returns a text for each place, and which of them are right; the others are left to the decoder of the form.
For floats it also returns which texts lack their `.0`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailer.variant.batch.tree import Buffer, Flags, Numbers
from tailer.variant.text import US_PER_DAY

__all__ = [
    "FORMATS",
    "JSON_FORMATS",
]

Format = Callable[[Buffer, Numbers], tuple[pa.Array, Flags, Flags | None]]

# What `text.double_text` writes without an exponent, and Arrow, too.
_SMALLEST: Final = 1e-4
_LARGEST: Final = 1e10
# The days and microseconds of the years 1 to 9999.
_DAYS: Final = (-719_162, 2_932_896)
_MOMENTS: Final = (_DAYS[0] * US_PER_DAY, (_DAYS[1] + 1) * US_PER_DAY - 1)
_SPACE_AT: Final = 10  # in Arrow's text of a timestamp, after the date
_LARGEST_HIGH: Final = 10**38 >> 64  # the upper half of the first number of 39 digits
_MAX_SCALE: Final = 38
_ARROW_PLAIN: Final = 6  # Arrow writes decimals with an exponent from 1e-7 down
_POWERS: Final = np.array([10**power for power in range(19)], np.int64)


def _integers(layout: str) -> Format:
    def texts(buffer: Buffer, places: Numbers) -> tuple[pa.Array, Flags, Flags | None]:
        return pa.array(buffer.take(layout, places + 1)).cast(pa.string()), _all(places), None

    return texts


def _floats(layout: str) -> Format:
    def texts(buffer: Buffer, places: Numbers) -> tuple[pa.Array, Flags, Flags | None]:
        numbers: npt.NDArray[Any] = buffer.take(layout, places + 1)
        size = np.abs(numbers)
        fits = ((size >= _SMALLEST) & (size < _LARGEST)) | (size == 0)
        numbers = np.where(fits, numbers, np.zeros(1, layout))
        return pa.array(numbers).cast(pa.string()), fits, numbers == np.floor(numbers)

    return texts


def _decimals(size: int, digits: int) -> Format:
    def texts(buffer: Buffer, places: Numbers) -> tuple[pa.Array, Flags, Flags | None]:
        scales = buffer.bytes[places + 1].astype(np.int64)
        low: Numbers = buffer.take("<i4" if size == 4 else "<i8", places + 2).astype(np.int64)
        high: Numbers = buffer.take("<i8", places + 10).astype(np.int64) if size == 16 else low >> 63
        fits = (high >= -_LARGEST_HIGH) & (high < _LARGEST_HIGH)
        if size < 16:
            fits &= (low < _POWERS[digits]) & (low > -_POWERS[digits])
        small = np.clip(scales - _ARROW_PLAIN, 0, 18)
        is_short = (high == low >> 63) & (low < _POWERS[small]) & (low > -_POWERS[small])
        fits &= (scales <= _ARROW_PLAIN + 18) & ((scales <= _ARROW_PLAIN) | ~is_short)
        return _decimal_texts(np.column_stack((low, high)), np.where(fits, scales, 0)), fits, None

    return texts


def _decimal_texts(unscaled: Numbers, scales: Numbers) -> pa.Array:
    """Return the texts of decimals; `unscaled`: pairs of a lower and an upper half."""
    texts, order = [], []
    for scale in np.unique(scales):
        chosen = np.flatnonzero(scales == scale)
        data = pa.py_buffer(np.ascontiguousarray(unscaled[chosen]))
        kind = pa.decimal128(_MAX_SCALE, int(scale))
        texts.append(pa.Array.from_buffers(kind, len(chosen), [None, data]).cast(pa.string()))
        order.append(chosen)
    return texts[0] if len(texts) == 1 else pa.concat_arrays(texts).take(pa.array(np.argsort(np.concatenate(order))))


def _dates(buffer: Buffer, places: Numbers) -> tuple[pa.Array, Flags, Flags | None]:
    days: Numbers = buffer.take("<i4", places + 1).astype(np.int64)
    fits = (days >= _DAYS[0]) & (days <= _DAYS[1])
    return pa.array(np.where(fits, days, 0).astype(np.int32)).cast(pa.date32()).cast(pa.string()), fits, None


def _moments(unit: str) -> Format:
    def texts(buffer: Buffer, places: Numbers) -> tuple[pa.Array, Flags, Flags | None]:
        counts: Numbers = buffer.take("<i8", places + 1).astype(np.int64)
        fits = (counts >= _MOMENTS[0]) & (counts <= _MOMENTS[1]) if unit == "us" else _all(places)
        plain = pa.array(np.where(fits, counts, 0)).cast(pa.timestamp(unit)).cast(pa.string())
        # All have one length.
        data = np.frombuffer(plain.buffers()[2], np.uint8).copy()
        data.reshape(len(places), -1)[:, _SPACE_AT] = ord("T")
        buffers = [None, plain.buffers()[1], pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.string(), len(places), buffers), fits, None

    return texts


def _times(buffer: Buffer, places: Numbers) -> tuple[pa.Array, Flags, Flags | None]:
    counts: Numbers = buffer.take("<i8", places + 1).astype(np.int64)
    fits = (counts >= 0) & (counts < US_PER_DAY)
    return pa.array(np.where(fits, counts, 0)).cast(pa.time64("us")).cast(pa.string()), fits, None


def _all(places: Numbers) -> Flags:
    return np.ones(len(places), np.bool_)


# By the numbers of types. In every form, integers are written alike.
FORMATS: Final[Mapping[int, Format]] = {
    3: _integers("<i1"),
    4: _integers("<i2"),
    5: _integers("<i4"),
    6: _integers("<i8"),
}
JSON_FORMATS: Final[Mapping[int, Format]] = {
    **FORMATS,
    7: _floats("<f8"),
    8: _decimals(4, 9),
    9: _decimals(8, 18),
    10: _decimals(16, 38),
    11: _dates,
    12: _moments("us"),
    13: _moments("us"),
    14: _floats("<f4"),
    17: _times,
    18: _moments("ns"),
    19: _moments("ns"),
}

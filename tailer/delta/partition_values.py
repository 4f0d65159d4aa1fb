"""Partition values of the log as Arrow scalars (PROTOCOL.md, "Partition Value Serialization")."""

import re

import pyarrow as pa

from tailer.delta.years import days_since_epoch, micros_since_epoch
from tailer.errors import DataCorrupt

__all__ = ["partition_scalar"]


def partition_scalar(text: str | None, kind: pa.DataType, table: str, version: int, path: str) -> pa.Scalar:
    """Parse a partition column's value. Null and the empty string both mean null.

    Timestamps follow the protocol: without a zone (read as UTC), or ISO 8601 with one. Years may have a sign and more
    than four digits. Raises `DataCorrupt` naming `path` for text that is not a value of `kind`.
    """
    if text is None or text == "":
        return pa.scalar(None, kind)
    if pa.types.is_binary(kind):
        # Spark writes a binary partition value as if its bytes were UTF-8 text.
        return pa.scalar(text.encode(), kind)
    try:
        if pa.types.is_timestamp(kind):
            return _timestamp(text, kind)
        return pa.array([text]).cast(kind)[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        found = _out_of_arrow_range(text, kind)
        if found is not None:
            return found
        raise DataCorrupt(table, version, path, f"partition value {text!r} is not a {kind}: {error}") from error


def _timestamp(text: str, kind: pa.TimestampType) -> pa.Scalar:
    zoned = text.endswith("Z") or re.search(r"[+-]\d\d:?\d\d$", text) is not None
    parsed = pa.array([text]).cast(pa.timestamp("us", tz="UTC") if zoned else pa.timestamp("us"))
    return parsed.cast(pa.int64()).cast(kind)[0]


def _out_of_arrow_range(text: str, kind: pa.DataType) -> pa.Scalar | None:
    """Parse a date or timestamp in a year that Arrow cannot parse; None for other text and values out of range.

    The text of a timestamp may be a date, because the column's type may have been widened.
    """
    if pa.types.is_date32(kind):
        value, limit, storage = days_since_epoch(text), 2**31, pa.int32()
    elif pa.types.is_timestamp(kind):
        value, limit, storage = micros_since_epoch(text), 2**63, pa.int64()
    else:
        return None
    return None if value is None or not -limit <= value < limit else pa.array([value], storage).view(kind)[0]

"""Single values as the text that tasks carry them in (`tailer.files.partition_values`), from Avro and from JSON."""

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

__all__ = ["default_text", "partition_text"]

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of all zones
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")


def partition_text(value: Any, kind: pa.DataType) -> str | None:
    """Return a value of a partition, as Avro has it, as text. Raises `ValueError` for one of a type that has none.

    `kind`: of the column. Avro has no type for nanoseconds, and writers leave out others: then values are numbers.
    """
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case int():
            return _number_text(value, kind)
        case str():
            return value
        case float():
            return repr(value)
        case Decimal():
            return format(value, "f")
        case datetime():
            return (value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)).isoformat()
        case date() | time():
            return value.isoformat()
        case UUID() | bytes():
            return _text(value.bytes if isinstance(value, UUID) else value)
    raise ValueError(f"a partition value is a {type(value).__name__}")


def _number_text(value: int, kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return (_EPOCH + timedelta(days=value)).date().isoformat()
    if not pa.types.is_timestamp(kind):
        return str(value)
    micros, nanos = divmod(value, 1000) if kind.unit == "ns" else (value, 0)
    moment = (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
    return f"{moment}{nanos:03}" if nanos else moment


def default_text(value: Any, kind: pa.DataType, name: str) -> str:
    """Return a default, as JSON has it, as text. `name`: of the type in the schema. Raises `ValueError`."""
    if isinstance(value, bool) or pa.types.is_boolean(kind):
        if isinstance(value, bool) and pa.types.is_boolean(kind):
            return "true" if value else "false"
        raise ValueError(f"{value!r} is no {name}")
    if name == "uuid":
        return _text(UUID(value).bytes)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        if not _HEX.fullmatch(value):
            raise ValueError(f"{value!r} is not hexadecimal")
        return _text(bytes.fromhex(value))
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return partition_text(value, kind) or ""
    raise ValueError(f"{value!r} is no {name}")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")

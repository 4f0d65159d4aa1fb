"""Statistics of files in the log as each known writer notes them: cut off, rounded, counted and compared in its way.

| what | who |
|---|---|
| texts cut to 32 characters, with U+10FFFF, DEL or nothing after them | Spark, delta-kernel-rs; the protocol's words |
| the same with U+FFFD, as if no character came after it | Delta Spark before 3.1 |
| texts compared by UTF-16 | writers that compare strings of Java or C# |
| timestamps cut to milliseconds, downwards or towards 1970, offsets of zones to minutes | Spark; Delta Spark 3.2, 3.3 |
| decimals and large integers as floating point numbers, numbers of 32 bits as their shortest text | engines with JSON |
| nulls once for each page of a column | polars |
| nulls of a field without those of its struct | delta-kernel-rs, Iceberg |
"""

import json
import os
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from math import isinf, isnan
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.events import is_struct

__all__ = ["note_again", "noted_statistics"]

_CUT: Final = 32
_OFFSETS: Final = (0, 0, -2_670, 1_172, 19_800, -52)  # of Monrovia, Amsterdam, Delhi and Accra, in seconds
_NAMES: Final = ("minValues", "maxValues", "nullCount")
_NOTED: Final = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_binary,
)
_SHOWN: Final = (pa.types.is_signed_integer, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_string)


def note_again(path: Path, chance: random.Random) -> None:
    """Give each file in the commits of a table the statistics of a random writer."""
    noted: dict[str, str | None] = {}
    for commit in sorted((path / "_delta_log").glob("*.json")):
        lines = []
        for action in map(json.loads, commit.read_text().splitlines()):
            for file in (action[kind] for kind in ("add", "remove") if kind in action):
                if file["path"] not in noted:
                    noted[file["path"]] = _of_file(chance, path / unquote(file["path"]))
                file["stats"] = noted[file["path"]]
            lines.append(json.dumps(action) + "\n")
        moment = commit.stat().st_mtime_ns
        commit.write_text("".join(lines))
        os.utime(commit, ns=(moment, moment))


def _of_file(chance: random.Random, path: Path) -> str | None:
    if not path.exists():
        return None
    found = pq.read_table(path)
    names = [field.name for field in found.schema if _is_noted(field.type)]
    columns = [column.cast(_in_micros(column.type)) for column in found.select(names).columns]
    return noted_statistics(chance, pa.table(columns, names=names))


def _is_noted(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return {"metadata", "value"}.isdisjoint(field.name for field in kind) and all(
            _is_noted(field.type) for field in kind
        )
    return any(check(kind) for check in _NOTED)


def _in_micros(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _in_micros(field.type)) for field in kind])
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def noted_statistics(chance: random.Random, table: pa.Table) -> str:
    """Return statistics of a file with the rows of `table`, as a random writer notes them."""
    found: list[dict[str, Any]] = [{}, {}, {}]
    for name, column in zip(table.schema.names, table.columns, strict=True):
        _note(chance, name, column.combine_chunks(), found)
    shown = {name: value for name, value in zip(_NAMES, found, strict=True) if chance.random() < 0.95}
    records = {} if chance.random() < 0.1 else {"numRecords": table.num_rows}
    return _text({**records, **shown, "tightBounds": chance.random() < 0.5})


def _note(chance: random.Random, name: str, array: pa.Array, found: Sequence[dict[str, Any]]) -> None:
    if is_struct(array.type):
        below: list[dict[str, Any]] = [{}, {}, {}]
        flat = array.flatten() if chance.random() < 0.5 else [array.field(index) for index in range(len(array.type))]
        for field, child in zip(array.type, flat, strict=True):
            _note(chance, field.name, child, below)
        for level, inner in zip(found, below, strict=True):
            level[name] = inner
        return
    low, high = _bounds(chance, array)
    is_shown = low is not None and high is not None
    pages = 1
    if is_shown or not any(check(array.type) for check in _SHOWN):
        pages = chance.choice([1, 1, 2, 3])
    for level, value in zip(found, (low, high, str(array.null_count * pages)), strict=True):
        if value is not None:
            level[name] = _Raw(value)


class _Raw(str):
    """JSON text of a value."""


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(each)}" for key, each in value.items()) + "}"
    return str(value) if isinstance(value, _Raw) else json.dumps(value)


def _bounds(chance: random.Random, array: pa.Array) -> tuple[str | None, str | None]:
    """Return JSON of the lowest and of the highest value; None: the writer has none."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        values = array.cast(pa.int64()).drop_null().to_pylist()
    else:
        values = array.drop_null().to_pylist()
    if not values or pa.types.is_binary(kind):
        return None, None
    if pa.types.is_string(kind):
        return _text_bounds(chance, values)
    if pa.types.is_floating(kind):
        return _float_bounds(chance, values, kind)
    ends = min(values), max(values)
    if pa.types.is_boolean(kind):
        return (None, None) if chance.random() < 0.5 else (json.dumps(ends[0]), json.dumps(ends[1]))
    if pa.types.is_date32(kind):
        return json.dumps(str(ends[0])), json.dumps(str(ends[1]))
    if pa.types.is_timestamp(kind):
        cut, offset = chance.choice(["down", "1970", "not"]), chance.choice(_OFFSETS)
        low, high = (_moment(each, cut, offset if kind.tz else None) for each in ends)
        return low, high
    if chance.random() < 0.5 and not pa.types.is_boolean(kind):  # as a floating point number
        is_whole = pa.types.is_integer(kind)
        low, high = (str(int(float(each))) if is_whole else repr(float(each)) for each in ends)
        return low, high
    return str(ends[0]), str(ends[1])


def _moment(micros: int, cut: str, offset: int | None) -> str:
    if cut == "down":
        micros = micros // 1000 * 1000
    elif cut == "1970":
        micros = (abs(micros) // 1000 * 1000) * (1 if micros > 0 else -1)
    local = datetime(1970, 1, 1) + timedelta(microseconds=micros, seconds=offset or 0)  # noqa: DTZ001
    text = local.isoformat(timespec="microseconds" if cut == "not" else "milliseconds")
    if offset is None:
        return json.dumps(text)
    minutes = abs(offset) // 60
    zone = f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}" if minutes else "Z"
    return json.dumps(text + zone)


def _float_bounds(chance: random.Random, values: list[float], kind: pa.DataType) -> tuple[str | None, str | None]:
    numbers = [each for each in values if not isnan(each)]
    if not numbers:
        return chance.choice([('"NaN"', '"NaN"'), (None, None)])
    has_nan, is_short = len(numbers) < len(values), pa.types.is_float32(kind)
    low, high = (_number(each, is_short=is_short) for each in (min(numbers), max(numbers)))
    return low, chance.choice([high, '"NaN"']) if has_nan else high


def _number(value: float, *, is_short: bool) -> str:
    if isinf(value):
        return json.dumps("-Infinity" if value < 0 else "Infinity")
    return f"{Decimal(value):.9g}" if is_short else repr(value)


def _text_bounds(chance: random.Random, values: list[str]) -> tuple[str, str]:
    encoding = chance.choice(["utf-8", "utf-8", "utf-16-be"])
    low, high = (end(values, key=lambda text: text.encode(encoding)) for end in (min, max))
    how = chance.choice(["whole", "cut", "last", "delete", "old"])
    if how == "whole":
        return json.dumps(low), json.dumps(high)
    begin, rest = high[:_CUT], high[_CUT:]
    if rest and how == "last":
        kept = len(rest) - len(rest.lstrip("\U0010ffff"))
        begin = high if kept == len(rest) else begin + rest[:kept] + "\U0010ffff"
    elif rest and how == "delete":
        begin = begin + "\x7f" if rest[0] < "\x7f" else begin + "\U0010ffff" * 2
    elif rest and how == "old":
        kept = len(rest) - len(rest.lstrip("\ufffd\ufffe\uffff"))
        begin += rest[:kept] + "\ufffd"
    return json.dumps(low[:_CUT]), json.dumps(begin)

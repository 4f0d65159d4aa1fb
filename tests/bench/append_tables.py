"""Tables of appends for measurements, written by delta-rs with the change feed enabled."""

from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import write_deltalake

__all__ = ["FEED", "wide", "write_appends"]

FEED: Final = {"delta.enableChangeDataFeed": "true"}


def wide(start: int, rows: int) -> pa.Table:
    """Make twelve columns of the usual kinds, about 200 bytes a row."""
    ids = pa.array(range(start, start + rows), pa.int64())
    text = ids.cast(pa.string())
    columns: dict[str, pa.Array] = {"id": ids, "at": ids.cast(pa.timestamp("us", tz="UTC"))}
    for number in range(4):
        columns[f"count_{number}"] = pa.array([(value * 7 + number) % 1000 for value in range(rows)], pa.int32())
        columns[f"share_{number}"] = ids.cast(pa.float64())
    columns["name"] = pa.array([f"customer {value % 5000}" for value in range(rows)])
    columns["key"] = text
    return pa.table(columns)


def write_appends(path: Path, versions: int, rows: int) -> Path:
    """Write `versions` of so many rows, a file each; return the path."""
    for version in range(versions):
        write_deltalake(path, wide(version * rows, rows), mode="append", configuration=FEED)
    return path

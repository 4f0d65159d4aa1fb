"""Rows of twelve columns for measurements of Lance datasets."""

import pyarrow as pa

__all__ = ["wide"]


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

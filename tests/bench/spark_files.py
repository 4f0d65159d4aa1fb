"""Data files for measurements, as Spark writes them, without a Spark.

As in files of Spark 4.2 with its default settings: pages of version 1, all with checksums; Snappy; timestamps of 96
bits; decimals as integers; column and offset indexes; no schema of Arrow's; a new page after a megabyte or 20,000 rows;
a dictionary until it has a megabyte, and none for a column whose first page would not be smaller with it.

Not as there: a row group ends after a million rows, in Spark after 128 MB, which is about as much for rows of twelve
columns. Whether a column has a dictionary is estimated, and nested columns always have one. Where more matters, as for
change files, Spark itself writes the tables (`tests/bench/spark_tables.py`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["rewrite_as_spark", "write_as_spark"]

_GROUP_ROWS: Final = 1_000_000
_PAGE_ROWS: Final = 20_000


def write_as_spark(rows: pa.Table, file: Path) -> int:
    """Write a file; return its size in bytes."""
    pq.write_table(
        rows,
        file,
        row_group_size=_GROUP_ROWS,
        max_rows_per_page=_PAGE_ROWS,
        version="1.0",
        compression="snappy",
        use_dictionary=[path for name in rows.column_names for path in _dictionaries(name, rows[name])],
        use_deprecated_int96_timestamps=True,
        store_decimal_as_integer=True,
        store_schema=False,
        write_page_checksum=True,
        write_page_index=True,
    )
    return file.stat().st_size


def _dictionaries(name: str, column: pa.ChunkedArray) -> Iterator[str]:
    """Yield the paths of a column's leaves that have dictionaries."""
    if pa.types.is_nested(column.type):
        yield from _leaves(name, column.type)
    elif pa.types.is_timestamp(column.type):
        yield name
    else:
        first = column.slice(0, _PAGE_ROWS)
        if 2 * pc.count_distinct(first).as_py() < len(first):
            yield name


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    else:
        yield path


def rewrite_as_spark(table: Path) -> None:
    """Write the data files of a table of another writer again, and correct their sizes in its log."""
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions: list[dict[str, Any]] = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "add" in action:
                file = table / action["add"]["path"]
                action["add"]["size"] = write_as_spark(pq.ParquetFile(file).read(), file)
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))

"""Tables for measurements of reading, from row numbers: the same in every run. Spark writes the one with change files.

Their twelve columns are those of `rewritten`: numbers, texts, a time, a decimal, a struct and a list.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.bench.rewritten import DELTA_TYPES, shop_rows
from tests.support.tables.log_files import (
    add,
    commit_info,
    metadata,
    protocol,
    remove,
    schema_string,
    vector_file,
    write_commit,
)

__all__ = ["TABLES", "write_appends", "write_merges", "write_one_commit", "write_vectors"]

ROOT: Final = Path(__file__).parents[2]
_FEED: Final = {"delta.enableChangeDataFeed": "true"}
_VECTORS: Final = {"delta.enableDeletionVectors": "true"}


def write_appends(path: Path, versions: int = 100, rows: int = 50_000) -> int:
    """Append `versions` of one file; return the number of change rows."""
    for version in range(versions):
        written = _file(path, f"{version}.parquet", _rows(version * rows, rows))
        _commit(path, version, [written], _FEED)
    return versions * rows


def write_merges(path: Path, merges: int = 50, events: int = 20_000) -> int:
    """Write a table and merges with a change file each by Spark; return the number of change rows."""
    scratch = path.parent / "spark"
    scratch.mkdir()
    arguments = {"merges": merges, "events": events}
    order = {"reader": "write", "path": str(path), "table": "merge_with_feed", "arguments": arguments}
    command = [sys.executable, "-m", "tests.bench.spark_reader", str(scratch), "local[2]"]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(order), stdout=subprocess.PIPE, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2, done.stdout
    images = events * 8 // 10 * 2
    return merges * (events * 9 // 10 + images + events * 2 // 10)


def write_vectors(path: Path, versions: int = 20, rows: int = 2_000_000, files: int = 8, changed: int = 30_000) -> int:
    """Delete `changed` scattered rows by deletion vectors in odd versions, update half as many in even ones.

    Return the number of change rows.
    """
    share = rows // files
    parts = list(_parts(path, share, files))
    _commit(path, 0, parts, _VECTORS)
    marked: list[set[int]] = [set() for _ in parts]
    vectors: list[dict[str, Any] | None] = [None for _ in parts]
    change_rows = 0
    for version in range(1, versions + 1):
        own = (changed if version % 2 else changed // 2) // files
        actions: list[dict[str, Any]] = []
        for number, part in enumerate(parts):
            name, size = part["add"]["path"], part["add"]["size"]
            places = {(at * (share // own) + version * 7) % share for at in range(own)} - marked[number]
            marked[number] |= places
            actions.append(remove(name, vectors[number], size=size))
            (vectors[number],) = vector_file(path, sorted(marked[number]))
            actions.append(add(name, vectors[number], size=size))
            change_rows += len(places)
            if version % 2 == 0:
                before = shop_rows(pa.array([number * share + place for place in sorted(places)], pa.int64()))
                actions.append(_file(path, f"{version}-{number}.parquet", _negated(before)))
                change_rows += len(places)
        _commit(path, version, actions)
    return change_rows


def write_one_commit(path: Path, rows: int = 10_000_000, files: int = 4) -> int:
    """Append one version of `files`; return the number of change rows."""
    share = rows // files
    _commit(path, 0, list(_parts(path, share, files)), _FEED)
    return rows


def _parts(path: Path, share: int, files: int) -> Iterator[dict[str, Any]]:
    for number in range(files):
        yield _file(path, f"{number}.parquet", _rows(number * share, share))


def _rows(first: int, count: int) -> pa.Table:
    return shop_rows(pa.array(range(first, first + count), pa.int64()))


def _negated(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("total"), "total", pc.negate(rows["total"]))


def _file(path: Path, name: str, rows: pa.Table) -> dict[str, Any]:
    """Write a data file with a row group for each million rows; return its `add`."""
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path / name, row_group_size=1_000_000)
    return add(name, size=(path / name).stat().st_size)


def _commit(path: Path, version: int, actions: list[dict[str, Any]], table: dict[str, str] | None = None) -> None:
    described = metadata(schema_string(**DELTA_TYPES), **(table or {}))
    described["metaData"]["format"]["options"] = {}  # delta-rs reads nothing without it
    first = [] if version else [_gate(table or {}), described]
    write_commit(path, version, commit_info(operation="WRITE", timestamp=1_700_000_000_000 + version), *first, *actions)


def _gate(table: dict[str, str]) -> dict[str, Any]:
    return protocol(3, ["deletionVectors"]) if table == _VECTORS else protocol(1)


TABLES: Final[dict[str, Callable[[Path], int]]] = {
    "W1": write_appends,
    "W2": write_merges,
    "W3": write_vectors,
    "W5": write_one_commit,
}

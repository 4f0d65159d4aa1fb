"""Tables for measurements of reading, from row numbers: the same in every run.

Spark writes those with change files and deletion vectors, by its own MERGE, DELETE and UPDATE. Files of appends are as
Spark writes them (`tests/bench/spark_files.py`). Their twelve columns are those of `rewritten`: numbers, texts, a time,
a decimal, a struct and a list. delta-rs writes the data files of `write_marked`, and the tests' own tools its vectors.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties, write_deltalake

from tests.bench.rewritten import DELTA_TYPES, shop_rows
from tests.bench.spark_files import write_as_spark
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

__all__ = [
    "FIRST",
    "TABLES",
    "append",
    "scattered",
    "write_appends",
    "write_marked",
    "write_merges",
    "write_one_commit",
    "write_vectors",
]

ROOT: Final = Path(__file__).parents[2]
_FEED: Final = {"delta.enableChangeDataFeed": "true"}


def write_appends(path: Path, versions: int = 100, rows: int = 50_000) -> int:
    """Append `versions` of one file; return the number of change rows."""
    for version in range(versions):
        append(path, version, version * rows, rows)
    return versions * rows


def append(path: Path, version: int, first: int, rows: int) -> None:
    """Append a version of one file with `rows` rows, whose ids begin with `first`."""
    _commit(path, version, [_file(path, f"{version}.parquet", first, rows)])


def write_merges(path: Path, merges: int = 50, events: int = 20_000) -> int:
    """Write a table and merges with a change file each by Spark; return the number of rows in change files."""
    _write_by_spark(path, "merge_with_feed", merges=merges, events=events)
    return merges * (events * 8 // 10 * 2 + events * 2 // 10)


def write_vectors(path: Path, versions: int = 20, rows: int = 2_000_000, changed: int = 30_000) -> int:
    """Write a table, deletes and updates with deletion vectors by Spark; return the number of all change rows."""
    _write_by_spark(path, "mark_by_vectors", versions=versions, rows=rows, changed=changed)
    deleted: set[int] = set()
    change_rows = rows
    for version, (first, step) in enumerate(scattered(versions, rows, changed), 1):
        found = set(range(first, rows, step)) - deleted
        change_rows += len(found) if version % 2 else 2 * len(found)
        deleted |= found if version % 2 else set()
    return change_rows


def write_marked(path: Path, versions: int = 20, files: int = 8, rows: int = 250_000) -> int:
    """Write `files` of `rows` rows, and versions that each mark a hundredth of all files; return the number of changes.

    Even versions are updates: they add a file with the rows that they mark. The table has no feed and no row ids.
    """
    path.mkdir(parents=True)
    data = [_by_delta_rs(path, range(number * rows, (number + 1) * rows)) for number in range(files)]
    first = [protocol(3, ["deletionVectors"]), metadata(schema_string(**DELTA_TYPES))]
    write_commit(path, 0, commit_info(operation="WRITE"), *first, *(add(**file) for file in data))
    vectors: list[Any] = [None] * files
    for version in range(1, versions + 1):
        before, vectors = vectors, vector_file(path, *[_marked(rows, version)] * files)
        marks = [remove(**file, vector=vector) for file, vector in zip(data, before, strict=True)]
        marks += [add(**file, vector=vector) for file, vector in zip(data, vectors, strict=True)]
        if is_update := version % 2 == 0:
            marks.append(add(**_by_delta_rs(path, range(version, files * rows, 100), is_update=True)))
        write_commit(path, version, commit_info(operation="UPDATE" if is_update else "DELETE"), *marks)
    return files * rows + (versions + versions // 2) * files * len(range(0, rows, 100))


def _marked(rows: int, version: int) -> list[int]:
    """Return the rows of a file that the versions up to `version` mark."""
    return [row for row in range(rows) if 1 <= row % 100 <= version]


def _by_delta_rs(path: Path, ids: range, is_update: bool = False) -> dict[str, Any]:
    """Let delta-rs write a file in row groups of 131,072 rows; return its path and size. `is_update`: of new totals."""
    with TemporaryDirectory() as scratch:
        properties = WriterProperties(max_row_group_size=131_072)
        rows = shop_rows(pa.array(ids, pa.int64()))
        if is_update:
            rows = rows.set_column(rows.schema.get_field_index("total"), "total", pc.negate(rows["total"]))
        write_deltalake(scratch, rows, writer_properties=properties, target_file_size=2**30)
        (uri,) = DeltaTable(scratch).file_uris()
        name = Path(uri).name
        shutil.move(uri, path / name)
    return {"path": name, "size": (path / name).stat().st_size}


def scattered(versions: int, rows: int, changed: int) -> Iterator[tuple[int, int]]:
    """Yield for each version the first id that it changes, and the distance of the others, if they still exist.

    Odd versions change about `changed` of `rows`, even ones half as many.
    """
    for version in range(1, versions + 1):
        step = rows // (changed if version % 2 else changed // 2)
        yield version * 7 % step, step


def write_one_commit(path: Path, rows: int = 10_000_000, files: int = 4) -> int:
    """Append one version of `files`; return the number of change rows."""
    share = rows // files
    _commit(path, 0, [_file(path, f"{number}.parquet", number * share, share) for number in range(files)])
    return rows


def _write_by_spark(path: Path, table: str, **arguments: int) -> None:
    """Write a table of `tests.bench.spark_tables` in a process with a Spark of its own."""
    scratch = path.parent / "spark"
    scratch.mkdir(exist_ok=True)
    order = {"reader": "write", "path": str(path), "table": table, "arguments": arguments}
    command = [sys.executable, "-m", "tests.bench.spark_reader", str(scratch), "local[2]"]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(order), stdout=subprocess.PIPE, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2, done.stdout


def _file(path: Path, name: str, first: int, rows: int) -> dict[str, Any]:
    """Write a data file; return its `add`."""
    path.mkdir(parents=True, exist_ok=True)
    found = shop_rows(pa.array(range(first, first + rows), pa.int64()))
    return add(name, size=write_as_spark(found, path / name))


def _commit(path: Path, version: int, actions: list[dict[str, Any]]) -> None:
    described = metadata(schema_string(**DELTA_TYPES), **_FEED)
    described["metaData"]["format"]["options"] = {}  # delta-rs reads nothing without it
    first = [] if version else [protocol(1), described]
    write_commit(path, version, commit_info(operation="WRITE", timestamp=1_700_000_000_000 + version), *first, *actions)


TABLES: Final[dict[str, Callable[[Path], int]]] = {
    "W1": write_appends,
    "W2": write_merges,
    "W3": write_vectors,
    "marked": write_marked,
    "W5": write_one_commit,
}

FIRST: Final = {"W1": 0, "W2": 1, "W3": 0, "marked": 0, "W5": 0}
"""The first version that counts: those before are no change files."""

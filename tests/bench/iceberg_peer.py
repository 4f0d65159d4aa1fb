"""PyIceberg as the writer of a table and as a reader of changes, in a process and an environment of its own.

Arguments: WORK and the folder of the table. Makers print the location of the metadata file; readers print what
`tests.bench.change_readers` prints. It is run by `uv run --with`, so it imports nothing of ours.
"""

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

APPENDS: Final = 200  # PyIceberg needs longer for each, the more there are
TOGETHER: Final = 50  # appends in a commit: each is a snapshot, and the metadata is written once
ROWS: Final = 2_000_000
FILES: Final = 8


def _table(path: str, schema: pa.Schema) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415

    Path(path).mkdir(parents=True)
    catalog = SqlCatalog("bench", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
    catalog.create_namespace("bench")
    return catalog.create_table("bench.t", schema, properties={"format-version": "2"})


def _numbers(first: int, count: int) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    part = pa.array([value % 100 for value in range(count)], pa.int64())
    return pa.table({"id": ids, "part": part, "name": [f"customer {value % 5000}" for value in range(count)]})


def make_appends(path: str) -> str:
    """Append ten rows at a time."""
    table = _table(path, _numbers(0, 0).schema.set(2, pa.field("name", pa.string())))
    for first in range(0, APPENDS, TOGETHER):
        with table.transaction() as commit:
            for number in range(first, first + TOGETHER):
                commit.append(_numbers(10 * number, 10))
    return str(table.metadata_location)


def make_update(path: str) -> str:
    """Append `ROWS` rows in `FILES` files, then overwrite one row in a hundred of each, copying the others."""
    table = _table(path, _numbers(0, 0).schema.set(2, pa.field("name", pa.string())))
    count = ROWS // FILES
    for number in range(FILES):
        table.append(_numbers(number * count, count))
    changed = [_numbers(number * count, count) for number in range(FILES)]
    rows = pa.concat_tables(changed)
    rows = rows.filter(pa.compute.equal(rows["part"], 7))
    table.overwrite(rows.set_column(2, "name", pa.array(["changed"] * len(rows))), overwrite_filter="part == 7")
    return str(table.metadata_location)


def read_appends(table: Any) -> int:
    """Read what each append brought, snapshot by snapshot, as a follower does."""
    snapshots, rows = table.snapshots(), 0
    for before, after in pairwise(snapshots):
        scan = table.incremental_append_scan(
            from_snapshot_id_exclusive=before.snapshot_id, to_snapshot_id_inclusive=after.snapshot_id
        )
        rows += sum(batch.num_rows for batch in scan.to_arrow_batch_reader())
    return rows


def read_appends_at_once(table: Any) -> int:
    """Read what all appends brought, in one scan."""
    scan = table.incremental_append_scan(from_snapshot_id_exclusive=table.snapshots()[0].snapshot_id)
    return sum(batch.num_rows for batch in scan.to_arrow_batch_reader())


def read_update(table: Any) -> int:
    """Read the snapshots before and after, and compare their rows."""
    import duckdb  # noqa: PLC0415

    before = table.scan(snapshot_id=table.snapshots()[FILES - 1].snapshot_id).to_arrow()
    after = table.scan().to_arrow()
    connection = duckdb.connect()
    connection.register("before", before)
    connection.register("after", after)
    one, other = "SELECT * FROM before", "SELECT * FROM after"
    queries = [f"SELECT count(*) FROM (({x}) EXCEPT ALL ({y}))" for x, y in ((one, other), (other, one))]
    return sum(connection.execute(query).fetchall()[0][0] for query in queries)


MAKERS: Final[dict[str, Callable[[str], str]]] = {"make_appends": make_appends, "make_update": make_update}
READERS: Final[dict[str, Callable[[Any], int]]] = {
    "read_appends": read_appends,
    "read_appends_at_once": read_appends_at_once,
    "read_update": read_update,
}


def _main(work: str, path: str) -> None:
    if work in MAKERS:
        print(MAKERS[work](path))
        return
    from pyiceberg.table import StaticTable  # noqa: PLC0415

    start, cpu = time.perf_counter(), time.process_time()
    rows = READERS[work](StaticTable.from_metadata(path))
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    status = Path("/proc/self/status").read_text()
    peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu_s": cpu_s, "peak_mb": peak_kb / 1024}))


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Iceberg tables: small appends, a copy-on-write update, deletes by vectors and by keys, and long histories.

PyIceberg is a peer of the first two, in the same run, and Spark's changelog view of the update. No other reader
delivers the changes of the others, so they have no peer. Nothing is asserted but numbers of rows. `make bench` prints
the figures.
"""

import json
import random
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tailer.formats.iceberg.table import IcebergTableLog
from tailer.stores.local import LocalStore
from tests.bench.append_tables import wide
from tests.bench.conftest import PutLine
from tests.bench.iceberg_peer import APPENDS, FILES, ROWS
from tests.jars.where import jars
from tests.support.iceberg.table import IcebergTable

RUNS: Final = 5
KEYS: Final = 100_000
MORE: Final = 1000
COMMITS: Final = 15
COLUMNS: Final = tuple(
    {"id": 1 + place, "name": field.name, "type": kind}
    for place, (field, kind) in enumerate(
        zip(
            wide(0, 1).schema,
            ("long", "timestamptz", *("int", "double") * 4, "string", "string"),
            strict=True,
        )
    )
)
_SPARK: Final = Path(sys.executable).parents[1] / "iceberg" / "bin" / "python"
_PEER: Final = ("run", "--no-project", "--with", "pyiceberg[pyarrow,sql-sqlite]==0.12.*", "--with", "duckdb")

Taken = dict[str, Any]


def peer(work: str, path: str) -> str:
    """Run PyIceberg; return what it prints."""
    uv, module = (
        str(file) for file in (Path(sys.executable).with_name("uv"), Path(__file__).with_name("iceberg_peer.py"))
    )
    done = subprocess.run([uv, *_PEER, "python", module, work, path], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def ours(path: str, first: int) -> Taken:
    """Read all changes from a version on in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.change_readers", "ours", path, str(first)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken: Taken = json.loads(done.stdout)
    return taken


def changelog_view(path: str, first: int) -> list[Taken]:
    """Read the changes from a version on by Spark's changelog view, in one process, once more than others."""
    arguments = [_SPARK, "-m", "tests.bench.iceberg_spark_peer", path, ",".join(map(str, jars("iceberg-spark")))]
    command = [*map(str, arguments), str(first), str(1 + RUNS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def median(runs: list[Taken], name: str) -> float:
    """Return the median of a figure."""
    figure: float = statistics.median(run[name] for run in runs)
    return figure


def shown(runs: list[Taken]) -> str:
    """Return the medians as text."""
    return f"{median(runs, 'seconds'):.2f} s, {median(runs, 'cpu_s'):.2f} s of CPU, {median(runs, 'peak_mb'):.0f} MB"


def beside(path: str, first: int, work: str, rows: int) -> tuple[str, str]:
    """Read by both readers in turn; return the figures of both, with the ratio."""
    pairs = [(ours(path, first), json.loads(peer(work, path))) for _ in range(RUNS)]
    assert {taken["rows"] for pair in pairs for taken in pair} == {rows}
    ratio = statistics.median(other["seconds"] / own["seconds"] for own, other in pairs)
    return shown([own for own, _ in pairs]), f"{shown([other for _, other in pairs])}; {ratio:.2f}"


def test_small_appends(tmp_path: Path, put_line: PutLine) -> None:
    """200 appends of 10 rows by PyIceberg, each a snapshot, beside its incremental scan; and 1,000 by our writer."""
    path = peer("make_appends", str(tmp_path / "t"))
    for work, name in (("read_appends", "each snapshot"), ("read_appends_at_once", "all at once")):
        own, other = beside(path, 2, work, 10 * (APPENDS - 1))
        put_line(f"Iceberg: {APPENDS:,} appends of 10 rows", own, f"PyIceberg, {name}: {other}", "-")
    table = IcebergTable(tmp_path / "more")
    for number in range(MORE):
        ids = range(10 * number, 10 * number + 10)
        table.commit([table.data({"id": list(ids), "name": [f"customer {one}" for one in ids]})])
    runs = [ours(str(table.path), 1) for _ in range(RUNS)]
    assert {run["rows"] for run in runs} == {10 * MORE}
    put_line(f"Iceberg: {MORE:,} appends of 10 rows", shown(runs), "-", "-")


def test_a_copy_on_write_update(tmp_path: Path, put_line: PutLine) -> None:
    """One row in a hundred of each of 8 files overwritten by PyIceberg.

    Beside it: comparing two of PyIceberg's scans, and Spark's changelog view.
    """
    path, work = peer("make_update", str(tmp_path / "t")), f"update of {ROWS // 100:,} of {ROWS:,} rows, copy-on-write"
    own, other = beside(path, FILES + 1, "read_update", 2 * ROWS // 100)
    put_line(f"Iceberg: {work}", own, f"PyIceberg: {other}", "-")
    first, *runs = changelog_view(path, FILES + 1)
    assert {taken["rows"] for taken in (first, *runs)} == {2 * ROWS // 100}
    put_line(f"Iceberg: {work}", own, f"Spark's changelog view: {shown(runs)}; the first time {shown([first])}", "-")


@pytest.mark.parametrize("kind", ["vectors", "keys"])
def test_deletes_without_copies(tmp_path: Path, put_line: PutLine, kind: str) -> None:
    """One row in a hundred deleted by vectors; 100,000 scattered keys upserted by an equality delete."""
    table = IcebergTable(tmp_path / "t", version=3, columns=COLUMNS)
    count = ROWS // FILES
    ids = {column["name"]: column["id"] for column in COLUMNS}
    files = [
        table.data({name: rows[name].combine_chunks() for name in rows.column_names})
        for rows in (wide(number * count, count) for number in range(FILES))
    ]
    table.commit(files)
    if kind == "vectors":
        table.commit([table.vector(file, range(0, count, 100)) for file in map(table.file, (f.path for f in files))])
        work, rows = f"delete of {ROWS // 100:,} of {ROWS:,} rows by vectors", ROWS // 100
    else:
        keys = random.Random(1).sample(range(ROWS), KEYS)
        changed = wide(0, KEYS).set_column(0, "id", [keys])
        added = table.data({name: changed[name].combine_chunks() for name in changed.column_names})
        table.commit([table.equality({"id": keys}, {"id": ids["id"]}), added])
        work, rows = f"upsert of {KEYS:,} keys among {ROWS:,} rows by an equality delete", 2 * KEYS
    runs = [ours(str(table.path), 2) for _ in range(RUNS)]
    assert {run["rows"] for run in runs} == {rows}
    put_line(f"Iceberg: {work}", shown(runs), "-", "-")


@pytest.mark.parametrize("snapshots", [10, 1000, 10_000])
def test_long_histories(tmp_path: Path, put_line: PutLine, snapshots: int) -> None:
    """A look that finds nothing, and a commit, beside how many snapshots the metadata lists."""
    table = listed(tmp_path / "t", snapshots)

    async def follow() -> tuple[list[float], list[float]]:
        log = IcebergTableLog(LocalStore(table.path), lambda uri: LocalStore(Path(uri)))
        await log.seek(await log.latest() + 1)
        looks, commits = list[float](), list[float]()
        for number in range(COMMITS):
            start_s = time.perf_counter()
            assert await log.next_plan() is None
            looks.append(time.perf_counter() - start_s)
            table.commit([table.data({"id": [number], "name": ["x"]})])
            start_s = time.perf_counter()
            plan = await log.next_plan()
            commits.append(time.perf_counter() - start_s)
            assert plan is not None
        return looks, commits

    look_ms, commit_ms = (1000 * statistics.median(taken) for taken in anyio.run(follow))
    size_mb = max(path.stat().st_size for path in (table.path / "metadata").glob("*.json")) / 1e6
    put_line(
        f"Iceberg: {snapshots:,} snapshots, metadata of {size_mb:.2f} MB",
        f"a look {look_ms:.2f} ms, a commit {commit_ms:.1f} ms",
        "-",
        "-",
    )


def listed(path: Path, snapshots: int) -> IcebergTable:
    """Make a table whose metadata lists so many snapshots, with summaries as Spark writes them; the last has a file."""
    table, chance = IcebergTable(path), random.Random(1)
    for number in range(1, snapshots):
        snapshot_id = chance.getrandbits(62)
        sizes = {f"total-{name}": str(number) for name in ("records", "files-size", "data-files", "delete-files")}
        summary = sizes | {
            "operation": "append",
            "spark.app.id": "local-1764000000000",
            "added-data-files": "1",
            "added-records": "10",
            "added-files-size": "1234",
            "changed-partition-count": "1",
            "engine-name": "spark",
            "engine-version": "4.1.4",
            "iceberg-version": "Apache Iceberg 1.12.0 (commit 0123456789abcdef0123456789abcdef01234567)",
        }
        table.snapshots.append(
            {
                "sequence-number": number,
                "snapshot-id": snapshot_id,
                "timestamp-ms": 1000 * number,
                "summary": summary,
                "manifest-list": f"{path}/metadata/snap-{snapshot_id}-1-{uuid.UUID(int=chance.getrandbits(128))}.avro",
                "schema-id": 0,
            }
        )
        if number > 1:
            table.snapshots[-1]["parent-snapshot-id"] = table.snapshots[-2]["snapshot-id"]
    table.sequence = snapshots - 1
    newest = table.snapshots[-1]["snapshot-id"]
    table.refs["main"] = {"snapshot-id": newest, "type": "branch"}
    table.states[newest] = []
    table.commit([table.data({"id": [0], "name": ["x"]})])
    return table

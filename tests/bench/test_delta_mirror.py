"""A mirror in Delta beside Spark's MERGE of the same change feed in `foreachBatch`, written by hand.

The first version inserts `ROWS` rows, the second one updates every tenth. Both contenders follow the same table, one
after the other, each with a new copy for each run; the figures are medians. Spark runs already when it is measured. It
commits rows and progress apart, so it is not exactly once by itself: a batch that is repeated finds its rows merged.

A mirror that marks deleted rows, and a history, are measured in turn with a plain mirror.

Nothing is asserted about time, only that the copies equal the table. `make bench` prints the table.
"""

import json
import statistics
import subprocess
import sys
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import anyio
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.pipeline.row_delivery import row_pipeline
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tests.bench.conftest import PutLine
from tests.support.mirrors.delta import make_mirror
from tests.support.mirrors.planted import log_of

RUNS: Final = 3
ROWS: Final = 2_000_000
STEP: Final = 10  # every tenth row is updated
MODES: Final[dict[str, dict[str, Any]]] = {"plain": {}, "mark": {"deletes": "mark"}, "history": {"mode": "history"}}
Costs = tuple[float, float]  # in seconds, and in seconds of processors
ROOT: Final = Path(__file__).parents[2]


def write_rows(path: Path) -> None:
    ids = pa.array(range(ROWS), pa.int64())
    texts = [f"customer-{number}" for number in range(1000)]
    columns = {
        "id": ids,
        "customer": pa.array(texts).take(pa.array([number % 1000 for number in range(ROWS)])),
        "amount": pc.multiply(ids.cast(pa.float64()), 0.25),
        "note": pa.array(["a note that says little"]).take(pa.nulls(ROWS, pa.int8()).fill_null(0)),
    }
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(path, pa.table(columns), configuration=feed, target_file_size=32 * 2**20)


async def mirror(table: Path, copy: Path, last: int, **options: Any) -> Costs:
    """Mirror a table up to version `last`."""
    begun_s, before_s = time.perf_counter(), time.process_time()
    start, end = Start(StartKind.EARLIEST), Start(StartKind.VERSION, last)
    engine = ChangelogEngine(LocalEngine(), PairingRules())
    async with aclosing(make_mirror(copy, **options)) as sink:
        await row_pipeline("orders", log_of(table), sink, engine, TimerWake(), start, end).run()
    return time.perf_counter() - begun_s, time.process_time() - before_s


def answer(stream: IO[str] | None) -> Any:
    assert stream is not None
    return json.loads(stream.readline())


def check(table: Path, copy: Path) -> None:
    """Check that both have the same rows."""
    wanted, found = (DeltaTable(each).to_pyarrow_table().sort_by("id") for each in (table, copy))
    for column in {"_deleted_version", "_valid_to_version"}.intersection(found.column_names):
        found = found.filter(pc.field(column).is_null())
    assert found.select(wanted.column_names).equals(wanted)


@pytest.mark.timeout(3600)
def test_inserts_and_upserts(tmp_path: Path, put_line: PutLine) -> None:
    table = tmp_path / "orders"
    write_rows(table)
    command = [sys.executable, "-m", "tests.bench.merging_spark", str(tmp_path / "spark")]
    (tmp_path / "spark").mkdir()
    ours: list[list[Costs]] = [[], []]
    peers: list[list[Costs]] = [[], []]
    with (
        (tmp_path / "spark" / "log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        ) as spark,
    ):
        answer(spark.stdout)
        for version in range(2):
            if version:
                DeltaTable(table).update(updates={"amount": "amount + 1"}, predicate=f"id % {STEP} = 0")
            for run in range(RUNS):
                ours[version].append(anyio.run(mirror, table, tmp_path / f"mirror-{run}", version))
                paths = {"table": table, "copy": tmp_path / f"copy-{run}", "checkpoint": tmp_path / f"stream-{run}"}
                print(json.dumps({name: str(path) for name, path in paths.items()}), file=spark.stdin, flush=True)
                peers[version].append(answer(spark.stdout))
                check(table, tmp_path / f"mirror-{run}")
                check(table, tmp_path / f"copy-{run}")
                print(f"version {version}: {ours[version][-1]}, Spark: {peers[version][-1]}", flush=True)
    for version, (work, rows) in enumerate((("inserts", ROWS), ("upserts of every tenth row", ROWS // STEP))):
        seconds, cpu_s = map(statistics.median, zip(*ours[version], strict=True))
        peer_s, peer_cpu_s = map(statistics.median, zip(*peers[version], strict=True))
        mine = f"{rows / seconds / 1000:.0f}, {cpu_s:.1f} s of CPU"
        ratios = f"{peer_s / seconds:.2f}, {peer_cpu_s / cpu_s:.2f}"
        theirs = f"Spark's MERGE: {rows / peer_s / 1000:.0f}, {peer_cpu_s:.1f} s of CPU; {ratios}"
        put_line(f"{work} into a mirror in Delta, 1000 rows/s", mine, theirs, "ratio 1.0")


@pytest.mark.timeout(3600)
def test_mirrors_that_keep_the_past(tmp_path: Path, put_line: PutLine) -> None:
    """The versions insert rows, update each tenth one, and delete others."""
    table = tmp_path / "orders"
    write_rows(table)
    works = {"inserts": ROWS, "upserts of every tenth row": ROWS // STEP, "deletes": ROWS // STEP}
    costs: dict[tuple[str, str], list[Costs]] = {}
    for version, work in enumerate(works):
        if version == 1:
            DeltaTable(table).update(updates={"amount": "amount + 1"}, predicate=f"id % {STEP} = 0")
        if version == 2:
            DeltaTable(table).delete(f"id % {STEP} = 1")
        for run in range(RUNS):
            for mode, options in MODES.items():
                copy = tmp_path / f"{mode}-{run}"
                cost = anyio.run(partial(mirror, table, copy, version, **options))
                costs.setdefault((work, mode), []).append(cost)
                check(table, copy)
                print(f"{work}, {mode}: {cost}", flush=True)
    for work, rows in works.items():
        medians = {mode: [statistics.median(each) for each in zip(*costs[work, mode], strict=True)] for mode in MODES}
        plain_s, plain_cpu_s = medians["plain"]
        for mode, goal in (("mark", 0.9), ("history", 0.7)):
            seconds, cpu_s = medians[mode]
            mine = f"{rows / seconds / 1000:.0f}, {cpu_s:.1f} s of CPU"
            theirs = f"a plain mirror: {rows / plain_s / 1000:.0f}, {plain_cpu_s:.1f} s of CPU"
            ratios = f"{plain_s / seconds:.2f}, {plain_cpu_s / cpu_s:.2f}"
            put_line(
                f"{work} into a mirror in Delta that keeps {mode}, 1000 rows/s",
                mine,
                f"{theirs}; {ratios}",
                f"ratio {goal}",
            )

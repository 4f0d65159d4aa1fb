"""A version that rewrites 20 M rows for 1,000 updates, compared by all executors: one core, two cores, `LocalEngine`.

The table has twelve columns, no partitions, no feed and no row tracking; updates are found by key. Each reading is a
process of its own (`tests.bench.comparing_reader`), so that its memory is its own; Java has a heap of 512 MB. All
readings must give the same rows. Nothing is asserted about time. `make bench` prints the table; quoted figures come
from here.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.bench.comparing_reader import LOCAL
from tests.bench.conftest import PutLine
from tests.bench.rewritten_large import write_large

ROOT: Final = Path(__file__).parents[2]
RUNS: Final = 3
FILES: Final = 20
ROWS: Final = 1_000_000  # in a file
CHANGED: Final = 1000
READERS: Final = (LOCAL, "local[1]", "local[2]")
GOALS: Final = {"local[1]": "1 GB", "local[2]": "1.8 times local[1], 1 GB"}

Taken = dict[str, Any]


def read(folder: Path, reader: str, table: Path) -> Taken:
    """Read the version in a new process."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.bench.comparing_reader", str(folder), reader, str(table)]
    with (folder / "log").open("w") as log:
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=True, cwd=ROOT, text=True)
    taken: Taken = json.loads(process.stdout)
    return taken


def median(runs: list[Taken], name: str) -> float:
    """Return the median of a figure."""
    return statistics.median(float(run.get(name, 0)) for run in runs)


def shown(runs: list[Taken]) -> str:
    """Return the cost of a reader."""
    cpu_s = sum(median(runs, f"{kind}_s") for kind in ("java", "python", "driver"))
    peaks = ", ".join(
        f"{kind} {max(run[f'{kind}_mb'] for run in runs):.0f} MB"
        for kind in ("driver", "java", "worker")
        if f"{kind}_mb" in runs[0]
    )
    return f"{median(runs, 'seconds'):.1f} s, {cpu_s:.1f} s of CPU, {peaks}"


def test_shared_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str], put_line: PutLine) -> None:
    table = tmp_path / "table"
    write_large(table, FILES, ROWS, CHANGED)
    taken: dict[str, list[Taken]] = {reader: [] for reader in READERS}
    for number in range(RUNS):
        for reader in READERS:
            taken[reader].append(read(tmp_path / f"{reader}-{number}", reader, table))
    found = {(run["rows"], run["digest"]) for runs in taken.values() for run in runs}
    assert len(found) == 1, "readers differ"
    assert next(iter(found))[0] == 2 * CHANGED
    compared = 2 * FILES * ROWS
    with capsys.disabled():
        print(f"\n{CHANGED:,} updates by key among {FILES * ROWS:,} rewritten rows; medians of {RUNS} runs")
        for reader, runs in taken.items():
            costs = ", ".join(f"{kind} {median(runs, f'{kind}_s'):.1f} CPU s" for kind in ("java", "python", "driver"))
            print(f"{reader}: {shown(runs)} ({costs})")
        one = taken["local[2]"][0]
        print(f"{one['shuffled_bytes'] / compared:.2f} bytes shuffled for each compared row; stages over 0.5 s:")
        for stage in one["stages"]:
            if stage["run_ms"] > 500:
                print(f"  {stage}")
    beside = {"local[1]": LOCAL, "local[2]": "local[1]"}
    for reader, peer in beside.items():
        ratio = statistics.median(
            peers["seconds"] / own["seconds"] for own, peers in zip(taken[reader], taken[peer], strict=True)
        )
        work = f"Spark, {CHANGED:,} updates by key among {FILES * ROWS:,} rewritten rows, {reader}"
        put_line(work, shown(taken[reader]), f"{peer}: {shown(taken[peer])}; {ratio:.2f}", GOALS[reader])

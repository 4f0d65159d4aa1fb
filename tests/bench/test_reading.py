"""Change rows from local tables beside delta-rs and Polars: rows a second, and the memory of each process.

Each reader is a process of its own (`tests/bench/change_readers.py`); the peers take turns with ours, pair by pair.
delta-rs reads a table's whole feed with `load_cdf`; it refuses tables without one. Polars decodes the data files alone,
and says how much faster that could be. Nothing is asserted about time. `make bench` prints the table.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tailer.__main__ import ALLOCATOR
from tests.bench.change_tables import TABLES
from tests.bench.conftest import PutLine

RUNS: Final = 5
ROOT: Final = Path(__file__).parents[2]
WORKS: Final = {
    "W1": ("100 appends of 50,000 rows", "1.2 x delta-rs"),
    "W2": ("0.9 M rows, then 50 change files of Spark's MERGE with 1.8 M rows", "1.0 x delta-rs"),
    "W5": ("one commit of 10 M rows in 4 files", "1.2 x delta-rs, 250 MB"),
}


@dataclass(frozen=True)
class Taken:
    """Measurements of a reader: `seconds` without imports, and its largest resident memory."""

    rows: int
    seconds: float
    cpu_s: float
    peak_mb: float


def read(reader: str, table: Path) -> Taken:
    """Read all changes in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.change_readers", reader, str(table)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | dict([ALLOCATOR]), stdout=subprocess.PIPE, check=True)
    return Taken(**json.loads(done.stdout))


def pairs(table: Path, rows: int, one: str, other: str) -> list[tuple[Taken, Taken]]:
    """Return the takings of two readers, in turn."""
    found = [(read(one, table), read(other, table)) for _ in range(RUNS)]
    assert all(taken.rows == rows for pair in found for taken in pair)
    return found


def median(takings: list[Taken], name: str) -> float:
    return float(statistics.median(getattr(taken, name) for taken in takings))


def shown(takings: list[Taken]) -> str:
    speed = statistics.median(taken.rows / taken.seconds for taken in takings) / 1e6
    return f"{speed:.1f} Mrows/s, {median(takings, 'cpu_s'):.2f} s of CPU, {median(takings, 'peak_mb'):.0f} MB"


def taken(takings: list[Taken]) -> str:
    seconds, cpu_s, peak_mb = (median(takings, name) for name in ("seconds", "cpu_s", "peak_mb"))
    return f"{seconds:.1f} s, {cpu_s:.1f} s of CPU, {peak_mb:.0f} MB"


@pytest.mark.parametrize("work", WORKS)
def test_reading(tmp_path: Path, put_line: PutLine, work: str) -> None:
    rows = TABLES[work](tmp_path / "t")
    title, goal = WORKS[work]
    # Polars knows nothing of the log: it would read all files of a table that is merged into.
    for peer in ("delta-rs",) if work == "W2" else ("delta-rs", "Polars"):
        found = pairs(tmp_path / "t", rows, "ours", peer)
        ratio = statistics.median(other.seconds / one.seconds for one, other in found)
        theirs = f"{peer}: {shown([other for _, other in found])}; {ratio:.2f}"
        put_line(f"{work}: {title}", shown([one for one, _ in found]), theirs, goal if peer == "delta-rs" else "-")


def test_deletion_vectors(tmp_path: Path, put_line: PutLine) -> None:
    """W3: no peer reads changes of such a table; what comparing costs is measured."""
    rows = TABLES["W3"](tmp_path / "t") + 2_000_000
    found = pairs(tmp_path / "t", rows, "ours", "ours, carry-overs kept")
    ours, kept = [one for one, _ in found], [other for _, other in found]
    work = "W3: 20 versions of deletion vectors, 565,080 rows of 2 M, compared"
    put_line(work, taken(ours), f"without comparing: {taken(kept)}", "6.5 s of CPU")


def test_tail(tmp_path: Path, put_line: PutLine) -> None:
    """W1 as lines of JSON on standard output: the whole process, with its start."""
    rows = TABLES["W1"](tmp_path / "t")
    command = [sys.executable, "-m", "tailer", "tail", str(tmp_path / "t"), "--from", "earliest", "--to", "latest"]
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([*command, "--format", "jsonl"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    put_line("W1 by `tailer tail --format jsonl`", f"{1e6 * statistics.median(times) / rows:.2f} us a row", "-", "1.0")

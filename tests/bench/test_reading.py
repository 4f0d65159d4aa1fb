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
from tests.bench.change_tables import FIRST, TABLES
from tests.bench.conftest import PutLine

RUNS: Final = 5
ROOT: Final = Path(__file__).parents[2]
WORKS: Final = {
    "W1": ("100 appends of 50,000 rows of 12 columns", "0.70 s, 1.2 x delta-rs, 180 MB"),
    "W2": ("50 change files of Spark's MERGE, 1.8 M rows", "0.35 s, 1.0 x delta-rs, 220 MB"),
    "W5": ("one commit of 10 M rows in 4 files", "1.1 s, 1.15 x delta-rs, 220 MB"),
}
VECTORS: Final = {
    "W3": ("DELETEs and UPDATEs of Spark with deletion vectors", "6.5 s of CPU"),
    "marked": ("versions that mark 1 % of each file of delta-rs by deletion vectors", "10.4 M rows, 250 MB"),
}


@dataclass(frozen=True)
class Taken:
    """Measurements of a reader: `seconds` without imports, and its largest resident memory."""

    rows: int
    seconds: float
    cpu_s: float
    peak_mb: float
    decoded_rows: int


def read(reader: str, table: Path, first: int) -> Taken:
    """Read the changes from version `first` on in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.change_readers", reader, str(table), str(first)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | dict([ALLOCATOR]), stdout=subprocess.PIPE, check=True)
    return Taken(**json.loads(done.stdout))


def pairs(work: str, table: Path, one: str, other: str, rows: int) -> list[tuple[Taken, Taken]]:
    """Return the takings of two readers, in turn."""
    found = [(read(one, table, FIRST[work]), read(other, table, FIRST[work])) for _ in range(RUNS)]
    assert all(taken.rows == rows for pair in found for taken in pair)
    return found


def median(takings: list[Taken], name: str) -> float:
    return float(statistics.median(getattr(taken, name) for taken in takings))


def shown(takings: list[Taken]) -> str:
    rows, seconds, cpu_s, peak_mb = (median(takings, name) for name in ("rows", "seconds", "cpu_s", "peak_mb"))
    speed = f"{rows / seconds / 1e6:.1f} Mrows/s, {1e6 * cpu_s / rows:.2f} us of CPU a row"
    return f"{seconds:.2f} s, {speed}, {peak_mb:.0f} MB"


@pytest.mark.parametrize("work", WORKS)
def test_reading(tmp_path: Path, put_line: PutLine, work: str) -> None:
    rows = TABLES[work](tmp_path / "t")
    title, goal = WORKS[work]
    # Polars knows nothing of the log: it would read all files of a table that is merged into.
    for peer in ("delta-rs",) if work == "W2" else ("delta-rs", "Polars"):
        found = pairs(work, tmp_path / "t", "ours", peer, rows)
        ratio = statistics.median(other.seconds / one.seconds for one, other in found)
        theirs = f"{peer}: {shown([other for _, other in found])}; {ratio:.2f}"
        put_line(f"{work}: {title}", shown([one for one, _ in found]), theirs, goal if peer == "delta-rs" else "-")


@pytest.mark.parametrize("work", VECTORS)
def test_deletion_vectors(tmp_path: Path, put_line: PutLine, work: str) -> None:
    """No peer reads changes of such tables; what comparing costs is measured, and how many versions share a decoding.

    A version marks rows in all row groups of 2 M rows, so to read it alone decodes these.
    """
    rows = TABLES[work](tmp_path / "t")
    found = pairs(work, tmp_path / "t", "ours", "ours, carry-overs kept", rows)
    ours, kept = [one for one, _ in found], [other for _, other in found]
    decoded = read("ours, counted", tmp_path / "t", FIRST[work]).decoded_rows - 2_000_000
    shared = f"{decoded / 1e6:.1f} M rows decoded after the first version, {20 * 2e6 / decoded:.1f} versions a decoding"
    title, goal = VECTORS[work]
    title = f"{work}: 2 M rows, {rows - 2_000_000:,} changed by 20 {title}, compared"
    put_line(title, f"{shown(ours)}; {shared}", f"without comparing: {shown(kept)}", goal)


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

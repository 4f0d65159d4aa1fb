"""Lance datasets: milliseconds for each small commit, rows/s of a large append, and memory of a vector table.

Peers, in the same run: pylance, opened anew for each version and asked for its `delta()`, as a follower without our own
reading of manifests would; and pylance's own scan of the same rows. Nothing is asserted. `make bench` prints the
figures.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
import pytest

import tailer
from tests.bench.append_tables import wide

COMMITS: Final = 1000
ROWS: Final = 2_000_000
VECTORS: Final = 1_000_000
WIDTH: Final = 768
RUNS: Final = 5

Show = Callable[[str], None]

# Not `ru_maxrss`: that includes the memory of the parent at the start.
_FOLLOW: Final = """
import re, sys, tailer
from pathlib import Path
rows = sum(batch.num_rows for batch in tailer.changes(sys.argv[1], start=int(sys.argv[2])))
peak_kb = int(re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[0])
print(rows, peak_kb // 1024)
"""


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Print a line whatever pytest captures."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(text)

    return line


def seconds(work: Callable[[], int], wanted: int) -> float:
    """Return the time for work that yields so many rows."""
    start_s = time.perf_counter()
    assert work() == wanted
    return time.perf_counter() - start_s


def test_small_commits(tmp_path: Path, show: Show) -> None:
    """1,000 appends of 10 rows, with stable row ids, which `delta()` needs."""
    path = tmp_path / "t"
    for number in range(COMMITS):
        rows = pa.table({"id": pa.array(range(10 * number, 10 * number + 10), pa.int64())})
        lance.write_dataset(rows, path, mode="append" if number else "create", enable_stable_row_ids=True)

    def ours() -> int:
        return sum(batch.num_rows for batch in tailer.changes(path))

    def theirs() -> int:
        found = lance.dataset(path, version=1).count_rows()
        for version in range(2, COMMITS + 1):
            delta = lance.dataset(path, version=version).delta(compared_against=version - 1)
            found += sum(batch.num_rows for batch in delta.get_inserted_rows())
        return found

    ratios, own = [], []
    for _ in range(3):
        own.append(seconds(ours, 10 * COMMITS))
        ratios.append(seconds(theirs, 10 * COMMITS) / own[-1])
    show(f"\n{COMMITS} commits of 10 rows: {1000 * statistics.median(own) / COMMITS:.2f} ms each")
    show(f"  {statistics.median(ratios):.1f} times as fast as reopening with delta(); medians of 3")


def test_a_large_append(tmp_path: Path, show: Show) -> None:
    """2 M rows of 12 columns in one version, beside pylance's scan."""
    path = tmp_path / "t"
    lance.write_dataset(wide(0, ROWS), path)

    def ours() -> int:
        return sum(batch.num_rows for batch in tailer.changes(path))

    def theirs() -> int:
        return sum(batch.num_rows for batch in lance.dataset(path).to_batches())

    pairs = [(seconds(ours, ROWS), seconds(theirs, ROWS)) for _ in range(RUNS)]
    own, ratio = (statistics.median(each) for each in ([a for a, _ in pairs], [b / a for a, b in pairs]))
    show(f"\n{ROWS:,} appended rows of 12 columns: {ROWS / own:,.0f} rows/s, {ratio:.2f} of pylance's own scan")


def test_updates_of_vectors(tmp_path: Path, show: Show) -> None:
    """1 M vectors of 768 numbers, and three updates of a thousand of them: peak memory of a follower's process."""
    path, part = tmp_path / "t", 20_000
    for first in range(0, VECTORS, part):
        values = pa.array(range(part * WIDTH), pa.float32())
        vectors = pa.FixedSizeListArray.from_arrays(values, WIDTH)
        rows = pa.table({"id": pa.array(range(first, first + part), pa.int64()), "label": ["a"] * part, "v": vectors})
        lance.write_dataset(rows, path, mode="append" if first else "create", enable_stable_row_ids=True)
    for number in range(3):
        lance.dataset(path).update({"label": f"'b{number}'"}, where=f"id % 1000 = {number}")
    version = VECTORS // part + 1
    for name, start in (("three updates", version), ("all versions", 1)):
        start_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _FOLLOW, str(path), str(start)], capture_output=True, text=True, check=True
        )
        rows_seen, peak_mb = done.stdout.split()
        show(
            f"{VECTORS:,} vectors of {WIDTH}, {name}: {int(rows_seen):,} rows, {peak_mb} MB, "
            f"{time.perf_counter() - start_s:.1f} s"
        )

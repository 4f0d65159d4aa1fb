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

import tailer
from tests.bench.append_tables import wide
from tests.bench.conftest import PutLine

COMMITS: Final = 1000
ROWS: Final = 2_000_000
VECTORS: Final = 1_000_000
WIDTH: Final = 768
RUNS: Final = 5

Taken = tuple[float, float]
Pairs = list[tuple[Taken, Taken]]

# Not `ru_maxrss`: that includes the memory of the parent at the start.
_FOLLOW: Final = """
import re, sys, tailer
from pathlib import Path
rows = sum(batch.num_rows for batch in tailer.changes(sys.argv[1], start=int(sys.argv[2])))
peak_kb = int(re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[0])
print(rows, peak_kb // 1024)
"""


def taken(work: Callable[[], int], wanted: int) -> Taken:
    """Return the seconds of the clock and of CPU for work that yields so many rows."""
    start_s, cpu_s = time.perf_counter(), time.process_time()
    assert work() == wanted
    return time.perf_counter() - start_s, time.process_time() - cpu_s


def pairs(ours: Callable[[], int], theirs: Callable[[], int], wanted: int) -> Pairs:
    """Run both in turn."""
    return [(taken(ours, wanted), taken(theirs, wanted)) for _ in range(RUNS)]


def medians(found: Pairs) -> tuple[Taken, Taken, float]:
    """Return the medians of both, and of the ratios of their seconds."""
    own, peer = (
        (statistics.median(seconds for seconds, _ in side), statistics.median(cpu_s for _, cpu_s in side))
        for side in zip(*found, strict=True)
    )
    return own, peer, statistics.median(peer_s / own_s for (own_s, _), (peer_s, _) in found)


def test_small_commits(tmp_path: Path, put_line: PutLine) -> None:
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

    own, peer, ratio = medians(pairs(ours, theirs, 10 * COMMITS))
    (mine, cpu), (beside, _) = ((1000 * seconds / COMMITS for seconds in side) for side in (own, peer))
    figures = f"{mine:.2f} ms each, {cpu:.2f} of CPU"
    put_line(
        f"Lance: {COMMITS:,} commits of 10 rows", figures, f"delta() of pylance: {beside:.2f} ms; {ratio:.2f}", "1.5"
    )


def test_a_large_append(tmp_path: Path, put_line: PutLine) -> None:
    """2 M rows of 12 columns in one version, beside pylance's scan."""
    path = tmp_path / "t"
    lance.write_dataset(wide(0, ROWS), path)

    def ours() -> int:
        return sum(batch.num_rows for batch in tailer.changes(path))

    def theirs() -> int:
        return sum(batch.num_rows for batch in lance.dataset(path).to_batches())

    (seconds, cpu_s), (beside_s, _), ratio = medians(pairs(ours, theirs, ROWS))
    figures = f"{ROWS / seconds / 1e6:.2f} Mrows/s, {1e6 * cpu_s / ROWS:.2f} us of CPU a row"
    theirs_shown = f"pylance's scan: {ROWS / beside_s / 1e6:.2f} Mrows/s; {ratio:.2f}"
    put_line(f"Lance: an append of {ROWS:,} rows of 12 columns", figures, theirs_shown, "0.9")


def test_updates_of_vectors(tmp_path: Path, put_line: PutLine) -> None:
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
        figures = f"{int(rows_seen):,} rows, {time.perf_counter() - start_s:.1f} s, {peak_mb} MB"
        put_line(f"Lance: {VECTORS:,} vectors of {WIDTH}, {name}", figures, "-", "-")

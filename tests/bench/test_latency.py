"""From a commit that is visible to its line that is printed, by `tailer tail` on a local disk.

Delta-rs has no wake-up: a program that follows a table with it polls. Nothing is asserted about time.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.bench.conftest import PutLine
from tests.bench.small_commits import ROWS, write_commits

COMMITS: Final = 300
BETWEEN_S: Final = 0.05


def latencies_ms(path: Path, commits: int, between_s: float) -> list[float]:
    """Make commits visible one by one, while `tailer tail` prints them; return the time until each last line."""
    written = write_commits(path, commits + 1)
    later = path / "later"
    later.mkdir()
    names = [f"{version:020d}.json" for version in range(1, commits + 1)]
    for name in names:
        shutil.move(written / "_delta_log" / name, later / name)
    words = [sys.executable, "-m", "tailer", "tail", str(path), "--from", "earliest", "--format", "jsonl"]
    found = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        for name in ["", *names]:
            start = time.perf_counter()
            if name:
                os.rename(later / name, path / "_delta_log" / name)  # noqa: PTH104 - as fast as can be
            for _ in range(ROWS):
                assert program.stdout.readline()
            found.append(1000 * (time.perf_counter() - start))
            time.sleep(between_s)
        program.terminate()
    return found[1:]


def test_latency(tmp_path: Path, put_line: PutLine) -> None:
    """A table that is written often."""
    found = latencies_ms(tmp_path / "table", COMMITS, BETWEEN_S)
    cuts = statistics.quantiles(found, n=100)
    put_line("commit visible to line printed", f"p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms", "-", "5 / 25 ms")

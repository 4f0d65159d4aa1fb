"""Many small commits: following them, starting on a long log, and how the cost grows. Delta-rs reads the same tables.

Each line has the time and the processor time, because other programs may use the machine. Nothing is asserted about
time. `make bench` prints the table.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import tailer
from tests.bench.conftest import PutLine
from tests.bench.delta_rs_reader import delta_rs
from tests.bench.small_commits import ROWS, WIDE, write_adds, write_checkpoint, write_commits

RUNS: Final = 5
VERSIONS: Final = 5000
LONG: Final = 100_000
FILES: Final = 1_000_000
ADDS: Final = 20_000
STARTS: Final = """
import sys, time, anyio
from pathlib import Path
from tailer.formats.delta.table import DeltaTableLog
from tailer.stores.local import LocalStore

async def main():
    log, last = DeltaTableLog(LocalStore(Path(sys.argv[1]))), int(sys.argv[2])
    start = time.perf_counter(), time.process_time()
    if sys.argv[3] == "snapshot":
        async for page in log.snapshot_plans(last):
            break
    else:
        await log.table_id()
        await log.seek(last - 99)
        if sys.argv[3] == "commits":
            start = time.perf_counter(), time.process_time()
            for _ in range(100):
                assert await log.next_plan() is not None
    memory = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    print(time.perf_counter() - start[0], time.process_time() - start[1], memory)

anyio.run(main)
"""
PEER: Final = """
import sys, time
from deltalake import DeltaTable
start = time.perf_counter(), time.process_time()
DeltaTable(sys.argv[1])
memory = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
print(time.perf_counter() - start[0], time.process_time() - start[1], memory)
"""

Figures = list[float]


def cpu_s() -> float:
    """Return the processor time of this process and of programs that it ran and that have ended."""
    found = os.times()
    return found.user + found.system + found.children_user + found.children_system


def timed(work: Callable[[], int], expected: int) -> Figures:
    """Return seconds of the clock and of the processor that `work` takes; it must give what is expected."""
    start, cpu = time.perf_counter(), cpu_s()
    assert work() == expected
    return [time.perf_counter() - start, cpu_s() - cpu]


def medians(runs: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return [statistics.median(column) for column in zip(*runs, strict=True)]


def command(*words: str) -> bytes:
    """Run `tailer`; return what it prints."""
    return subprocess.run([sys.executable, "-m", "tailer", *words], capture_output=True, check=True).stdout


def program(text: str, *words: object, runs: int = RUNS) -> Figures:
    """Run a program that prints seconds, processor seconds and MB; return the medians."""
    call = [sys.executable, "-c", text, *map(str, words)]
    found = [subprocess.run(call, capture_output=True, check=True).stdout.split() for _ in range(runs)]
    return medians([[float(word) for word in line] for line in found])


def test_following(tmp_path: Path, put_line: PutLine) -> None:
    """5,000 commits of 10 rows of 12 columns, by `tailer.changes` and by `tailer tail`, which also starts."""
    path, rows = write_commits(tmp_path / "table", VERSIONS, WIDE), VERSIONS * ROWS
    words = ("tail", str(path), "--from", "earliest", "--to", "latest", "--format", "jsonl")
    contenders: dict[str, Callable[[], int]] = {
        "by `tailer.changes`": lambda: sum(batch.num_rows for batch in tailer.changes(path, end="latest")),
        "by `tailer tail --format jsonl`": lambda: command(*words).count(b"\n"),
        "delta-rs, the whole range at once": lambda: delta_rs(path),
    }
    runs: dict[str, list[Figures]] = {name: [] for name in contenders}
    for _ in range(RUNS):
        for name, work in contenders.items():
            runs[name].append(timed(work, rows))
    *own, (peer, theirs) = runs.items()
    for (name, mine), goal in zip(own, ("0.9 ms, 1.2 x delta-rs", "-"), strict=True):
        ratio = statistics.median(other / one for (one, _), (other, _) in zip(mine, theirs, strict=True))
        beside = f"{peer}: {_per_commit(theirs)}; {ratio:.2f}"
        put_line(f"W4: 5,000 commits of 10 rows of 12 columns, {name}", _per_commit(mine), beside, goal)


def _per_commit(runs: list[Figures]) -> str:
    wall_ms, cpu_ms = (1000 * figure / VERSIONS for figure in medians(runs))
    return f"{wall_ms:.2f} ms a commit, {cpu_ms:.2f} of CPU"


def test_long_log(tmp_path: Path, put_line: PutLine) -> None:
    """A log of 100,000 commits without a checkpoint: starting at its end or beginning, and delta-rs once."""
    path = write_commits(tmp_path / "table", LONG, with_rows=False)
    words = ("tail", str(path), "--from", "latest", "--to", "latest")
    peer = f"delta-rs: {_start(program(PEER, path, runs=1))}"
    wall, cpu = medians([timed(lambda: len(command(*words)), 0) for _ in range(RUNS)])
    work = "start on 100,000 commits without a checkpoint"
    put_line(f"{work}, `tailer tail --from latest`", f"{wall:.2f} s, {cpu:.2f} s of CPU", peer, "5 s")
    put_line(f"{work}, log alone", _start(program(STARTS, path, LONG - 1, "start")), peer, "5 s, 150 MB")


def _start(figures: Figures) -> str:
    wall, cpu, memory = figures
    return f"{wall:.2f} s, {cpu:.2f} s of CPU, {memory:.0f} MB"


@pytest.mark.parametrize("versions", [100, LONG])
def test_growth_with_commits(tmp_path: Path, put_line: PutLine, versions: int) -> None:
    """The last 100 commits of a short and of a long log."""
    path = write_commits(tmp_path / "table", versions, with_rows=False)
    wall, cpu, _ = (10 * figure for figure in program(STARTS, path, versions - 1, "commits"))
    put_line(f"plan a commit after {versions - 100:,} others", f"{wall:.3f} ms, {cpu:.3f} of CPU", "-", "flat")


@pytest.mark.parametrize("files", [10, FILES])
def test_growth_with_files(tmp_path: Path, put_line: PutLine, files: int) -> None:
    """Commits of tables with few and many files, and the start of a snapshot."""
    path = write_checkpoint(tmp_path / "table", files)
    wall, cpu, _ = (10 * figure for figure in program(STARTS, path, 110, "commits"))
    put_line(f"plan a commit of a table of {files:,} files", f"{wall:.3f} ms, {cpu:.3f} of CPU", "-", "flat")
    first = _start(program(STARTS, path, 110, "snapshot"))
    put_line(f"first files of a snapshot of {files:,}, with a checkpoint", first, "-", "5 s, 300 MB")


def test_many_small_files(tmp_path: Path, put_line: PutLine) -> None:
    """One commit of 20,000 files with a row each, through `tailer tail`."""
    path = write_adds(tmp_path / "table", ADDS)
    words = ("tail", str(path), "--from", "earliest", "--to", "latest", "--format", "jsonl")
    wall, cpu = medians([timed(lambda: command(*words).count(b"\n"), ADDS) for _ in range(RUNS)])
    put_line("one commit of 20,000 files of a row, `tailer tail`", f"{wall:.2f} s, {cpu:.2f} s of CPU", "-", "4 s")


def test_help(put_line: PutLine) -> None:
    """The smallest thing that the command does."""
    wall, cpu = medians([timed(lambda: int(b"tail" in command("--help")), 1) for _ in range(4 * RUNS)])
    put_line("`tailer --help`", f"{1000 * wall:.0f} ms, {1000 * cpu:.0f} of CPU", "-", "120 ms")

"""Log to rows, compared with delta-rs on the same tables in the same run: medians of several runs and their ratio.

Nothing is asserted about time. `make bench` prints the table; quoted figures come from here.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailer.engine.local import LocalEngine
from tailer.formats.delta.table import DeltaTableLog
from tailer.stores.local import LocalStore
from tests.bench.change_tables import write_appends
from tests.bench.delta_rs_reader import delta_rs
from tests.bench.small_commits import write_adds

RUNS: Final = 5
ROWS: Final = 50_000
FILES: Final = 20_000


@pytest.fixture(scope="module")
def appends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 20 versions of 50,000 rows."""
    path = tmp_path_factory.mktemp("bench") / "appends"
    write_appends(path, 20, ROWS)
    return path


@pytest.fixture(scope="module")
def small_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 500 versions of 10 rows."""
    path = tmp_path_factory.mktemp("bench") / "small"
    write_appends(path, 500, 10)
    return path


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one version of 20,000 files with a row each."""
    return write_adds(tmp_path_factory.mktemp("bench") / "files", FILES)


def ours(path: Path) -> int:
    """Read every change of the table through the local engine, version by version."""

    async def run() -> int:
        log, engine, rows = DeltaTableLog(LocalStore(path)), LocalEngine(), 0
        await log.seek(0)
        while (plan := await log.next_plan()) is not None:
            async with engine.run(plan) as batches:
                async for batch in batches:
                    rows += len(batch)
        return rows

    return anyio.run(run)


def printed(path: Path) -> int:
    """Count the lines that `tailer tail` prints for the whole range."""
    words = [sys.executable, "-m", "tailer", "tail", str(path), "--from", "earliest", "--to", "latest"]
    return subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout.count(b"\n")


def delta_rs_by_version(path: Path) -> int:
    """Read the same by one `load_cdf` per version, as a program that follows the table would."""
    rows = 0
    for version in range(DeltaTable(path).version() + 1):
        changes = DeltaTable(path).load_cdf(starting_version=version, ending_version=version)
        rows += sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(changes))
    return rows


def seconds(work: Callable[[], int], rows: int) -> float:
    """Return the time that `work` takes; it must give all the rows."""
    start = time.perf_counter()
    assert work() == rows
    return time.perf_counter() - start


def compare(
    title: str,
    path: Path,
    peer: Callable[[Path], int],
    rows: int,
    runs: int,
    show: Callable[[str], None],
    read: Callable[[Path], int] = ours,
) -> None:
    """Run both in turn, and show medians and the median of the ratios."""
    pairs = [(seconds(lambda: read(path), rows), seconds(lambda: peer(path), rows)) for _ in range(runs)]
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    show(f"{title}: lake-tailer {mine:.3f} s ({rows / mine:,.0f} rows/s), delta-rs {theirs:.3f} s, ratio {ratio:.2f}")


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print past pytest's capture."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}")

    return line


def test_wide_appends(appends: Path, show: Callable[[str], None]) -> None:
    """1 M rows of 12 columns in 20 versions, the whole range at once."""
    compare("20 versions of 50,000 rows", appends, delta_rs, 20 * ROWS, RUNS, show)


def test_small_commits(small_commits: Path, show: Callable[[str], None]) -> None:
    """Commits of 10 rows, followed one by one."""
    compare("500 versions of 10 rows, each by itself", small_commits, delta_rs_by_version, 5000, RUNS, show)


def test_small_files(small_files: Path, show: Callable[[str], None]) -> None:
    """A version of 20,000 files with a row each: read, and then printed by `tailer tail`, which includes its start."""
    compare("20,000 files of 1 row", small_files, delta_rs, FILES, RUNS, show)
    compare("20,000 files of 1 row, as JSON Lines", small_files, delta_rs, FILES, RUNS, show, printed)

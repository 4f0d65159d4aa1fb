"""Changes on Spark: lake-tailer's data source and Delta's own readers in the same session, and the cost of tasks.

Appends of wide rows, updates with a change feed, many versions (W1 and W2 of `tests.bench.change_tables`), and deletion
vectors without a feed, for which Delta needs row tracking (CHANGES, with the setting `changelogV2`). Every contender
passes all rows to a sink that keeps none. Processor time is measured besides time: that of Java and of the executors'
Python together.

The engines are compared as the daemon uses them, to find the size of a version from which Spark is faster. The cost of
a planned split and of an executed one gives an estimate for a thousand executors. Nothing is asserted about time.
`make bench` prints the tables; quoted figures come from here.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import pytest

from tests.bench.change_tables import TABLES
from tests.bench.conftest import PutLine
from tests.bench.spark_tables import CLAIMED_BYTES, claim_files, claim_size, grow_by_links

RUNS: Final = 3
ROOT: Final = Path(__file__).parents[2]
APPENDED: Final = 500_000  # rows per version
VERSIONS: Final = 4
ROWS: Final = 1_000_000  # in the changed tables
CHANGES: Final = 2  # versions
UPDATED: Final = 5  # every fifth row
DELETED: Final = 100
LINKED: Final = 50_000  # rows, about 8 MB per file
LINKS: Final = (1, 4, 16, 64, 128)  # files per version
PLANNED: Final = 100_000  # files
EXECUTORS: Final = 1000
PIECES: Final = (32, 288)  # from 32 on splits have their largest size

# How many times as fast as its peer a reader should be.
GOALS: Final[Mapping[tuple[str, str], str]] = {
    ("appends", "tailer, native"): "2.0",
    ("updates", "tailer, native"): "2.0",
    ("vectors", "tailer, native"): "20",
    ("appends", "tailer, follow"): "1.0",
    ("updates", "tailer, follow"): "1.0",
    ("W1", "tailer, native"): "2.0",
    ("W2", "tailer, native"): "2.0",
    ("W1", "tailer, follow"): "1.0",
    ("W2", "tailer, follow"): "1.0",
}

Show = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """A reader of a table; `peer`: the name of the contender that it is compared with."""

    reader: str
    table: str
    first: int
    last: int
    rows: int
    peer: str
    master: str = "local[2]"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in the printed table."""
        return f"{self.table}: {self.reader}, {self.master}"


class Readers:
    """Spark processes that wait for orders (`tests.bench.spark_reader`), one per master, and the folder of tables."""

    def __init__(self, folder: Path, processes: Mapping[str, "subprocess.Popen[str]"]) -> None:
        self.folder: Final = folder
        self._processes = processes
        for process in processes.values():
            self._answer(process)

    def order(self, master: str, **order: Any) -> dict[str, float]:
        """Run an order; return its time and its processor times."""
        process = self._processes[master]
        print(json.dumps(order), file=opened(process.stdin), flush=True)
        return self._answer(process)

    def run(self, contender: Contender) -> dict[str, float]:
        """Run a read."""
        path = str(self.folder / contender.table)
        versions = {"first": contender.first, "last": contender.last}
        reading = {"reader": contender.reader, "path": path, "options": dict(contender.options)}
        return self.order(contender.master, **reading, **versions)

    def write(self, table: str, how: str, **arguments: Any) -> None:
        """Write a table: `how` is a function of `tests.bench.spark_tables`."""
        self.order("local[2]", reader="write", path=str(self.folder / table), table=how, arguments=arguments)

    def _answer(self, process: "subprocess.Popen[str]") -> dict[str, float]:
        answer: dict[str, float] = json.loads(opened(process.stdout).readline())
        return answer


def opened(stream: IO[str] | None) -> IO[str]:
    """Return a pipe of a process that was started with it."""
    assert stream is not None
    return stream


@contextmanager
def waiting(scratch: Path, master: str) -> Iterator["subprocess.Popen[str]"]:
    """The process; it ends with its input."""
    scratch.mkdir()
    command = [sys.executable, "-m", "tests.bench.spark_reader", str(scratch), master]
    with (scratch / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        )
        with process:
            yield process


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    """Two Spark processes and the tables that Spark writes."""
    folder = tmp_path_factory.mktemp("tables")
    with ExitStack() as stack:
        processes = {
            master: stack.enter_context(waiting(folder / f"spark-{cores}", master))
            for cores, master in enumerate(("local[1]", "local[2]"), 1)
        }
        found = Readers(folder, processes)
        found.write("appends", "append_wide", versions=VERSIONS, rows=APPENDED)
        found.write("updates", "update_with_feed", rows=ROWS, updates=CHANGES, share=UPDATED)
        found.write("vectors", "delete_by_vector", rows=ROWS, deletes=CHANGES, share=DELETED, tracked=True)
        found.write("untracked", "delete_by_vector", rows=ROWS, deletes=CHANGES, share=DELETED, tracked=False)
        found.write("linked", "append_wide", versions=1, rows=LINKED)
        for table in ("W1", "W2"):
            TABLES[table](folder / table)
        grow_by_links(folder / "linked", LINKS)
        yield found


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Print past pytest's capture."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(text)

    return line


def contenders() -> list[Contender]:
    """List lake-tailer's and Delta's contenders, by table."""
    feeds = [
        Contender(reader, table, first, last, rows, peer, master)
        for table, first, last, rows in (
            ("appends", 0, VERSIONS - 1, VERSIONS * APPENDED),
            ("updates", 1, CHANGES, CHANGES * 2 * ROWS // UPDATED),
            ("W1", 0, 99, 5_000_000),
            ("W2", 1, 50, 1_800_000),
        )
        for master in ("local[1]", "local[2]")
        for reader, peer in (
            ("tailer", "Delta's feed"),
            ("tailer, native", "Delta's feed"),
            ("Delta's feed", "Delta's feed"),
            ("tailer, follow", "Delta's feed, stream"),
            ("tailer, stream", "Delta's feed, stream"),
            ("Delta's feed, foreachBatch", "Delta's feed, stream"),
            ("Delta's feed, stream", "Delta's feed, stream"),
        )
        if master == "local[2]" or table == "appends"
    ]
    marked = [
        Contender(reader, table, 1, CHANGES, CHANGES * ROWS // DELETED, "Delta's CHANGES")
        for reader, table in (("tailer", "vectors"), ("tailer, native", "vectors"), ("Delta's CHANGES", "vectors"))
    ]
    return feeds + marked


def cpu_s(taken: Mapping[str, float]) -> float:
    """Return the processor time of Java and the executors' Python."""
    return taken["java_s"] + taken["python_s"]


# The cost of a task until the next one begins: all processor time, and Java's, which contains the driver's part.
ALL: Final = "CPU ms"
JAVA: Final = "CPU ms of Java"
MEASURES: Final[Mapping[str, Callable[[Mapping[str, float]], float]]] = {
    "ms": lambda taken: taken["seconds"],
    ALL: cpu_s,
    JAVA: lambda taken: taken["java_s"],
}


def rounds(readers: Readers, found: Sequence[Contender], runs: int = RUNS) -> list[dict[str, dict[str, float]]]:
    """Run all in turn, `runs` times, after a first round for Java's compiler that does not count."""
    return [{each.name: readers.run(each) for each in found} for _ in range(1 + runs)][1:]


def test_data_source(readers: Readers, show: Show, put_line: PutLine) -> None:
    found = contenders()
    runs = rounds(readers, found)
    show(f"\nmedians of {RUNS} runs, {VERSIONS * APPENDED:,} rows appended, {CHANGES} versions of updates and deletes")
    show(f"{'':40} rows/s, rows/CPU s, CPU s of Java, of Python, times as fast, per CPU s, as its peer")
    names = {(each.table, each.reader, each.master): each.name for each in found}
    for each in found:
        mine = [run[each.name] for run in runs]
        theirs = [run[names[each.table, each.peer, each.master]] for run in runs]
        pairs = list(zip(mine, theirs, strict=True))
        figures = (
            f"{statistics.median(each.rows / taken['seconds'] for taken in mine):>9,.0f}",
            f"{statistics.median(each.rows / cpu_s(taken) for taken in mine):>9,.0f}",
            f"{statistics.median(taken['java_s'] for taken in mine):>6.2f}",
            f"{statistics.median(taken['python_s'] for taken in mine):>6.2f}",
            f"{statistics.median(peer['seconds'] / own['seconds'] for own, peer in pairs):>6.2f}",
            f"{statistics.median(cpu_s(peer) / cpu_s(own) for own, peer in pairs):>6.2f}",
        )
        show(f"{each.name:40}{'  '.join(figures)}")
        if each.reader != each.peer:
            ours, other = (statistics.median(each.rows / taken["seconds"] for taken in side) for side in (mine, theirs))
            theirs_shown = f"{each.peer}: {other / 1e6:.3f} Mrows/s; {figures[4].strip()}"
            goal = GOALS.get((each.table, each.reader), "-")
            put_line(f"Spark, {each.name}", f"{ours / 1e6:.3f} Mrows/s", theirs_shown, goal)
    for reader in ("tailer", "tailer, native", "Delta's feed"):
        one, two = (names["appends", reader, master] for master in ("local[1]", "local[2]"))
        speedup = statistics.median(run[one]["seconds"] / run[two]["seconds"] for run in runs)
        show(f"{reader}, two cores beside one: {speedup:.2f} times as fast")
    show(f"load of the machine, all of this included: {os.getloadavg()[0]:.1f} of {os.cpu_count()}")


def test_engines(readers: Readers, show: Show) -> None:
    """The daemon's use: batches of a version, in order, in its process."""
    size = next((readers.folder / "linked").glob("1-*.parquet")).stat().st_size
    found = [
        Contender(engine, "linked", version, version, links * LINKED, "LocalEngine", options={"files": str(links)})
        for version, links in enumerate(LINKS, 1)
        for engine in ("LocalEngine", "SparkEngine")
    ]
    runs = rounds_by_version(readers, found)
    show(f"\nmedians of {RUNS} runs; a file has {size / 2**20:.1f} MB and {LINKED:,} rows")
    show("MB of files, seconds of LocalEngine, of SparkEngine, CPU s of either (SparkEngine's in this process)")
    for version, links in enumerate(LINKS, 1):
        local, spark = (runs[version, engine] for engine in ("LocalEngine", "SparkEngine"))
        figures = (
            f"{statistics.median(taken['seconds'] for taken in local):>7.2f}",
            f"{statistics.median(taken['seconds'] for taken in spark):>7.2f}",
            f"{statistics.median(taken['driver_s'] for taken in local):>7.2f}",
            f"{statistics.median(cpu_s(taken) + taken['driver_s'] for taken in spark):>7.2f}",
            f"({statistics.median(taken['driver_s'] for taken in spark):.2f})",
        )
        show(f"{links * size / 2**20:>8.0f}{'  '.join(figures)}")


def rounds_by_version(readers: Readers, found: Sequence[Contender]) -> dict[tuple[int, str], list[dict[str, float]]]:
    """Run each in turn, without counting the first round."""
    taken: dict[tuple[int, str], list[dict[str, float]]] = {}
    for number in range(1 + RUNS):
        for each in found:
            result = readers.run(each)
            if number:
                taken.setdefault((each.first, each.reader), []).append(result)
    return taken


def test_pieces(readers: Readers, tmp_path: Path, show: Show) -> None:
    """The cost of a split: on the driver that plans it, and on the executor that finds no row in it."""
    claim_files(tmp_path / "planned", PLANNED)
    taken = [readers.order("local[2]", reader="plan", path=str(tmp_path / "planned")) for _ in range(RUNS)]
    planned_s = statistics.median(each["driver_s"] for each in taken)
    show(f"\nplanning a version of {PLANNED:,} files: {1e6 * planned_s / PLANNED:.0f} CPU us a file")
    show(f"{taken[0]['partitions']:,.0f} partitions, {taken[0]['bytes']:,.0f} bytes each")
    for pieces in PIECES:
        claim_size(readers.folder / f"pieces-{pieces}", pieces)
    found = [Contender("tailer", f"pieces-{pieces}", 0, 0, 1, "tailer") for pieces in PIECES]
    full = Contender("tailer", "appends", 0, VERSIONS - 1, VERSIONS * APPENDED, "tailer")
    runs = rounds(readers, [*found, full])
    few, many = ([run[each.name] for run in runs] for each in found)
    more = PIECES[1] - PIECES[0]
    task_ms = {}
    for what, measured in MEASURES.items():
        task_ms[what] = statistics.median(
            1000 * (measured(big) - measured(small)) / more for small, big in zip(few, many, strict=True)
        )
        job_ms = statistics.median(1000 * measured(small) for small in few)
        show(f"a task without rows: {task_ms[what]:.1f} {what}; a query of {PIECES[0]}: {job_ms:.0f} {what}")
    size = sum(file.stat().st_size for file in (readers.folder / "appends").glob("*.parquet"))
    full_s = statistics.median(cpu_s(run[full.name]) for run in runs)
    files_s = PLANNED * CLAIMED_BYTES / size * full_s / EXECUTORS
    show(f"on paper, {EXECUTORS:,} executors of one core and {PLANNED:,} files of {CLAIMED_BYTES / 2**20:.0f} MB:")
    launched_s, started_s = (PLANNED * task_ms[what] / 1000 for what in (JAVA, ALL))
    show(f"  the driver plans for {planned_s:.1f} s, and launches for at most {launched_s:.0f} CPU s")
    show(f"  executors start tasks for {started_s / EXECUTORS:.1f} s, and read for {files_s:.0f} s")

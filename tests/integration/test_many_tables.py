"""Many small tables in one process: threads and memory of the real daemon while it compares their rows, and after."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.daemon.commands import background
from tests.support.waiting import until

TABLES: Final = 50
ROWS: Final = 10
# Of the whole process. With a row index for each pipeline it had 594 threads and 499 MB; with a small pool, 146 and 197
# MB.
THREADS: Final = 100
IDLE_THREADS: Final = 25
DELAY_S: Final = 0.5  # that of a quiet machine is a tenth of it
RESIDENT_MB: Final = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copies of a table without a feed: version 1 rewrites its file to delete a row."""
    place = tmp_path
    write_deltalake(place / "0", pa.table({"id": pa.array(range(ROWS), pa.int64())}))
    DeltaTable(place / "0").delete("id = 3")
    lines = []
    for number in range(TABLES):
        if number:
            shutil.copytree(place / "0", place / str(number))
        sink = f'{{kind = "files", path = "out/{number}"}}'
        lines.append(f'[pipelines.p{number}]\ntable = "{number}"\npoll_interval_s = 1\nsink = {sink}\n')
    (place / "tailer.toml").write_text("\n".join(lines))
    return place


def delivered(folder: Path) -> Iterator[int]:
    """Return the number of lines of each target."""
    for number in range(TABLES):
        files = (folder / "out" / str(number)).rglob("*.jsonl")
        yield sum(len(path.read_text().splitlines()) for path in files)


def held(process: int) -> tuple[int, int]:
    """Return threads, and resident memory in MB."""
    text = Path(f"/proc/{process}/status").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines["Threads"]), int(lines["VmRSS"].split()[0]) // 1024


@pytest.mark.long
def test_an_idle_daemon_needs_no_thread_for_a_table(folder: Path) -> None:
    """All tables are watched, and a commit to any of them is noticed at once."""
    with background("run", "--config", folder / "tailer.toml") as daemon:
        until(lambda: list(delivered(folder)) == [ROWS + 1] * TABLES)
        until(lambda: held(daemon.pid)[0] <= IDLE_THREADS)
        delays: list[float] = []
        for number in range(0, TABLES, 5):
            write_deltalake(folder / str(number), pa.table({"id": pa.array([99], pa.int64())}), mode="append")
            began = time.monotonic()
            while list(delivered(folder))[number] < ROWS + 2:
                time.sleep(0.005)
            delays.append(time.monotonic() - began)
        assert sorted(delays)[len(delays) // 2] < DELAY_S, delays


@pytest.mark.long
def test_fifty_tables_share_a_few_comparers(folder: Path) -> None:
    with background("run", "--config", folder / "tailer.toml") as daemon:
        until(lambda: list(delivered(folder)) == [ROWS + 1] * TABLES)
        time.sleep(1)
        threads, resident_mb = held(daemon.pid)
        print(f"{TABLES} tables: {threads} threads, {resident_mb} MB")
        assert threads <= THREADS
        assert resident_mb <= RESIDENT_MB
        daemon.terminate()
        assert daemon.wait(300) == 0

"""Memory, CPU, threads and descriptors of an idle daemon: `python -m tests.bench.idle_daemon 1 10 100`.

Each pipeline follows a small local table of two versions into files. The second version is an append, or a delete
without a change feed, whose rows are compared. The daemon is measured for half a minute, after it has delivered
everything and three minutes have passed, after which looks are rarest. `deploy/runbook.md` quotes the figures.
"""

import os
import re
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.support.daemon.commands import background
from tests.support.waiting import until

ROWS: Final = 10
SETTLE_S: Final = 180
MEASURE_S: Final = 30


def make_tables(folder: Path, count: int, compared: bool) -> Path:
    """Write the tables, and a configuration with a pipeline for each. `compared`: delete a row, not append one."""
    write_deltalake(folder / "0", pa.table({"id": pa.array(range(ROWS), pa.int64())}))
    if compared:
        DeltaTable(folder / "0").delete("id = 3")
    else:
        write_deltalake(folder / "0", pa.table({"id": pa.array([ROWS], pa.int64())}), mode="append")
    lines = []
    for number in range(count):
        if number:
            shutil.copytree(folder / "0", folder / str(number))
        sink = f'{{kind = "files", path = "out/{number}"}}'
        lines.append(f'[pipelines.p{number}]\ntable = "{number}"\nsink = {sink}\n')
    config = folder / "tailer.toml"
    config.write_text("\n".join(lines))
    return config


def delivered(folder: Path) -> int:
    """Return the number of rows in all targets."""
    return sum(len(path.read_text().splitlines()) for path in (folder / "out").rglob("*.jsonl"))


def cpu_s(process: int) -> float:
    """Return the CPU time that a process has used."""
    numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def measure(count: int, compared: bool) -> str:
    """Run a daemon with so many pipelines; return what it needs when idle."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        config = make_tables(folder, count, compared)
        with background("run", "--config", config, TAILER_METRICS="127.0.0.1:0") as daemon:
            until(lambda: delivered(folder) == (ROWS + 1) * count)
            time.sleep(SETTLE_S)
            used, since = cpu_s(daemon.pid), time.monotonic()
            time.sleep(MEASURE_S)
            share = (cpu_s(daemon.pid) - used) / (time.monotonic() - since)
            status = dict(re.findall(r"^(\w+):\s+(\d+)", Path(f"/proc/{daemon.pid}/status").read_text(), re.MULTILINE))
            descriptors = len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))
            daemon.terminate()
            daemon.communicate()
    resident, peak = (int(status[name]) // 1024 for name in ("VmRSS", "VmHWM"))
    return (
        f"{resident} MB (peak {peak} MB), {share:.1%} of a core, {status['Threads']} threads, {descriptors} descriptors"
    )


if __name__ == "__main__":
    for each in map(int, sys.argv[1:]):
        for work in (False, True):
            print(f"{each} pipelines, {'rows compared' if work else 'appends'}: {measure(each, work)}", flush=True)

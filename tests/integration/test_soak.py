"""A daemon with a hundred tables, for an hour, with commits and faults: memory, threads and descriptors stay flat.

`LAKE_TAILER_SOAK_S` is the duration in seconds, `LAKE_TAILER_SOAK_TABLES` the number of tables. Faults: commits in
bursts, pauses, commit files that are garbage for a moment, and tables that are away for a while. At the end each target
has each row once.

On every landing: nothing takes an hour; memory is bounded by each of the tests with `memory` in their names.
"""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailer.daemon.client import DaemonClient
from tailer.pipeline.status import PipelineState
from tests.support.daemon.process import Daemon
from tests.support.seeds import seeds
from tests.support.waiting import until

DURATION_S: Final = float(os.environ.get("LAKE_TAILER_SOAK_S", "3600"))
TABLES: Final = int(os.environ.get("LAKE_TAILER_SOAK_TABLES", "100"))
ROUND_S: Final = 1.0
WARM_SHARE: Final = 0.2  # of the duration, after which the process has everything it needs
CHECK_S: Final = 10.0
ROWS: Final = 20
GROWTH_MB: Final = 40  # at most, from the end of the warm-up to the end
MORE_DESCRIPTORS: Final = 20
THREADS: Final = 80


@dataclass
class Table:
    """A table, and the ids that were committed to it."""

    path: Path
    next_id: int = 0
    version: int = -1

    def commit(self) -> None:
        """Commit rows."""
        ids = range(self.next_id, self.next_id + ROWS)
        write_deltalake(self.path, pa.table({"id": pa.array(ids, pa.int64())}), mode="append")
        self.next_id += ROWS
        self.version += 1

    def delivered(self, out: Path) -> list[int]:
        """Return the ids in the target, in the order of the files."""
        files = sorted((out / self.path.name).rglob("*.jsonl"))
        return [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]


@dataclass
class Held:
    """The figures of a process over time."""

    process: int
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)

    def take(self, at_s: float) -> None:
        """Note resident memory in MB, threads and descriptors."""
        text = Path(f"/proc/{self.process}/status").read_text()
        lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        resident_mb = int(lines["VmRSS"].split()[0]) // 1024
        descriptors = len(list(Path(f"/proc/{self.process}/fd").iterdir()))
        self.samples.append((at_s, resident_mb, int(lines["Threads"]), descriptors))

    def check(self) -> None:
        """Fail if anything grew after the warm-up."""
        warm = [each for each in self.samples if each[0] >= DURATION_S * WARM_SHARE]
        third = max(len(warm) // 3, 1)
        first, last = warm[:third], warm[-third:]
        for each in self.samples[:: max(len(self.samples) // 20, 1)]:
            print("after {:.0f} s: {} MB, {} threads, {} descriptors".format(*each))
        grown = [_median(last, column) - _median(first, column) for column in (1, 2, 3)]
        print(f"grown by {grown[0]} MB, {grown[1]} threads, {grown[2]} descriptors")
        assert grown[0] <= GROWTH_MB
        assert max(each[2] for each in warm) <= THREADS
        assert grown[2] <= MORE_DESCRIPTORS


def _median(samples: list[tuple[float, int, int, int]], column: int) -> int:
    return sorted(int(each[column]) for each in samples)[len(samples) // 2]


class Faults:
    """Faults of a running daemon, each of which is over when the method returns."""

    def __init__(self, tables: list[Table], client: DaemonClient, chance: random.Random) -> None:
        self._tables = tables
        self._client = client
        self._chance = chance
        self.kinds: Final[tuple[Callable[[], None], ...]] = (self.burst, self.pause, self.torn_commit, self.moved_log)

    def burst(self) -> None:
        """Commit many versions to one table."""
        table = self._chance.choice(self._tables)
        for _ in range(10):
            table.commit()

    def pause(self) -> None:
        """Pause a pipeline over some commits."""
        table = self._chance.choice(self._tables)
        self._client.send(table.path.name, "pause")
        table.commit()
        table.commit()
        self._client.send(table.path.name, "resume")

    def torn_commit(self) -> None:
        """Stop a pipeline by a commit that is garbage, mend that, and resume it."""
        table = self._chance.choice(self._tables)
        table.commit()
        file = table.path / "_delta_log" / f"{table.version:020d}.json"
        whole = file.read_bytes()
        file.write_bytes(b"garbage\n")
        time.sleep(0.2)
        file.write_bytes(whole)
        self._mend(table)

    def moved_log(self) -> None:
        """Take the whole table away for a while."""
        table = self._chance.choice(self._tables)
        away = table.path.with_name(f"{table.path.name}-away")
        shutil.move(table.path, away)
        time.sleep(0.5)
        shutil.move(away, table.path)
        self._mend(table)

    def _mend(self, table: Table) -> None:
        table.commit()
        for each in self._client.status().pipelines:
            if each.state is PipelineState.STOPPED:
                self._client.send(each.name, "resume")


def configure(folder: Path) -> list[Table]:
    """Make the tables and the configuration."""
    tables = [Table(folder / f"p{number}") for number in range(TABLES)]
    lines: list[str] = []
    for table in tables:
        table.commit()
        name = table.path.name
        lines += [f"[pipelines.{name}]", f'table = "{name}"', f'sink = {{kind = "files", path = "out/{name}"}}']
    (folder / "t.toml").write_text("\n".join(lines))
    return tables


@pytest.mark.nightly
def test_memory_threads_and_descriptors_stay_flat(tmp_path: Path) -> None:
    tables, chance = configure(tmp_path), random.Random(seeds(1).start)
    daemon = Daemon(tmp_path / "t.toml")
    try:
        client = DaemonClient(socket=tmp_path / "t.sock")
        until(lambda: all(len(table.delivered(tmp_path / "out")) == ROWS for table in tables))
        faults, held, began = Faults(tables, client, chance), Held(daemon.process.pid), time.monotonic()
        rounds = 0
        while (now_s := time.monotonic() - began) < DURATION_S:
            for table in chance.sample(tables, max(TABLES // 10, 1)):
                table.commit()
            if rounds % 5 == 0:
                chance.choice(faults.kinds)()
            if not held.samples or now_s - held.samples[-1][0] >= min(CHECK_S, DURATION_S / 30):
                held.take(now_s)
            rounds += 1
            time.sleep(max(began + rounds * ROUND_S - time.monotonic(), 0))
        for each in client.status().pipelines:
            if each.state is PipelineState.STOPPED:
                client.send(each.name, "resume")
        for table in tables:
            until(lambda table=table: len(table.delivered(tmp_path / "out")) >= table.next_id)  # type: ignore[misc]
            assert table.delivered(tmp_path / "out") == list(range(table.next_id))
        print(f"{rounds} rounds, {sum(table.version + 1 for table in tables)} versions")
        held.check()
        assert daemon.terminate() == 0, daemon.said
    finally:
        daemon.process.kill()
        daemon.process.wait()

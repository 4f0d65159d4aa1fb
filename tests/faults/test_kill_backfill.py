"""SIGKILL of the real daemon inside a backfill: it goes on after the last row, and later changes come after it.

Delivered rows are read from the destination with its own reader, commit by commit.
"""

from pathlib import Path
from typing import Final

from tailer.daemon.client import DaemonClient
from tailer.errors import ConfigError
from tests.support.daemon.process import ROWS_TOGETHER, DeltaDestination, SmallDaemon
from tests.support.streams import Growing
from tests.support.waiting import until

FILES: Final = 12
ROWS: Final = 40
KILLS: Final = 2

Row = tuple[int, int]  # version, id


def test_killed_again_and_again(tmp_path: Path, started: list[SmallDaemon]) -> None:
    table, target = Growing(tmp_path / "source"), tmp_path / "target"
    table.insert(*(range(number * ROWS, number * ROWS + ROWS) for number in range(FILES)), row_group_size=ROWS_TOGETHER)
    there = DeltaDestination(target, f"orders/{table.metadata['id']}")
    config = tmp_path / "tailer.toml"
    pipeline = f'[pipelines.orders]\ntable = "{table.path}"\npoll_interval_s = 0.05\n'
    config.write_text(f"{pipeline}[pipelines.orders.sink]\n{there.sink}")
    client = DaemonClient(socket=config.with_suffix(".sock"))

    def phase() -> str:
        try:
            found = client.status().pipelines[0].backfill
        except ConfigError:
            return ""
        return "" if found is None else found.phase.value

    def commits() -> int:
        return sum(1 for _ in (target / "_delta_log").glob("[0-9]*.json"))

    def rows() -> list[Row]:
        return [(row[0], row[2]) for transaction in there.transactions() for row in sorted(transaction)]

    def kill_behind(transactions: int) -> None:
        until(lambda: commits() >= transactions, commits, lambda: started[-1].said, look_s=0.001)
        started[-1].kill()

    started.append(SmallDaemon(config))
    until(lambda: there.reached() == 1, there.reached, lambda: started[-1].said)
    client.send("orders", "backfill", where="id % 2 = 0")
    for number in range(KILLS):
        kill_behind(commits() + 2 + 3 * number)
        assert len(rows()) < FILES * ROWS * 3 // 2, "over before it could be killed"
        table.insert([1_000_000 + number])
        started.append(SmallDaemon(config))
    until(lambda: there.reached() == table.version, there.reached, lambda: started[-1].said)
    until(lambda: phase() == "done", phase, lambda: started[-1].said)
    assert started[-1].terminate() == 0, started[-1].said
    first = table.rows(last=1)
    reads = [row for row in first if row[1] % 2 == 0]
    found = rows()
    assert sorted(found[: len(first)]) == first
    assert sorted(found[len(first) : len(first) + len(reads)]) == reads
    assert found[len(first) + len(reads) :] == table.rows(first=2)

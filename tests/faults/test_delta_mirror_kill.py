"""SIGKILL of the real daemon while it mirrors a table into Delta: each version of the mirror is a version of the table.

Updates of the history change keys. An operator orders a snapshot in between.
"""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tailer.daemon.client import DaemonClient
from tests.support.daemon.process import Daemon
from tests.support.histories.long_history import LongHistory
from tests.support.waiting import until

FEW_KILLS: Final = 3
KILLS: Final = 20
COMMITS: Final = 120

# The client library forgets a Unix socket that nobody serves.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")


class Mirror:
    """The mirror of a history, and the check that it is one."""

    def __init__(self, path: Path, history: LongHistory) -> None:
        self._path = path
        self._app_id = f"orders/{history.table_id}"
        self._states: list[set[int]] = []
        ids: Counter[int] = Counter()
        changes = sorted(history.changes.items(), key=lambda each: each[0][0])
        for version in range(history.length):
            while changes and changes[0][0][0] == version:
                (_, kind, one), number = changes.pop(0)
                ids[one] += number if kind in ("insert", "update_postimage") else -number
            self._states.append(set(+ids))

    def version(self, commit: int | None = None) -> int:
        """Check the table behind a commit, by default the newest. Return the version that it mirrors; -1: none."""
        try:
            table = DeltaTable(self._path, commit)
        except TableNotFoundError:
            return -1
        version = table.transaction_version(self._app_id)
        found = table.to_pyarrow_table(columns=["id"]).column("id").to_pylist()
        assert len(found) == len(set(found))
        assert set(found) == (set() if version is None else self._states[version]), f"not version {version}"
        return -1 if version is None else version

    def commits(self) -> int:
        """Return the number of commits."""
        return DeltaTable(self._path).version() + 1


@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.nightly)])
def test_every_commit_is_a_version(tmp_path: Path, started: list[Daemon], kills: int) -> None:
    history = LongHistory(tmp_path / "source", seed=7, length=COMMITS)
    mirror = Mirror(tmp_path / "mirror", history)
    config = tmp_path / "tailer.toml"
    pipeline = f'[pipelines.orders]\ntable = "{history.path}"\npoll_interval_s = 0.05\n'
    sink = f'kind = "delta"\npath = "{tmp_path / "mirror"}"\nmode = "mirror"\nkey = ["id"]\n'
    config.write_text(f"{pipeline}[pipelines.orders.sink]\n{sink}")
    client = DaemonClient(socket=config.with_suffix(".sock"))
    moments = random.Random(7)
    reached: list[int] = []
    for number in range(kills):
        history.publish(1 + moments.randrange(4))
        started.append(Daemon(config))
        started[-1].wait_until_running()
        if number % 2:
            until(lambda: mirror.version() > max(reached), mirror.version, lambda: started[-1].said)
            client.order("orders", "resnapshot")
        killed_at = time.monotonic() + moments.uniform(0.0, 1.5)
        while time.monotonic() < killed_at:
            if history.published < history.length * (number + 1) // (kills + 1):
                history.publish(moments.randrange(5))
            time.sleep(moments.uniform(0.0, 0.1))
        started[-1].kill()
        reached.append(mirror.version())
    history.publish(history.length)
    started.append(Daemon(config))
    until(lambda: mirror.version() == history.last, mirror.version, lambda: started[-1].said)
    assert started[-1].terminate() == 0, started[-1].said
    for commit in range(mirror.commits()):
        mirror.version(commit)
    print(f"killed at versions {reached}, {mirror.commits()} commits")

"""SIGKILL of a daemon that follows a busy table in a store, and what its sink `stdout` has printed."""

import json
import math
import random
import time
from collections.abc import Iterator
from typing import Final

from tests.support.daemon.process import Daemon, Destination
from tests.support.histories.long_history import Change
from tests.support.histories.s3_history import StoredHistory
from tests.support.waiting import until

__all__ = ["STDOUT", "kill_while_busy", "printed"]

STDOUT: Final = '{kind = "stdout", format = "jsonl"}'
_BACKLOG: Final = 8


def kill_while_busy(daemon: Daemon, source: StoredHistory, there: Destination, moments: random.Random) -> int:
    """Publish versions until the daemon has delivered some, and kill it a moment later. Return the version reached."""
    daemon.wait_until_running()
    before, killed_at = there.reached(), math.inf

    def is_over() -> bool:
        nonlocal killed_at
        if source.history.published < there.reached() + _BACKLOG:
            source.publish(moments.randrange(4))
        if there.reached() > before:
            killed_at = min(killed_at, time.monotonic() + moments.uniform(0, 0.6))
        return time.monotonic() >= killed_at

    until(is_over, there.reached, lambda: daemon.said, look_s=0.02)
    daemon.kill()
    return there.reached()


def printed(daemons: list[Daemon]) -> set[Change]:
    """Return the rows that the sink `stdout` has printed; a kill may cut the last line."""
    return {row for daemon in daemons for row in _rows(daemon.said)}


def _rows(said: str) -> Iterator[Change]:
    for line in said.splitlines():
        if line.startswith("{") and line.endswith("}"):
            row = json.loads(line)
            if "_commit_version" in row:  # a line of the log has none
                yield row["_commit_version"], row["_change_type"], row["id"]

"""Mirrors of a history that is published commit by commit: kills of their daemon, and the check of one in Delta."""

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.support.daemon.process import Daemon
from tests.support.histories.long_history import LongHistory
from tests.support.waiting import until

__all__ = ["HistoryMirror", "kill_again_and_again"]


class HistoryMirror:
    """The mirror of a history at `location`, which delta-rs opens with `login`, and the check that it is one."""

    def __init__(self, location: str, history: LongHistory, login: dict[str, str] | None = None) -> None:
        self._open = partial(DeltaTable, location, storage_options=login)
        self._app_id = f"orders/{history.table_id}"
        self._states = history.states

    def version(self, commit: int | None = None) -> int:
        """Check the table behind a commit, by default the newest. Return the version that it mirrors; -1: none."""
        try:
            table = self._open(commit)
        except TableNotFoundError:
            return -1
        version = table.transaction_version(self._app_id)
        rows = table.to_pyarrow_table()
        for column in {"_deleted_version", "_valid_to_version"}.intersection(rows.column_names):
            rows = rows.filter(pc.field(column).is_null())
        found = rows.column("id").to_pylist()
        assert len(found) == len(set(found))
        assert set(found) == (set() if version is None else self._states[version]), f"not version {version}"
        return -1 if version is None else version

    def check_past(self) -> None:
        """Check that the newest commit has the source as of each known version, and says when rows were deleted."""
        table = self._open()
        rows, last = table.to_pyarrow_table().to_pylist(), table.transaction_version(self._app_id)
        known_from = table.transaction_version("orders/#known-from")
        assert last is not None
        for version in range(last + 1 if known_from is None else known_from, last + 1):
            found = sorted(row["id"] for row in rows if _holds(row, version))
            assert found == sorted(self._states[version]), f"not version {version}"
        for row in rows:
            if (deleted := row.get("_deleted_version")) is not None:
                assert not any(row["id"] in ids for ids in self._states[deleted : last + 1])

    def commits(self) -> int:
        """Return the number of commits."""
        return int(self._open().version()) + 1


def _holds(row: dict[str, Any], version: int) -> bool:
    """Return whether a state of a history holds at a version."""
    ended = row["_valid_to_version"]
    return bool(row["_valid_from_version"] <= version and (ended is None or version < ended))


class _Mirror(Protocol):
    def version(self) -> int: ...


def kill_again_and_again(
    config: Path,
    history: LongHistory,
    mirror: _Mirror,
    started: list[Daemon],
    kills: int,
    *,
    order: Callable[[], object] = lambda: None,
    look: Callable[[], object] = lambda: None,
) -> None:
    """Kill daemons of a configuration while the history goes on, until the mirror is at its end.

    `order`: is called in every other daemon, once that has delivered; `look`: again and again before a kill.
    """
    moments = random.Random(7)
    reached: list[int] = []
    for number in range(kills):
        history.publish(1 + moments.randrange(4))
        started.append(Daemon(config))
        started[-1].wait_until_running()
        if number % 2:
            until(lambda: mirror.version() > max(reached), mirror.version, lambda: started[-1].said)
            order()
        killed_at = time.monotonic() + moments.uniform(0.0, 1.5)
        while time.monotonic() < killed_at:
            if history.published < history.length * (number + 1) // (kills + 1):
                history.publish(moments.randrange(5))
            look()
            time.sleep(moments.uniform(0.0, 0.1))
        started[-1].kill()
        reached.append(mirror.version())
    history.publish(history.length)
    started.append(Daemon(config))
    until(lambda: mirror.version() == history.last, mirror.version, lambda: started[-1].said)
    assert started[-1].terminate() == 0, started[-1].said
    print(f"killed at versions {reached}")

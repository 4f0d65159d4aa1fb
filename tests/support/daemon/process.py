"""The real daemon as a process, and its destinations, read without it."""

import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.support.waiting import until

__all__ = [
    "ROWS_TOGETHER",
    "Daemon",
    "Delivered",
    "DeltaDestination",
    "Destination",
    "FilesDestination",
    "SmallDaemon",
    "SqlDestination",
    "delivered",
    "peak_mb",
    "small_transactions",
]

TAILER: Final = Path(sys.executable).with_name("tailer")
EXIT_S: Final = 120.0
ROWS_TOGETHER: Final = 10

Delivered = list[tuple[int, str, int, int]]  # version, change type, id, time of commit in milliseconds


class Destination(Protocol):
    """A destination of the daemon, read without it."""

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        ...

    def reached(self) -> int:
        """Return the last complete version; -1 for none."""
        ...

    def transactions(self) -> Iterator[Delivered]:
        """Return the rows of every transaction, in order of commit."""
        ...


@dataclass
class DeltaDestination:
    """The target of the delta sink, through delta-rs and pyarrow."""

    path: Path
    app_id: str

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        return f'kind = "delta"\npath = "{self.path}"\n'

    def reached(self) -> int:
        """See `Destination.reached`."""
        try:
            version = DeltaTable(self.path).transaction_version(self.app_id)
        except TableNotFoundError:
            return -1
        return -1 if version is None else version

    def transactions(self) -> Iterator[Delivered]:
        """See `Destination.transactions`."""
        for version in range(DeltaTable(self.path).version() + 1):
            commit = self.path / "_delta_log" / f"{version:020d}.json"
            actions = [msgspec.json.decode(line) for line in commit.read_bytes().splitlines()]
            files = [self.path / action["add"]["path"] for action in actions if "add" in action]
            tables = [pq.read_table(file) for file in files]
            yield [row for table in tables for row in delivered(table)]


@dataclass
class FilesDestination:
    """The folder of the files sink: JSON Lines in files named by their versions."""

    path: Path
    app_id: str

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        return f'kind = "files"\npath = "{self.path}"\n'

    def _files(self) -> list[Path]:
        return sorted((self.path / self.app_id).glob("[0-9]*.jsonl"))

    def reached(self) -> int:
        """See `Destination.reached`."""
        return max((int(file.stem.split("-")[-1]) for file in self._files()), default=-1)

    def transactions(self) -> Iterator[Delivered]:
        """See `Destination.transactions`."""
        for file in self._files():
            rows: list[dict[str, Any]] = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
            yield list(delivered(pa.Table.from_pylist(rows))) if rows else []


@dataclass
class SqlDestination:
    """A log of changes in a file of SQLite."""

    path: Path
    app_id: str

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        return f'kind = "sql"\nurl = "sqlite:///{self.path}"\nmode = "append"\n'

    def reached(self) -> int:
        """See `Destination.reached`."""
        if not self.path.exists():
            return -1
        with closing(sqlite3.connect(self.path)) as connection, suppress(sqlite3.OperationalError):
            (found,) = connection.execute("SELECT max(version) FROM lake_tailer_mirrors").fetchone()
            return -1 if found is None else int(found)
        return -1

    def transactions(self) -> Iterator[Delivered]:
        """See `Destination.transactions`. A table does not show them, so that each version counts as one."""
        query = "SELECT _commit_version, _change_type, id, _commit_timestamp FROM orders ORDER BY 1, _task, _row"
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(query).fetchall()
        for _, version in groupby(rows, key=lambda row: row[0]):
            yield [(number, kind, one, _millis(moment)) for number, kind, one, moment in version]


def delivered(table: pa.Table) -> Iterator[tuple[int, str, int, int]]:
    names = ("_commit_version", "_change_type", "id", "_commit_timestamp")
    columns = [table.column(name).to_pylist() for name in names]
    return ((version, kind, one, _millis(moment)) for version, kind, one, moment in zip(*columns, strict=True))


def _millis(moment: datetime | str) -> int:
    moment = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


class Daemon:
    """A process of `tailer run`, started as by a user."""

    def __init__(self, config: Path) -> None:
        self._said = config.with_name(f"{config.stem}-{uuid.uuid4().hex}.log")
        with self._said.open("wb") as said:
            self.process = subprocess.Popen([TAILER, "run", "--config", config], stdout=said, stderr=said)

    @property
    def said(self) -> str:
        """Return everything it printed."""
        return self._said.read_text()

    def wait_until_running(self) -> None:
        """Return when the pipelines have been started."""
        self._until(lambda: "running" in self.said, lambda: None)

    def wait_until_reached(self, destination: Destination, version: int) -> None:
        """Return when `version` has been delivered."""
        self._until(lambda: destination.reached() >= version, destination.reached)

    def _until(self, holds: Callable[[], bool], progress: Callable[[], object]) -> None:
        def living() -> bool:
            assert self.process.poll() is None, self.said
            return holds()

        until(living, progress, lambda: self.said)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self.process.poll() is None, self.said
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Send SIGTERM; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(EXIT_S)


def small_transactions(rows: int) -> tuple[str, ...]:
    """Return the command `tailer` with transactions of so many rows, which no setting gives."""
    program = f"""
from functools import partial
import tailer.config.pipelines
from tailer.__main__ import main
tailer.config.pipelines.Limits = partial(tailer.config.pipelines.Limits, max_rows={rows})
main()
"""
    return sys.executable, "-c", program


class SmallDaemon(Daemon):
    """`tailer run` with transactions of `ROWS_TOGETHER` rows."""

    def __init__(self, config: Path) -> None:
        self._said = config.with_suffix(".log")
        with self._said.open("wb") as said:
            command = [*small_transactions(ROWS_TOGETHER), "run", "--config", str(config)]
            self.process = subprocess.Popen(command, stdout=said, stderr=said)


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process; return its peak resident memory, in MB.

    The result of `wait4` would include this process, from which it was forked.
    """
    peak_kb = 0
    while process.poll() is None:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak_kb = max([peak_kb, *(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)])
        time.sleep(0.02)
    return peak_kb / 1024

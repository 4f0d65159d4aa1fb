"""The command line as a user runs it: real processes, and a Delta table with a real writer."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tailer.daemon.client import DaemonClient
from tailer.errors import ConfigError
from tests.support.daemon import fork_server

__all__ = [
    "Orders",
    "background",
    "complaints",
    "in_terminal",
    "metrics_address",
    "states",
    "tailer",
    "versions_and_ids",
    "versions_delivered",
]

TIMEOUT_S: Final = 600.0
COMMAND: Final = (sys.executable, "-m", "tailer")


def _environment(variables: dict[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TAILER_")}
    return inherited | {"COLUMNS": "200"} | variables


def tailer(*arguments: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `tailer` to its end with files for its output; `variables` are added to its environment."""
    words, environment = list(map(str, arguments)), _environment(variables)
    if "PYTHONPATH" in variables:  # it imports something else
        return subprocess.run(
            [*COMMAND, *words], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd, env=environment, check=False
        )
    return fork_server.run(words, cwd, environment, TIMEOUT_S)


def complaints(stderr: str) -> list[str]:
    """Return the lines of `tail` on standard error after the first, which names the versions."""
    announced, *others = stderr.splitlines()
    assert re.search(r": (changes of|following changes|all rows|nothing is newer)", announced), stderr
    return others


def in_terminal(*arguments: object) -> tuple[int, str]:
    """Run `tailer` to its end in a terminal; return the exit code and everything shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=_environment({"TERM": "xterm"}),
    )
    os.close(theirs)
    shown = bytearray()
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # Linux's error when no process holds the terminal any more
        pass
    finally:
        os.close(ours)
    return process.wait(TIMEOUT_S), shown.decode()


@contextmanager
def background(*arguments: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run `tailer` concurrently with the test, with pipes for its output; kill it at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(variables),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@dataclass
class Orders:
    """A Delta table with the columns id and amount, written by delta-rs; knows its change rows (version, type, id)."""

    path: Path
    version: int = -1
    changes: list[tuple[int, str, int]] = field(default_factory=list)

    def insert(self, *ids: int) -> None:
        """Commit rows."""
        rows = pa.table({"id": pa.array(ids, pa.int64()), "amount": pa.array([each * 1.5 for each in ids])})
        write_deltalake(self.path, rows, mode="append", configuration={"delta.enableChangeDataFeed": "true"})
        self._committed("insert", ids)

    def delete(self, *ids: int) -> None:
        """Commit their deletion."""
        DeltaTable(self.path).delete(f"id IN ({', '.join(map(str, ids))})")
        self._committed("delete", ids)

    def _committed(self, change: str, ids: tuple[int, ...]) -> None:
        self.version += 1
        self.changes += [(self.version, change, each) for each in ids]

    def written(self) -> "Orders":
        """Commit three versions, and return the table."""
        self.insert(1, 2)
        self.delete(1)
        self.insert(3)
        return self

    def configured(self, text: str) -> Path:
        """Write a configuration beside the table."""
        path = self.path.parent / "tailer.toml"
        path.write_text(text)
        return path

    def copied_to(self, path: Path) -> list[tuple[int, str, int]]:
        """Return the change rows in the Delta table at `path`."""
        rows = DeltaTable(path).to_pyarrow_table().select(["_commit_version", "_change_type", "id"])
        return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def versions_and_ids(lines: str) -> list[tuple[int, int]]:
    """Return the version and the id of each row of JSON Lines."""
    return [(row["_commit_version"], row["id"]) for row in map(json.loads, lines.splitlines())]


def versions_delivered(config: Path) -> list[str]:
    """Return the versions that `tailer progress show` names as delivered."""
    return [line.split("\t")[3] for line in tailer("progress", "show", "--config", config).stdout.splitlines()[1:]]


def metrics_address(daemon: subprocess.Popen[str]) -> str:
    """Return the address of the HTTP server of a daemon that logs text: `http://HOST:PORT`, or with `https`."""
    assert daemon.stderr is not None
    line = next(line for line in daemon.stderr if "metrics on http" in line)
    return line.partition("metrics on ")[2].partition("/metrics")[0]


def states(config: Path) -> dict[str, str]:
    """Return the state of each pipeline; nothing while the daemon does not answer."""
    try:
        report = DaemonClient(socket=config.with_suffix(".sock")).status()
    except ConfigError:
        return {}
    return {each.name: each.state.value for each in report.pipelines}

"""Hints of errors, walked to their ends: a daemon whose only pipeline stops, and one with another pipeline."""

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from tailer import errors
from tailer.daemon.client import DaemonClient
from tailer.daemon.status_report import PipelineReport
from tailer.errors import ConfigError, Retry, TailerError
from tests.support.daemon.commands import background, tailer
from tests.support.tables.handwritten import HandwrittenTable
from tests.support.waiting import until

pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")

SINKS: Final = {
    "files": 'kind = "files"\npath = "copy"',
    "sqlite": 'kind = "sql"\nurl = "sqlite:///copy.db"\ntable = "copy"\nkey = ["id"]',
    "delta": 'kind = "delta"\npath = "copy"\nmode = "mirror"\nkey = ["id"]',
}
COMMAND: Final = re.compile(r"`tailer ([^`]+)`")


class Walk:
    """A table, its pipeline `copy`, and the rows that the table has. `alone`: whether it is the only pipeline."""

    def __init__(self, folder: Path, sink: str, alone: bool) -> None:
        self.table, self.sink, self.ids, self.last = HandwrittenTable(folder / "t"), sink, set[int](), 0
        self.config = folder / "tailer.toml"
        self.client = DaemonClient(socket=folder / "tailer.sock")
        self.is_mirror = sink != "files"
        text = f'[pipelines.copy]\ntable = "t"\npoll_interval_s = 0.05\n[pipelines.copy.sink]\n{SINKS[sink]}\n'
        if not alone:
            text += '[pipelines.other]\ntable = "later"\nsink = {kind = "files", path = "other"}\n'
        self.config.write_text(text)

    def insert(self) -> int:
        """Commit rows in a file of their own; return the version."""
        self.last += 2
        ids = (self.last - 1, self.last)
        self.ids |= set(ids)
        return self.table.commit(self.table.add(self.table.data(self.file(self.table.version + 1), ids)))

    def file(self, version: int) -> str:
        """Return the name of the data file of a version."""
        return f"{version}.parquet"

    @property
    def report(self) -> PipelineReport | None:
        """The report of the daemon about the pipeline; None while it does not answer."""
        try:
            return self.client.status().pipelines[0]
        except ConfigError:
            return None

    def state(self) -> str:
        """Return the state of the pipeline."""
        return "" if (found := self.report) is None else found.state.value

    def stop(self, error: str, harm: Callable[[], object]) -> list[str]:
        """Do harm while the pipeline is paused, let it stop with `error`; return the commands of its hint."""
        self.client.send("copy", "pause")
        until(lambda: self.state() == "paused")
        harm()
        self.client.send("copy", "resume")
        until(lambda: self.state() == "stopped")
        found = self.report
        assert found is not None
        assert found.why.startswith(f"{error}: "), found.why
        return COMMAND.findall(found.hint)

    def run(self, command: str, code: int = 0) -> str:
        """Run a command of a hint; return what it said."""
        done = tailer(*command.split(), "--config", self.config)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def delivers(self) -> None:
        """Commit a row; return when the target has exactly the rows of the table, and the pipeline goes on."""
        self.insert()
        until(lambda: sorted(self.copied()) == sorted(self.ids))
        until(lambda: self.state() in ("streaming", "catching_up", "idle"))

    def copied(self) -> list[int]:
        """Return the ids in the target: of a log, those after the last gap with a snapshot."""
        folder = self.config.parent
        try:
            if self.sink == "sqlite":
                with sqlite3.connect(folder / "copy.db") as connection:
                    return [each for (each,) in connection.execute("SELECT id FROM copy")]
            if self.sink == "delta":
                found: list[int] = DeltaTable(folder / "copy").to_pyarrow_table()["id"].to_pylist()
                return found
        except Exception:  # noqa: BLE001 - there is none yet
            return []
        ids: list[int] = []
        for path in sorted((folder / "copy").rglob("*.jsonl")):
            for line in map(json.loads, path.read_text().splitlines()):
                if line["_change_type"] == "gap":
                    ids = [] if line.get("snapshot") else ids
                else:
                    ids += [line["id"]]
        return ids


def vacuumed(walk: Walk) -> None:
    """A missing data file: put back; left out by a snapshot, or as a gap."""
    table = walk.table

    def harm(drop: bool) -> None:
        version = walk.insert()
        file = table.path / walk.file(version)
        if drop:
            walk.ids -= {walk.last - 1, walk.last}
        if drop and walk.is_mirror:
            table.commit(table.remove(file.name))
        file.rename(file.with_suffix(".kept"))

    commands = walk.stop("FileVacuumed", lambda: harm(drop=False))
    assert commands[:3] == ["resume copy", "resnapshot copy", "skip copy"]
    for kept in table.path.glob("*.kept"):
        kept.rename(kept.with_suffix(".parquet"))
    walk.run(commands[0])
    walk.delivers()
    walk.stop("FileVacuumed", lambda: harm(drop=True))
    if walk.is_mirror:
        assert "`tailer resnapshot copy`" in walk.run(commands[2], 2)
    walk.run(commands[1 if walk.is_mirror else 2])
    walk.delivers()


def garbage(walk: Walk) -> None:
    """A commit that cannot be read: restored."""

    def harm() -> None:
        walk.insert()
        file = walk.table.commit_file()
        file.with_suffix(".kept").write_text(file.read_text())
        file.write_text("{garbage\n")

    commands = walk.stop("LogCorrupt", harm)
    file = walk.table.commit_file()
    file.write_text(file.with_suffix(".kept").read_text())
    walk.run(commands[0])
    walk.delivers()


def gone(walk: Walk) -> None:
    """A commit that is missing: restored."""

    def harm() -> None:
        walk.insert()
        file = walk.table.commit_file()
        walk.insert()
        file.rename(file.with_suffix(".kept"))

    commands = walk.stop("VersionGone", harm)
    file = walk.table.commit_file(walk.table.version - 1)
    file.with_suffix(".kept").rename(file)
    walk.run(commands[0])
    walk.delivers()


def corrupt(walk: Walk) -> None:
    """A data file that is none: restored."""

    def harm() -> None:
        file = walk.table.path / walk.file(walk.insert())
        file.with_suffix(".kept").write_bytes(file.read_bytes())
        file.write_bytes(bytes(len(file.read_bytes())))

    commands = walk.stop("DataCorrupt", harm)
    file = walk.table.path / walk.file(walk.table.version)
    file.write_bytes(file.with_suffix(".kept").read_bytes())
    walk.run(commands[0])
    walk.delivers()


def replaced(walk: Walk) -> None:
    """Another table at the location."""

    def harm() -> None:
        shutil.rmtree(walk.table.path)
        walk.table = HandwrittenTable(walk.table.path)
        walk.table.metadata["id"] = "99999999-2222-3333-4444-555555555555"
        walk.table.version, walk.ids = -1, set()
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        walk.table.commit({"protocol": protocol}, {"metaData": walk.table.metadata})
        walk.insert()

    commands = walk.stop("TableReplaced", harm)
    walk.run(commands[0])
    walk.delivers()


def ahead(walk: Walk) -> None:
    """A log that was set back."""

    def harm() -> None:
        walk.table.commit_file().unlink()
        walk.table.version -= 1
        walk.ids -= {walk.last - 1, walk.last}

    walk.insert()
    until(lambda: sorted(walk.copied()) == sorted(walk.ids))
    commands = walk.stop("VersionAhead", harm)
    if walk.is_mirror:
        assert "would not be a mirror" in walk.run(commands[0], 4)
        walk.insert()
        walk.run(commands[2])
    else:
        found = re.search(r"Move (\S+) and the files after it out of (\S+),", walk.run(commands[0], 4))
        assert found is not None
        (Path(found[2]) / found[1]).unlink()
        walk.run(commands[0])
        walk.run(commands[1])
    walk.delivers()


WALKS: Final[dict[type[TailerError], Callable[[Walk], None]]] = {
    errors.FileVacuumed: vacuumed,
    errors.LogCorrupt: garbage,
    errors.VersionGone: gone,
    errors.DataCorrupt: corrupt,
    errors.TableReplaced: replaced,
    errors.VersionAhead: ahead,
}
NOT_WALKED: Final = {
    errors.ConfigError: "the hint is a change of the configuration",
    errors.ExpressionFailed: "the hint is a change of the configuration",
    errors.FileOutsideTable: "the hint is a change of the configuration",
    errors.SchemaChanged: "the hint is a change of the configuration",
    errors.NotATable: "the hint is a change of the configuration",
    errors.UnsupportedFeature: "the hint is another release",
    errors.ChangesUnavailable: "the hint has the commands of FileVacuumed, and the same error class decides on them",
    errors.LogRewritten: "the hint has the commands of VersionAhead",
    errors.StateUnknown: "the pipeline waits, and goes on by itself",
    errors.StorageRefused: "the hint names what a store refuses",
    errors.ObjectNotFound: "no pipeline stops with it",
    errors.SinkRejected: "the hint is the sink's own, and tested with the sink",
    errors.SinkFenced: "it takes a second daemon, as in test_kafka_instances",
}


def classes(root: type[TailerError]) -> set[type[TailerError]]:
    """Return the classes below `root` that stop a pipeline until a person acts: none that begin again by themselves."""
    found = {each for below in root.__subclasses__() for each in classes(below)} or {root}
    return {each for each in found | {root} if each.__module__.startswith("tailer.errors.")}


def test_every_error_that_waits_for_a_person_is_walked_or_says_why_not() -> None:
    families = {errors.TailerError, errors.StorageError, errors.LogError, errors.ChangeError, errors.SinkError}
    waiting = {each for each in classes(TailerError) - families if each.retry in (Retry.MANUAL, Retry.ONCE)}
    assert waiting == WALKS.keys() | NOT_WALKED.keys()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("sink", SINKS)
def test_the_commands_of_hints_are_obeyed(tmp_path: Path, sink: str, alone: bool) -> None:
    walk = Walk(tmp_path, sink, alone)
    walk.insert()
    with background("run", "--config", walk.config, "--log-format", "text"):
        until(lambda: walk.state() == "streaming")
        for walked in WALKS.values():
            walked(walk)

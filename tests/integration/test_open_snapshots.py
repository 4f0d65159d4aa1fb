"""Stops inside a snapshot: the sink has a part of the rows of a version, and the rest cannot be delivered.

Every command that an operator then gives does what it says, or is refused at once.
"""

import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import anyio
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

import tailer.config.pipelines
from tailer.config.settings import load
from tailer.config.shapes import EngineKind
from tailer.config.tables import open_files
from tailer.daemon import control, serve
from tailer.daemon.engines import Engines
from tailer.daemon.fleet import fleet
from tailer.daemon.runs import Run
from tailer.engine.local import LocalEngine
from tailer.pipeline.policy import Limits
from tailer.pipeline.states import PipelineState
from tailer.plan import Position
from tests.support.tables.handwritten import HandwrittenTable
from tests.support.tables.log_files import checkpoint

SINKS: Final = {
    "sqlite": 'kind = "sql"\nurl = "sqlite:///{}/copy.db"\ntable = "copy"\nkey = ["id"]',
    "delta": 'kind = "delta"\npath = "{}/copy"\nmode = "mirror"\nkey = ["id"]',
    "files": 'kind = "files"\npath = "{}/copy"',
}
pytestmark = pytest.mark.anyio

MIRRORS: Final = ("sqlite", "delta")
STARTS: Final = [(sink, "snapshot") for sink in SINKS]
DELIVERING: Final = (PipelineState.STREAMING, PipelineState.CATCHING_UP, PipelineState.IDLE)


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions have two rows, so the sink has the first ones of a snapshot when a later one stops it."""
    monkeypatch.setattr(tailer.config.pipelines, "Limits", partial(Limits, max_rows=2))


class Operator:
    """The pipeline from the table `t` in `folder` to a sink, and what an operator sees and says."""

    def __init__(self, folder: Path, sink: str, options: str = 'start = "1"') -> None:
        self.folder, self.sink = folder, sink
        self.table = HandwrittenTable(folder / "t")
        self.files: dict[str, list[int]] = {}
        self._options = options
        self._error: Exception | None = None  # with which it has stopped last

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Run]:
        """Run the pipeline as a daemon does."""
        config = self.folder / "tailer.toml"
        text = f'[pipelines.copy]\ntable = "t"\npoll_interval_s = 0.05\n{self._options}\n'
        config.write_text(f"{text}[pipelines.copy.sink]\n{SINKS[self.sink].format(self.folder)}\n")
        settings = load(config)
        (pipeline,) = settings.pipelines
        files, status = open_files(), pipeline.make_status()
        engines = Engines(EngineKind.LOCAL, LocalEngine(2, files), files, None)
        run = partial(serve.make_work, settings, engines, [], pipeline, status, False)
        self.run = fleet.make_run(pipeline, status, run)
        async with anyio.create_task_group() as group:
            group.start_soon(self.run.run, lambda _: None)
            yield self.run
            self.run.end("the test is over")

    def insert(self, **files: list[int]) -> int:
        """Commit files with rows."""
        self.files |= files
        return self.table.commit(*(self.table.add(self.table.data(name, ids)) for name, ids in files.items()))

    def remove(self, name: str) -> int:
        """Commit the removal of a file."""
        del self.files[name]
        return self.table.commit(self.table.remove(name))

    async def stops(self, error: str) -> None:
        """Return when it has stopped with `error`."""
        await _until(lambda: self._has_failed() and self.run.status.state is PipelineState.STOPPED)
        self._error = self.run.error
        assert type(self._error).__name__ == error, self._error

    def _has_failed(self) -> bool:
        return self.run.error not in (None, self._error)

    async def delivers(self) -> None:
        """Return when the target has the rows of the table, and the pipeline goes on with its changes."""
        for name in (f"more{self.table.version}", f"last{self.table.version}"):
            self.insert(**{name: [100 + self.table.version]})
            await _until(lambda: self._has_failed() or sorted(self.copied()) == sorted(chain(*self.files.values())))
            assert not self._has_failed(), self.run.error
        await _until(lambda: self.run.status.state in DELIVERING)

    async def say(self, verb: str) -> str:
        """Give a command. Return the answer; of a refusal with the word before it."""
        try:
            asked: Any = SimpleNamespace(version=None, where=None)
            return await control.VERBS[verb](self.run, asked)
        except control._RefusedError as refused:
            return f"REFUSED {refused}"

    def copied(self) -> list[int]:
        """Return the ids in the target: of a log, those after the last gap with a snapshot."""
        ids: list[int] = []
        if self.sink == "sqlite":
            with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self.folder / "copy.db")) as connection:
                ids = [each for (each,) in connection.execute("SELECT id FROM copy")]
        if self.sink == "delta":
            with suppress(TableNotFoundError):
                ids = DeltaTable(self.folder / "copy").to_pyarrow_table()["id"].to_pylist()
        for path in sorted((self.folder / "copy").rglob("*.jsonl")):
            for line in map(json.loads, path.read_text().splitlines()):
                if line["_change_type"] == "gap":
                    ids = [] if line["snapshot"] else ids
                elif line["_change_type"] == "delete":
                    ids.remove(line["id"])
                else:
                    ids.append(line["id"])
        return ids


async def _until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not holds():  # noqa: ASYNC110 - neither tables nor states notify
            await anyio.sleep(0.02)


@pytest.mark.parametrize("start", ["1", "snapshot"])
@pytest.mark.parametrize("sink", MIRRORS)
@pytest.mark.parametrize("row", [2, None], ids=["a key twice", "no key"])
async def test_a_row_that_no_mirror_has(tmp_path: Path, sink: str, start: str, row: Any) -> None:
    """The row goes, and `tailer resnapshot` begins again with the version that lacks it."""
    at = Operator(tmp_path, sink, f'start = "{start}"')
    at.insert(a=[1, 2], b=[3, 4], c=[row])
    async with at.running():
        await at.stops("SinkRejected")
        await at.say("resnapshot")
        await at.stops("SinkRejected")
        at.remove("c")
        await at.say("resnapshot")
        await at.delivers()


@pytest.mark.parametrize(("sink", "start"), [*STARTS, ("sqlite", "1"), ("delta", "1")])
async def test_a_missing_file(tmp_path: Path, sink: str, start: str) -> None:
    """It is put back, or dropped from the table. The rest of a snapshot is not skipped, and no backfill precedes it."""
    at = Operator(tmp_path, sink, f'start = "{start}"')
    at.insert(a=[1, 2], b=[3, 4], c=[5])
    file = at.table.path / "c"
    kept = file.rename(tmp_path / "kept")
    async with at.running():
        await at.stops("FileVacuumed")
        assert (await at.say("skip")).startswith("REFUSED"), "a mirror never skips, and no snapshot is left out"
        assert (await at.say("backfill")).startswith("REFUSED")
        await at.say("resnapshot")
        await at.stops("FileVacuumed")
        shutil.copy(kept, file)
        await at.say("resume")
        await at.delivers()


@pytest.mark.parametrize("way", ["command", "policy"])
@pytest.mark.parametrize("sink", SINKS)
async def test_a_snapshot_whose_files_are_vacuumed(tmp_path: Path, sink: str, way: str) -> None:
    """A newer one takes its place: by `tailer resnapshot`, or by `on_data_loss`."""
    policy = 'on_data_loss = "resnapshot"' if way == "policy" else ""
    at = Operator(tmp_path, sink, f'start = "{"snapshot" if sink == "files" else 1}"\n{policy}')
    at.insert(a=[1, 2], b=[3, 4], c=[5])
    (at.table.path / "c").unlink()
    async with at.running():
        await at.stops("FileVacuumed")
        at.remove("c")
        await at.say("resnapshot" if way == "command" else "resume")
        await at.delivers()
    gaps = [line for line in lines(tmp_path / "copy") if line["_change_type"] == "gap"]
    assert [line["snapshot"] for line in gaps] == [True] * (sink == "files")


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("way", ["command", "policy"])
async def test_a_snapshot_of_a_version_that_is_gone(tmp_path: Path, sink: str, way: str) -> None:
    """The log is cleaned up behind a stop."""
    policy = 'on_data_loss = "resnapshot"' if way == "policy" else ""
    at = Operator(tmp_path, sink, f'start = "{"snapshot" if sink == "files" else 1}"\n{policy}')
    at.insert(a=[1, 2], b=[3, 4], c=[5])
    (at.table.path / "c").unlink()
    async with at.running():
        await at.stops("FileVacuumed")
        at.remove("c")
        log = at.table.path / "_delta_log"
        protocol = json.loads(at.table.commit_file(0).read_text().splitlines()[0])
        there = [at.table.add(name) for name in at.files]
        checkpoint(
            log / f"{at.table.version:020d}.checkpoint.parquet", protocol, {"metaData": at.table.metadata}, *there
        )
        for version in range(at.table.version):
            at.table.commit_file(version).unlink()
        if way == "command":
            await at.say("resume")
            await at.stops("VersionGone")
            assert (await at.say("skip")).startswith("REFUSED")
        await at.say("resnapshot" if way == "command" else "resume")
        await at.delivers()


@pytest.mark.parametrize("sink", ["files", "sqlite"])
async def test_a_snapshot_of_a_table_that_is_replaced(tmp_path: Path, sink: str) -> None:
    """A snapshot of the new table is delivered, and no row of it is left out."""
    at = Operator(tmp_path, sink, 'start = "snapshot"')
    at.insert(a=[1, 2], b=[3, 4], c=[5])
    (at.table.path / "c").unlink()
    async with at.running():
        await at.stops("FileVacuumed")
        shutil.rmtree(at.table.path)
        at.table, at.files = HandwrittenTable(at.table.path), {}
        at.table.metadata["id"] = "99999999-2222-3333-4444-555555555555"
        at.table.version = -1
        at.table.commit(
            json.loads(at.table.commit_file(0).read_text().splitlines()[0]), {"metaData": at.table.metadata}
        )
        at.insert(d=[7], e=[8])
        await at.say("resume")
        await at.stops("TableReplaced")
        assert (await at.say("skip")).startswith("REFUSED")
        await at.say("resnapshot")
        await at.delivers()


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of all files that the sink `files` has written."""
    paths = sorted(folder.rglob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["long", "string"])
@pytest.mark.parametrize(("sink", "start"), [*STARTS, ("sqlite", "1"), ("delta", "1")])
async def test_the_columns_change_behind_an_open_snapshot(tmp_path: Path, sink: str, start: str, kind: str) -> None:
    """A column is added, and the one that is there gets another type."""
    at = Operator(tmp_path, sink, f'start = "{start}"')
    at.insert(a=[1, 2], b=[3, 4], c=[5])
    (at.table.path / "c").unlink()
    async with at.running():
        await at.stops("FileVacuumed")
        fields: list[Any] = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name in ("id", "more")]
        at.table.metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
        actions = [at.table.remove(name) for name in at.files]
        at.files = {}
        at.table.commit({"metaData": at.table.metadata}, *actions)
        await at.say("resnapshot")
        await _until(lambda: at.run.status.state in DELIVERING)
        assert at.run.status.backlog.position == Position.end(2)
        if kind == "long":
            await at.delivers()


async def test_a_table_that_is_not_the_mirror(tmp_path: Path) -> None:
    """Somebody makes the table that the end of the snapshot would make. It goes, and the same snapshot goes on."""
    at = Operator(tmp_path, "sqlite", 'start = "snapshot"')
    at.insert(a=[1, 2], b=[3, 4], c=[5])
    kept = (at.table.path / "c").rename(tmp_path / "kept")
    async with at.running():
        await at.stops("FileVacuumed")
        shutil.copy(kept, at.table.path / "c")
        with closing(sqlite3.connect(tmp_path / "copy.db")) as connection, connection:
            connection.execute("CREATE TABLE copy (x)")
        await at.say("resume")
        await at.stops("SinkRejected")
        with closing(sqlite3.connect(tmp_path / "copy.db")) as connection, connection:
            connection.execute("DROP TABLE copy")
        await at.say("resume")
        await at.delivers()

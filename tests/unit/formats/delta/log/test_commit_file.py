"""Commit files that appear in pieces: no row is lost or duplicated, and a delivered incomplete commit is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import anyio
import pytest

import tailer.formats.delta.table
from tailer.errors import CommitIncomplete, LogCorrupt, LogRewritten, TailerError
from tailer.formats.delta.log.listing import commit_name
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.loop import Pipeline
from tailer.plan import Position
from tailer.stores.local import LocalStore
from tailer.stores.port import ObjectMeta, OpenObject
from tailer_sinks.memory import MemorySink
from tests.support.streams import Destination, Growing, become, pipeline

pytestmark = pytest.mark.anyio

T = TypeVar("T")
VERSION: Final = 2


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """A table whose version 2 adds three files of two rows each, with its commitInfo after the second."""
    found = Growing(tmp_path / "t")
    found.insert([1])
    found.insert([2, 3], [4, 5], [6, 7])
    return found


class Cut(LocalStore):
    """A store that shows the first `cut` bytes of version 2 for the first `tries` reads, then all of it."""

    def __init__(self, table: Growing, cut: int, tries: int = 1) -> None:
        super().__init__(table.path)
        self._file = table.commit_file(VERSION)
        self._whole = self._file.read_bytes()
        self._tries = tries
        self._file.write_bytes(self._whole[:cut])

    def _looked(self, name: str) -> None:
        if name == commit_name(VERSION):
            self._tries -= 1
            if self._tries == 0:
                self._file.write_bytes(self._whole)

    def scan_now(self, name: str, work: Callable[[OpenObject], T]) -> T:
        found = super().scan_now(name, work)
        self._looked(name)
        return found

    async def stat(self, name: str) -> ObjectMeta:
        found = await super().stat(name)
        self._looked(name)
        return found


def line_ends(text: bytes) -> list[int]:
    return [at + 1 for at, byte in enumerate(text[:-1]) if byte == ord("\n")]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailer.formats.delta.table, "SETTLE_S", 0.01)
    monkeypatch.setattr(tailer.formats.delta.table, "REPAIR_S", 0.02)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("ended", [True, False])
async def test_a_cut_anywhere_neither_loses_nor_doubles_a_row(table: Growing, ended: bool) -> None:
    """At any cut, also between two lines, and with or without a newline at the end of the file."""
    whole = table.commit_file(VERSION).read_bytes().removesuffix(b"" if ended else b"\n")
    between = line_ends(whole)
    assert len(between) > 1
    for cut in sorted({0, *range(3, len(whole), 41), *between, *(at - 1 for at in between), len(whole) - 1}):
        table.commit_file(VERSION).write_bytes(whole)
        there = Destination()
        await pipeline(table, MemorySink("memory", there), until="2", store=Cut(table, cut)).run()
        assert there.delivered() == table.rows(), cut
        assert there.position() == Position.end(VERSION)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("tries", range(1, 7))
async def test_a_snapshot_of_a_cut_commit(table: Growing, tries: int) -> None:
    """Whenever the rest appears, all rows are delivered, or an error says that delivered rows are incomplete.

    After the seventh read, when the next version exists, the file is not read again.
    """
    there = Destination()
    store = Cut(table, line_ends(table.commit_file(VERSION).read_bytes())[0], tries)
    following = pipeline(table, MemorySink("memory", there), "snapshot", store=store)
    errors: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(run_into, following, errors)
        await become(lambda: there.position() is not None or bool(errors))
        table.insert([8])
        await become(lambda: there.position() == Position.end(3) or bool(errors))
        following.stop()
    delivered = sorted(row for _, row in there.delivered())
    assert delivered == [row for _, row in table.rows()] or "not written atomically" in str(errors)


async def run_into(following: Pipeline, errors: list[str]) -> None:
    """Run the pipeline, and record the error that stops it."""
    try:
        await following.run()
    except TailerError as error:
        errors.append(str(error))


async def test_growth_before_the_commit_prevents_it(table: Growing) -> None:
    whole = table.commit_file(VERSION).read_bytes()
    log = DeltaTableLog(Cut(table, line_ends(whole)[0], tries=99))
    await log.seek(VERSION)
    plan = await log.next_plan()
    assert plan is not None
    await log.confirm(None)
    table.commit_file(VERSION).write_bytes(whole)
    with pytest.raises(CommitIncomplete, match="grew while its rows were read"):
        await log.confirm(None)


async def test_growth_after_a_partial_commit_stops(tmp_path: Path) -> None:
    """The complete version has other rows before the position that was committed."""
    table, there = Growing(tmp_path / "t"), Destination()
    table.insert([1], [2])
    table.insert(range(10, 16), row_group_size=2)
    removal = json.dumps({"remove": {"path": "0-0.parquet", "dataChange": True, "partitionValues": {}}}) + "\n"

    def grow() -> None:
        position = there.position()
        commit = table.commit_file(1)
        if position is not None and position.version == 1 and removal not in commit.read_text():
            assert position.is_inside
            commit.write_text(commit.read_text() + removal)

    there.then = grow
    following = pipeline(table, there.sink(), until="1", max_rows=1)
    with pytest.raises(LogRewritten, match="not written atomically"):
        await following.run()
    assert there.delivered() == table.rows()[: len(there.delivered())]


async def test_growth_after_the_commit_stops_at_the_next_version(table: Growing) -> None:
    """An incomplete commit is not recognised at first; afterwards the error says that the delivered commit differs."""
    whole = table.commit_file(VERSION).read_bytes()
    log = DeltaTableLog(Cut(table, line_ends(whole)[0], tries=99))
    await log.seek(VERSION)
    await log.next_plan()
    table.commit_file(VERSION).write_bytes(whole)
    table.insert([8])
    with pytest.raises(LogRewritten, match="not written atomically"):
        await log.next_plan()


async def test_a_copied_file_is_the_same(table: Growing) -> None:
    log = DeltaTableLog(LocalStore(table.path))
    await log.seek(VERSION)
    await log.next_plan()
    table.commit_file(VERSION).touch()
    await log.confirm(None)
    table.commit_file(VERSION).unlink()
    await log.confirm(None)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_last_line_without_its_end_costs_a_moment_at_the_newest_version_only(
    table: Growing, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Some writers never end the last line with a newline."""
    file = table.commit_file(VERSION)
    file.write_bytes(file.read_bytes().removesuffix(b"\n"))
    if not waits:
        table.insert([8])
    waited: list[float] = []

    async def stays(_store: object, _meta: ObjectMeta, for_s: float) -> bool:
        waited.append(for_s)
        return True

    monkeypatch.setattr(tailer.formats.delta.table, "stays", stays)
    log = DeltaTableLog(LocalStore(table.path))
    await log.seek(1)
    plans = [await log.next_plan() for _ in range(2)]
    assert [plan and len(plan.tasks) for plan in plans] == [1, 3]
    assert waited == ([tailer.formats.delta.table.SETTLE_S] if waits else [])


async def test_a_commit_that_is_written_while_we_wait(table: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread writes the second half meanwhile."""
    monkeypatch.setattr(tailer.formats.delta.table, "REPAIR_S", 0.5)
    file = table.commit_file(VERSION)
    whole = file.read_bytes()
    file.write_bytes(b"")
    log = DeltaTableLog(LocalStore(table.path))
    await log.seek(VERSION)

    async def write() -> None:
        for end in (30, len(whole) - 5, len(whole)):
            await anyio.sleep(0.1)
            await anyio.to_thread.run_sync(file.write_bytes, whole[:end])

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        plan = await log.next_plan()
    assert plan is not None
    assert len(plan.tasks) == 3


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("content", [b"", b'{"add":', b'{"add":7}\n', json.dumps({"add": 7}).encode()])
async def test_a_lasting_corruption_is_named(table: Growing, content: bytes) -> None:
    table.commit_file(VERSION).write_bytes(content)
    log = DeltaTableLog(LocalStore(table.path))
    await log.seek(VERSION)
    with pytest.raises(LogCorrupt) as caught:
        await log.next_plan()
    assert isinstance(caught.value, TailerError)
    assert caught.value.version == VERSION

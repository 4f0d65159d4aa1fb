"""`compare` and the pool of row indexes: the limit, and that comparisons do not affect each other."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.changelog.equal_rows import row_index as matches_pool
from tailer.changelog.equal_rows.row_index import AT_ONCE, MAX_IDLE, RowIndex, borrowed_index, close_idle, compare
from tailer.errors import FileVacuumed
from tailer.events import ChangeBatch, ChangeType
from tests.support.streams import become
from tests.support.tables.change_rows import changes

TYPES = (ChangeType.DELETE, ChangeType.INSERT)

PROGRAM = """
import os, sys
from tailer.changelog.equal_rows.row_index import borrowed_index

def in_database(matches):
    matches._move_to_database()

with borrowed_index() as matches:
    in_database(matches)
if sys.argv[1] == "forks":
    child = os.fork()
    if child == 0:
        with borrowed_index() as matches:
            matches.begin()
            in_database(matches)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    with borrowed_index() as matches:
        matches.begin()
        in_database(matches)
        assert os.listdir(os.path.dirname(matches._database._folder))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; the pool is empty before and after the test, and all rows go into databases."""
    close_idle()
    monkeypatch.setattr(matches_pool, "RowIndex", partial(RowIndex, few_rows=0))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    close_idle()


def one_row() -> Iterator[ChangeBatch]:
    """Make a source of one row."""
    yield changes(["insert"], {"id": pa.array([1])})


def use(matches: RowIndex) -> int:
    """Compare one inserted row with nothing; return the number of remaining rows."""
    matches.begin()
    matches.add([(0, one_row())], TYPES)
    return sum(map(len, matches.unmatched().values()))


def spill_folders(folder: Path) -> int:
    """The number of row indexes with a spill folder."""
    return len([path for path in folder.glob("lake-tailer-*/*") if path.is_dir()])


def kept() -> int:
    """The number of idle row indexes in the pool."""
    return len(matches_pool._idle.get(os.getpid(), {}))


def test_the_same_one_is_lent_again() -> None:
    with borrowed_index() as first:
        use(first)
    with borrowed_index() as second:
        assert second is first
        assert use(second) == 1


def test_only_a_few_are_kept(folder: Path) -> None:
    with ExitStack() as stack:
        lent = [stack.enter_context(borrowed_index()) for _ in range(MAX_IDLE + 3)]
        assert len(set(lent)) == MAX_IDLE + 3
        assert list(map(use, lent)) == [1] * (MAX_IDLE + 3)
        assert spill_folders(folder) == MAX_IDLE + 3
    assert (kept(), spill_folders(folder)) == (MAX_IDLE, MAX_IDLE)
    close_idle()
    assert (kept(), spill_folders(folder)) == (0, 0)


def test_one_without_a_database_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches_pool, "RowIndex", RowIndex)
    with borrowed_index() as matches:
        assert use(matches) == 1
    assert (matches.closed, kept()) == (True, 0)


def test_idle_indexes_are_closed_after_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches_pool, "IDLE_S", 0.05)
    before = threading.active_count()
    with borrowed_index() as matches:
        time.sleep(0.1)
        assert use(matches) == 1
    deadline = time.monotonic() + 30
    while kept() or spill_folders(folder) or threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert matches.closed


def test_a_comparison_that_fails_takes_its_comparer_with_it(folder: Path) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(borrowed_index())
        with suppress(FileVacuumed), borrowed_index() as failing:
            raise FileVacuumed("t", 1, "f")
        assert failing.closed
        assert use(other) == 1
    assert (kept(), spill_folders(folder)) == (1, 1)


def test_an_index_with_a_removed_folder_is_not_reused() -> None:
    with borrowed_index() as first:
        use(first)
    assert first._database is not None
    Path(first._database._folder).rmdir()
    with borrowed_index() as second:
        assert second is not first
        assert use(second) == 1
    assert kept() == 1


@pytest.mark.parametrize("how", ["returns", "forks"])
def test_nothing_is_left_of_a_process(folder: Path, how: str) -> None:
    """A forked process does not remove anything of its parent."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, how]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, timeout=60, check=False)
    assert done.returncode == 0
    assert list(folder.glob("lake-tailer-*")) == []


class Busy:
    """Comparisons that run until they are released; counts them."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self.go = threading.Event()
        self._turn = threading.Lock()

    def __call__(self, matches: RowIndex) -> int:
        with self._turn:
            self.now += 1
            self.most = max(self.most, self.now)
        use(matches)
        self.go.wait(30)
        found = use(matches)
        with self._turn:
            self.now -= 1
            self.done += 1
        return found


@pytest.mark.anyio
async def test_so_many_at_once_and_the_others_wait(folder: Path) -> None:
    """Each row index may use its full memory, so their number is limited."""
    busy = Busy()
    async with anyio.create_task_group() as group:
        for _ in range(3 * AT_ONCE):
            group.start_soon(compare, busy)
        await become(lambda: busy.now == AT_ONCE)
        await anyio.sleep(0.05)
        assert (busy.most, spill_folders(folder)) == (AT_ONCE, AT_ONCE)
        busy.go.set()
    assert (busy.done, busy.most, spill_folders(folder)) == (3 * AT_ONCE, AT_ONCE, MAX_IDLE)


@pytest.mark.anyio
async def test_one_that_waits_can_be_cancelled() -> None:
    busy = Busy()
    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(compare, busy)
        await become(lambda: busy.now == AT_ONCE)
        with anyio.move_on_after(0.05) as scope:
            await compare(busy)
        assert scope.cancelled_caught
        busy.go.set()
    assert busy.done == AT_ONCE


@pytest.mark.anyio
async def test_cancelling_one_leaves_the_others_alone() -> None:
    """Also the comparison that gets, right afterwards, the row index of an almost finished one."""
    busy, found = Busy(), list[int]()

    async def other() -> None:
        found.append(await compare(busy))

    def endless(matches: RowIndex) -> int:
        while True:
            use(matches)

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(20):
            with anyio.move_on_after(0.01) as scope:
                await compare(endless)
            assert scope.cancelled_caught
        busy.go.set()
    assert found == [1]
    for pause_s in [0.0, 0.001, 0.002, 0.003, 0.004] * 5:
        async with anyio.create_task_group() as group:
            with anyio.move_on_after(pause_s):
                await compare(use)
            group.start_soon(other)
    assert found == [1] * 26


@pytest.mark.anyio
async def test_one_that_fails_leaves_the_others_alone() -> None:
    busy, found = Busy(), list[int]()

    async def other() -> None:
        found.append(await compare(busy))

    def failing(matches: RowIndex) -> int:
        matches.begin()
        matches._move_to_database()._database.execute("SELECT * FROM nowhere")
        return 0

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await become(lambda: busy.now == 1)
        with pytest.raises(Exception, match="nowhere"):
            await compare(failing)
        busy.go.set()
    assert found == [1]


def test_every_event_loop_has_its_turn() -> None:
    """One after another, and one while another waits."""

    async def once() -> int:
        return await compare(use)

    assert [anyio.run(once) for _ in range(3)] == [1, 1, 1]
    thread = threading.Thread(target=anyio.run, args=(once,))
    thread.start()
    assert anyio.run(once) == 1
    thread.join()

"""A wake-up may be late, lost or spurious; the timer is reliable."""

import logging
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import pytest
import watchfiles
from anyio import to_thread
from watchfiles import Change
from watchfiles._rust_notify import WatchfilesRustInternalError
from watchfiles.main import watch

from tailer.formats.delta.log.listing import COMMIT_FILE
from tailer.stores.wakeup import ACTIVE_S, LOOK_S, LocalWake, Pace, TimerWake, Wake
from tests.support.cases import cases
from tests.support.streams import become

pytestmark = pytest.mark.anyio

LONG_S = 3600.0


def commit(log_dir: Path, version: int) -> None:
    (log_dir / f"{version:020d}.json").write_text("{}")


async def rings_for_commits(wake: Wake, log_dir: Path) -> bool:
    """Return whether commits end a wait early. The watch may begin a little late."""
    rung = False

    async def write() -> None:
        for version in range(200):
            await to_thread.run_sync(commit, log_dir, version)
            await anyio.sleep(0.02)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await wake.wait(LONG_S)
        rung = True
        group.cancel_scope.cancel()
    return rung


def inotify_instances() -> int:
    """Count the inotify instances of this process."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += "inotify" in entry.readlink().name
    return found


async def test_the_timer_ends_a_wait() -> None:
    async with TimerWake() as wake:
        with anyio.fail_after(300):
            await wake.wait(0.01)


async def test_a_ring_ends_the_wait_under_way() -> None:
    order: list[str] = []

    async def ring() -> None:
        order.append("ring")
        wake.ring()

    async with TimerWake() as wake, anyio.create_task_group() as group:
        group.start_soon(ring)
        with anyio.fail_after(300):
            await wake.wait(LONG_S)
        order.append("woken")
    assert order == ["ring", "woken"]


async def test_a_ring_without_a_waiter_ends_only_the_next_wait() -> None:
    async with TimerWake() as wake:
        wake.ring()
        wake.ring()
        with anyio.fail_after(300):
            await wake.wait(LONG_S)
        with anyio.move_on_after(0.02) as scope:
            await wake.wait(LONG_S)
        assert scope.cancelled_caught


def test_a_wake_may_be_made_and_rung_before_there_is_a_loop() -> None:
    wake = TimerWake()
    wake.ring()
    anyio.run(wake.wait, LONG_S)


async def test_a_new_commit_rings(tmp_path: Path) -> None:
    async with LocalWake(tmp_path, COMMIT_FILE) as wake:
        assert await rings_for_commits(wake, tmp_path)


async def test_ring_works_beside_the_notices(tmp_path: Path) -> None:
    async with LocalWake(tmp_path, COMMIT_FILE) as wake:
        wake.ring()
        with anyio.fail_after(300):
            await wake.wait(LONG_S)


@cases(
    ("change", "name", "rings"),
    [
        (Change.added, "00000000000000000012.json", True),
        (Change.modified, "00000000000000000012.json", True),
        (Change.deleted, "00000000000000000012.json", False),
        (Change.added, "00000000000000000012.crc", False),
        (Change.added, ".00000000000000000012.json.0f3c.tmp", False),
        (Change.added, "00000000000000000012.checkpoint.parquet", False),
        (Change.added, "_last_checkpoint", False),
    ],
)
def test_only_commits_are_news(change: Change, name: str, rings: bool) -> None:
    assert LocalWake(Path("/some/table"), COMMIT_FILE).counts(change, f"/some/table/{name}") is rings


async def test_without_the_directory_the_timer_serves_until_it_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with LocalWake(tmp_path / "not-yet", COMMIT_FILE) as wake:
        with anyio.fail_after(300):
            await wake.wait(0.05)
            await wake.wait(0.05)
        # It may be made later, as any folder of a network file system whose server is away.
        await to_thread.run_sync((tmp_path / "not-yet").mkdir)
        assert await rings_for_commits(wake, tmp_path / "not-yet")
    assert "there is no such folder); looking for them every 1 s" in caplog.text


@pytest.mark.parametrize(
    "refusal",
    [
        WatchfilesRustInternalError("Error creating watcher: Too many open files (os error 24)"),
        OSError("OS file watch limit reached."),
        PermissionError("Permission denied"),
    ],
    ids=repr,
)
async def test_when_the_system_refuses_the_folder_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    def refuse(*_paths: Path, **_options: object) -> Iterator[object]:
        raise refusal

    monkeypatch.setattr(watchfiles, "watch", refuse)
    async with LocalWake(tmp_path, COMMIT_FILE) as wake:
        await become(lambda: str(refusal) in caplog.text)
        assert await rings_for_commits(wake, tmp_path)


async def test_watching_outlives_the_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_dir = tmp_path / "_delta_log"
    log_dir.mkdir()
    async with LocalWake(log_dir, COMMIT_FILE) as wake:
        assert await rings_for_commits(wake, log_dir)
        await to_thread.run_sync(shutil.rmtree, log_dir)
        with anyio.fail_after(300):
            await wake.wait(0.05)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_leaving_ends_the_watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Event(), threading.Event()

    def recorded(*paths: Path, **options: object) -> Iterator[object]:
        began.set()
        yield from watch(*paths, **options)  # type: ignore[arg-type]
        ended.set()

    monkeypatch.setattr(watchfiles, "watch", recorded)
    before = inotify_instances()
    with anyio.fail_after(300):
        async with LocalWake(tmp_path, COMMIT_FILE):
            await become(began.is_set)
        assert ended.is_set()
    await become(lambda: inotify_instances() == before)  # the library closes it in its own thread


async def test_being_cancelled_ends_the_watching(tmp_path: Path) -> None:
    before = inotify_instances()
    with anyio.fail_after(300), anyio.CancelScope() as scope:
        async with LocalWake(tmp_path, COMMIT_FILE):
            await anyio.sleep(0.05)
            scope.cancel()
            await anyio.sleep_forever()
    await become(lambda: inotify_instances() == before)


async def test_watching_takes_no_thread_from_the_others(tmp_path: Path) -> None:
    async with LocalWake(tmp_path, COMMIT_FILE) as wake:
        assert await rings_for_commits(wake, tmp_path)
        await anyio.sleep(0.02)
        assert to_thread.current_default_thread_limiter().borrowed_tokens == 0


async def test_many_folders_need_two_threads_and_one_watch(tmp_path: Path) -> None:
    """Folders come and go while others are watched; each wake is rung for its own folder."""
    before, threads = inotify_instances(), threading.active_count()
    async with AsyncExitStack() as stack:
        wakes: dict[Path, LocalWake] = {}
        for number in range(40):
            folder = tmp_path / str(number)
            await to_thread.run_sync(folder.mkdir)
            wakes[folder] = await stack.enter_async_context(LocalWake(folder, COMMIT_FILE))
        await quiet(wakes.values())
        assert inotify_instances() == before + 1
        watching = {thread.name for thread in threading.enumerate()} & {"notifications", "folders"}
        assert (len(watching), threading.active_count() - threads <= 4) == (2, True)
        rung = await rung_by(wakes, tmp_path / "7")
        assert rung == {tmp_path / "7"}
    await become(lambda: inotify_instances() == before)


async def test_a_folder_in_place_of_another_is_watched(tmp_path: Path) -> None:
    log_dir = tmp_path / "_delta_log"
    log_dir.mkdir()
    async with LocalWake(log_dir, COMMIT_FILE) as wake:
        await quiet([wake])
        await to_thread.run_sync(shutil.rmtree, log_dir)
        await to_thread.run_sync(log_dir.mkdir)
        await quiet([wake])
        began_s = anyio.current_time()
        await to_thread.run_sync(commit, log_dir, 0)
        await wake.wait(LONG_S)
        assert anyio.current_time() - began_s < 0.5


async def test_beyond_the_limit_of_watches_the_folders_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def limited(*paths: Path, **options: object) -> Iterator[object]:
        if len(paths) > 3:
            raise OSError("OS file watch limit reached.")
        return watch(*paths, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(watchfiles, "watch", limited)
    async with AsyncExitStack() as stack:
        wakes: dict[Path, LocalWake] = {}
        for number in range(8):
            folder = tmp_path / str(number)
            await to_thread.run_sync(folder.mkdir)
            wakes[folder] = await stack.enter_async_context(LocalWake(folder, COMMIT_FILE))
        await become(lambda: "OS file watch limit reached" in caplog.text)
        await quiet(wakes.values())
        written: set[Path] = set()
        for folder in wakes:
            written.add(folder)
            rung = await rung_by(wakes, folder)
            # A look in the middle of a commit is followed by another ring for it.
            assert folder in rung
            assert rung <= written


async def test_wakes_of_one_folder_are_all_rung(tmp_path: Path) -> None:
    async with LocalWake(tmp_path, COMMIT_FILE) as one:
        async with LocalWake(tmp_path, COMMIT_FILE) as other:
            assert await rings_for_commits(other, tmp_path)
        await quiet([one])
        assert await rings_for_commits(one, tmp_path)


async def quiet(wakes: Iterable[LocalWake]) -> None:
    """Return when the watch of all is in place, and no ring is left from its beginning."""
    await anyio.sleep(2.5 * LOOK_S)
    for wake in wakes:
        with anyio.move_on_after(0.01):
            await wake.wait(LONG_S)


async def rung_by(wakes: dict[Path, LocalWake], written: Path) -> set[Path]:
    """Commit to the folder `written`; return the folders whose wakes are rung."""
    rung: set[Path] = set()

    async def wait(folder: Path) -> None:
        await wakes[folder].wait(LONG_S)
        rung.add(folder)

    async with anyio.create_task_group() as group:
        for folder in wakes:
            group.start_soon(wait, folder)
        await to_thread.run_sync(commit, written, 1)
        await anyio.sleep(1.5 * LOOK_S)
        group.cancel_scope.cancel()
    return rung


class Waits(threading.Event):
    """An event that records how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout)
        return self.is_set()


def test_steps_are_short_while_files_change_and_long_in_a_quiet_time() -> None:
    times_s, event = [0.0], Waits()
    pace = Pace(event, lambda: times_s[-1])
    assert (pace.is_set(), event.waits_s) == (False, [])
    times_s.append(ACTIVE_S)
    assert (pace.is_set(), len(event.waits_s)) == (False, 1)
    pace.note_change()
    assert (pace.is_set(), len(event.waits_s)) == (False, 1)
    event.set()
    assert pace.is_set()


def test_a_quiet_watch_ends_when_it_should() -> None:
    event = threading.Event()
    pace = Pace(event, iter([0.0, ACTIVE_S]).__next__)
    event.set()
    assert pace.is_set()

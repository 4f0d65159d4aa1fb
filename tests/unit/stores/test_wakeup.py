"""A wake-up may be late, lost or spurious; the timer is reliable."""

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
import watchfiles
from anyio import to_thread
from watchfiles import Change
from watchfiles._rust_notify import WatchfilesRustInternalError
from watchfiles.main import watch

from tailer.delta.log.listing import COMMIT_FILE
from tailer.stores.wakeup import LocalWake, TimerWake, Wake
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
        with anyio.fail_after(5):
            await wake.wait(0.01)


async def test_a_ring_ends_the_wait_under_way() -> None:
    order: list[str] = []

    async def ring() -> None:
        order.append("ring")
        wake.ring()

    async with TimerWake() as wake, anyio.create_task_group() as group:
        group.start_soon(ring)
        with anyio.fail_after(5):
            await wake.wait(LONG_S)
        order.append("woken")
    assert order == ["ring", "woken"]


async def test_a_ring_without_a_waiter_ends_only_the_next_wait() -> None:
    async with TimerWake() as wake:
        wake.ring()
        wake.ring()
        with anyio.fail_after(5):
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
        with anyio.fail_after(5):
            await wake.wait(LONG_S)


@pytest.mark.parametrize(
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
    assert LocalWake(Path("/some/table"), COMMIT_FILE)._counts(change, f"/some/table/{name}") is rings


async def test_without_the_directory_the_timer_serves_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with LocalWake(tmp_path / "not-yet", COMMIT_FILE) as wake:
        with anyio.fail_after(5):
            await wake.wait(0.05)
            await wake.wait(0.05)
    assert "there is no such folder); polling with the timer only" in caplog.text


@pytest.mark.parametrize(
    "refusal",
    [
        WatchfilesRustInternalError("Error creating watcher: Too many open files (os error 24)"),
        OSError("OS file watch limit reached."),
        PermissionError("Permission denied"),
    ],
    ids=repr,
)
async def test_when_the_system_refuses_the_timer_serves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    def refuse(*_paths: Path, **_options: object) -> Iterator[object]:
        raise refusal

    monkeypatch.setattr(watchfiles, "watch", refuse)
    async with LocalWake(tmp_path, COMMIT_FILE) as wake:
        with anyio.fail_after(5):
            await wake.wait(0.05)
    assert str(refusal) in caplog.text


async def test_watching_outlives_the_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_dir = tmp_path / "_delta_log"
    log_dir.mkdir()
    async with LocalWake(log_dir, COMMIT_FILE) as wake:
        assert await rings_for_commits(wake, log_dir)
        await to_thread.run_sync(shutil.rmtree, log_dir)
        with anyio.fail_after(5):
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
    with anyio.fail_after(10):
        async with LocalWake(tmp_path, COMMIT_FILE):
            await become(began.is_set)
        assert ended.is_set()
    await become(lambda: inotify_instances() == before)  # the library closes it in its own thread


async def test_being_cancelled_ends_the_watching(tmp_path: Path) -> None:
    before = inotify_instances()
    with anyio.fail_after(10), anyio.CancelScope() as scope:
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

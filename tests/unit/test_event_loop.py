"""The event loop guard: it detects blocking code, names the line, and accepts everything else."""

import hashlib
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.support.event_loop import BlockedLoop, watch_event_loops

pytest_plugins = "pytester"


def watched(function: Callable[[], Awaitable[None]]) -> list[BlockedLoop]:
    """Return the findings of the detector while `function` runs in its own event loop."""
    with watch_event_loops() as blocked:
        anyio.run(function)
    return blocked


async def sleeps() -> None:
    """Block in a system call."""
    time.sleep(0.8)  # noqa: ASYNC251 - the point of it


async def computes() -> None:
    """Block by working, in Python."""
    end = time.thread_time() + 0.7
    while time.thread_time() < end:
        hash(end)


async def computes_without_a_line() -> None:
    """Block by working, in one call of C that is one line of Python."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)


async def waits_for_a_lock() -> None:
    """Block on a thread that never answers in time."""
    threading.Event().wait(0.8)


@pytest.mark.parametrize("function", [sleeps, computes, computes_without_a_line, waits_for_a_lock])
def test_blocking_is_caught_and_its_line_named(function: Callable[[], Awaitable[None]]) -> None:
    blocked = watched(function)
    assert len(blocked) == 1
    assert blocked[0].blocked_s > 0.5
    assert function.__name__ in str(blocked[0])


@pytest.mark.parametrize(("file", "found"), [("tests/support/some.py", 0), ("tailer/some.py", 1), ("sinks/some.py", 1)])
def test_what_helpers_of_tests_do_by_themselves_is_accepted(file: str, found: int) -> None:
    names: dict[str, Callable[[], None]] = {}
    code = "import time\ndef blocks() -> None:\n    time.sleep(0.8)"
    exec(compile(code, Path(__file__).parents[2] / file, "exec"), names)

    async def calls_it() -> None:
        names["blocks"]()

    assert len(watched(calls_it)) == found


async def in_a_thread() -> None:
    """Sleep in a worker thread."""
    await anyio.to_thread.run_sync(time.sleep, 0.8)


async def in_many_steps() -> None:
    """Work for long in many short steps."""
    for _ in range(50):
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            hash(end)
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("function", [in_a_thread, in_many_steps])
def test_yielding_code_is_accepted(function: Callable[[], Awaitable[None]]) -> None:
    assert watched(function) == []


def test_the_fixture_fails_the_test_that_blocks(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import anyio_backend, event_loop_stays_free")
    pytester.makepyfile(
        """
        import time
        import anyio.to_thread
        import pytest

        @pytest.mark.anyio
        async def test_blocks():
            time.sleep(0.8)

        @pytest.mark.anyio
        async def test_does_not():
            await anyio.to_thread.run_sync(time.sleep, 0.8)
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*the event loop was blocked for*", "*time.sleep(0.8)*"])

"""A background task ends with its block and does not replace the block's own errors."""

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskStatus

from tailer.engine import background
from tailer.errors import SinkUnavailable

pytestmark = pytest.mark.anyio


class Worker:
    """A task that runs until it is cancelled, and ends slowly."""

    def __init__(self) -> None:
        self.ended = False

    async def work(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            self.ended = True


async def test_work_ends_with_the_block() -> None:
    worker = Worker()
    async with background() as group:
        await group.start(worker.work)
    assert worker.ended


async def test_work_that_never_began_does_not_matter() -> None:
    async with background() as group:
        group.start_soon(Worker().work)


async def test_the_result_of_the_block_passes() -> None:
    async def answer() -> int:
        async with background() as group:
            await group.start(Worker().work)
            return 42

    assert await answer() == 42


async def test_an_error_of_the_block_passes_as_it_is() -> None:
    worker, error = Worker(), SinkUnavailable("s", "down")

    async def fail() -> None:
        async with background() as group:
            await group.start(worker.work)
            raise error

    with pytest.raises(SinkUnavailable) as raised:
        await fail()
    assert raised.value is error
    assert worker.ended


async def test_blocks_may_be_nested() -> None:
    outer, inner = Worker(), Worker()

    async def fail() -> None:
        async with background() as one, background() as two:
            await one.start(outer.work)
            await two.start(inner.work)
            raise SinkUnavailable("s", "down")

    with pytest.raises(SinkUnavailable):
        await fail()
    assert outer.ended
    assert inner.ended


async def test_cancellation_from_outside_passes_through() -> None:
    worker = Worker()
    with anyio.CancelScope() as scope:
        async with background() as group:
            await group.start(worker.work)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert worker.ended


async def test_a_deadline_within_the_block_is_not_mistaken_for_the_end() -> None:
    async with background() as group:
        await group.start(Worker().work)
        with pytest.raises(TimeoutError), anyio.fail_after(0.01):
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()


async def test_an_error_of_the_background_task_ends_the_block() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def wait() -> None:
        async with background() as group:
            group.start_soon(fail)
            await anyio.sleep_forever()

    with anyio.fail_after(300), pytest.raises(ExceptionGroup) as raised:
        await wait()
    assert raised.group_contains(ZeroDivisionError)

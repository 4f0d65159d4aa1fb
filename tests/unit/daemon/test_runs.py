"""Pipelines over several runs: begun again after an error, paused, resumed, ended."""

import os
import signal
import time
from collections.abc import Iterator
from itertools import product

import anyio
import anyio.lowlevel
import pytest

from tailer.daemon.runs import Lifecycle, Runs, run_all
from tailer.errors import ConfigError, NotATable, SinkUnavailable
from tailer.pipeline import retry
from tailer.pipeline.status import PipelineState, PipelineStatus
from tests.support.streams import become

pytestmark = pytest.mark.anyio

S = PipelineState
DOWN = SinkUnavailable("s", "down")


class Scripted:
    """Runs of a pipeline, each with an error or, if that is None, until it is stopped."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = iter(errors)
        self.made = 0
        self.status = PipelineStatus("scripted")
        self.lifecycle = Lifecycle(self.status, self.make, revives=True)

    def make(self) -> "Scripted.Run":
        """Make the next run."""
        self.made += 1
        return Scripted.Run(self.errors)

    class Run:
        """A run with the next of the errors."""

        def __init__(self, errors: Iterator[Exception | None]) -> None:
            self.errors = errors
            self.stopping = anyio.Event()

        async def run(self) -> None:
            """Fail, or wait for `stop`."""
            error = next(self.errors)
            if error is not None:
                raise error
            await self.stopping.wait()
            await anyio.sleep(0.05)

        def stop(self) -> None:
            """End the run."""
            self.stopping.set()


async def test_a_stopped_pipeline_begins_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_REVIVE_FIRST_S", 0.05)
    scripted = Scripted(DOWN, DOWN, None)
    async with anyio.create_task_group() as group:
        failures: dict[str, Exception] = {}

        async def run() -> None:
            failures.update(await Runs([scripted.lifecycle], 10).run())

        group.start_soon(run)
        began = time.monotonic()
        await become(lambda: scripted.made == 3 and scripted.status.state is S.STARTING)
        assert time.monotonic() - began >= 0.15  # 0.05, then 0.1
        scripted.lifecycle.end("the test ends")
    assert failures == {}
    assert scripted.status.state is S.STOPPED


async def test_nothing_is_left_when_all_have_stopped_for_good(caplog: pytest.LogCaptureFixture) -> None:
    lost = Scripted(error := NotATable("t"))
    assert await Runs([lost.lifecycle], 10).run() == {"scripted": error}
    assert (lost.made, lost.status.state, lost.status.hint) == (
        1,
        S.STOPPED,
        f"{error.hint} `tailer resume scripted` begins it again.",
    )
    assert caplog.messages[-1] == f"scripted stopped: {error}; no pipeline is left"
    caplog.clear()
    assert await run_all({"tail": Scripted.Run(iter([error]))}, 10) == {"tail": error}
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("error", "waits"), [(NotATable("t"), True), (ConfigError("key", "is wrong"), False), (ValueError("a bug"), False)]
)
async def test_a_run_goes_on_while_a_command_could_mend_what_has_stopped(error: Exception, waits: bool) -> None:
    stopped = Scripted(error, None)
    runs = Runs([stopped.lifecycle], 10)
    runs.takes_commands = True
    async with anyio.create_task_group() as group:
        failures: dict[str, Exception] = {}

        async def run() -> None:
            failures.update(await runs.run())

        group.start_soon(run)
        if waits:
            await become(lambda: stopped.status.state is S.STOPPED)
            stopped.lifecycle.resume()
            await become(lambda: stopped.lifecycle.is_running)
            stopped.lifecycle.end("the test ends")
    assert (failures, stopped.made) == ({} if waits else {"scripted": error}, 1 + waits)


@pytest.mark.parametrize("works", [True, False])
async def test_a_cancelled_run_names_pipelines_only_if_there_are_any(
    caplog: pytest.LogCaptureFixture, works: bool
) -> None:
    caplog.set_level("INFO")

    async def attend() -> None:
        await anyio.lowlevel.checkpoint()
        os.kill(os.getpid(), signal.SIGTERM)
        await anyio.sleep_forever()

    runs = Runs([Scripted(None).lifecycle] if works else [], 0, attend)
    runs.stays = True
    assert await runs.run() == {}
    said = "scripted" if works else "no pipeline"
    assert all(said in each for each in caplog.messages), caplog.messages
    assert ["cancelled" in each for each in caplog.messages] == [False, False] + [True] * works


async def test_pausing_and_resuming_in_every_order() -> None:
    scripted = Scripted(None, None, NotATable("t"), None)
    lifecycle, status = scripted.lifecycle, scripted.status
    async with anyio.create_task_group() as group:
        group.start_soon(lifecycle.run, lambda _stopped: None)
        await become(lambda: lifecycle.is_running)
        lifecycle.pause()
        assert (status.state, status.why) == (S.STARTING, "an operator pauses it; it finishes its transaction")
        await become(lambda: status.state is S.PAUSED)
        lifecycle.pause()
        await anyio.sleep(0.05)
        assert (status.state, scripted.made) == (S.PAUSED, 1)
        lifecycle.resume()
        await become(lambda: scripted.made == 2 and lifecycle.is_running)
        lifecycle.pause()
        lifecycle.resume()  # before the pause has come about
        await become(lambda: status.state is S.STOPPED)
        assert (scripted.made, status.retry_at_s) == (3, None)
        lifecycle.pause()  # of one that has stopped
        await become(lambda: status.state is S.PAUSED)
        lifecycle.resume()
        await become(lambda: scripted.made == 4 and lifecycle.is_running)
        lifecycle.resume()  # of one that runs
        lifecycle.end("the test ends")
    assert scripted.made == 4


@pytest.mark.parametrize("orders", [each for count in (1, 2, 3, 4) for each in product("pr", repeat=count)])
async def test_the_last_of_several_orders_counts(orders: tuple[str, ...]) -> None:
    """They come while the run that was there at the first of them finishes its transaction."""
    scripted = Scripted(*[None] * 3)
    lifecycle, status = scripted.lifecycle, scripted.status
    async with anyio.create_task_group() as group:
        group.start_soon(lifecycle.run, lambda _stopped: None)
        await become(lambda: lifecycle.is_running)
        for order in orders:
            lifecycle.pause() if order == "p" else lifecycle.resume()
        await anyio.sleep(0.1)
        assert lifecycle.is_running == (orders[-1] == "r")
        assert status.state is (S.STARTING if orders[-1] == "r" else S.PAUSED)
        assert scripted.made == 1 + ("p" in orders and orders[-1] == "r")
        lifecycle.end("the test ends")

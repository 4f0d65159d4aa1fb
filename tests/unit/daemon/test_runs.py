"""Pipelines over several runs: begun again after an error, paused, resumed, ended."""

import math
import os
import signal
import time
from itertools import product

import anyio
import anyio.lowlevel
import pytest

from tailer.daemon.runs import Run, Runs, Stop, Work, run_all
from tailer.errors import ConfigError, NotATable, SinkUnavailable
from tailer.pipeline import retry
from tailer.pipeline.status import PipelineState, PipelineStatus
from tests.support.streams import become

pytestmark = pytest.mark.anyio

S = PipelineState
DOWN = SinkUnavailable("s", "down")


class Scripted:
    """A pipeline whose work ends each time with an error or, if that is None, when it is stopped."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = iter(errors)
        self.made = 0
        self.status = PipelineStatus("scripted")
        self.pipeline = Run(self.status, self.make, revives=True)

    def make(self) -> Work:
        """Make the next work."""
        self.made += 1
        return self.work

    async def work(self, stop: Stop) -> None:
        """Fail, or wait for `stop`."""
        error = next(self.errors)
        if error is not None:
            raise error
        await stop.wait(math.inf)
        await anyio.sleep(0.05)


class Failing:
    """A pipeline that ends with an error."""

    async def run(self) -> None:
        """Fail."""
        raise NotATable("t")

    def stop(self) -> None:
        """Do nothing."""


async def test_a_stopped_pipeline_begins_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_REVIVE_FIRST_S", 0.05)
    scripted = Scripted(DOWN, DOWN, None)
    async with anyio.create_task_group() as group:
        failures: dict[str, Exception] = {}

        async def run() -> None:
            failures.update(await Runs([scripted.pipeline], 10).run())

        group.start_soon(run)
        began = time.monotonic()
        await become(lambda: scripted.made == 3 and scripted.status.state is S.STARTING)
        assert time.monotonic() - began >= 0.15  # 0.05, then 0.1
        scripted.pipeline.end("the test ends")
    assert failures == {}
    assert scripted.status.state is S.STOPPED


async def test_work_that_cannot_be_made_again_stops_its_pipeline_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_REVIVE_FIRST_S", 0.05)
    error, other = ConfigError("sink", "its client is gone"), Scripted(None)
    makes = iter([Scripted(DOWN).make])

    def make() -> Work:
        for first in makes:
            return first()
        raise error

    runs = Runs([Run(PipelineStatus("one"), make, revives=True), other.pipeline], 10)
    failures: dict[str, Exception] = {}
    async with anyio.create_task_group() as group:

        async def run() -> None:
            failures.update(await runs.run())

        group.start_soon(run)
        await become(lambda: runs.by_name["one"].error is error)
        assert other.pipeline.is_running
        other.pipeline.end("the test ends")
    assert failures == {"one": error}


async def test_nothing_is_left_when_all_have_stopped_for_good(caplog: pytest.LogCaptureFixture) -> None:
    lost = Scripted(error := NotATable("t"))
    assert await Runs([lost.pipeline], 10).run() == {"scripted": error}
    assert (lost.made, lost.status.state, lost.status.hint) == (
        1,
        S.STOPPED,
        f"{error.hint} `tailer resume scripted` begins it again.",
    )
    assert caplog.messages[-1] == f"scripted stopped: {error}; no pipeline is left"
    caplog.clear()
    assert [str(error) for error in (await run_all({"tail": Failing()}, 10)).values()] == [str(error)]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("error", "waits"), [(NotATable("t"), True), (ConfigError("key", "is wrong"), False), (ValueError("a bug"), False)]
)
async def test_a_run_goes_on_while_a_command_could_mend_what_has_stopped(error: Exception, waits: bool) -> None:
    stopped = Scripted(error, None)
    runs = Runs([stopped.pipeline], 10)
    runs.takes_commands = True
    async with anyio.create_task_group() as group:
        failures: dict[str, Exception] = {}

        async def run() -> None:
            failures.update(await runs.run())

        group.start_soon(run)
        if waits:
            await become(lambda: stopped.status.state is S.STOPPED)
            stopped.pipeline.resume()
            await become(lambda: stopped.pipeline.is_running)
            stopped.pipeline.end("the test ends")
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

    runs = Runs([Scripted(None).pipeline] if works else [], 0, attend)
    runs.stays = True
    assert await runs.run() == {}
    said = "scripted" if works else "no pipeline"
    assert all(said in each for each in caplog.messages), caplog.messages
    assert ["cancelled" in each for each in caplog.messages] == [False, False] + [True] * works


async def test_pausing_and_resuming_in_every_order() -> None:
    scripted = Scripted(None, None, NotATable("t"), None)
    run, status = scripted.pipeline, scripted.status
    async with anyio.create_task_group() as group:
        group.start_soon(run.run, lambda _stopped: None)
        await become(lambda: run.is_running)
        run.pause()
        assert (status.state, status.why) == (S.STARTING, "an operator pauses it; it finishes its transaction")
        await become(lambda: status.state is S.PAUSED)
        run.pause()
        await anyio.sleep(0.05)
        assert (status.state, scripted.made) == (S.PAUSED, 1)
        run.resume()
        await become(lambda: scripted.made == 2 and run.is_running)
        run.pause()
        run.resume()  # before the pause has come about
        await become(lambda: status.state is S.STOPPED)
        assert (scripted.made, status.retry_at_s) == (3, None)
        run.pause()  # of one that has stopped
        await become(lambda: status.state is S.PAUSED)
        run.resume()
        await become(lambda: scripted.made == 4 and run.is_running)
        run.resume()  # of one that runs
        run.end("the test ends")
    assert scripted.made == 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("orders", [each for count in (1, 2, 3, 4) for each in product("pr", repeat=count)])
async def test_the_last_of_several_orders_counts(orders: tuple[str, ...]) -> None:
    """They come while the run that was there at the first of them finishes its transaction."""
    scripted = Scripted(*[None] * 3)
    run, status = scripted.pipeline, scripted.status
    async with anyio.create_task_group() as group:
        group.start_soon(run.run, lambda _stopped: None)
        await become(lambda: run.is_running)
        for order in orders:
            run.pause() if order == "p" else run.resume()
        await anyio.sleep(0.1)
        assert run.is_running == (orders[-1] == "r")
        assert status.state is (S.STARTING if orders[-1] == "r" else S.PAUSED)
        assert scripted.made == 1 + ("p" in orders and orders[-1] == "r")
        run.end("the test ends")

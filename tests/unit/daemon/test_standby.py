"""The active one of several instances: kills, freezes, cuts, slow ones, all in virtual time."""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tailer.config.settings import load
from tailer.daemon.runs import Stop
from tailer.daemon.serve import serve
from tailer.daemon.standby import Standby, Watch
from tailer.errors import ConfigError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.sink import Heartbeat
from tests.simulation.physics import Physics

SILENCE_S: Final = 6.0
HERE: Final = Heartbeat("here", 3, 7)


class Place:
    """The place of heartbeats, and who delivers. `is_down`: nobody reaches it."""

    def __init__(self) -> None:
        self.last: Heartbeat | None = None
        self.delivering: set[str] = set()
        self.open: list[str] = []  # who has a sink
        self.is_down = False

    async def settle(self, seconds: float) -> set[str]:
        """Let time pass. Return who delivers after it."""
        await anyio.sleep(seconds)
        return set(self.delivering)


class Instance:
    """An instance with a link to the place of its own. It delivers while its run is active."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name
        self.status = PipelineStatus("p")
        self.is_cut = False
        self.delay_s = 0.0
        self.error: Exception | None = None
        self.scope = anyio.CancelScope()
        self.stop = Stop()
        self.standby = Standby(self.status, lambda: self, lambda: Delivery(self), name, SILENCE_S)

    async def live(self) -> None:
        """Run until it is stopped or killed."""
        self.status.note_start()
        with self.scope:
            await self.standby.work(self.stop)

    def kill(self) -> None:
        """End it with nothing said."""
        self.is_cut = True
        self.scope.cancel()

    async def _reach(self) -> None:
        await anyio.sleep(self.delay_s)
        if self.is_cut or self.place.is_down:
            raise SinkUnavailable("sink", "no connection")

    async def read(self) -> Heartbeat | None:
        """See `Heartbeats.read`."""
        await self._reach()
        return self.place.last

    async def write(self, heartbeat: Heartbeat) -> None:
        """See `Heartbeats.write`."""
        await self._reach()
        self.place.last = heartbeat

    async def aclose(self) -> None:
        """See `Heartbeats.aclose`."""


class Delivery:
    """The work of the active instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        instance.place.open.append(instance.name)

    async def __call__(self, stop: Stop) -> None:
        """Deliver until it is stopped, or has the error of the instance."""
        place, name = self.instance.place, self.instance.name
        place.delivering.add(name)
        try:
            while not stop.is_set:
                if (error := self.instance.error) is not None:
                    self.instance.error = None
                    raise error
                await stop.wait(0.1)
        finally:
            place.delivering.discard(name)
            place.open.remove(name)


def state_of(instance: Instance) -> PipelineState:
    """Return the state of the pipeline at an instance."""
    return instance.status.state


Test = Callable[[Place, Instance, Instance], Coroutine[Any, Any, None]]


def play(test: Test, seed: int = 1, *, both: bool = False) -> None:
    """Run a test with two instances in virtual time; `both`: they begin at once, else the first is active."""

    async def main() -> None:
        place = Place()
        first, second = Instance(place, "a"), Instance(place, "b")
        async with anyio.create_task_group() as group:
            group.start_soon(first.live)
            if not both:
                assert await place.settle(2) == {"a"}
            group.start_soon(second.live)
            await anyio.sleep(2)
            await test(place, first, second)
            group.cancel_scope.cancel()

    Physics(seed).run(main())


def test_one_is_active_and_the_other_one_says_so() -> None:
    async def check(place: Place, first: Instance, second: Instance) -> None:
        assert await place.settle(100) == {"a"}
        assert state_of(second) is PipelineState.STANDBY
        assert second.status.is_ready
        assert second.status.why == "a is active"
        assert second.status.active is not None
        assert not second.status.active.is_here
        assert second.status.active.instance == "a"
        assert first.status.active is not None
        assert first.status.active.is_here

    play(check)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
def test_a_killed_one_is_replaced_in_time(seed: int) -> None:
    async def check(place: Place, first: Instance, second: Instance) -> None:
        assert await place.settle(10 + seed / 7) == {"a"}
        first.kill()
        assert await place.settle(0.7 * SILENCE_S) == set()
        assert await place.settle(0.8 * SILENCE_S) == {"b"}
        assert second.status.active is not None
        assert second.status.active.is_here
        assert state_of(second) is not PipelineState.STANDBY

    play(check, seed)


def test_one_that_is_stopped_is_replaced_at_once() -> None:
    async def check(place: Place, first: Instance, _second: Instance) -> None:
        first.stop.set()
        assert await place.settle(SILENCE_S / 2) == {"b"}

    play(check)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("after_ms", range(0, 1000, 50))
def test_one_that_is_stopped_while_it_takes_over_leaves_nobody_waiting(after_ms: int) -> None:
    async def main() -> None:
        place = Place()
        first, second = Instance(place, "a"), Instance(place, "b")
        async with anyio.create_task_group() as group:
            group.start_soon(first.live)
            await anyio.sleep(after_ms / 1000)
            first.stop.set()
            group.start_soon(second.live)
            assert await place.settle(SILENCE_S / 2) == {"b"}
            second.stop.set()
        assert place.delivering == set()

    Physics(after_ms).run(main())


def test_one_that_never_was_active_closes_its_sink() -> None:
    """As a pause of a standby does, again and again."""

    async def check(place: Place, _first: Instance, second: Instance) -> None:
        assert place.open == ["a", "b"]
        second.stop.set()
        assert await place.settle(1) == {"a"}
        assert place.open == ["a"]

    play(check)


def test_one_that_is_cancelled_before_it_was_active_closes_its_sink() -> None:
    async def check(place: Place, _first: Instance, second: Instance) -> None:
        second.kill()
        assert await place.settle(1) == {"a"}
        assert place.open == ["a"]

    play(check)


def test_one_that_fails_for_good_is_replaced_at_once() -> None:
    async def main() -> None:
        place = Place()
        first, second = Instance(place, "a"), Instance(place, "b")
        failed: list[Exception] = []

        async def live() -> None:
            try:
                await first.live()
            except SinkRejected as error:
                failed.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(live)
            await place.settle(2)
            group.start_soon(second.live)
            await place.settle(2)
            first.error = SinkRejected("sink", "no", "")
            assert await place.settle(SILENCE_S / 2) == {"b"}
            assert len(failed) == 1
            group.cancel_scope.cancel()

    Physics(1).run(main())


def test_a_slow_one_stays_active() -> None:
    async def check(place: Place, first: Instance, second: Instance) -> None:
        first.delay_s = second.delay_s = SILENCE_S / 2.5
        for _ in range(200):
            assert await place.settle(SILENCE_S) == {"a"}

    play(check)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
def test_of_two_that_start_at_once_one_is_active(seed: int) -> None:
    async def check(place: Place, _first: Instance, _second: Instance) -> None:
        for _ in range(20):
            assert len(await place.settle(SILENCE_S)) == 1

    play(check, seed, both=True)


def test_one_that_is_cut_off_stands_by_when_it_is_back() -> None:
    async def check(place: Place, first: Instance, _second: Instance) -> None:
        first.is_cut = True
        assert await place.settle(2.5 * SILENCE_S) == {"b"}
        assert state_of(first) is PipelineState.RETRYING
        first.is_cut = False
        assert await place.settle(100) == {"b"}
        assert state_of(first) is PipelineState.STANDBY

    play(check)


def test_a_destination_that_is_away_moves_nothing() -> None:
    async def check(place: Place, _first: Instance, _second: Instance) -> None:
        for down_s in (SILENCE_S / 2, SILENCE_S, 10 * SILENCE_S):
            place.is_down = True
            await place.settle(down_s)
            place.is_down = False
            assert await place.settle(2) == {"a"}
            assert await place.settle(5 * SILENCE_S) == {"a"}

    play(check)


def test_a_place_that_is_emptied_moves_nothing() -> None:
    """Somebody deletes the folder or the table of the heartbeats; the active instance makes it anew."""

    async def check(place: Place, _first: Instance, _second: Instance) -> None:
        for _ in range(20):
            place.last = None
            assert await place.settle(1.9) == {"a"}
        assert place.last is not None

    play(check)


def test_an_order_is_not_kept_for_a_later_term() -> None:
    async def check(place: Place, first: Instance, second: Instance) -> None:
        first.status.command = OnDataLoss.SKIP  # is not obeyed before it is cut off
        first.is_cut = True
        assert await place.settle(3 * SILENCE_S) == {"b"}
        first.is_cut = False
        await place.settle(SILENCE_S)
        second.kill()
        assert await place.settle(3 * SILENCE_S) == {"a"}
        assert first.status.command is None

    play(check)


def test_an_order_is_kept_while_nobody_else_is_active() -> None:
    """Both have stopped because of lost changes, and an operator orders one of them to skip these."""

    async def check(place: Place, first: Instance, second: Instance) -> None:
        first.kill()
        second.kill()
        place.last = Heartbeat("b", 7)  # it was killed, and has not ended in an orderly way
        third = Instance(place, "c")
        third.status.command = OnDataLoss.SKIP
        async with anyio.create_task_group() as group:
            group.start_soon(third.live)
            assert await place.settle(2 * SILENCE_S) == {"c"}
            group.cancel_scope.cancel()
        assert third.status.command is OnDataLoss.SKIP

    play(check)


def test_a_fenced_one_stands_by() -> None:
    async def check(place: Place, first: Instance, _second: Instance) -> None:
        place.last = Heartbeat("c", 100)  # a third one, which is gone soon
        first.error = SinkFenced("sink", "c has committed")
        assert await place.settle(SILENCE_S / 2) == set()
        assert state_of(first) is PipelineState.STANDBY
        assert len(await place.settle(3 * SILENCE_S)) == 1

    play(check)


def test_one_that_was_frozen_loses_to_its_successor() -> None:
    async def check(place: Place, first: Instance, _second: Instance) -> None:
        # What it sent last arrives after its successor has begun.
        late = place.last
        first.kill()
        assert await place.settle(2 * SILENCE_S) == {"b"}
        place.last = late
        for _ in range(10):
            assert await place.settle(SILENCE_S) == {"b"}

    play(check)


def test_a_frozen_standby_learns_nothing_from_its_sleep() -> None:
    watch = Watch("here", SILENCE_S)
    beat = Heartbeat("there", 1, 5)
    assert not watch.see(beat, 0.0)
    # Asked before it was frozen; the answer is read much later.
    assert not watch.see(beat, 1.0)
    # After it: the heartbeats have gone on.
    assert not watch.see(replace(beat, count=90), 1000.0)
    assert not watch.see(replace(beat, count=90), 1000.0 + SILENCE_S - 0.1)
    assert watch.see(replace(beat, count=90), 1000.0 + SILENCE_S)


def test_a_look_without_an_answer_begins_the_silence_anew() -> None:
    watch = Watch("here", SILENCE_S)
    beat = Heartbeat("there", 1, 5)
    assert not watch.see(beat, 0.0)
    watch.miss()
    assert not watch.see(beat, SILENCE_S + 1)
    assert watch.see(beat, 2 * SILENCE_S + 1)


def test_a_late_heartbeat_of_an_earlier_term_tells_nothing() -> None:
    watch = Watch("here", SILENCE_S)
    late = Heartbeat("former", 1, 9, released=True)
    assert not watch.see(Heartbeat("there", 2, 5), 0.0)
    assert not watch.see(late, 1.0)
    assert watch.seen == Heartbeat("there", 2, 5)
    assert not watch.see(Heartbeat("there", 2, 6), 2.0)
    assert not watch.see(late, 3.0)
    assert watch.see(late, 2.0 + SILENCE_S)


@dataclass(frozen=True)
class Seen:
    """A heartbeat, and whether the instance `here` takes over at once."""

    found: Heartbeat | None
    may_resume: bool
    is_due: bool


def cases() -> Iterator[Seen]:
    yield Seen(None, may_resume=False, is_due=True)
    yield Seen(HERE, may_resume=True, is_due=True)
    yield Seen(HERE, may_resume=False, is_due=False)
    yield Seen(replace(HERE, instance="there"), may_resume=True, is_due=False)
    yield Seen(replace(HERE, instance="there", released=True), may_resume=False, is_due=True)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_at_once(case: Seen) -> None:
    watch = Watch("here", SILENCE_S)
    watch.begin(may_resume=case.may_resume)
    assert watch.see(case.found, 10.0) is case.is_due


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["stdout", "files"])
async def test_a_sink_without_heartbeats_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    sink = f'kind = "{kind}"' + (f'\npath = "{tmp_path}/out"' if kind == "files" else "")
    config = tmp_path / "tailer.toml"
    config.write_text(
        f'state_table = "state"\ncontrol = ""\n[pipelines.orders]\ntable = "{tmp_path}/t"\n'
        f"[pipelines.orders.sink]\n{sink}"
    )
    with pytest.raises(ConfigError, match=f'orders.*"{kind}" has no place for heartbeats') as caught:
        await serve(load(config), standby=True)
    assert "kafka, sql and delta" in caught.value.hint

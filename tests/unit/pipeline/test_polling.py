"""The waits between looks at a table that cannot notify, with a clock of the test."""

from bisect import bisect_left
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.pipeline.policy import Limits
from tailer.pipeline.polling import Polling
from tailer.stores.wakeup import TimerWake


@dataclass
class Clock:
    """Seconds that pass only as the test says."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Notifying(TimerWake):
    """A wake-up of a store that notifies."""

    notifies = True


def middle() -> float:
    """Return the chance that leaves a wait as it is."""
    return 0.5


def test_a_quiet_table_is_looked_at_less_and_less_often() -> None:
    clock = Clock()
    polling, waits = Polling(1, 10, clock=clock, chance=middle), []
    for _ in range(30):
        waits.append(polling.next_wait_s())
        clock.now_s += waits[-1]
    assert waits[:5] == [1] * 5
    assert waits == sorted(waits)
    assert waits[-1] == 10
    polling.found()
    assert polling.next_wait_s() == 1


def test_the_wait_is_a_share_of_the_time_between_versions() -> None:
    """A table written every twenty seconds is never noticed more than four seconds late."""
    clock = Clock()
    polling = Polling(0.1, 60, clock=clock, chance=middle)
    for _ in range(50):
        polling.found()
        written_s = clock.now_s + 20
        while clock.now_s < written_s:
            clock.now_s += polling.next_wait_s()
        assert clock.now_s - written_s <= 4.8


def test_a_table_written_every_ten_seconds_is_not_quiet() -> None:
    """It becomes quiet when two versions in a row did not come, and one that is written every minute always is."""
    clock = Clock()
    polling = Polling(1, 60, clock=clock, chance=middle)
    for _ in range(6):
        for _ in range(10):
            clock.now_s += polling.next_wait_s()
        polling.found()
    waits = []
    for _ in range(60):
        waits.append(polling.next_wait_s())
        clock.now_s += waits[-1]
    assert waits[:25] == [1] * 25
    assert waits[-1] > 10
    for _ in range(6):
        clock.now_s += 60
        polling.found()
    clock.now_s += 50
    assert polling.next_wait_s() == 10


def test_waits_differ_at_random() -> None:
    clock, dice = Clock(), Random(1)
    waits = [Polling(10, 10, clock=clock, chance=dice.random).next_wait_s() for _ in range(1000)]
    assert 8 <= min(waits) < 8.1
    assert 11.9 < max(waits) <= 12
    assert len({round(wait, 3) for wait in waits}) > 500


@given(
    per_hour=st.integers(1, 400),
    shortest_s=st.floats(0.001, 100),
    longest_s=st.floats(0.001, 1000),
    seed=st.integers(0, 100),
    active=st.floats(0, 1),
)
def test_no_hour_has_more_looks(per_hour: int, shortest_s: float, longest_s: float, seed: int, active: float) -> None:
    """The ceiling holds for any intervals, and however often a look finds something."""
    clock, dice = Clock(), Random(seed)
    polling, looks = Polling(shortest_s, longest_s, per_hour, clock, dice.random), []
    for _ in range(3 * per_hour):
        clock.now_s += polling.next_wait_s()
        looks.append(clock.now_s)
        if dice.random() < active:
            clock.now_s += dice.expovariate(1)
            polling.found()
    for first, at_s in enumerate(looks):
        assert bisect_left(looks, at_s + 3599.999) - first <= per_hour


def test_a_ceiling_spreads_the_looks() -> None:
    """A burst is followed by even waits, not by an hour of silence."""
    clock = Clock()
    polling, waits = Polling(0.1, 0.1, 600, clock, middle), []
    for _ in range(200):
        waits.append(polling.next_wait_s())
        clock.now_s += waits[-1]
    assert waits[:10] == pytest.approx([0.1] * 10)
    assert waits[-1] == pytest.approx(3600 / 590)
    assert max(waits) == pytest.approx(3600 / 590)


def test_long_waits_end_together() -> None:
    clock = Clock(1000.25)
    polling = Polling(1, 30, clock=clock, chance=middle, is_notified=True)
    assert polling.next_wait_s() == 1
    clock.now_s += 26.5
    assert polling.next_wait_s() == 1032 - 1026.75
    clock.now_s += 1000.5
    assert polling.next_wait_s() == 2057 - 2027.25


def test_a_store_that_notifies_is_looked_at_without_a_ceiling() -> None:
    limits = Limits(poll_interval_s=1.5, idle_poll_interval_s=60, max_polls_per_hour=1)
    polling = Polling.of(limits, Notifying())
    assert all(1.2 <= polling.next_wait_s() <= 1.8 for _ in range(5))
    assert Polling.of(limits, TimerWake()).next_wait_s() >= 1.2
    rare = Polling.of(Limits(poll_interval_s=1.5, notified_poll_interval_s=100), Notifying())
    assert rare.longest_s == 100
    without = Polling.of(Limits(poll_interval_s=1.5), TimerWake())
    assert all(1.2 <= without.next_wait_s() <= 1.8 for _ in range(100))


def test_after_a_notice_another_one_is_expected() -> None:
    polling = Polling(1, 30, clock=Clock(), chance=middle, is_notified=True)
    assert polling.next_wait_s() == 1
    for _ in range(2):
        polling.was_woken = True
        polling.found()
        polling.found()  # the next version of the same backlog
        assert polling.next_wait_s() == 30
        polling.was_woken = False
        assert polling.next_wait_s() == 30
    polling.found()
    assert polling.next_wait_s() == 1, "no notice came"


def test_a_notice_without_a_version_makes_waits_short() -> None:
    """A version may be lost, and a later one announced."""
    polling = Polling(1, 30, clock=Clock(), chance=middle, is_notified=True)
    polling.was_woken = True
    polling.found()
    assert polling.next_wait_s() == 30
    assert polling.next_wait_s() == 1
    polling.was_woken = False
    assert polling.next_wait_s() == 1
    polling.was_woken = True
    polling.found()
    assert polling.next_wait_s() == 30


def test_an_order_is_no_notice_where_none_comes() -> None:
    polling = Polling(1, 30, clock=Clock(), chance=middle)
    polling.was_woken = True
    polling.found()
    assert polling.next_wait_s() == 1

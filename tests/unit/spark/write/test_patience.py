"""Patience with a micro-batch that fails: ten minutes without progress, not ten minutes in all."""

from typing import Any

import pytest

from tailer.errors import SinkUnavailable
from tailer.plan import Position
from tailer.spark.write import kafka_shards
from tailer.spark.write.kafka_shards import Patience


class Clock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Pass the time."""
        self.now_s += seconds


class Failed:
    """A failed attempt, as tenacity has it."""

    upcoming_sleep = 1.0

    def __init__(self) -> None:
        self.outcome = self

    def exception(self) -> Exception:
        """Return why."""
        return SinkUnavailable("kafka", "no broker answers")


FAILED: Any = Failed()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(kafka_shards, "time", clock)
    return clock


def test_only_time_without_progress_counts(clock: Clock) -> None:
    patience = Patience("orders", 600.0, lambda: False, lambda: [Position(2, 0, 7)])
    patience.note([Position.end(1)])
    clock.now_s = 5000  # a long attempt
    assert not patience.is_over(FAILED)
    clock.now_s += 599
    patience.note([Position.end(1)])
    assert not patience.is_over(FAILED)
    patience.note([Position(2, 0, 7)])
    clock.now_s += 599
    assert not patience.is_over(FAILED)
    clock.now_s += 599
    patience.note([Position(2, 0, 7)])
    assert not patience.is_over(FAILED)
    clock.now_s += 1
    assert patience.is_over(FAILED)


def test_an_attempt_that_fails_may_have_delivered_something(clock: Clock) -> None:
    places = [Position.opening(1)]
    patience = Patience("orders", 600.0, lambda: False, lambda: list(places))
    patience.note(list(places))
    assert not patience.is_over(FAILED)
    patience.note(list(places))
    clock.now_s = 601
    places[0] = Position.end(1)
    assert not patience.is_over(FAILED)
    clock.now_s += 601
    assert patience.is_over(FAILED)


def test_where_shards_are_is_not_known_while_kafka_is_away(clock: Clock) -> None:
    def away() -> list[Position]:
        raise SinkUnavailable("kafka", "no broker answers")

    patience = Patience("orders", 600.0, lambda: False, away)
    assert not patience.is_over(FAILED)
    clock.now_s = 601
    assert patience.is_over(FAILED)


def test_a_query_that_was_stopped_is_not_tried_again(clock: Clock) -> None:
    stopped = [False]
    patience = Patience("orders", 600.0, lambda: stopped[0], list)
    assert not patience.is_over(FAILED)
    patience.say(FAILED)
    patience.sleep(30.0)
    assert clock.now_s == 30.0
    stopped[0] = True
    with pytest.raises(SinkUnavailable):
        patience.sleep(30.0)
    assert clock.now_s == 30.0
    assert patience.is_over(FAILED)

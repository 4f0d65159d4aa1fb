"""Retention of a version, and the warning before it expires."""

import logging
import time

import pytest

from tailer.formats.delta.log.actions import Metadata, Protocol
from tailer.formats.delta.snapshot import Snapshot, parse_interval
from tailer.pipeline.retention import VacuumWatch
from tests.support.cases import cases

HOUR_MS = 3_600_000


@cases(
    ("text", "hours"),
    [
        ("interval 1 week", 168),
        ("interval 30 days", 720),
        ("INTERVAL 2 Days 12 hours", 60),
        ("90 minutes", 1.5),
        ("interval 1 second", 1 / 3600),
        ("interval 0 hours", 0),
        ("interval 1 weeks 1 day 1 hour 30 minutes", 193.5),
        ("interval 1.5 hours", 1.5),
    ],
)
def test_intervals(text: str, hours: float) -> None:
    assert parse_interval(text) == round(hours * HOUR_MS)


@cases("text", ["", "interval", "interval x", "interval 1", "interval 1 fortnight", "1 day x"])
def test_invalid_intervals(text: str) -> None:
    assert parse_interval(text) is None


@pytest.mark.parametrize(
    ("properties", "hours"),
    [
        ({}, 168),
        ({"delta.deletedfileretentionduration": "interval 2 days"}, 48),
        ({"delta.logretentionduration": "interval 1 day"}, 24),
        ({"delta.deletedfileretentionduration": "interval 90 days"}, 720),
        ({"delta.deletedfileretentionduration": "for ever"}, 168),
    ],
)
def test_the_shorter_of_the_two_counts(properties: dict[str, str], hours: int) -> None:
    state = Snapshot.begin("/table", 0, Protocol(1, 2), Metadata("id", [], configuration={**properties}), [0])
    assert state.retention_ms == hours * HOUR_MS


def test_remaining_retention_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = VacuumWatch("slow")
    now_ms = int(time.time() * 1000)
    with caplog.at_level(logging.WARNING):
        watch.report(5, now_ms - 10 * HOUR_MS, 168 * HOUR_MS)
        assert caplog.messages == []
        watch.report(7, now_ms - 150 * HOUR_MS, 168 * HOUR_MS)
        watch.report(6, now_ms - 150 * HOUR_MS, 168 * HOUR_MS)
    (warning,) = caplog.messages
    assert "slow: 7 versions behind" in warning
    assert "in 18.0 h (kept for 168 h)" in warning


def test_expired_retention_has_its_own_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        VacuumWatch("late").report(1, 0, 168 * HOUR_MS)
    assert "at any time" in caplog.messages[0]

"""The state machine of a pipeline, with a clock of its own."""

from dataclasses import dataclass

import pytest

from tailer.errors import FileVacuumed, SinkFenced, SinkUnavailable, StorageUnavailable, TailerError
from tailer.pipeline.retry import revival_pause_s
from tailer.pipeline.status import BEHIND_AFTER_S, IDLE_AFTER_S, Committed, PipelineState, PipelineStatus
from tailer.plan import Position

S = PipelineState


@dataclass
class Clock:
    """A clock that moves when it is told to."""

    now_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """A clock."""
    return Clock()


@pytest.fixture
def status(clock: Clock) -> PipelineStatus:
    """The status of a pipeline that has just begun."""
    found = PipelineStatus("orders", clock=clock)
    found.note_start()
    return found


def committed(version: int, **rows: int) -> Committed:
    return Committed(Position.end(version), rows, 100, 0.5)


def test_a_snapshot_that_is_ordered_later_is_a_backlog(status: PipelineStatus, clock: Clock) -> None:
    status.note_caught_up(4)
    clock.now_s += 7
    assert (status.lag_s, status.backlog.versions) == (0, 0)
    status.note_snapshot(5)
    assert (status.state, status.lag_s, status.backlog.versions) == (S.SNAPSHOT, 7, 1)
    status.note_commit(committed(5, insert=10))
    status.note_caught_up(5)
    assert (status.state, status.lag_s) == (S.STREAMING, 0)


def test_every_state(status: PipelineStatus, clock: Clock) -> None:
    assert (status.state, status.since_s) == (S.STARTING, clock.now_s)
    status.note_snapshot(3)
    assert (status.state, status.since_s) == (S.SNAPSHOT, clock.now_s)
    status.note_commit(committed(3, insert=10))
    status.note_work(4, 0, 100)
    assert (status.state, status.since_s) == (S.CATCHING_UP, clock.now_s)
    status.note_commit(committed(4, insert=1))
    status.note_caught_up(4)
    assert (status.state, status.since_s) == (S.STREAMING, clock.now_s)
    clock.now_s += IDLE_AFTER_S + 5
    assert (status.state, status.since_s) == (S.IDLE, clock.now_s - 5)
    status.note_work(5, 0, 100)
    assert (status.state, status.since_s) == (S.STREAMING, clock.now_s)
    clock.now_s += BEHIND_AFTER_S + 5
    assert (status.state, status.since_s) == (S.CATCHING_UP, clock.now_s - 5)
    status.note_error(StorageUnavailable("x"))
    assert (status.state, status.since_s) == (S.RETRYING, clock.now_s)
    assert status.why.startswith("StorageUnavailable: x: ")
    status.note_resume(Position.end(4))
    status.note_work(5, 0, 100)
    assert (status.state, status.is_ready) == (S.RETRYING, False)
    status.note_commit(committed(5))
    assert (status.state, status.is_ready) == (S.CATCHING_UP, True)
    status.note_drain("an operator pauses it")
    assert (status.state, status.is_ready) == (S.CATCHING_UP, False)
    status.note_stop()
    status.note_pause()
    assert (status.state, status.is_ready, status.why) == (S.PAUSED, True, "an operator paused it")
    assert "tailer resume" in status.hint
    status.note_start()
    assert (status.state, status.why) == (S.STARTING, "")
    error = FileVacuumed("t", 5, "f")
    status.note_error(error)
    status.note_stop(error)
    assert (status.state, status.hint) == (S.STOPPED, error.hint_for("orders"))
    assert status.why.startswith("FileVacuumed: ")


def test_the_text_of_a_foreign_error_is_not_shown(status: PipelineStatus) -> None:
    status.note_error(KeyError("password"))
    assert "password" not in status.why + status.hint


def test_lag_is_measured_when_it_is_asked_for(status: PipelineStatus, clock: Clock) -> None:
    backlog = status.backlog
    assert (backlog.versions, status.lag_s, backlog.size_bytes) == (None, None, None)
    status.note_resume(Position.end(2))
    status.note_work(3, int(clock.now_s - 40) * 1000, 700)
    status.note_work(4, int(clock.now_s - 30) * 1000, 300)
    assert (backlog.versions, status.lag_s, backlog.size_bytes) == (2, 40, 1000)
    status.note_commit(Committed(Position(4, 0, 7), {}))
    assert (backlog.versions, backlog.size_bytes) == (1, 300)
    status.note_commit(committed(4))
    status.note_caught_up(4)
    clock.now_s += 100
    assert (backlog.versions, status.lag_s, backlog.size_bytes) == (0, 0, 0)
    status.note_error(StorageUnavailable("x"))
    clock.now_s += 100
    assert status.lag_s == 200  # since it was known to have everything


def test_it_hangs_only_while_work_is_due(status: PipelineStatus, clock: Clock) -> None:
    status.note_caught_up(1)
    clock.now_s += 1000
    assert not status.hangs(100)
    status.note_step()
    clock.now_s += 99
    assert not status.hangs(100)
    clock.now_s += 1
    assert status.hangs(100)
    status.note_step()
    assert not status.hangs(100)
    clock.now_s += 1000
    status.note_pause()
    assert not status.hangs(100)


def test_there_is_no_progress_before_anything_was_done(status: PipelineStatus, clock: Clock) -> None:
    """Neither attempts nor errors are progress, nor is a start after the newest version."""
    for _ in range(2):
        status.note_step()
        clock.now_s += 1
        status.note_error(SinkUnavailable("s", "down"))
        status.note_retry()
    assert (status.seconds_since_progress, status.seconds_since_step) == (None, 0)
    status.note_caught_up(5, has_progress=False)
    assert (status.backlog.position, status.backlog.latest, status.backlog.versions) == (None, 5, 0)
    clock.now_s += 3
    assert status.seconds_since_progress == 3
    status.note_work(6, None, 1)
    assert (status.seconds_since_progress, status.backlog.versions) == (0, None)
    clock.now_s += 2
    status.note_error(SinkUnavailable("s", "down"))
    status.note_retry()
    assert (status.seconds_since_progress, status.seconds_since_step) == (2, 0)
    status.note_commit(committed(6))
    assert (status.seconds_since_progress, status.backlog.position) == (0, Position.end(6))


def test_rows_and_transactions_add_up(status: PipelineStatus) -> None:
    status.note_commit(committed(1, insert=3, delete=1))
    status.note_commit(committed(2, insert=2))
    assert status.rows == {"insert": 5, "delete": 1}
    assert (status.transactions, status.transaction_bytes, status.transaction_seconds) == (2, 200, 1.0)


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (SinkUnavailable("s", "down"), [60, 120, 240, 480, 960, 1800, 1800]),
        (StorageUnavailable("s"), [60, 120, 240, 480, 960, 1800, 1800]),
        (SinkFenced("s", "another one"), [None]),
        (FileVacuumed("t", 1, "f"), [None]),
        (KeyError("a bug"), [None]),
    ],
)
def test_errors_that_may_pass_begin_the_pipeline_again(error: TailerError, pauses: list[float | None]) -> None:
    assert [revival_pause_s(error, stops) for stops in range(1, len(pauses) + 1)] == pauses

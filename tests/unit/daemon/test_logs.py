"""The lines about each pipeline in the log of the daemon."""

import logging

import pytest

from tailer.daemon.logs import Summaries
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import Position


@pytest.fixture
def status() -> PipelineStatus:
    """A pipeline that begins after version 6, with a version that is due."""
    begun = PipelineStatus("orders", table="/lake/orders", sink_kind="files")
    begun.note_start()
    begun.note_resume(Position.end(6))
    begun.note_work(7, 0, 1000)
    return begun


def test_the_first_line_comes_when_the_pipeline_is_at_the_newest_version(
    status: PipelineStatus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    summaries = Summaries([status])
    summaries.log_first()
    assert caplog.messages == []
    status.note_commit(Committed(Position.end(7), {"insert": 12}))
    status.note_caught_up(7)
    summaries.log_first()
    summaries.log_first()
    summaries.log()
    assert caplog.messages == [
        "orders: streaming; rows 12, transactions 1, up to version 7; behind by 0 versions and 0 s"
    ]
    status.note_commit(Committed(Position.end(8), {"insert": 1}))
    summaries.log_first()
    summaries.log()
    assert [message.partition("; behind")[0] for message in caplog.messages[1:]] == [
        "orders: streaming; rows 1, transactions 1, up to version 8"
    ]


def test_a_pipeline_with_nothing_to_deliver_says_once_that_it_is_well(
    status: PipelineStatus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    summaries = Summaries([status])
    status.note_caught_up(6)
    summaries.log_first()
    summaries.log()
    assert [message.partition("; behind")[0] for message in caplog.messages] == [
        "orders: idle; rows 0, transactions 0, up to version 6"
    ]

"""The lines about each pipeline in the log of the daemon."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from tailer.daemon.logs import LogFormat, Summaries, log_to_stderr
from tailer.daemon.runs import Run, Runs
from tailer.errors import FileVacuumed, SinkUnavailable, TailerError
from tailer.pipeline.retry import Retries
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import Position
from tests.support.streams import become


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


class ScriptedRuns:
    """Runs of a pipeline whose sessions fail with an error, or commit the next version and end for None."""

    def __init__(self, status: PipelineStatus, *sessions: TailerError | None) -> None:
        self._status = status
        self._sessions = iter(sessions)
        self._version = 6

    async def run(self) -> None:
        """Run until a session ends without an error."""
        self._retries = Retries("orders", 600, self._status)
        await self._retries.run(self._session)

    async def _session(self) -> bool:
        error = next(self._sessions)
        if error is not None:
            raise error
        self._version += 1
        self._retries.note_commit(Committed(Position.end(self._version), {"insert": 1}))
        return True

    def stop(self) -> None:
        """Begin no other session."""
        self._retries.stop()


class Clock:
    """A clock of seconds since 1970."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Give loggers their own handlers and levels back."""
    root = logging.getLogger()
    handlers, loggers = root.handlers[:], [root, *map(logging.getLogger, ("tailer", "tailer_sinks"))]
    levels = [each.level for each in loggers]
    yield
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


async def run_twice(status: PipelineStatus, *sessions: TailerError | None) -> None:
    """Run a pipeline, and once more after it has stopped with an error."""
    scripted = ScriptedRuns(status, *sessions)
    runs = Runs([run := Run(status, lambda: lambda stop: stop.run(scripted), revives=False)], 1)
    runs.stays = True
    async with anyio.create_task_group() as group:
        group.start_soon(runs.run)
        await become(lambda: run.error is not None)
        runs.stays = False
        run.resume()


@pytest.mark.anyio
@pytest.mark.usefixtures("restored_logging")
async def test_retries_stops_and_resumes_name_the_error_and_its_hint(
    status: PipelineStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, down = FileVacuumed("/lake/orders", 7, "part-1.parquet"), SinkUnavailable("s", "down")
    log_to_stderr(form=LogFormat.JSON)
    await run_twice(status, down, lost, None)
    records: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    said = [re.split(r";| after \d", each["message"])[0] for each in records]
    about = [(each["level"], each.get("error"), each.get("hint")) for each in records]
    assert [(text, *more) for text, more in zip(said, about, strict=True)] == [
        ("running orders", "info", None, None),
        ("orders: sink s: down", "warning", "SinkUnavailable", down.hint),
        (f"orders stopped: {lost}", "error", "FileVacuumed", lost.hint_for("orders")),
        ("orders: begins again from the sink's progress", "info", None, None),
        ("orders: works again", "info", "FileVacuumed", lost.hint_for("orders")),
        ("orders: has ended: its work is done", "info", None, None),
    ]
    del records[0]
    assert {(each["pipeline"], each["table"]) for each in records} == {("orders", "/lake/orders")}
    assert [each["version"] for each in records] == [6, 6, 6, 7, 7]


@pytest.mark.anyio
@pytest.mark.usefixtures("restored_logging")
async def test_the_text_of_a_stop_ends_with_the_error_and_its_hint(
    status: PipelineStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = FileVacuumed("/lake/orders", 7, "part-1.parquet")
    log_to_stderr()
    await run_twice(status, lost, None)
    stop = capsys.readouterr().err.splitlines()[1]
    hint = lost.hint_for("orders")
    assert "`tailer skip orders`" in hint
    assert stop.endswith(f"orders stopped: {lost}; the others go on [FileVacuumed: {hint}]")


def test_a_pipeline_that_waits_for_its_table_is_named_after_minutes_and_each_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    status = PipelineStatus("orders", table="/lake/ordrs", clock=clock)
    summaries = Summaries([status], clock)
    status.note_start()
    status.note_missing_table()
    said: list[int] = []
    for minute in range(1, 130):
        clock.now_s += 60
        before = len(caplog.messages)
        status.note_missing_table()
        summaries.log_waits()
        said += [minute] * (len(caplog.messages) - before)
    assert said == [5, 65, 125]
    assert caplog.messages[:2] == [
        f"orders: has waited for its table for {waited}: there is no table at /lake/ordrs yet"
        for waited in ("5 min", "65 min")
    ]
    assert {each.levelname for each in caplog.records} == {"WARNING"}
    status.note_work(0, 0, 1)
    status.note_missing_table()
    summaries.log_waits()
    assert len(caplog.messages) == 3

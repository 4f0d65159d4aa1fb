"""The progress bars of `tailer run`: which pipelines have one, and what it says."""

import io
import sys
import time

import pytest
from rich.console import Console

from tailer.cli.display import bars
from tailer.cli.display.bars import MOST, Bars, bars_on_terminal
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import Position


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal; bars appear at once."""
    monkeypatch.setattr(bars, "AFTER_S", 0.0)
    return Console(file=io.StringIO(), force_terminal=True, width=120, height=40)


def shown(console: Console) -> str:
    """Return what was printed since the last call."""
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    console.file.seek(0)
    console.file.truncate()
    return text


def working(name: str, latest: int) -> PipelineStatus:
    """Return the status of a pipeline with a backlog."""
    status = PipelineStatus(name)
    status.note_start()
    status.note_table(latest, None)
    status.note_work(0, int(time.time() * 1000), 10)
    return status


def test_a_backlog_has_a_bar_until_it_is_delivered(console: Console) -> None:
    status, display = working("orders", 9), Bars(console)
    display.update([status])
    status.note_commit(Committed(Position.end(4), {"insert": 1200}))
    display.update([status])
    display.close()
    assert "orders: catching up, versions" in (text := shown(console))
    assert "5/10, 1,200 rows" in text
    display = Bars(console)
    status.note_caught_up(9)
    display.update([status])
    display.close()
    assert shown(console) == ""


def test_a_snapshot_counts_its_rows(console: Console) -> None:
    status, display = PipelineStatus("orders"), Bars(console)
    status.note_start()
    status.note_snapshot(3)
    display.update([status])
    status.note_commit(Committed(Position(3, 0, 4), {"insert": 5}))
    display.update([status])
    display.close()
    assert "orders: snapshot" in (text := shown(console))
    assert "5 rows" in text


def test_many_pipelines_have_a_few_bars_and_the_next_ones_follow(console: Console) -> None:
    statuses, display = [working(f"p{number:02}", 9) for number in range(MOST + 5)], Bars(console)
    display.update(statuses)
    display.close()
    text = shown(console)
    assert [status.name for status in statuses if f"{status.name}: " in text] == [f"p{each:02}" for each in range(MOST)]
    for status in statuses[:MOST]:
        status.note_caught_up(9)
    display.update(statuses)
    display.close()
    assert f"p{MOST:02}: " in shown(console)


def test_short_work_has_no_bar(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "AFTER_S", 60.0)
    display = Bars(console)
    display.update([working("orders", 9)])
    display.close()
    assert shown(console) == ""


def test_lines_of_the_log_go_through_the_display(console: Console) -> None:
    display, before = Bars(console), sys.stderr
    display.update([working("orders", 9)])
    assert sys.stderr is not before
    display.close()
    assert sys.stderr is before


def test_without_a_terminal_there_are_none() -> None:
    with bars_on_terminal() as show:
        assert show is None

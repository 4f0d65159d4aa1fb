"""The display of verbs beside their output: hidden while rows are printed, and only on a terminal."""

import io
import sys
from functools import partial
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import write_deltalake
from rich.console import Console

from tailer.cli.display import display as displays
from tailer.cli.display.display import Display, Steps
from tailer.cli.tail.output import announcement, early_end
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.status import PipelineStatus
from tailer.start import Start
from tailer.stores.local import LocalStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The text printed on standard error, which is a terminal."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(displays, "terminal", lambda: console if sys.stderr.isatty() else None)
    monkeypatch.setattr(displays, "QUIET_S", 0.1)
    return text


async def test_a_pipeline_that_is_not_level_reads_the_log(shown: io.StringIO) -> None:
    display = Display(status := PipelineStatus("tail"))
    async with display.shown():
        await anyio.sleep(0.5)
        assert "reading the log" in shown.getvalue()
        display.busy("version 0: reading 1 file")
        await anyio.sleep(0.3)
        assert "version 0: reading 1 file" in shown.getvalue()
        status.note_caught_up(0)
        await anyio.sleep(0.3)
        assert display._progress is None
        status.note_step()
        await anyio.sleep(0.5)
        assert display._progress is not None


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_only_long_steps_on_a_terminal_are_shown(
    monkeypatch: pytest.MonkeyPatch, shown: io.StringIO, is_terminal: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    monkeypatch.setattr(displays, "QUIET_S", 60.0 if is_terminal else 0.0)
    async with (display := Display(PipelineStatus("tail"))).shown():
        display.busy("at work")
        await anyio.sleep(0.3)
    assert shown.getvalue() == ""


async def test_the_first_row_into_a_pipe_ends_it(shown: io.StringIO) -> None:
    display = Display()
    display._feeds_pipe = True
    async with display.shown():
        display.busy("at work")
        await anyio.sleep(0.5)
        before = shown.getvalue()
        assert "at work" in before
        display.rows_come()
        ended = shown.getvalue()
        display.busy("at work again")
        await anyio.sleep(0.3)
    assert shown.getvalue() == ended


@pytest.mark.parametrize("shares", [True, False])
async def test_rows_on_the_same_terminal_have_the_place_for_themselves(shown: io.StringIO, shares: bool) -> None:
    display = Display()
    display._shares_terminal = shares
    async with display.shown():
        display.busy("at work")
        await anyio.sleep(0.5)
        assert "at work" in shown.getvalue()
        display.rows_come()
        assert (display._progress is None) == shares
        display.say("a line")
        assert display._progress is None
    assert display._progress is None


FUTURE = "2099-01-01T00:00:00+00:00 has not come yet, so this ends with the latest version"


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("0", None, "following changes from version 0 on"),
        ("0", "latest", "changes of versions 0 to 1"),
        ("2", "latest", "nothing is newer than version 1"),
        ("latest", "1", "nothing is newer than version 1"),
        ("0", "5", "changes of versions 0 to 5"),
        ("snapshot", "2", "all rows of version 1, then the changes up to version 2"),
        ("0", "2099-01-01", f"changes of versions 0 to 1; {FUTURE}"),
        ("latest", "2099-01-01", f"nothing is newer than version 1; {FUTURE}"),
        ("snapshot", "2099-01-01", f"all rows of version 1, then the changes up to version 1; {FUTURE}"),
    ],
)
async def test_what_is_shown_is_announced(tmp_path: Path, start: str, end: str | None, said: str) -> None:
    for _ in range(2):
        await to_thread.run_sync(partial(write_deltalake, tmp_path, pa.table({"id": [1]}), mode="append"))
    log, until = DeltaTableLog(LocalStore(tmp_path)), None if end is None else Start.parse(end)
    last = None if until is None else await log.resolve_end(until)
    text = announcement(log.uri, await log.resolve(Start.parse(start)), last) + early_end(until)
    assert text == f"{tmp_path}: {said}"


async def test_a_pipe_gets_a_line_for_a_step_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(displays, "LINE_S", 0.05)
    steps = Steps()
    async with steps.shown():
        steps.begin("reading the log")
        steps.begin("comparing")
        await anyio.sleep(0.12)
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "comparing (after 0 s)"


async def test_quick_steps_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps()
    async with steps.shown():
        steps.begin("comparing")
    assert capsys.readouterr() == ("", "")

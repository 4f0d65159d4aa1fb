"""Steps of verbs that take long, where standard error is a pipe."""

import anyio
import pytest

from tailer.cli.display import steps


@pytest.mark.anyio
async def test_a_pipe_gets_a_line_for_a_step_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "LINE_S", 0.05)
    shown = steps.Steps()
    async with shown.shown():
        shown.begin("reading the log")
        shown.begin("comparing")
        await anyio.sleep(0.12)
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == "comparing (after 0 s)"


@pytest.mark.anyio
async def test_quick_steps_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    shown = steps.Steps()
    async with shown.shown():
        shown.begin("comparing")
    assert capsys.readouterr() == ("", "")

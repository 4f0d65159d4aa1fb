"""The display of `tail`: hidden while rows are printed, shown while nothing happens, and on a terminal only."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import lance
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import write_deltalake
from rich.console import Console

from tailer.cli.display import changes
from tailer.cli.display.changes import Display, FollowedLog, ShownEngine
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.events import ChangeBatch
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan, Position
from tailer.start import Start
from tailer.stores.local import LocalStore
from tests.support.follow import plans

pytestmark = pytest.mark.anyio


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The text printed on standard error, which is a terminal."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    monkeypatch.setattr(changes, "Console", lambda **_: console)
    monkeypatch.setattr(changes, "QUIET_S", 0.1)
    return text


class Slow(LocalEngine):
    """An engine that waits before the first batch."""

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        async with super().run(plan, after) as batches:
            await anyio.sleep(0.5)
            yield batches


@pytest.fixture
def plan(tmp_path: Path) -> ChangePlan:
    """Make a plan of one file."""
    write_deltalake(tmp_path, pa.table({"id": list(range(10))}))
    return plans(tmp_path, 0, 0)[0]


async def read(plan: ChangePlan, display: Display, compares: bool = False) -> int:
    """Read the plan slowly; return the number of rows."""
    rows = 0
    async with display.shown(), ShownEngine(Slow(), display, lambda _: compares).run(plan) as batches:
        async for batch in batches:
            rows += len(batch)
    return rows


@pytest.mark.parametrize(("compares", "word"), [(False, "reading"), (True, "comparing")])
async def test_a_long_wait_is_explained(shown: io.StringIO, plan: ChangePlan, compares: bool, word: str) -> None:
    assert await read(plan, Display(), compares) > 0
    assert f"version 0: {word}" in shown.getvalue()


async def test_quick_steps_are_not_shown(shown: io.StringIO, plan: ChangePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "QUIET_S", 60.0)
    await read(plan, Display())
    assert shown.getvalue() == ""


async def test_no_display_without_a_terminal(plan: ChangePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(changes, "Console", lambda **_: Console(file=text))
    monkeypatch.setattr(changes, "QUIET_S", 0.0)
    await read(plan, Display())
    assert text.getvalue() == ""


async def test_the_first_row_into_a_pipe_ends_it(plan: ChangePlan, shown: io.StringIO) -> None:
    display = Display()
    display._feeds_pipe = True
    assert await read(plan, display) == 10
    before = shown.getvalue()
    assert "reading 1 file" in before
    assert await read(plan, display) == 10
    assert shown.getvalue() == before


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
        ("0", "5", "changes of versions 0 to 5; the latest is version 1, so this waits for version 5 (Ctrl-C to stop)"),
        ("snapshot", "2", "all rows of version 1, then the changes up to version 2; the latest is version 1, so this "),
        ("0", "2099-01-01", f"changes of versions 0 to 1; {FUTURE}"),
        ("latest", "2099-01-01", f"nothing is newer than version 1; {FUTURE}"),
        ("snapshot", "2099-01-01", f"all rows of version 1, then the changes up to version 1; {FUTURE}"),
        ("latest", "0", None),
        ("snapshot", "0", None),
    ],
)
async def test_what_is_shown_is_announced_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], start: str, end: str | None, said: str | None
) -> None:
    """A start after the end is an error, which follows: nothing is said about it."""
    for _ in range(2):
        await to_thread.run_sync(partial(write_deltalake, tmp_path, pa.table({"id": [1]}), mode="append"))
    log = FollowedLog(DeltaTableLog(LocalStore(tmp_path)), Display())
    if end is not None:
        await log.resolve_end(Start.parse(end))
    await log.resolve(Start.parse(start))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (said is not None)
    assert said is None or lines[0].startswith(f"{tmp_path}: {said}")


async def test_the_primary_key_is_that_of_the_table(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})])
    lance.write_dataset(pa.table([[1]], schema=schema), tmp_path / "t")
    assert await FollowedLog(TableRef(str(tmp_path / "t")).open(), Display()).key(1) == ("id",)

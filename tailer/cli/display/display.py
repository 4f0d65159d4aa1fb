"""The display of work that takes long, on standard error: lines, and on a terminal the current step.

`tailer tail` prints its rows beside it. On the same terminal, the step is hidden while rows come, and returns after
`QUIET_S` seconds without any. If rows go to a file, it stays. If they go to a pipe, it ends with the first row: the
reader may be a pager.
"""

import os
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import anyio
import click
from rich.filesize import decimal

from tailer.engine import background
from tailer.errors import duration
from tailer.pipeline.status import PipelineStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["Display", "Steps", "count", "duration", "size", "terminal", "versions"]

QUIET_S: Final = 0.5
LINE_S: Final = 10.0
_LOOK_S: Final = 0.1


class Display:
    """A display of the current step, if standard error is a terminal. `status`: of the pipeline that is shown, if any.

    A pipeline that does not wait, and of which nothing else is shown, reads the log.
    """

    def __init__(self, status: PipelineStatus | None = None) -> None:
        self._status = status
        self._console = terminal()
        self._shares_terminal = sys.stdout.isatty()
        self._feeds_pipe = False
        with suppress(OSError, ValueError):  # a stream in memory, or closed
            self._feeds_pipe = stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
        self._text: str | None = None
        self._since = 0.0
        self._progress: Progress | None = None

    def say(self, text: str) -> None:
        """Print a line, also if standard error is not a terminal."""
        self.idle()
        with suppress(OSError):  # nobody reads standard error
            click.echo(text, err=True)

    def busy(self, text: str) -> None:
        """Show a step that may take long, or its progress."""
        if self._text is None:
            self._since = time.monotonic()
        self._text = text
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description=text)

    def rows_come(self) -> None:
        """Hide the display before rows are printed."""
        if self._feeds_pipe:
            self._console = None
        if self._shares_terminal or self._feeds_pipe:
            self.idle()

    def idle(self) -> None:
        """Hide the display: nothing is under way."""
        self._text = None
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show the display for the length of the block."""
        async with background() as group:
            if self._console is not None:
                group.start_soon(self._look)
            try:
                yield
            finally:
                self.idle()

    async def _look(self) -> None:
        while self._console is not None:
            if self._status is not None and self._status.waits:
                self.idle()
            elif self._status is not None and self._text is None:
                self.busy("reading the log")
            if self._progress is None and self._text is not None and time.monotonic() - self._since >= QUIET_S:
                from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

                columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
                self._progress = Progress(*columns, console=self._console, transient=True, redirect_stdout=False)
                self._progress.add_task(self._text, total=None)
                self._progress.start()
            await anyio.sleep(_LOOK_S)


class Steps:
    """The current step of a verb: on a terminal, otherwise in a line each `LINE_S`; nothing if all is done before."""

    def __init__(self) -> None:
        self.current = ""
        self._display = Display()

    def begin(self, step: str) -> None:
        self.current = step
        self._display.busy(step)

    def say(self, text: str) -> None:
        """Print a line."""
        self._display.say(text)

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show the steps for the length of the block."""
        async with self._display.shown(), background() as group:
            if not sys.stderr.isatty():
                group.start_soon(self._print_lines)
            yield

    async def _print_lines(self) -> None:
        begun = time.monotonic()
        while True:
            await anyio.sleep(LINE_S)
            if self.current:
                self.say(f"{self.current} (after {time.monotonic() - begun:.0f} s)")


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def versions(first: int, last: int) -> str:
    """Return the words for some versions: `version 7`, `versions 3 to 7`."""
    return f"version {first}" if first == last else f"versions {first} to {last}"


def size(size_bytes: int) -> str:
    """Return bytes in the largest unit that fits: `12.3 MB`."""
    return decimal(size_bytes)


def terminal() -> "Console | None":
    """Return standard error where it can show a step; None: it cannot."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415 - only for a terminal

    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None

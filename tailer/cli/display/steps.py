"""The steps of a verb that may take long, on standard error."""

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from tailer.cli.display.changes import Display
from tailer.engine.background import background

__all__ = ["Steps"]

LINE_S: Final = 10.0


class Steps:
    """A spinner with the current step on a terminal, otherwise a line each `LINE_S`; none if all is done before."""

    def __init__(self) -> None:
        self.current = ""
        self._display = Display()

    def begin(self, step: str) -> None:
        """Note the step that begins."""
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

"""Write the lines of the log in a thread of their own: whoever logs never waits for the reader of standard error.

A pipe that nobody reads is full after some lines, and a terminal can be halted. A write then blocks for as long as that
lasts, and would hold up the event loop and all pipelines with it. So lines wait here, and once there are too many,
later ones are dropped and counted. When half of those that wait are written, a line says how many were dropped.
"""

import logging
import os
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Final

__all__ = ["LogWriter"]

WAITING_CHARS: Final = 2_000_000  # some thousand lines
FLUSH_S: Final = 2.0


class LogWriter(logging.Handler):
    """A handler whose lines a thread writes to standard error. `waiting_chars`: may wait, or one longer line."""

    def __init__(self, waiting_chars: int = WAITING_CHARS) -> None:
        super().__init__()
        self._most = waiting_chars
        self._lines: deque[str] = deque()
        self._size = self._dropped = 0
        self._is_over = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Add the record's line to those that wait, or drop it."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as every handler of logging does: a log line ends nothing
            self.handleError(record)
            return
        with self._news:
            if self._dropped or (self._lines and self._size + len(line) > self._most):
                self._dropped += 1
            else:
                self._add(line)

    def finish(self) -> None:
        """Write what waits, for `FLUSH_S` at most, and end the thread.

        If that is not enough, standard error is replaced by nothing: the thread holds its lock until somebody reads.
        """
        with self._news:
            self._is_over = True
            self._news.notify()
        self._thread.join(FLUSH_S)
        if self._thread.is_alive():
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)
        self._news.notify()

    def _run(self) -> None:
        while (line := self._next()) is not None:
            try:
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()
            except (OSError, ValueError):  # closed, or on a full disk: there is nowhere to report it
                continue

    def _next(self) -> str | None:
        """Return the next line, when there is one; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._lines or self._is_over)
            if not self._lines:
                return None
            line = self._lines.popleft()
            self._size -= len(line)
            if self._dropped and self._size <= self._most // 2:
                text = "%d lines of the log were dropped here: standard error was not read in time"
                record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (self._dropped,), None)
                self._add(self.format(record))
                self._dropped = 0
            return line

"""Write the lines of the log in a thread of their own: whoever logs never waits for the reader of standard error.

A pipe that nobody reads is full after some lines, and a terminal can be halted. A write then blocks for as long as that
lasts, and would hold up the event loop and all pipelines with it. So lines wait here, and once there are too many,
later ones are dropped and counted. When half of those that wait are written, a line says how many were dropped.
"""

import logging
import os
import sys
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Final

__all__ = ["LogWriter"]

WAITING_CHARS: Final = 2_000_000  # some thousand lines
FLUSH_S: Final = 2.0


class LogWriter(QueueHandler):
    """A handler whose lines a thread writes to standard error. `waiting_chars`: may wait, or one longer line."""

    def __init__(self, waiting_chars: int = WAITING_CHARS) -> None:
        super().__init__(SimpleQueue())
        self._most = waiting_chars
        self._counts = Lock()
        self._size = self._dropped = 0
        self._listener = _Listener(self)
        self._listener.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        """Add a record to those that wait, or drop it. Its message is the whole line."""
        with self._counts:
            if self._dropped or (self._size and self._size + len(record.msg) > self._most):
                self._dropped += 1
            else:
                self._add(record)

    def note_taken(self, record: logging.LogRecord) -> None:
        """Note that a record waits no more."""
        with self._counts:
            self._size -= len(record.msg)
            if self._size <= self._most // 2:
                self._say_dropped()

    def finish(self) -> None:
        """Write what waits, for `FLUSH_S` at most, and end the thread.

        If that is not enough, standard error is replaced by nothing: the thread holds its lock until somebody reads.
        """
        with self._counts:
            self._say_dropped()
        end = Thread(target=self._listener.stop, name="log-end", daemon=True)
        end.start()
        end.join(FLUSH_S)
        if end.is_alive():
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends

    def _add(self, record: logging.LogRecord) -> None:
        self._size += len(record.msg)
        self.queue.put_nowait(record)

    def _say_dropped(self) -> None:
        """Add a line that says how many were dropped, if any."""
        if self._dropped:
            text = "%d lines of the log were dropped here: standard error was not read in time"
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (self._dropped,), None)
            self._dropped = 0
            self._add(self.prepare(record))


class _Listener(QueueListener):
    """The thread that writes to standard error what waits at `writer`, without a lock that its end could wait for."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__(writer.queue)
        self._writer = writer

    def handle(self, record: logging.LogRecord) -> None:
        """Write the line of a record."""
        self._writer.note_taken(record)
        with suppress(OSError, ValueError):  # closed, or on a full disk: there is nowhere to report it
            sys.stderr.write(f"{record.msg}\n")
            sys.stderr.flush()

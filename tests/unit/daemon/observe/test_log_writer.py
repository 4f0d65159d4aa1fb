"""Lines of the log that wait for standard error: their order, how many wait, and what is said of those dropped."""

import io
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Final

import pytest

from tailer.daemon.observe import log_writer
from tailer.daemon.observe.log_writer import LogWriter
from tests.support.waiting import until

WAITING_CHARS: Final = 100
LINE: Final = "x" * 20


class Halting(io.StringIO):
    """A stream that takes nothing before it is `open`."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.is_asked = threading.Event()
        self.system = SimpleNamespace(stderr=self)

    def write(self, text: str) -> int:
        """See `io.StringIO`."""
        self.is_asked.set()
        self.open.wait()
        return super().write(text)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Halting]:
    """Standard error."""
    halting = Halting()
    monkeypatch.setattr(log_writer, "FLUSH_S", 60.0)
    monkeypatch.setattr(log_writer, "sys", halting.system)
    yield halting
    halting.open.set()


def log(writer: LogWriter, *lines: str) -> None:
    """Log lines."""
    for line in lines:
        writer.handle(logging.LogRecord("test", logging.INFO, __file__, 0, line, (), None))


def halted(stream: Halting) -> LogWriter:
    """Return a writer that waits for the stream with its first line."""
    writer = LogWriter(WAITING_CHARS)
    log(writer, "first")
    stream.is_asked.wait()
    return writer


def test_lines_come_in_their_order(stream: Halting) -> None:
    writer, lines = halted(stream), [f"line {number}" for number in range(10)]
    log(writer, *lines)
    stream.open.set()
    writer.finish()
    assert stream.getvalue().splitlines() == ["first", *lines]


def test_what_is_too_much_is_dropped_and_counted(stream: Halting) -> None:
    writer = halted(stream)
    log(writer, *[LINE] * 8)  # five of them fill what may wait
    log(writer, "short")  # it would fit, but not in its place
    stream.open.set()
    writer.finish()
    said = "4 lines of the log were dropped here: standard error was not read in time"
    assert stream.getvalue().splitlines() == ["first", *[LINE] * 5, said]


def test_a_line_that_is_too_long_waits_alone(stream: Halting) -> None:
    writer, long = halted(stream), "x" * (WAITING_CHARS + 1)
    log(writer, long, "short")
    stream.open.set()
    writer.finish()
    said = "1 lines of the log were dropped here: standard error was not read in time"
    assert stream.getvalue().splitlines() == ["first", long, said]


def test_the_end_does_not_wait_for_ever(stream: Halting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_S", 0.01)
    writer = halted(stream)
    writer.finish()
    assert stream.system.stderr is not stream
    stream.system.stderr.close()
    stream.open.set()
    until(lambda: stream.getvalue() == "first\n")


def test_a_stream_that_is_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(log_writer, "sys", system := SimpleNamespace(stderr=closed))
    writer = LogWriter(WAITING_CHARS)
    log(writer, "lost")
    writer.finish()
    assert system.stderr is closed  # the thread ended in time

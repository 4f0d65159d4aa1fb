"""The `stdout` sink: changes on standard output, as JSON Lines or CSV for programs or a table for people.

Printed lines cannot be taken back, so this is an `AtLeastOnceSink`: it keeps no progress, and its users keep progress
elsewhere or not at all.

The reader may be slow, or gone. So writes happen in a worker thread, in chunks that a ready pipe takes without
blocking, and cancellation never waits for a reader. A few rows that a pipe or a file takes at once are written without
a thread, which would cost several times as much. A reader that is gone (`| head`) ends the stream with `SinkRejected`,
whose cause is the `BrokenPipeError`: a command treats that as a clean end.
"""

import errno
import io
import logging
import os
import select
import stat
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal, Self, TextIO

import msgspec
import pyarrow as pa
from anyio import from_thread, lowlevel, to_thread
from rich.console import Console
from typing_extensions import override

from tailer.errors import SinkError, SinkRejected
from tailer.events import ChangeBatch, ControlEvent, Gap, joined_rows
from tailer.sink import AtLeastOnceSink, refused
from tailer_sinks import read_options
from tailer_sinks.encoding.csv import CsvEncoder
from tailer_sinks.encoding.flat import AT_ONCE, FlatEncoder, encoded_ahead, event_line, slices
from tailer_sinks.encoding.terminal import TerminalView, sentence_of

__all__ = ["StdoutSink"]

_log = logging.getLogger(__name__)

Format = Literal["auto", "jsonl", "csv", "table"]
PIECE_BYTES: Final = 4096  # PIPE_BUF: a pipe that is ready at all takes this much without blocking
FILE_PIECE_BYTES: Final = 2**20
LOOK_UP_S: Final = 0.1
FEW_ROWS: Final = 16

# Several streams may share the output; their lines must not mix.
_turn: Final = threading.Lock()


class _Options(msgspec.Struct, frozen=True):
    format: Format = "auto"  # auto: a table on a terminal, else JSON Lines


class StdoutSink(AtLeastOnceSink):
    """An `AtLeastOnceSink` that writes to `stream`, standard output by default.

    `form`: "jsonl", one line per change (`tailer_sinks.encoding.flat`); "csv", the same with a heading before the first
    row and where the columns change (`tailer_sinks.encoding.csv`); "table" (`tailer_sinks.encoding.terminal`);
    "auto", a table if the stream is a terminal.
    """

    writes_together = True

    def __init__(self, name: str, form: Format = "auto", stream: TextIO | None = None) -> None:
        self.name = name
        self._form = form
        self._stream = sys.stdout if stream is None else stream
        self._encoder: FlatEncoder | CsvEncoder | None = None
        self._view: TerminalView | None = None
        self._failed: SinkRejected | None = None

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Read the option `format`: "auto" (default), "jsonl", "csv" or "table". Raises `ConfigError`."""
        return cls(name, read_options(name, options, _Options).format)

    @override
    async def refusals(self, schema: pa.Schema) -> Sequence[SinkError]:
        """Return refusals: a column has no form in lines."""
        return [] if self._table() is not None else refused(self._new_encoder, schema)

    async def write(self, batch: ChangeBatch) -> None:
        """Print rows. Raises `SinkRejected` if the output is closed or full, or a column has no JSON form.

        If cancelled, it may leave the last line incomplete.
        """
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """Print rows as `write` does. See `AtLeastOnceSink.write_all`."""
        if sum(map(len, batches)) > FEW_ROWS or sum(batch.size_bytes for batch in batches) > PIECE_BYTES:
            await to_thread.run_sync(self._print, batches)
            return
        await lowlevel.checkpoint()
        for text in self._texts(batches):
            if rest := self._send_at_once(text):
                await to_thread.run_sync(self._send, rest)

    async def announce(self, event: ControlEvent) -> None:
        """Print an event in a line of its own; with CSV a gap is logged. Raises and is cancelled as `write`."""
        await to_thread.run_sync(self._print_event, event)

    async def flush(self) -> None:
        """Print a table's counts of the version; nothing else is held back."""
        await to_thread.run_sync(self._print_counts)

    async def aclose(self) -> None:
        """Do nothing: the stream is not ours to close."""

    def _print(self, batches: Sequence[ChangeBatch]) -> None:
        for text in self._texts(batches):
            self._send(text)

    def _print_event(self, event: ControlEvent) -> None:
        view = self._table()
        if view is not None:
            self._send(self._encode(view.event(event)))
        elif self._form != "csv":
            self._send(memoryview(event_line(event)))
        elif isinstance(event, Gap):  # a heading says that columns changed, but CSV has no form for a gap
            _log.warning("%s: %s", self.name, sentence_of(event))

    def _print_counts(self) -> None:
        if self._view is not None:
            self._send(self._encode(self._view.counts()))

    def _texts(self, batches: Sequence[ChangeBatch]) -> Iterator[memoryview]:
        """Yield the texts of the batches, encoded together.

        If a row has none, yield those of the batches before it. If they have several versions, yield none: the pipeline
        hands them over again, one at a time.
        """
        view, has_several = self._table(), batches[0].version != batches[-1].version
        if view is not None:
            if has_several:
                view.check(joined_rows(batches))
            for _, own in groupby(batches, attrgetter("version")):
                yield from map(self._encode, view.rows(list(own)))
        elif len(batches) == 1:
            yield from self._lines(batches)
        else:
            before = self._encoder
            try:
                yield from list(self._lines(batches))
            except SinkRejected:
                self._encoder = before  # a heading was made, and not printed
                if has_several:
                    raise
                for batch in batches:
                    yield from self._lines([batch])

    def _lines(self, batches: Sequence[ChangeBatch]) -> Iterator[memoryview]:
        joined = joined_rows(batches)
        if self._encoder is None or not self._encoder.schema.equals(joined.schema):
            self._encoder = self._new_encoder(joined.schema)
        at_once = 1 if self._form == "csv" else AT_ONCE  # the first slice has the heading
        for lines in encoded_ahead(self._encoder.lines, slices(joined), at_once):
            yield memoryview(lines)

    def _new_encoder(self, schema: pa.Schema) -> FlatEncoder | CsvEncoder:
        return (CsvEncoder if self._form == "csv" else FlatEncoder)(self.name, schema)

    def _table(self) -> TerminalView | None:
        """Return the table view if that is the format."""
        if self._view is None and (self._form == "table" or (self._form == "auto" and self._stream.isatty())):
            self._view = TerminalView(self.name, Console(file=self._stream, highlight=False, markup=False))
        return self._view

    def _encode(self, text: str) -> memoryview:
        return memoryview(text.encode(self._stream.encoding or "utf-8", "replace"))

    def _send_at_once(self, text: memoryview) -> memoryview:
        """Write the part of `text` that needs no waiting. Return the rest."""
        if len(text) > PIECE_BYTES or not _turn.acquire(blocking=False):
            return text
        try:
            with self._translated():
                self._stream.flush()
                handle = self._stream.fileno()
                mode = os.fstat(handle).st_mode
                ready = select.poll()
                ready.register(handle, select.POLLOUT)
                takes_all = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
                return text[os.write(handle, text) :] if takes_all and ready.poll(0) else text
        except (io.UnsupportedOperation, BlockingIOError):
            return text
        finally:
            _turn.release()

    def _send(self, text: memoryview) -> None:
        while not _turn.acquire(timeout=LOOK_UP_S):
            from_thread.check_cancelled()
        try:
            with self._translated():
                self._stream.flush()
                try:
                    _send_in_pieces(self._stream.fileno(), text)
                except io.UnsupportedOperation:  # a stream in memory
                    self._stream.buffer.write(text)
        finally:
            _turn.release()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the output. After one, refuse everything: the last line may be incomplete."""
        if self._failed is not None:
            raise self._failed
        try:
            yield
        except (io.UnsupportedOperation, BlockingIOError):
            raise
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                self._failed = SinkRejected(self.name, "standard output was closed")
            else:
                remedy = "Run it again with a writable output; what was printed may be incomplete."
                reason = "is closed" if error.errno == errno.EBADF else error.strerror
                self._failed = SinkRejected(self.name, f"standard output: {reason}", remedy)
            raise self._failed from error


def _send_in_pieces(handle: int, text: memoryview) -> None:
    """Write all of `text`, checking for cancellation while the reader is slow."""
    piece_bytes = FILE_PIECE_BYTES if stat.S_ISREG(os.fstat(handle).st_mode) else PIECE_BYTES
    ready = select.poll()
    ready.register(handle, select.POLLOUT)
    while text:
        from_thread.check_cancelled()
        if ready.poll(LOOK_UP_S * 1000):
            try:
                text = text[os.write(handle, text[:piece_bytes]) :]
            except BlockingIOError:
                continue  # another process made the pipe non-blocking and filled it

"""The `stdout` sink on real pipes and terminals: whole lines, and a reader that is gone, slow, or a terminal."""

import errno
import fcntl
import io
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

import anyio
import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, Gap
from tailer_sinks.encoding import row_texts
from tailer_sinks.stdout import StdoutSink
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.announcements import change, gap, wider
from tailer_sinks.testing.rows import numbered

pytestmark = pytest.mark.anyio


class Pipe:
    """A pipe, written as a text stream and read by a thread."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.reader = os.fdopen(reader, "rb")
        self.writer = os.fdopen(writer, "w", encoding="utf-8")
        self.content = b""
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        self.content = self.reader.read()

    def read(self) -> None:
        """Start reading."""
        self._thread.start()

    async def fill(self) -> None:
        """Wait until the pipe takes no more, because nobody reads."""
        room = select.poll()
        room.register(self.writer, select.POLLOUT)
        while room.poll(0):  # noqa: ASYNC110 - a pipe tells nobody
            await anyio.sleep(0.01)

    def finish(self) -> bytes:
        """Return everything that was written."""
        self.writer.close()
        if self._thread.ident is None:
            self._read()
        else:
            self._thread.join()
        self.reader.close()
        return self.content


@contextmanager
def terminal(columns: int) -> Iterator[tuple[TextIO, io.BufferedReader]]:
    """Open a terminal of that width; yield its two ends: for the program, and for reading the display."""
    screen, device = pty.openpty()
    with os.fdopen(device, "w") as stream, os.fdopen(screen, "rb") as shown:
        fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        yield stream, shown


async def test_a_line_per_change() -> None:
    pipe = Pipe()
    pipe.read()
    sink = StdoutSink("stdout", "auto", pipe.writer)
    batches = [numbered(1, rows=20_000), change_batch(2, {"other": pa.array(["é\n", None])}), numbered(3)]
    for batch in batches:
        await sink.write(batch)
    await sink.flush()
    await sink.aclose()
    lines = pipe.finish().decode().splitlines()
    assert lines[:100] == list(row_texts(batches[0].slice(0, 100).rows))
    assert [json.loads(line)["_commit_version"] for line in lines] == [1] * 20_000 + [2] * 2 + [3] * 3
    assert lines[20_000].startswith('{"other":"é\\n","_change_type":"insert"')


async def test_events_are_lines_too() -> None:
    pipe = Pipe()
    pipe.read()
    sink = StdoutSink("stdout", "auto", pipe.writer)
    for item in (numbered(1), change(2), wider(2), gap(3, 5, snapshot=True)):
        await (sink.write(item) if isinstance(item, ChangeBatch) else sink.announce(item))
    lines = pipe.finish().decode().splitlines()
    assert [json.loads(line)["_change_type"] for line in lines] == [
        *["insert"] * 3,
        "schema_change",
        *["insert"] * 3,
        "gap",
    ]
    assert list(json.loads(lines[3])) == ["_change_type", "_commit_version", "_commit_timestamp", "changes"]
    assert lines[-1].endswith('"first_version":3,"reason":"the log was cleaned up","snapshot":true}')


async def test_a_closed_reader_has_its_own_error() -> None:
    pipe = Pipe()
    pipe.reader.close()
    with pytest.raises(SinkRejected, match="standard output was closed") as raised:
        await StdoutSink("stdout", "jsonl", pipe.writer).write(numbered(1))
    assert isinstance(raised.value.__cause__, BrokenPipeError)
    pipe.writer.close()


async def test_a_full_disk_is_no_reader_that_is_gone() -> None:
    with os.fdopen(os.open("/dev/full", os.O_WRONLY), "w") as full:
        with pytest.raises(SinkRejected, match="No space left") as raised:
            await StdoutSink("stdout", "jsonl", full).write(numbered(1))
        assert not isinstance(raised.value.__cause__, BrokenPipeError)
        assert "may be incomplete" in raised.value.hint


async def test_an_output_that_failed_gets_nothing_more() -> None:
    """Its last line may be incomplete."""
    pipe = Pipe()
    sink = StdoutSink("stdout", "jsonl", pipe.writer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailer_sinks.stdout.os.write", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        with pytest.raises(SinkRejected, match="standard output: broken"):
            await sink.write(numbered(1))
    with pytest.raises(SinkRejected, match="standard output: broken"):
        await sink.write(numbered(1))
    assert pipe.finish() == b""


@pytest.mark.parametrize("form", ["jsonl", "table"])
async def test_several_versions_with_a_row_without_a_text_are_not_printed(form: Literal["jsonl", "table"]) -> None:
    """The pipeline hands them over again, one at a time."""
    pipe = Pipe()
    pipe.read()
    sink = StdoutSink("stdout", form, pipe.writer)
    good, bad = (
        change_batch(version, {"text": pa.array([text]).view(pa.string())})
        for version, text in enumerate((b"fine", b"\xff"))
    )
    with pytest.raises(SinkRejected):
        await sink.write_all([good, bad])
    await sink.write(good)
    with pytest.raises(SinkRejected):
        await sink.write(bad)
    assert pipe.finish().count(b"fine") == 1


async def test_a_reader_that_does_not_read_does_not_hold_up_cancellation() -> None:
    pipe = Pipe()
    sink = StdoutSink("stdout", "jsonl", pipe.writer)
    async with anyio.create_task_group() as group:
        group.start_soon(sink.write, numbered(1, rows=10_000))
        await pipe.fill()
        group.cancel_scope.cancel()
    assert 4096 <= len(pipe.finish()) < 1_000_000


async def test_few_rows_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        pytest.fail("a thread was asked for")

    monkeypatch.setattr("tailer_sinks.stdout.to_thread.run_sync", refuse)
    pipe = Pipe()
    sink = StdoutSink("stdout", "jsonl", pipe.writer)
    for version in range(50):
        await sink.write(numbered(version))
    assert [json.loads(line)["_commit_version"] for line in pipe.finish().splitlines()][::3] == list(range(50))


async def test_few_rows_do_not_hold_up_cancellation_either() -> None:
    pipe = Pipe()
    sink = StdoutSink("stdout", "jsonl", pipe.writer)

    async def write_on() -> None:
        while True:
            await sink.write(numbered(1))

    async with anyio.create_task_group() as group:
        group.start_soon(write_on)
        await pipe.fill()
        group.cancel_scope.cancel()
    assert len(pipe.finish()) > 4096


async def test_a_closed_reader_is_noticed_with_few_rows() -> None:
    pipe = Pipe()
    pipe.reader.close()
    with pytest.raises(SinkRejected, match="standard output was closed"):
        await StdoutSink("stdout", "jsonl", pipe.writer).write(numbered(1, rows=1))
    pipe.writer.close()


async def test_waiting_for_the_output_can_be_cancelled() -> None:
    pipe = Pipe()
    async with anyio.create_task_group() as group:
        group.start_soon(StdoutSink("first", "jsonl", pipe.writer).write, numbered(1, rows=10_000))
        await pipe.fill()
        with anyio.move_on_after(0.3) as scope:
            await StdoutSink("second", "jsonl", pipe.writer).write(numbered(2))
        assert scope.cancelled_caught
        pipe.read()
    assert {json.loads(line)["_commit_version"] for line in pipe.finish().splitlines()} == {1}


async def test_lines_of_two_streams_do_not_mix() -> None:
    pipe = Pipe()
    pipe.read()
    async with anyio.create_task_group() as group:
        for version in range(4):
            sink = StdoutSink("stdout", "jsonl", pipe.writer)
            group.start_soon(sink.write, numbered(version, rows=3000))
    versions = [json.loads(line)["_commit_version"] for line in pipe.finish().splitlines()]
    assert sorted(versions) == sorted([0, 1, 2, 3] * 3000)


async def test_a_pipe_made_non_blocking_by_another_process() -> None:
    pipe = Pipe()
    os.set_blocking(pipe.writer.fileno(), False)
    async with anyio.create_task_group() as group:
        group.start_soon(StdoutSink("stdout", "jsonl", pipe.writer).write, numbered(1, rows=10_000))
        await pipe.fill()
        pipe.read()
    assert pipe.finish().count(b"\n") == 10_000


def shown_until(shown: io.BufferedReader, words: str) -> str:
    """Read from the terminal until `words` are shown, because text may arrive in pieces."""
    text = b""
    while words.encode() not in text:
        text += shown.read1()
    return text.decode()


async def test_csv_has_a_heading_where_columns_change() -> None:
    pipe = Pipe()
    pipe.read()
    sink = StdoutSink("stdout", "csv", pipe.writer)
    for batch in (numbered(1, rows=20_000), numbered(2), change_batch(3, {"other": pa.array(["a,b"])})):
        await sink.write(batch)
    await sink.announce(change(3))
    await sink.flush()
    lines = pipe.finish().decode().splitlines()
    headings = [place for place, line in enumerate(lines) if line.endswith(",_commit_timestamp")]
    assert (headings, len(lines)) == ([0, 20_004], 20_006)
    assert lines[-1].startswith('"a,b",insert,3,')


async def test_csv_has_no_line_for_a_gap(caplog: pytest.LogCaptureFixture) -> None:
    pipe = Pipe()
    await StdoutSink("stdout", "csv", pipe.writer).announce(Gap("t", 3, 5, 0, "the log was cleaned up", snapshot=False))
    assert pipe.finish() == b""
    assert "changes of versions 3 to 5 are lost" in caplog.text


async def test_a_terminal_gets_a_table() -> None:
    with terminal(columns=60) as (stream, shown):
        sink = StdoutSink("stdout", "auto", stream)
        await sink.write(numbered(7, rows=2))
        await sink.flush()
        text = shown_until(shown, "inserted")
        await sink.announce(change(8))
        announced = shown_until(shown, "was added")
    assert "version 7" in text
    assert "\x1b[2m   version 8: column extra was added" in announced
    assert "\x1b[32m+" in text
    assert "_change_type" not in text


async def test_a_stream_in_memory() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    await StdoutSink("stdout", "auto", stream).write(numbered(7, rows=2))
    assert isinstance(stream.buffer, io.BytesIO)
    assert stream.buffer.getvalue().count(b"\n") == 2


@pytest.mark.parametrize("form", ["jsonl", "table"])
def test_head_ends_us(form: str) -> None:
    program = (
        "import sys, anyio\n"
        "from tailer_sinks.stdout import StdoutSink\n"
        "from tailer_sinks.testing.rows import numbered\n"
        "from tailer.errors import SinkRejected\n"
        "async def main():\n"
        "    sink = StdoutSink('stdout', sys.argv[1])\n"
        "    while True:\n"
        "        await sink.write(numbered(1, rows=1000))\n"
        "try:\n"
        "    anyio.run(main)\n"
        "except SinkRejected as error:\n"
        "    sys.exit(7 if isinstance(error.__cause__, BrokenPipeError) else 1)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, form], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with writer:
        head = subprocess.run(["head", "-n", "3"], stdin=writer.stdout, check=True, capture_output=True)
        assert writer.stdout is not None
        assert writer.stderr is not None
        writer.stdout.close()
        assert (writer.wait(300), writer.stderr.read()) == (7, b"")
    assert head.stdout.count(b"\n") == 3


@pytest.mark.parametrize("files", [4, 500])
@pytest.mark.parametrize("form", ["jsonl", "table"])
async def test_small_batches_together(form: Literal["jsonl", "table"], files: int) -> None:
    batches = [numbered(1, rows=1 + task % 2, task=task) for task in range(files)]
    texts = []
    for together in (False, True):
        pipe = Pipe()
        pipe.read()
        sink = StdoutSink("stdout", form, pipe.writer)
        await sink.write(numbered(1, rows=3, task=files))  # a table's columns are wide enough then
        if together:
            await sink.write_all(batches)
        else:
            for batch in batches:
                await sink.write(batch)
        await sink.flush()
        texts.append(pipe.finish().decode().splitlines())
    assert texts[0] == texts[1]
    assert len(texts[0]) >= 3 + sum(map(len, batches))


@pytest.mark.parametrize("files", [4, 500])
async def test_rows_before_one_that_has_no_text_are_printed(files: int) -> None:
    damaged = pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff"))
    names = [damaged if task == 3 else pa.array(["good"]) for task in range(files)]
    pipe = Pipe()
    sink = StdoutSink("stdout", "jsonl", pipe.writer)
    with pytest.raises(SinkRejected, match="not UTF-8"):
        await sink.write_all([change_batch(1, {"name": name}, task) for task, name in enumerate(names)])
    assert pipe.finish().count(b"good") == 3

"""The `files` sink: change rows as JSON Lines or Parquet files, exactly once, in one directory per stream.

A transaction is one file, named by the versions it holds; what the names promise and how they come into being is in
`sinks.files_directory`. A reader sees a file whole or not at all, and may process files in the order of their names.

Rows stream into a hidden file as they come, so memory is bounded by a batch (JSON Lines) or a row group (Parquet).
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from os import fsync
from pathlib import Path
from typing import IO, Any, Final, Literal, Protocol, Self

import msgspec
import pyarrow as pa
from anyio import CancelScope, to_thread
from pyarrow import parquet

from sinks import read_options
from sinks.encoding.flat import FlatEncoder, slices
from sinks.files_directory import StreamDirectory, directory_name, translated
from tailer.errors import ConfigError, SinkFenced, SinkRejected
from tailer.events import ChangeBatch
from tailer.plan import Position
from tailer.sink import Progress

__all__ = ["FilesSink"]

Format = Literal["jsonl", "parquet"]
WRITE_BUFFER_BYTES: Final = 1 << 20
ROW_GROUP_ROWS: Final = 128 << 10
ROW_GROUP_BYTES: Final = 32 << 20


class _Options(msgspec.Struct, frozen=True):
    path: str
    format: Format = "jsonl"


class FilesSink:
    """A `Sink` that writes to directories `<path>/<pipeline>/<table id>`.

    An instance holds the directories it has written to until `aclose`; for another instance they are closed.
    """

    splits_versions: Final = False

    def __init__(self, name: str, path: Path, form: Format = "jsonl") -> None:
        self.name = name
        self._path = path
        self._form = form
        self._streams: dict[str, StreamDirectory] = {}
        self._seen: dict[str, int | None] = {}

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Options: `path`, a local directory; `format`, "jsonl" (default) or "parquet". No I/O.

        Raises `ConfigError`.
        """
        given = read_options(name, options, _Options)
        if not given.path or "://" in given.path:
            raise ConfigError(f"{name}.path", f"{given.path!r} is not a local directory", "Give a path such as out.")
        return cls(name, Path(given.path), given.format)

    async def progress(self, app_id: str) -> Progress | None:
        """The last version in the stream's directory, by the names that are there.

        Raises `SinkRejected` where they have a gap or an overlap.
        """
        end = await to_thread.run_sync(self._stream(app_id).read_end)
        self._seen[app_id] = end
        return None if end is None else Progress(app_id, Position.end(end))

    async def reset(self, progress: Progress) -> None:
        """Declare a version to go on with, in a file of its own.

        Raises `SinkRejected` where files hold later versions already: they would be written a second time.
        """
        end = _closed(self.name, progress)
        stream = self._stream(progress.app_id)
        await to_thread.run_sync(stream.lock)
        await to_thread.run_sync(stream.put_reset, end)
        self._seen[progress.app_id] = end

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator["_FilesTransaction"]:
        """A transaction on top of what this instance last saw.

        Entering raises `SinkFenced` where another instance holds the directory or has committed since.
        """
        stream = self._stream(app_id)
        await to_thread.run_sync(stream.lock)
        end = await to_thread.run_sync(stream.end)
        if self._seen.setdefault(app_id, end) != end:
            raise SinkFenced(self.name, f"{stream.path} ends with version {end} now")
        file = _HiddenFile(self.name, stream, schema, self._form)
        try:
            yield _FilesTransaction(self.name, stream, file, end, self._note)
        except BaseException:
            stream.forget()
            raise
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(file.remove)

    async def aclose(self) -> None:
        """Let go of the directories."""
        for stream in self._streams.values():
            stream.unlock()

    def _stream(self, app_id: str) -> StreamDirectory:
        if app_id not in self._streams:
            path = self._path.joinpath(*map(directory_name, app_id.split("/")))
            self._streams[app_id] = StreamDirectory(self.name, path)
        return self._streams[app_id]

    def _note(self, app_id: str, end: int) -> None:
        self._seen[app_id] = end


class _FilesTransaction:
    """Rows on their way into one file."""

    def __init__(
        self,
        name: str,
        stream: StreamDirectory,
        file: "_HiddenFile",
        end: int | None,
        note: Callable[[str, int], None],
    ) -> None:
        self._name = name
        self._stream = stream
        self._file = file
        self._end = end
        self._note = note
        self._versions: tuple[int, int] | None = None

    async def write(self, batch: ChangeBatch) -> None:
        first = batch.version if self._versions is None else self._versions[0]
        self._versions = (first, batch.version)
        await to_thread.run_sync(self._file.write, batch.rows)

    async def commit(self, progress: Progress) -> None:
        last = _closed(self._name, progress)
        first = self._first(last)
        end = await to_thread.run_sync(self._stream.end)
        if end != self._end:
            raise SinkFenced(self._name, f"{self._stream.path} ends with version {end} now")
        if first is None:
            # Nothing was ever delivered and nothing is now: no file would be true, the position alone is.
            await to_thread.run_sync(self._stream.put_reset, last)
        else:
            await to_thread.run_sync(self._file.publish, first, last)
        self._note(progress.app_id, last)

    def _first(self, last: int) -> int | None:
        """The version the file begins with: what comes after the file before it, or that of the very first row."""
        written = self._versions or (last, last)
        first = written[0] if self._end is None else self._end + 1
        if not first <= written[0] <= written[1] <= last:
            reason = f"rows of versions {written[0]} to {written[1]} do not belong between {first} and {last}"
            raise SinkRejected(self._name, reason)
        return None if self._end is None and self._versions is None else first


def _closed(name: str, progress: Progress) -> int:
    if not progress.position.closes_version:
        raise SinkRejected(name, f"files hold whole versions, and {progress.position} is inside of one")
    return progress.position.version


class _Rows(Protocol):
    """Rows on their way into a file, in some format."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, now or later."""
        ...

    def finish(self) -> None:
        """Leave the file complete."""
        ...

    def drop(self) -> None:
        """Let go of everything, with the file complete or not."""
        ...


class _HiddenFile:
    """The file of a transaction before it has a name. Blocking: for worker threads."""

    def __init__(self, name: str, stream: StreamDirectory, schema: pa.Schema, form: Format) -> None:
        self._name = name
        self._stream = stream
        self._schema = schema
        self._form = form
        self._path = stream.hidden_path()
        self._file: IO[bytes] | None = None
        self._rows: _Rows | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows. Raises `SinkRejected` for other columns than were announced, or a type without a form."""
        if not rows.schema.equals(self._schema):
            raise SinkRejected(self._name, f"rows of another schema than was announced: {rows.schema.names}")
        with translated(self._name, self._stream.path):
            self._open().write(rows)

    def publish(self, first: int, last: int) -> None:
        """Finish, sync and name the file. Raises as `StreamDirectory.publish`."""
        with translated(self._name, self._stream.path):
            self._open().finish()
            assert self._file is not None
            self._file.flush()
            fsync(self._file.fileno())
        self._stream.publish(self._path, first, last, self._form)

    def remove(self) -> None:
        """Take the hidden name away. What has not been published is gone then."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        if self._rows is not None:
            self._rows.drop()
        if self._file is not None:
            with suppress(OSError):  # of a disk so full that the last bytes do not fit
                self._file.close()

    def _open(self) -> _Rows:
        if self._rows is None:
            self._file = self._path.open("xb", buffering=WRITE_BUFFER_BYTES)
            rows = _JsonLines if self._form == "jsonl" else _Parquet
            self._rows = rows(self._name, self._file, self._schema)
        return self._rows


class _JsonLines:
    def __init__(self, name: str, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._encoder = FlatEncoder(name, schema)

    def write(self, rows: pa.RecordBatch) -> None:
        for part in slices(rows):
            self._file.write(self._encoder.lines(part))

    def finish(self) -> None:
        """Every line is complete as it is."""

    def drop(self) -> None:
        """Nothing is held."""


class _Parquet:
    """Batches are put together to row groups of a size that can be read well."""

    def __init__(self, name: str, file: IO[bytes], schema: pa.Schema) -> None:
        self._name = name
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        with self._named():
            self._writer = parquet.ParquetWriter(file, schema, compression="zstd")

    def write(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._held_rows += len(rows)
        self._held_bytes += rows.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def drop(self) -> None:
        self._batches.clear()
        with suppress(OSError):
            self._writer.close()  # or the library does, when it is collected
        self._writer.is_open = False

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            with self._named():
                self._writer.write_table(table, max(1, len(table)))
            self._batches.clear()
            self._held_rows = self._held_bytes = 0

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except pa.ArrowNotImplementedError as error:
            raise SinkRejected(self._name, f"no Parquet form: {error}", "Leave the column out.") from error

"""The `files` sink: change rows as JSON Lines or Parquet files, exactly once, in one directory per stream.

A transaction is one file, named by the versions it holds. `tailer_sinks.files.directory` describes the names and how
files appear on this machine, `tailer_sinks.files.in_store` the same for object stores. A reader sees a file whole or
not at all, and may process files in the order of their names. A version is in one file, except that the snapshot of a
large table may be in several: each closes its transaction, so an interrupted snapshot continues after the last of them.

Events are between the rows: as lines in JSON Lines. In Parquet a gap is a row, and a schema change shows in the schema
of the next file, or of this one if rows of both share it.

Rows stream into a hidden file as they come (`tailer_sinks.files.formats`), so memory is bounded by a batch (JSON Lines)
or a row group (Parquet).
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self

import pyarrow as pa
from anyio import CancelScope, to_thread
from typing_extensions import override

from tailer.errors import ConfigError, SinkError, SinkFenced, SinkRejected
from tailer.events import ChangeBatch, ControlEvent, Gap, joined_rows
from tailer.plan import Position
from tailer.sink import Heartbeats, Progress, Sink, SinkTransaction, refused
from tailer.stores.location import is_local, parse_location
from tailer.stores.stores import Stores
from tailer_sinks import read_options
from tailer_sinks.encoding.values import FORMS, JsonForms
from tailer_sinks.encoding.variants import VariantForm
from tailer_sinks.files.directory import LocalFolders
from tailer_sinks.files.formats import Draft, JsonLines, Parquet
from tailer_sinks.files.in_store import StoreFolders
from tailer_sinks.files.port import StreamFolder, place
from tailer_sinks.options import Int64Option, int64_faults, path_faults

__all__ = ["FilesSink", "Format"]


Format = Literal["jsonl", "parquet"]


class _Options(Int64Option, frozen=True, kw_only=True):
    path: str  # folder or URI; files go to PATH/PIPELINE/TABLE_ID
    format: Format = "jsonl"  # of the files
    variant: VariantForm | None = None  # form of Variants; default: JSON in JSON Lines, else encoded
    adopt: bool = False  # allow a folder that holds other files


def _check(name: str, options: _Options) -> Iterator[ConfigError]:
    remedy = 'Let readers find the value in the rows, or use kind = "delta" with partition_by.'
    yield from path_faults(name, options.path, remedy)
    yield from int64_faults(name, options, is_typed=options.format == "parquet")


class FilesSink(Sink):
    """A `Sink` that writes to folders `<target>/<pipeline>/<table id>`.

    `target`: a path of this machine, a location in a store, or the folders. An instance locks the directories it has
    written to until `aclose`. `adopt`: allow a folder with other files at the start. `variant`: the form of Variants;
    None: the format's own. `forms`: of numbers in JSON Lines.
    """

    splits_versions: Final = False
    splits_snapshots: Final = True
    writes_to_stores = True

    def __init__(
        self,
        name: str,
        target: Path | str | LocalFolders | StoreFolders,
        form: Format = "jsonl",
        *,
        adopt: bool = False,
        variant: VariantForm | None = None,
        forms: JsonForms = FORMS,
    ) -> None:
        self.name = name
        self._forms = forms
        self._variant = variant
        self._adopt = adopt
        self._target = LocalFolders(name, target) if isinstance(target, Path) else target
        self._form = form
        self._streams: dict[str, StreamFolder] = {}
        self._seen: dict[str, Position | None] = {}
        if isinstance(self._target, str) and is_local(self._target):
            self._target = LocalFolders(name, Path(self._target))

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Read the options; no I/O. Raises `ConfigError`."""
        given = read_options(name, options, _Options, _check)
        target = parse_location(given.path, Path(), f"{name}.path")
        forms = JsonForms(int64=given.int64)
        return cls(name, target, given.format, adopt=given.adopt, variant=given.variant, forms=forms)

    @override
    def use_stores(self, stores: Stores) -> None:
        if isinstance(location := self._target, str):
            store = stores.open_uploads(location)
            self._target = StoreFolders(self.name, store, partial(stores.open_parents, location))

    async def progress(self, app_id: str) -> Progress | None:
        """Read the end of the stream's directory from the names in it.

        Raises `SinkRejected` if they have a gap or an overlap, or are gone, and for a folder that is not ours.
        """
        stream = self._stream(app_id)
        end = await stream.read_end()
        if end is None:
            if (left := self._seen.get(app_id)) is not None:
                raise stream.disappeared(f"this instance left it at {place(left)}, but it is empty")
            await stream.check_free(adopt=self._adopt)
        self._seen[app_id] = end
        return None if end is None else Progress(app_id, end)

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether the pipeline's directory has a stream in it. Raises `SinkUnavailable`, `SinkRejected`."""
        return await self._folders().has_streams(pipeline)

    @override
    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        """Return refusals: a column has no form in the files."""
        return await to_thread.run_sync(refused, self._draft(self._stream(app_id), schema).check)

    async def reset(self, progress: Progress) -> None:
        """Set the version to continue with, in a file of its own.

        Raises `SinkRejected` if files already hold later rows, which would be duplicated, and for a position inside a
        version.
        """
        end = progress.position
        if not end.closes_version:
            raise SinkRejected(self.name, f"only whole versions can count as delivered, and {end} is inside one")
        stream = self._stream(progress.app_id)
        await stream.check_free(adopt=self._adopt)
        await stream.open()
        draft = self._draft(stream, pa.schema([]))
        try:
            await stream.put_reset(draft, end)
        finally:
            await to_thread.run_sync(draft.remove)
        self._seen[progress.app_id] = end

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator["_FilesTransaction"]:
        """Begin a transaction on top of the progress that this instance saw last.

        Entering raises `SinkFenced` if another instance holds the directory or has committed since.
        """
        stream = self._stream(app_id)
        await stream.check_free(adopt=self._adopt)
        await stream.open()
        end = await stream.end()
        if self._seen.setdefault(app_id, end) != end:
            raise _moved(self.name, stream, end)
        draft = self._draft(stream, schema)
        try:
            yield _FilesTransaction(self.name, stream, draft, end, self._note)
        except BaseException:
            stream.forget()
            raise
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(draft.remove)

    @override
    def open_heartbeats(self, pipeline: str, timeout_s: float) -> Heartbeats | None:
        """None for a folder of this machine, which a frozen instance keeps locked."""
        folders = self._folders()
        return folders.open_heartbeats(pipeline) if isinstance(folders, StoreFolders) else None

    async def aclose(self) -> None:
        """Release the directories."""
        for stream in self._streams.values():
            stream.close()

    def _stream(self, app_id: str) -> StreamFolder:
        if app_id not in self._streams:
            self._streams[app_id] = self._folders().stream(app_id)
        return self._streams[app_id]

    def _folders(self) -> LocalFolders | StoreFolders:
        if isinstance(self._target, str):
            self.use_stores(Stores())
        assert not isinstance(self._target, str)
        return self._target

    def _draft(self, stream: StreamFolder, schema: pa.Schema) -> Draft:
        if self._form == "jsonl":
            variant = None if self._variant == "json" else self._variant
            return JsonLines(self.name, stream.new_file, schema, variant, self._forms)
        return Parquet(self.name, stream.new_file, schema, None if self._variant == "encoded" else self._variant)

    def _note(self, app_id: str, end: Position) -> None:
        self._seen[app_id] = end


class _FilesTransaction(SinkTransaction):
    """Rows on their way into one file."""

    writes_together = True

    def __init__(
        self,
        name: str,
        stream: StreamFolder,
        draft: Draft,
        end: Position | None,
        note: Callable[[str, Position], None],
    ) -> None:
        self._name = name
        self._stream = stream
        self._draft = draft
        self._end = end
        self._note = note
        self._versions: tuple[int, int] | None = None

    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        rows = joined_rows(batches)
        if not rows.schema.equals(self._draft.schema):
            raise SinkRejected(self._name, f"rows of another schema than was announced: {rows.schema.names}")
        self._hold(batches[0].version, batches[-1].version)
        await to_thread.run_sync(self._write, rows)

    async def announce(self, event: ControlEvent) -> None:
        self._hold(event.first_version if isinstance(event, Gap) else event.version, event.version)
        await to_thread.run_sync(self._announce, event)

    async def commit(self, progress: Progress) -> None:
        position = progress.position
        if not (position.closes_version or position.in_snapshot):
            raise SinkRejected(self._name, f"files hold whole versions, and {position} is inside one")
        after = self._after(position)
        end = await self._stream.end()
        if end != self._end:
            raise _moved(self._name, self._stream, end)
        if after is None:
            # Without any row now or before, only the position can be recorded.
            await self._stream.put_reset(self._draft, position)
        else:
            await self._stream.publish(self._draft, after, position)
        self._note(progress.app_id, position)

    def _hold(self, first: int, last: int) -> None:
        self._versions = (first if self._versions is None else self._versions[0], last)

    def _after(self, end: Position) -> Position | None:
        """Return the beginning of the file: the end of the previous file, or the version before the very first row.

        None: there is neither.
        """
        written = self._versions or (end.version, end.version)
        after = Position.end(written[0] - 1) if self._end is None else self._end
        if not (after < end and after < Position.end(written[0]) and written[1] <= end.version):
            reason = (
                f"rows of versions {written[0]} to {written[1]} do not belong between {place(after)} and {place(end)}"
            )
            raise SinkRejected(self._name, reason)
        nothing = self._end is None and self._versions is None and end.closes_version
        return None if nothing else after

    def _write(self, rows: pa.RecordBatch) -> None:
        with self._stream.drafting():
            self._draft.write(rows)

    def _announce(self, event: ControlEvent) -> None:
        with self._stream.drafting():
            self._draft.announce(event)


def _moved(name: str, stream: StreamFolder, end: Position | None) -> SinkFenced | SinkRejected:
    """Make the error for a stream that does not end where this instance left it."""
    if end is None:
        return stream.disappeared("this instance has delivered rows to it, but it is empty")
    where = end.version if end.closes_version else place(end)
    return SinkFenced(name, f"{stream.location} ends with version {where} now")

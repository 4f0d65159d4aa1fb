"""The storage of the `files` sink in an object store.

    00000000000000000000-first.jsonl    the first file of the stream, whichever version it begins with
    00000000000000000007.jsonl          everything after version 6, up to the beginning of the next file
    00000000000000000007.00000000000000000003.00000000000000000099.jsonl
                                        what comes after row 99 of file number 3 in the snapshot of version 7

A store has no lock, so names must exclude a second writer (invariant 6): two instances that continue from the same
file must want to create the same object. So a name has only the beginning of its file, which is the end of the one
before. On disk it has both, and two instances with different amounts of rows would both succeed. The first file has a
name of its own, because instances that start with `latest` may begin with different versions. Names of two formats
would not exclude each other, so the object `.format` is created before the first file and holds the stream's suffix.

Metadata of the object hold the rest:

    lake-tailer-begin     the beginning, also of the first file
    lake-tailer-next      the beginning of the next file, so its name without the suffix; it is the progress
    lake-tailer-reset     `true`: a file without rows, by which an operator moved the progress
    lake-tailer-writer    the instance that wrote the file

They appear with the object, in one request that never replaces one (`tailer.stores.uploads`). So a reader sees rows and
progress together, or neither (invariant 1). Progress is that of the last file in the listing. The one before it must
lead to it, otherwise files are missing or contradict each other. A listing may be behind: then progress is that of the
last file that this instance knows, if that still exists.

Rows wait in a temporary file of this machine until the commit. Consumers may remove files from the front, once they are
a day old: a writer that was suspended must still find the file that excludes it. The last one must stay.
"""

import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from anyio import CancelScope, to_thread
from typing_extensions import override

from tailer.errors import (
    CommitUnknown,
    ObjectAlreadyExists,
    ObjectNotFound,
    SinkFenced,
    SinkRejected,
    SinkUnavailable,
    StorageError,
    StorageRefused,
)
from tailer.formats.delta.folders import table_in_stores
from tailer.plan import Position
from tailer.sink import Heartbeats
from tailer.stores.uploads import UploadStore
from tailer_sinks.access import store_errors
from tailer_sinks.files.formats import Draft, HiddenFile
from tailer_sinks.files.port import PLACE, StreamFolder, after_place, beginning, directory_name, in_table, not_empty
from tailer_sinks.heartbeats import StoreHeartbeats, heartbeat_name, is_heartbeat

__all__ = ["StoreFolders"]

FIRST: Final = f"{0:020d}-first"
FORMAT: Final = ".format"
BEGIN: Final = "lake-tailer-begin"
NEXT: Final = "lake-tailer-next"
RESET: Final = "lake-tailer-reset"
WRITER: Final = "lake-tailer-writer"
DATA_FILE: Final = re.compile(rf"({re.escape(FIRST)}|{PLACE})\.(?:jsonl|parquet)")
# A file of ours below the folder that the user names.
_IN_STREAM: Final = re.compile(rf"[^/]+/[^/]+/{DATA_FILE.pattern}")


Above = Callable[[], Sequence[UploadStore]]


class StoreFolders:
    """The folders of streams in `store`; `sink`: the sink's name in errors.

    `above`: opens the folders around `store`, where no Delta table may be.
    """

    def __init__(self, sink: str, store: UploadStore, above: Above = tuple) -> None:
        self._sink = sink
        self._store = store
        self._above = above
        self.writer: Final = secrets.token_hex(8)  # the id of this instance

    def stream(self, app_id: str) -> "StoreFolder":
        """Return the folder of a stream; no I/O."""
        return StoreFolder(self._sink, self._store, "/".join(map(directory_name, app_id.split("/"))), self)

    async def has_streams(self, pipeline: str) -> bool:
        """Return whether anything was ever delivered to a stream of the pipeline."""
        with store_errors(self._sink):
            return await _has_streams(self._store, directory_name(pipeline))

    def open_heartbeats(self, pipeline: str) -> Heartbeats:
        """Open the place for the heartbeats of a pipeline, beside the folders of pipelines; no I/O."""
        return StoreHeartbeats(self._sink, self._store, heartbeat_name(pipeline))

    async def check_free(self, folder: str, *, adopt: bool) -> None:
        """Do as `StreamFolder.check_free` says; `folder`: that of the stream, below the store's."""
        root = self._store.uri
        with store_errors(self._sink):
            if await _has_streams(self._store, folder.rpartition("/")[0]):
                return
            if table := await table_in_stores([self._store, *self._above()]):
                raise in_table(self._sink, root, table, is_same=table == root)
            names = () if adopt else await self._store.names_below("")
            if any(map(_IN_STREAM.fullmatch, names)):
                return
            others = (name for name in names if not is_heartbeat(name))
            visible = (name for name in others if not name.rpartition("/")[2].startswith("."))
            if foreign := next((name for name in visible if not name.endswith("/")), None):
                raise not_empty(self._sink, root, foreign)


async def _has_streams(store: UploadStore, pipeline: str) -> bool:
    names = await store.names_below(pipeline)
    while names and not any(map(_IN_STREAM.fullmatch, names)):
        names = await store.names_below(pipeline, names[-1])
    return bool(names)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a stream: its full name, and the beginning in it."""

    name: str
    beginning: str

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Parse a name. None: not one of ours."""
        match = DATA_FILE.fullmatch(name.rpartition("/")[2])
        return None if match is None else cls(name, match[1])

    @property
    def order(self) -> tuple[bool, str]:
        """The key of the order of files."""
        return self.beginning != FIRST, self.beginning


@dataclass(frozen=True, slots=True)
class _End:
    """The last file of a stream, and the position that it reaches; `before`: that it begins after."""

    file: _File
    before: Position
    position: Position
    is_reset: bool


class StoreFolder(StreamFolder):
    """`StreamFolder` in the folder `folder` of `store`."""

    def __init__(self, sink: str, store: UploadStore, folder: str, folders: StoreFolders) -> None:
        self._sink = sink
        self._store = store
        self._folder = folder
        self._folders = folders
        self._known: _End | None = None
        self._left: _End | None = None  # what was known last, also when that is forgotten

    @property
    @override
    def location(self) -> str:
        return f"{self._store.uri}/{self._folder}"

    @override
    async def check_free(self, *, adopt: bool) -> None:
        if self._known is None:
            await self._folders.check_free(self._folder, adopt=adopt)

    async def open(self) -> None:
        """Do nothing: names exclude other writers."""

    @override
    async def read_end(self) -> Position | None:
        end, left = await self._listed_end(), self._left
        # A gateway's listing may be behind what can be read.
        if left is not None and (end is None or end.position < left.position) and await self._is_there(left):
            end = left
        self._note(end)
        return None if end is None else end.position

    @override
    async def end(self) -> Position | None:
        """Look with one request if no other instance has written."""
        if self._known is not None:
            newest = await self._files(self._known.file.name.rpartition(".")[0])
            if newest == [self._known.file]:
                return self._known.position
        return await self.read_end()

    @override
    def forget(self) -> None:
        self._known = None

    @override
    def new_file(self) -> HiddenFile:
        """Make a file, which has no name where the system allows that."""
        return HiddenFile.temporary()

    @contextmanager
    @override
    def drafting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"no room for the rows in TMPDIR ({tempfile.gettempdir()}): {error.strerror or error}"
            raise SinkUnavailable(self._sink, reason) from error

    @override
    async def publish(self, draft: Draft, after: Position, end: Position) -> None:
        await self._put(draft, after, end, {})

    @override
    async def put_reset(self, draft: Draft, end: Position) -> None:
        """Record a reset with a file without rows."""
        with store_errors(self._sink):
            last = await self._take_back(end)
        if last is None or last.position != end:
            await self._put(draft, end if last is None else last.position, end, {RESET: "true"})

    @override
    def disappeared(self, left: str) -> SinkRejected:
        remedy = "Restore its files. To deliver into a new folder from the pipeline's start, run it again."
        return SinkRejected(self._sink, f"{self.location} was deleted or replaced while in use: {left}", remedy)

    def close(self) -> None:
        """Do nothing: no resources are held between transactions."""

    def _note(self, end: _End | None) -> None:
        self._known = self._left = end

    async def _files(self, start_after: str = "") -> list[_File]:
        """List the files of the stream, in order."""
        with store_errors(self._sink):
            metas = await self._store.list(self._folder, start_after)
        return sorted(filter(None, (_File.of(meta.name) for meta in metas)), key=lambda file: file.order)

    async def _is_there(self, end: _End) -> bool:
        """Return whether the file of `end` exists, whatever listings say."""
        with store_errors(self._sink):
            try:
                attributes = await self._store.attributes(end.file.name)
            except ObjectNotFound:
                return False
        return attributes.get(NEXT) == beginning(end.position)

    async def _listed_end(self) -> _End | None:
        """Read the end from the last file in the listing. A gap counts only if the next listing has it, too."""
        files = await self._files()
        while True:
            try:
                return await self._last(files)
            except SinkRejected:
                before, files = files, await self._files()
                if files == before:
                    raise

    async def _last(self, files: Sequence[_File]) -> _End | None:
        """Read the end from the last file, and check that the one before leads to it."""
        if not files:
            return None
        end = await self._read(files[-1])
        if len(files) > 1:
            before = await self._read(files[-2])
            if before.position != end.before:
                names = [file.name.rpartition("/")[2] for file in files[-2:]]
                reason = f"{names[0]} leads to {beginning(before.position)}, but {names[1]} is the next file"
                remedy = f"Restore the missing files in {self.location}, or remove those that do not belong there."
                raise SinkRejected(self._sink, f"{self.location}: {reason}", remedy)
        return end

    async def _read(self, file: _File) -> _End:
        uri = f"{self._store.uri}/{file.name}"
        try:
            with store_errors(self._sink):
                attributes = await self._store.attributes(file.name)
        except SinkUnavailable as error:
            if isinstance(error.__cause__, ObjectNotFound):
                raise SinkUnavailable(self._sink, f"{uri} disappeared while it was read") from error
            raise
        begin = re.fullmatch(PLACE, attributes.get(BEGIN, ""))
        following = re.fullmatch(PLACE, attributes.get(NEXT, ""))
        if begin is None or following is None or file.beginning not in (FIRST, begin[0]):
            missing = "lacks the metadata" if NEXT not in attributes else "has other metadata than"
            reason = f"{uri} {missing} {BEGIN} and {NEXT} that lake-tailer wrote"
            raise SinkRejected(self._sink, reason, "Copy the file again, with its metadata and under its name.")
        before, position = after_place(*begin.groups()), after_place(*following.groups())
        return _End(file, before, position, attributes.get(RESET) == "true")

    async def _take_back(self, end: Position) -> _End | None:
        """Remove resets to positions after `end`, and return what is last then. Rows are never removed."""
        files = await self._files()
        last = await self._last(files)
        while last is not None and last.position > end:
            if not last.is_reset:
                reason = f"{self._store.uri}/{last.file.name} holds versions after {end.version}"
                remedy = f"Move {last.file.name.rpartition('/')[2]} out of {self.location}, then reset again."
                raise SinkRejected(self._sink, reason, remedy)
            await self._store.delete(last.file.name)
            files.pop()
            last = await self._last(files)
        self._note(last)
        return last

    async def _put(self, draft: Draft, after: Position, end: Position, more: dict[str, str]) -> None:
        """Create the file that follows the last one known."""
        await self._check_format(draft.suffix)
        first = FIRST if self._known is None else beginning(after)
        file = _File(f"{self._folder}/{first}.{draft.suffix}", first)
        attributes = {BEGIN: beginning(after), NEXT: beginning(end), WRITER: self._folders.writer, **more}
        hidden = await to_thread.run_sync(self._finish, draft)
        self.forget()
        with CancelScope(shield=True):
            try:
                await self._store.upload_if_absent(file.name, hidden, attributes)
            except ObjectAlreadyExists as error:
                raise await self._refusal(file) from error
            except StorageRefused as error:
                raise SinkRejected(self._sink, f"{error.path}: {error.reason}", error.hint) from error
            except (StorageError, OSError) as error:
                # A request without an answer may still arrive.
                raise CommitUnknown(self._sink, str(error)) from error
        self._note(_End(file, after, end, bool(more)))

    async def _check_format(self, suffix: str) -> None:
        """Refuse another format than that of the stream; note it before the first file."""
        name = f"{self._folder}/{FORMAT}"
        if self._known is not None:
            name, file_format = self._known.file.name, self._known.file.name.rpartition(".")[2]
        else:
            with store_errors(self._sink):
                try:
                    await self._store.put_if_absent(name, suffix.encode())
                    file_format = suffix
                except ObjectAlreadyExists:
                    file_format = await self._store.read(name, lambda stored: stored.data.decode(errors="replace"))
        if file_format != suffix:
            reason = f"{self._store.uri}/{name} is of another format: {file_format}"
            raise SinkRejected(self._sink, reason, "Keep the format of the stream, or choose another path.")

    def _finish(self, draft: Draft) -> Path:
        with self.drafting():
            return draft.finish()

    async def _refusal(self, file: _File) -> SinkFenced | CommitUnknown:
        """Make the error for a file that exists already."""
        uri = f"{self._store.uri}/{file.name}"
        try:
            writer = (await self._store.attributes(file.name)).get(WRITER)
        except StorageError as error:
            return CommitUnknown(self._sink, f"{uri} exists, and cannot be read: {error}")
        if writer == self._folders.writer:
            return CommitUnknown(self._sink, f"an earlier attempt of this instance wrote {uri}")
        return SinkFenced(self._sink, f"it wrote {uri}")

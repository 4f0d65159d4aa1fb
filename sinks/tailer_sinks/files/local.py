"""The storage of the `files` sink on this machine, on worker threads; `tailer_sinks.files.directory` describes it."""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from anyio import to_thread

from tailer.errors import SinkRejected
from tailer.plan import Position
from tailer_sinks.files.directory import StreamDirectory, check_free, has_streams, translated
from tailer_sinks.files.formats import Draft, HiddenFile
from tailer_sinks.files.names import directory_name

__all__ = ["LocalFolders"]


class LocalFolders:
    """`StreamFolders` in the directory `path`; `sink`: the sink's name in errors."""

    def __init__(self, sink: str, path: Path) -> None:
        self._sink = sink
        self._path = path

    def stream(self, app_id: str) -> "LocalFolder":
        """See `StreamFolders.stream`."""
        return LocalFolder(self._sink, self._path, self._path.joinpath(*map(directory_name, app_id.split("/"))))

    async def has_streams(self, pipeline: str) -> bool:
        """See `StreamFolders.has_streams`."""
        return await to_thread.run_sync(has_streams, self._sink, self._path / directory_name(pipeline))


class LocalFolder:
    """`StreamFolder` at `path`, below the directory `root` that the user names."""

    def __init__(self, sink: str, root: Path, path: Path) -> None:
        self._sink = sink
        self._root = root
        self._directory = StreamDirectory(sink, path)

    @property
    def location(self) -> str:
        """See `StreamFolder.location`."""
        return str(self._directory.path)

    async def check_free(self, *, adopt: bool) -> None:
        """See `StreamFolder.check_free`."""
        await to_thread.run_sync(partial(check_free, self._sink, self._root, self._directory.path, adopt=adopt))

    async def open(self) -> None:
        """Lock the directory."""
        await to_thread.run_sync(self._directory.lock)

    async def read_end(self) -> Position | None:
        """See `StreamFolder.read_end`."""
        return await to_thread.run_sync(self._directory.read_end)

    async def end(self) -> Position | None:
        """See `StreamFolder.end`."""
        return await to_thread.run_sync(self._directory.end)

    def forget(self) -> None:
        """See `StreamFolder.forget`."""
        self._directory.forget()

    def new_file(self) -> HiddenFile:
        """See `StreamFolder.new_file`."""
        return HiddenFile.named(self._directory.hidden_path())

    def drafting(self) -> AbstractContextManager[None]:
        """See `StreamFolder.drafting`."""
        return translated(self._sink, self._directory.path)

    async def publish(self, draft: Draft, after: Position, end: Position) -> None:
        """See `StreamFolder.publish`."""
        await to_thread.run_sync(self._publish, draft, after, end)

    async def put_reset(self, draft: Draft, end: Position) -> None:
        """See `StreamFolder.put_reset`; a file of another kind records it."""
        await to_thread.run_sync(self._directory.put_reset, end)

    def disappeared(self, left: str) -> SinkRejected:
        """See `StreamFolder.disappeared`."""
        return self._directory.disappeared(left)

    def close(self) -> None:
        """Release the lock."""
        self._directory.unlock()

    def _publish(self, draft: Draft, after: Position, end: Position) -> None:
        with self.drafting():
            hidden = draft.finish()
        self._directory.publish(hidden, after, end, draft.suffix)

"""The port of the `files` sink for its storage: a folder of this machine, or of an object store."""

from contextlib import AbstractContextManager
from typing import Protocol

from tailer.errors import SinkRejected
from tailer.plan import Position
from tailer_sinks.files.formats import Draft, HiddenFile

__all__ = ["StreamFolder", "StreamFolders"]


class StreamFolder(Protocol):
    """The folder of one stream. Its files are its log.

    All methods that read or write raise `SinkUnavailable` and `SinkRejected`.
    """

    @property
    def location(self) -> str:
        """The folder in messages."""
        ...

    async def check_free(self, *, adopt: bool) -> None:
        """Refuse (`SinkRejected`) to begin this stream beside foreign files; `adopt`: allow them.

        The folder of a Delta table is always refused. An existing stream continues.
        """
        ...

    async def open(self) -> None:
        """Prepare for writing. May be repeated. Raises `SinkFenced` if another instance is known to write."""
        ...

    async def read_end(self) -> Position | None:
        """Read the end of the delivered positions. None: nothing delivered.

        Raises `SinkRejected` if the files contradict each other.
        """
        ...

    async def end(self) -> Position | None:
        """Return `read_end`, with fewer requests where this instance has read or written it before."""
        ...

    def forget(self) -> None:
        """Read the whole folder again next time."""
        ...

    def new_file(self) -> HiddenFile:
        """Create a file for uncommitted rows. Raises `OSError`."""
        ...

    def drafting(self) -> AbstractContextManager[None]:
        """Translate `OSError`s of uncommitted rows."""
        ...

    async def publish(self, draft: Draft, after: Position, end: Position) -> None:
        """Commit the rows of a draft as those after `after`, up to `end` (invariant 1).

        Raises `SinkFenced` if another instance was first, `CommitUnknown` if the outcome is unknown.
        """
        ...

    async def put_reset(self, draft: Draft, end: Position) -> None:
        """Record that everything up to `end`, which closes a version, counts as delivered. `draft`: without rows.

        Raises as `publish` does, and `SinkRejected` if files hold later rows, which would be duplicated.
        """
        ...

    def disappeared(self, left: str) -> SinkRejected:
        """Make the error for a folder whose files have disappeared; `left`: its state as this instance left it."""
        ...

    def close(self) -> None:
        """Release the folder."""
        ...


class StreamFolders(Protocol):
    """The folder that the user names, with the folders of streams in it."""

    def stream(self, app_id: str) -> StreamFolder:
        """Return the folder of a stream; no I/O."""
        ...

    async def has_streams(self, pipeline: str) -> bool:
        """Return whether anything was ever delivered to a stream of the pipeline."""
        ...

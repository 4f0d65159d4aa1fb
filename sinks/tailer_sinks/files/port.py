"""The port of the `files` sink for its storage: a folder of this machine, or of an object store.

Names of files in it have positions as texts of which the order is that of the rows.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from tailer.errors import SinkRejected
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer_sinks.files.formats import Draft, HiddenFile

__all__ = [
    "PLACE",
    "StreamFolder",
    "after_place",
    "beginning",
    "directory_name",
    "in_table",
    "not_empty",
    "place",
    "position_of",
    "sync_folder",
]

PLACE: Final = r"(\d{20})(?:\.(\d{20})\.(\d{20}))?"


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


def in_table(sink: str, root: object, table: object, *, is_same: bool) -> SinkRejected:
    """Make the error for the folder `root` of a sink, which is inside that of a Delta table, or the same one."""
    place = "is the folder of a Delta table" if is_same else f"is inside the Delta table {table}"
    reason = f"{root} {place}, whose VACUUM would delete the files"
    return SinkRejected(sink, reason, "Choose a path outside of that folder.")


def not_empty(sink: str, root: object, foreign: object) -> SinkRejected:
    """Make the error for the folder `root` of a sink that has other files, such as `foreign`, and no stream."""
    reason = f"{root} is not empty (it holds {foreign}), and has no stream of lake-tailer"
    remedy = "Choose another path; or set adopt = true to put streams beside the other files."
    return SinkRejected(sink, reason, remedy)


def directory_name(part: str) -> str:
    """Encode a part of an app_id as a file name.

    Everything is percent-encoded except letters, digits, `-`, `_`, `~` and inner points.
    """
    name = quote(part, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name or "%"


def place(position: Position) -> str:
    """Format a position for names: the end of a version, or a position in its snapshot."""
    if position.closes_version:
        return f"{position.version:020d}"
    return f"{position.version:020d}.{position.task - SNAPSHOT_TASKS:020d}.{position.row:020d}"


def beginning(after: Position) -> str:
    """Format the start position in a file name: the first version of the file, or the row before its first one."""
    return place(Position.end(after.version + 1) if after.closes_version else after)


def position_of(version: str, task: str | None, row: str | None) -> Position:
    """Parse the groups of a `PLACE` that was formatted by `place`."""
    if task is None or row is None:
        return Position.end(int(version))
    return Position(int(version), SNAPSHOT_TASKS + int(task), int(row))


def after_place(version: str, task: str | None, row: str | None) -> Position:
    """Parse the groups of a `PLACE` that was formatted by `beginning`; return the position before it."""
    return Position.end(int(version) - 1) if task is None else position_of(version, task, row)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

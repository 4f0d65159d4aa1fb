"""Names in the `files` sink: positions as texts of which the order is that of the rows, and folders of streams."""

from typing import Final
from urllib.parse import quote

from tailer.plan import SNAPSHOT_TASKS, Position

__all__ = ["PLACE", "after_place", "beginning", "directory_name", "place", "position_of"]

PLACE: Final = r"(\d{20})(?:\.(\d{20})\.(\d{20}))?"


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

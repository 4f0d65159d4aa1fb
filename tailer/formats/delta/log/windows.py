"""Commit files read concurrently, in windows of bounded number and size.

Only a store whose objects appear whole is read like this: there requests take time, and what is read early is complete.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import anyio

from tailer.errors import TailerError
from tailer.formats.delta.log.listing import LogPath

__all__ = ["WINDOW_BYTES", "WINDOW_FILES", "read_together", "window"]

T = TypeVar("T")

WINDOW_FILES: Final = 32
WINDOW_BYTES: Final = 4 * 2**20


def window(paths: Iterable[LogPath], most: int = WINDOW_FILES) -> list[LogPath]:
    """Return the first of `paths`, and those after it that may be read at the same time: together at most `most`."""
    files: list[LogPath] = []
    size_bytes = 0
    for path in paths:
        size_bytes += path.size_bytes or WINDOW_BYTES  # of a staged commit the catalog does not give the size
        if files and (len(files) == most or size_bytes > WINDOW_BYTES):
            break
        files.append(path)
    return files


async def read_together(paths: Sequence[LogPath], read: Callable[[LogPath], Awaitable[T]]) -> list[T]:
    """Call `read` for all paths concurrently and return the results before the first error.

    Raises the error of the first path. Another path's error is not reported: it belongs to the moment at which that
    commit is needed, and is found again then.
    """
    results: dict[int, T] = {}
    errors: dict[int, TailerError] = {}

    async def one(number: int) -> None:
        try:
            results[number] = await read(paths[number])
        except TailerError as error:
            errors[number] = error

    async with anyio.create_task_group() as group:
        for number in range(len(paths)):
            group.start_soon(one, number)
    if 0 in errors:
        raise errors[0]
    return [results[number] for number in range(min(errors, default=len(paths)))]

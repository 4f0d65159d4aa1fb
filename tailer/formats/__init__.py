"""Table formats, each a folder, or a package elsewhere with an entry point (`tailer.formats`).

port        what everything else needs to know of a format
rows        the rows of any task, by the reader that it names
registry    the formats there are, the one that a location has, and reasons why it has no table
inspection  what doctor, history and check ask of a table

The formats that this process has imported are here, so that the command line ends without Arrow.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailer.formats.port import TableFormat

__all__ = ["LOADED", "thread_libraries"]

LOADED: Final[dict[str, "TableFormat"]] = {}


def thread_libraries() -> set[str]:
    """Return the libraries of these formats whose threads may abort the process if the interpreter goes away first."""
    return {library for table_format in LOADED.values() for library in table_format.thread_libraries}

"""The formats that this process has imported. Apart from the registry, so that the command line ends without Arrow."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailer.formats.port import TableFormat

__all__ = ["LOADED", "thread_libraries"]

LOADED: Final[dict[str, "TableFormat"]] = {}


def thread_libraries() -> set[str]:
    """Return the libraries of these formats whose threads may abort the process if the interpreter goes away first."""
    return {library for table_format in LOADED.values() for library in table_format.thread_libraries}

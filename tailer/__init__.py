"""lake-tailer: every row-level change of a Delta Lake, Iceberg or Lance table, in order, exactly once.

`docs/architecture.md` describes the flow of rows, the folders, the layers, the invariants that comments cite by number,
and the words.

To read changes from Python, call `tailer.changes`; to write a sink, read `sinks` and `tailer_sinks.testing`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailer.api import Changes, changes

__all__ = ["Changes", "__version__", "changes"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: `tailer --help` and executors do without them."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("lake-tailer")
    if name in ("Changes", "changes"):
        from tailer import api  # noqa: PLC0415

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

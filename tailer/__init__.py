"""lake-tailer: every row-level change of a Delta Lake, Iceberg or Lance table, in order, exactly once.

The flow
========
::

    _delta_log                                                                    destination
        |                                                                              ^
    stores -> delta: LogSegment -> Commit -> Snapshot.advance -> ChangePlan[ChangeTask]    |
                 (async I/O at the edge, pure in the middle)         |                 |
                                                   read.execute(task): sync, pyarrow   |
                                      engine: threads | changelog around it | Spark    |
                                                                     |                 |
                                                               ChangeBatch -> SinkTransaction.commit(progress)
    wake-up -> pipeline <------------------------------------------------ Sink.progress(app_id)

Only progress flows back. A wake-up carries no data and only shortens the wait for the timer. Planning a version reads
no rows and always gives the same tasks. Every engine runs the same function, `execute`, so engines cannot disagree.

`docs/architecture.md` describes the folders, the layers, the invariants that comments cite by number, and the words.

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

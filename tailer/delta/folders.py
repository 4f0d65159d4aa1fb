"""Delta tables in local folders, found by their logs: nothing else may be written into one."""

import os
from pathlib import Path
from typing import Final

from tailer.delta.log.listing import LOG

__all__ = ["holds_table", "table_around"]

_VERSION_DIGITS: Final = 20


def holds_table(path: Path) -> bool:
    """Return whether `path` holds a Delta table: its log has a commit or a checkpoint."""
    try:
        with os.scandir(path / LOG) as entries:
            return any(entry.name[:_VERSION_DIGITS].isdigit() for entry in entries)
    except OSError:
        return False


def table_around(path: Path) -> Path | None:
    """Return the nearest parent of `path`, with links resolved, that holds a Delta table; None without one."""
    return next(filter(holds_table, Path(os.path.realpath(path)).parents), None)

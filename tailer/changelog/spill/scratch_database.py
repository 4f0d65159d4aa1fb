"""A DuckDB database for rows that wait or are compared: in memory up to a limit, and beyond it in a folder."""

import re
import shutil
from typing import TYPE_CHECKING, Final

from tailer.errors import ScratchUnavailable

if TYPE_CHECKING:
    import duckdb

__all__ = ["MEMORY_BYTES", "open_database", "spill_failure"]

MEMORY_BYTES: Final = 96 * 2**20
_THREADS: Final = 2
_DISK_IS_FULL: Final = "failed to offload data block"


def open_database(folder: str, memory_bytes: int = MEMORY_BYTES) -> "duckdb.DuckDBPyConnection":
    """Open an empty database that spills to `folder`. The first one of a process takes 0.1 s and 40 MB."""
    import duckdb  # noqa: PLC0415 - see above

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_bytes}B",
        "threads": _THREADS,
        "async_threads": 0,  # eight by default, for remote files
        "temp_directory": folder,
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    database = duckdb.connect(":memory:", config=settings)
    # Otherwise queries over two seconds write to standard output, which may be used for rows.
    database.execute("SET enable_progress_bar = false").fetchall()
    return database


def spill_failure(folder: str, error: Exception) -> ScratchUnavailable:
    """Return the error where spilling to `folder` failed: with DuckDB's reason, without its advice on settings.

    DuckDB calls a full disk "Out of Memory", as it does a lack of memory.
    """
    if _DISK_IS_FULL in str(error):
        return ScratchUnavailable(folder, f"comparing rows: {_disk(folder)} has no space for more of them")
    reason = re.split(r"\.?\s*\n|\.\s", str(error), maxsplit=1)[0]
    return ScratchUnavailable(folder, f"comparing rows: {reason}")


def _disk(folder: str) -> str:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:  # the folder is gone
        return "its disk"
    return f"its disk, of which {usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB are free,"

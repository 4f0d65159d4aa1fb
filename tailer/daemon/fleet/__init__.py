"""The pipelines of a process while they come and go: tables that are found or vanish, and a changed configuration."""

from tailer.daemon.fleet.awaited import AwaitedTable, find_existing, is_missing
from tailer.daemon.fleet.discovery import find_tables, with_found_tables
from tailer.daemon.fleet.fleet import Fleet, Make
from tailer.daemon.fleet.statuses import Statuses

__all__ = [
    "AwaitedTable",
    "Fleet",
    "Make",
    "Statuses",
    "find_existing",
    "find_tables",
    "is_missing",
    "with_found_tables",
]

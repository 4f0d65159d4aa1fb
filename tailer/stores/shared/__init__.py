"""Reads of one table's log that several pipelines of a process share: `SharedLogs`."""

from tailer.stores.shared.logs import SharedLogs

__all__ = ["SharedLogs"]

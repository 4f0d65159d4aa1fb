"""Questions to the tables and sinks of a configuration: `tailer check --connect`."""

from tailer.daemon.checks.connection import Connection, connect

__all__ = ["Connection", "connect"]

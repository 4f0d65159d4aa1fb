"""The `delta` sink: change rows appended to a Delta table, exactly once."""

from sinks.delta.sink import DeltaSink

__all__ = ["DeltaSink"]

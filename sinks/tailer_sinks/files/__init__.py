"""The `files` sink: change rows as JSON Lines or Parquet files, exactly once, in one directory per stream."""

from tailer_sinks.files.sink import FilesSink

__all__ = ["FilesSink"]

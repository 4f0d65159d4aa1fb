"""`tailer history`: the commits of a table."""

from tailer.cli.history.verb import command

__all__ = ["command"]

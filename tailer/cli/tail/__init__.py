"""`tailer tail`: the changes of one table."""

from tailer.cli.tail.verb import command

__all__ = ["command"]

"""`tailer doctor`: look at a table before it is followed."""

from tailer.cli.doctor.verb import command

__all__ = ["command"]

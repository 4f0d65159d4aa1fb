"""Displays of `tailer run` on a terminal."""

__all__: list[str] = []

"""Displays of `tailer tail` and `tailer run` on a terminal."""

__all__: list[str] = []

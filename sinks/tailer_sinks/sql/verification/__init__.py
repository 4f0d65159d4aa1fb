"""A mirror as `tailer verify` reads it: its rows, rows of the source as it would hold them, and its repair."""

__all__: list[str] = []

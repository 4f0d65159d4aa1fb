"""The `delta` sink: change rows appended to a Delta table, exactly once."""

__all__: list[str] = []

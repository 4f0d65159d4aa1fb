"""Rows of fragments, read by pylance: `reader` is the `RowReader`, `fragments` scans one fragment."""

__all__: list[str] = []

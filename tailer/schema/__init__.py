"""Columns over time, whatever the table format: identity, restating rows, what changed between two schemas."""

__all__: list[str] = []

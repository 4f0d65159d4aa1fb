"""Mirrors that keep rows of the past: deleted rows (`marked`), or each state of a row (`history`)."""

__all__: list[str] = []

"""Shards: one pipeline delivered by several writers side by side, each exactly once."""

__all__: list[str] = []

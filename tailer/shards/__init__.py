"""Shards: one pipeline delivered by several writers in parallel, each exactly once."""

__all__: list[str] = []

"""Buckets of object stores: one store and one reader of ranges over a port of clients (`port`)."""

__all__: list[str] = []

"""Databases behind one port: their connections, their types, and rows as they read them."""

__all__: list[str] = []

"""Routing: rows go to topics that are named by the value of a column, all in one transaction."""

__all__: list[str] = []

"""A Lance dataset for people."""

__all__: list[str] = []

"""Stores: the `ObjectStore` port, and the places behind it where logs and files lie."""

__all__: list[str] = []

"""Storage of logs and files: the `ObjectStore` port and its implementations."""

__all__: list[str] = []

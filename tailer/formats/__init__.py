"""Table formats, each in a folder of its own: delta/, lance/."""

__all__: list[str] = []

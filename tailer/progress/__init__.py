"""Progress: the position of a stream, the app id under which a sink keeps it, and how to find it again."""

__all__: list[str] = []

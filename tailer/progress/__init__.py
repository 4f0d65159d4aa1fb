"""Progress: where a stream is, under which name a sink keeps it, and how to find it again."""

__all__: list[str] = []

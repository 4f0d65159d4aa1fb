"""The daemon: puts pipelines together from the settings and runs them until a signal ends it."""

__all__: list[str] = []

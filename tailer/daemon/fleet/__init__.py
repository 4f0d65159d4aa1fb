"""The pipelines of a process while they come and go: tables that are found or vanish, and a changed configuration."""

__all__: list[str] = []

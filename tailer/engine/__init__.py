"""Engines run the tasks of a plan, in order and in bounded memory: the port, and worker threads of this process."""

__all__: list[str] = []

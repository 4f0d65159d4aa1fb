"""Execution of tasks: `execute` reads the change rows of a task. Synchronous; runs on threads and Spark executors."""

__all__: list[str] = []

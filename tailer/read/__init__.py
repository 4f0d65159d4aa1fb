"""Reading: a task becomes change rows (`execute`). Synchronous; it runs on threads, on Spark executors, anywhere."""

__all__: list[str] = []

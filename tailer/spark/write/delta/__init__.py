"""Pipelines into Delta tables whose rows executors write: one append or MERGE by Spark for a range of versions."""

__all__: list[str] = []

"""Mirrors in Delta whose rows executors read and merge: one MERGE by Spark for a range of versions."""

__all__: list[str] = []

"""Pipelines: deliver one table to one sink in a loop of wait, plan, run and commit (`loop`)."""

__all__: list[str] = []

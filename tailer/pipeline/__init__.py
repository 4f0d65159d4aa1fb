"""Pipelines: one loop of wait, plan, deliver and commit (`loop`), and the port of ways to deliver (`delivery`)."""

__all__: list[str] = []

"""A pipeline delivers one table to one sink: wait, plan, run, commit, and again (`loop`)."""

__all__: list[str] = []

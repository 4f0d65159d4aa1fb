"""Checkpoints (PROTOCOL.md, "Checkpoints"): the state of a table without its history, read in bounded memory."""

__all__: list[str] = []

"""Verification of mirrors: whether one equals its source (`comparison`, `sides`), and its repair (`repair`)."""

__all__: list[str] = []

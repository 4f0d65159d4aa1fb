"""Temporary files: spilled bitmaps, spilled preimages, and the spill directory."""

__all__: list[str] = []

"""Temporary files: bitmaps and preimages that do not fit into memory, and the folder for them."""

__all__: list[str] = []

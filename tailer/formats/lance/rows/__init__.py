"""Rows of a fragment.

deletions   the deleted offsets, from a file of the dataset
columns     what pylance reads, as a task's columns
fragments   the rows, read by pylance
small_files the rows of a small fragment, from its file
opened      versions and folders that pylance has open
reader      the `RowReader` of the format
"""

__all__: list[str] = []

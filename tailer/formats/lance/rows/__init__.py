"""Rows of a fragment.

columns     what pylance reads, as a task's columns
fragments   the rows, read by pylance; the `RowReader` of the format
opened      versions and folders that pylance has open; the rows of a small fragment, from its file
"""

__all__: list[str] = []

"""Deleted rows of data files (Iceberg specification, "Delete Formats", "Scan Planning").

keys        equality deletes as bitmaps: keys looked up in data files
rows        the delete files that apply to a data file, and its deleted rows
"""

__all__: list[str] = []

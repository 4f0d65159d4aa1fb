"""Deleted rows of data files (Iceberg specification, "Delete Formats", "Scan Planning").

applied     the delete files that apply to a data file
keys        equality deletes as bitmaps: keys looked up in data files
rows        the deleted rows of data files
"""

__all__: list[str] = []

"""Rows of a fragment by offset: their stable ids, and the versions in which they were created and last updated.

segments   ranges, bitmaps and arrays of numbers
sequence   the ids
versions   the versions
"""

from tailer.formats.lance.row_ids.sequence import RowIds, parse_row_ids
from tailer.formats.lance.row_ids.versions import RowVersions, parse_row_versions

__all__ = ["RowIds", "RowVersions", "parse_row_ids", "parse_row_versions"]

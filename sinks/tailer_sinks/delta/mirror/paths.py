"""Paths of files that delta-rs cannot remove from a table.

Spark writes letters beyond ASCII into the path of a file as they are, where they are part of a partition. delta-rs
reads such a file, but its commits escape the path: they remove a file that is not there, and the rows stay.
"""

import pyarrow as pa

from tailer_sinks.delta.table import Anchor

__all__ = ["are_removable"]


def are_removable(anchor: Anchor) -> bool:
    """Return whether delta-rs can remove all files of the table."""
    if anchor.table is None or not _may_be_beyond_ascii(anchor):
        return True
    paths: list[str] = pa.table(anchor.table.get_add_actions())["path"].to_pylist()
    return all(path.isascii() for path in paths)


def _may_be_beyond_ascii(anchor: Anchor) -> bool:
    """Return whether the path of a partition of the table may have such letters."""
    texts = {field.name for field in anchor.schema if field.type == pa.string()}
    return any(not name.isascii() or name in texts for name in anchor.partition_by)

"""Paths of files that delta-rs cannot remove from a table.

Spark writes letters beyond ASCII into the path of a file as they are, where they are part of a partition. delta-rs
reads such a file, but its commits escape the path: they remove a file that is not there, and the rows stay.
"""

from collections.abc import Sequence

import pyarrow as pa
from deltalake import DeltaTable

__all__ = ["is_removable", "may_be_beyond_ascii"]


def is_removable(table: DeltaTable) -> bool:
    """Return whether delta-rs can remove all files of `table`."""
    paths: list[str] = pa.table(table.get_add_actions())["path"].to_pylist()
    return all(path.isascii() for path in paths)


def may_be_beyond_ascii(schema: pa.Schema, partition_by: Sequence[str]) -> bool:
    """Return whether the path of a partition of rows of `schema` may have such letters."""
    texts = {field.name for field in schema if field.type == pa.string()}
    return any(not name.isascii() or name in texts for name in partition_by)

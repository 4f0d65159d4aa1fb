"""Paths of files that delta-rs cannot remove from a table.

Spark writes letters beyond ASCII into the path of a file as they are, where they are part of a partition. delta-rs
reads such a file, but its commits escape the path: they remove a file that is not there, and the rows stay.
"""

from collections.abc import Sequence

import pyarrow as pa
from deltalake import DeltaTable

__all__ = ["may_be_beyond_ascii", "unremovable"]


def unremovable(table: DeltaTable) -> str | None:
    """Return the path of a file of `table` that delta-rs cannot remove. None: there is no such file."""
    paths: list[str] = pa.table(table.get_add_actions())["path"].to_pylist()
    return next((path for path in paths if not path.isascii()), None)


def may_be_beyond_ascii(schema: pa.Schema, partition_by: Sequence[str]) -> bool:
    """Return whether the path of a partition of rows of `schema` may have such letters."""
    return any(not name.isascii() or schema.field(name).type == pa.string() for name in partition_by)

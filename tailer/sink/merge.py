"""The port of a Delta table into which a cluster's own writer may also merge changes, by key."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.plan import Position
from tailer.sink.append import Append
from tailer.sink.ports import Sink

__all__ = ["MERGED_INSERTED", "MERGED_VERSION", "KeyFault", "Merge", "Mergeable"]

# The columns that rows to merge have beside those of the table: their version, and whether they are inserted.
MERGED_VERSION: Final = "lake_tailer_version"
MERGED_INSERTED: Final = "lake_tailer_inserted"


class KeyFault(StrEnum):
    """A contradiction of changes to the key, or to the table."""

    TWICE = "twice"  # a key is inserted, or deleted, twice in succession
    PRESENT = "present"  # a key is inserted that is there
    ABSENT = "absent"  # a key is deleted that is not there


@dataclass(frozen=True, slots=True)
class Merge(Append):
    """A MERGE of changes by `key` that another Delta writer commits. Survives pickle.

    `schema` and `conform` are those of the table, and of `MERGED_VERSION` and `MERGED_INSERTED`; of a deleted row, only
    the columns of the key count. `check` also raises if there is any other commit since `version`. `refusal`: makes
    the error for a fault at a version.
    """

    key: tuple[str, ...]
    refusal: Callable[[KeyFault, int], SinkRejected]


class Mergeable(Sink):
    """A `Sink` that is a Delta table into which a cluster's own writer may merge.

    Such a commit has a `txn` action of the app_id, and the two kinds of commits exclude each other, as in `Appendable`.
    """

    @abstractmethod
    async def merging(self, app_id: str, schema: pa.Schema) -> Merge | None:
        """Prepare a MERGE of rows of `schema`, on top of the progress that was read last, or else the current one.

        None: only the sink's own transactions can bring these rows there, or say why they cannot. Raises as entering
        `Sink.begin` does.
        """

    @abstractmethod
    async def confirm(self, append: Append, position: Position) -> bool:
        """See `Appendable.confirm`."""

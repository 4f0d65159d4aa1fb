"""The port of an index of rows: which rows of some tasks are equal.

`tailer.changelog.equal_rows.row_index` is the index of one process. `tailer.spark.native.shared_index` is one that all
executors of Spark share.
"""

from collections.abc import Generator, Sequence
from typing import Protocol

import pyarrow as pa

from tailer.events import ChangeType
from tailer.files.row_bitmaps import Bitmaps
from tailer.plan import ChangeTask
from tailer.read.decoded_files import ReadTask

__all__ = ["Stopped", "TaskIndex"]


class Stopped(Exception):
    """Raised in a comparison after its index was stopped."""


class TaskIndex(Protocol):
    """Compares rows, one query at a time: `clear`, `add_tasks`, then query. Call `begin` before a new comparison.

    Deleted rows are deletes and preimages. Inserted rows are all others. Where a query returns only some of several
    equal rows, it returns the first deleted ones and the last inserted ones, in the order of tasks and positions.
    """

    def begin(self, maps_in_order: bool = False) -> None:
        """Remove all rows and partners. `maps_in_order`: until the next call, maps differ if their entries come in
        another order.
        """
        ...

    def clear(self) -> None:
        """Remove all rows, but keep the partners."""
        ...

    def add_tasks(
        self,
        tasks: Sequence[tuple[int, ChangeTask]],
        read: ReadTask,
        types: tuple[ChangeType, ...],
        nulls_differ: bool = False,
    ) -> Bitmaps:
        """Add the rows of tasks whose change type is one of `types`; return their positions by the tasks' numbers.

        Columns are compared by position. `read`: reads a task in this process. `nulls_differ`: leave out rows with a
        null in one of the columns.
        """
        ...

    def unmatched(self) -> Bitmaps:
        """Return the rows left after equal deleted and inserted rows cancel out, one for one."""
        ...

    def unmatched_singles(self) -> Bitmaps:
        """Return the rows left after a deleted and an inserted row that equal only each other cancel out."""
        ...

    def pair(self, in_turn: bool = False) -> tuple[Bitmaps, Bitmaps, int]:
        """Pair equal deleted and inserted rows as partners: the n-th deleted with the n-th inserted row.

        `in_turn`: instead pair each deleted row with the next equal row by address, if that is inserted.

        Returns the deleted and the inserted rows that now have a partner, and the number of ambiguous rows: those with
        several possible partners, and those whose possible partners are all paired.
        """
        ...

    def unpair_equal(self) -> Bitmaps:
        """Unpair the added rows that are equal to their partner, and return them."""
        ...

    def partner_ranks(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rank of its partner for each deleted row that has one, by address.

        Ranks number all inserted partners by address.
        """
        ...

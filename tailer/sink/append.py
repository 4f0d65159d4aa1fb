"""The port of a Delta table to which a cluster's own writer may also append."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailer.plan import Position
from tailer.sink.ports import Sink

__all__ = ["Append", "Appendable"]


@dataclass(frozen=True, slots=True)
class Append:
    """An append of rows that another Delta writer commits. Survives pickle.

    `location`: the table's folder; the table exists. `schema`: the schema of the written rows. `merges`: whether the
    append adds columns to the table. `conform`: turns change rows into rows to write, or raises `SinkRejected`.
    `check`: raises `SinkFenced` if the progress of `app_id` is no longer `expected`; it blocks, and runs anywhere.
    `note`: data for the commit beside its `txn` action. `version`: of the table when its progress was `expected`.
    """

    app_id: str
    expected: Position | None
    location: str
    schema: pa.Schema
    merges: bool
    conform: Callable[[pa.RecordBatch], pa.RecordBatch]
    check: Callable[[], None]
    note: str
    version: int


class Appendable(Sink):
    """A `Sink` that is a Delta table to which a cluster's own writer may append.

    Such a commit has a `txn` action of the app_id, as the sink's own commits do. `SinkTransaction.commit` and such an
    append exclude each other: of two that start from the same progress only one takes place.
    """

    @abstractmethod
    async def appending(self, app_id: str, schemas: Sequence[pa.Schema]) -> Append:
        """Prepare an append of rows of `schemas`, on top of the progress that was read last, or else the current one.

        Raises as entering `Sink.begin` does, and as `SinkTransaction.announce` does for all schemas but the first.
        """

    @abstractmethod
    async def confirm(self, append: Append, position: Position) -> bool:
        """Return whether the append took place, up to `position`. Raises `SinkFenced` if something else did.

        False means that nothing was committed. Raises `CommitUnknown` if the table cannot be read.
        """

"""The port of a Delta table to which a cluster's own writer may append, too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from tailer.plan import Position

__all__ = ["Append", "Appendable"]


@dataclass(frozen=True, slots=True)
class Append:
    """Rows for which somebody else's Delta writer makes a commit. Survives pickle.

    `location`: the table's folder; the table is there. `schema`: what rows are written as; `merges`: whether the table
    gets columns by that. `conform`: makes change rows into rows to write, or raises `SinkRejected`. `check`: raises
    `SinkFenced` where the progress of `app_id` is not `expected` any more; it blocks, and runs anywhere. `note`: what
    the commit has to say beside its `txn` action. `version`: of the table, when progress was seen to be `expected`.
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


@runtime_checkable
class Appendable(Protocol):
    """What a `Sink` may also be: a Delta table to which a cluster's own writer may append, too.

    Its commits have a `txn` action of the app_id as this sink's own do. `SinkTransaction.commit` and such an append
    exclude each other: of two that go on from the same progress one takes place.
    """

    async def appending(self, app_id: str, schemas: Sequence[pa.Schema]) -> Append:
        """An append of rows of `schemas` on top of what `progress` said last, or else of what the table says now.

        Raises as entering `Sink.begin` does, and as `SinkTransaction.announce` for all schemas but the first.
        """
        ...

    async def confirm(self, append: Append, position: Position) -> bool:
        """Whether the append took place, up to `position`; False where nothing has. Raises `SinkFenced` otherwise.

        Raises `CommitUnknown` where the table cannot be read.
        """
        ...

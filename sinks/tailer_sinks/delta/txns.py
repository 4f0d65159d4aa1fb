"""Progress in the target table, as `txn` actions.

Progress is a `txn` action (PROTOCOL.md, "Transaction Identifiers") in the commit that adds the rows:

    txn(app_id)            the last complete version; everything up to it is delivered
    txn(app_id "#task")    END, or the last task reached in the snapshot of the version after that one
    txn(app_id "#row")     END, or the last row reached in that task

The last two exist only for a snapshot that takes several commits; the state table (`tailer.progress.state_table`)
always writes them. Every commit that ends inside a snapshot writes all three. So does the next commit that does not:
the rest of the snapshot, or a reset, which sets both to END. So if they are not END, the newest commit of our app_id
wrote them. They then hold the position in the snapshot of the version after the complete one, which stays the same in
all those commits. Before the snapshot of version 0 it is -1: delta-rs, Spark and the checkpoints of both keep that like
any number. After a gap it is the version before the snapshot, because the lost versions are done with, too.

The first commit of a pipeline writes one more, `<pipeline>/#delivered`: the pipeline has progress for some table.
"""

import time

from deltalake import DeltaTable, Transaction

from tailer.plan import END, Position
from tailer.sink import pipeline_of
from tailer_sinks.delta.target import delivered_name

__all__ = ["position_in", "transactions"]


def _names(app_id: str) -> tuple[str, str, str]:
    return app_id, f"{app_id}#task", f"{app_id}#row"


def position_in(table: DeltaTable, app_id: str) -> Position | None:
    """Read the progress of `app_id` in one version of the table."""
    closed, task, row = map(table.transaction_version, _names(app_id))
    if closed is None or task is None or row is None or task == END:
        return None if closed is None else Position.end(closed)
    return Position(closed + 1, task, row)


def transactions(
    app_id: str, expected: Position | None, table: DeltaTable | None, position: Position
) -> list[Transaction]:
    """Make the txns for an append to `table` that moves progress from `expected` to `position`.

    Only that of app_id if no snapshot is involved.
    """
    at, before = position, expected
    place = (at.version, END, END) if at.closes_version else (at.version - 1, at.task, at.row)
    in_snapshot = at.in_snapshot or (before is not None and before.in_snapshot)
    now_ms = int(time.time() * 1000)
    pairs = list(zip(_names(app_id), place, strict=True))[: None if in_snapshot else 1]
    delivered = delivered_name(pipeline_of(app_id))
    if table is None or table.transaction_version(delivered) is None:
        pairs.append((delivered, 1))
    return [Transaction(name, value, now_ms) for name, value in pairs]

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

Every commit also writes `<pipeline>/#stream`, whose version is a digest of the app_id (of a backfill: of its pipeline's
app_id). A pipeline whose source table was replaced has another app_id, but the same `#stream`. So delta-rs, which lets
no two writers commit the same txn from one state, refuses a late commit about the former table. Former releases did not
write it.
"""

import time

from deltalake import DeltaTable, Transaction

from tailer.errors import SinkFenced
from tailer.plan import END, Position
from tailer.sink import pipeline_of, stream_name, stream_number, table_of
from tailer_sinks.delta.target import delivered_name

__all__ = ["LastStreams", "last_stream", "position_in", "transactions"]


def _names(app_id: str) -> tuple[str, str, str]:
    return app_id, f"{app_id}#task", f"{app_id}#row"


def position_in(table: DeltaTable, app_id: str) -> Position | None:
    """Read the progress of `app_id` in one version of the table."""
    closed, task, row = map(table.transaction_version, _names(app_id))
    if closed is None or task is None or row is None or task == END:
        return None if closed is None else Position.end(closed)
    return Position(closed + 1, task, row)


def last_stream(table: DeltaTable, app_id: str) -> int | None:
    """Read the number of the last stream of the pipeline of `app_id`; None: none, or none has said so."""
    number: int | None = table.transaction_version(stream_name(app_id))
    return number


class LastStreams:
    """The stream of each pipeline that had committed last when progress was read; `sink`: the sink's name in errors."""

    def __init__(self, sink: str) -> None:
        self._sink = sink
        self._seen: dict[str, int | None] = {}

    def forget(self, app_id: str) -> None:
        """Forget what was seen: progress is read again."""
        self._seen.pop(app_id, None)

    def note(self, number: int | None, app_id: str) -> None:
        """Note the last stream of the pipeline of `app_id`, by its number; None: none, or none has said so.

        Raises `SinkFenced` if that is another one than at the first look, and not that of `app_id`.
        """
        if number not in (self._seen.setdefault(app_id, number), stream_number(app_id)):
            raise SinkFenced(self._sink, f"another source table has taken the place of {table_of(app_id)}")

    def check(self, table: DeltaTable | None, app_id: str) -> None:
        """Note what `table` says; None: there is no table."""
        if table is not None:
            self.note(last_stream(table, app_id), app_id)


def transactions(
    app_id: str, expected: Position | None, table: DeltaTable | None, position: Position
) -> list[Transaction]:
    """Make the txns for an append to `table` that moves progress from `expected` to `position`.

    Only those of app_id and of the pipeline's stream if no snapshot is involved.
    """
    inside = (position.version - 1, position.task, position.row)
    place = (position.version, END, END) if position.closes_version else inside
    in_snapshot = position.in_snapshot or (expected is not None and expected.in_snapshot)
    now_ms = int(time.time() * 1000)
    pairs = list(zip(_names(app_id), place, strict=True))[: None if in_snapshot else 1]
    pairs.append((stream_name(app_id), stream_number(app_id)))
    delivered = delivered_name(pipeline_of(app_id))
    if table is None or table.transaction_version(delivered) is None:
        pairs.append((delivered, 1))
    return [Transaction(name, value, now_ms) for name, value in pairs]

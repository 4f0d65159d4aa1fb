"""Appends to the target table by another writer: their preparation, and the check that they took place.

Spark's Delta writer takes one `txn` action with the rows (`txnAppId`, `txnVersion`), and leaves out an append whose
version is already there. That alone is not exactly once. Suppose two instances continue from version 10, one up to 20
and one up to 25: the second finds 20, which is less than 25, and appends 11 to 20 again. So the rows themselves check
the progress (`Append.check`), in a task of the job that makes them. By then the writer has opened its transaction and
read the `txn` of app_id in it, so later commits of other instances make it fail. The task sees their earlier commits.
So an append takes place only on top of the progress that it was planned for. If the source table was replaced since,
the writer fails or the task finds out, where a stream has a first commit (`tailer_sinks.delta.txns.begin_stream`).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer.sink import Append
from tailer_sinks.delta.schema import partition_refusal
from tailer_sinks.delta.table import TargetTable
from tailer_sinks.encoding.typed import Misfit, conform

__all__ = ["append_to", "took_place"]


def append_to(
    table: TargetTable, app_id: str, schemas: Sequence[pa.Schema], expected: Position | None, note: str
) -> Append:
    """Prepare an append of rows of `schemas`; a missing table is created.

    Raises `SinkFenced` if progress is not the expected one, `SinkRejected` if the rows would not fit.
    """
    first, *others = schemas
    anchor = table.anchor(app_id, first, expected)
    for schema in others:
        anchor = table.extended(anchor, schema, rows=True)
    anchor = table.existing(anchor)
    return Append(
        app_id,
        expected,
        table.path if "://" in table.path else os.path.abspath(table.path),  # noqa: PTH100 - as text
        anchor.schema,
        anchor.merge,
        _Conforming(table.name, anchor.schema, tuple(anchor.partition_by)),
        partial(table.check, app_id, expected),
        note,
        anchor.version,
    )


def took_place(table: TargetTable, append: Append, position: Position) -> bool:
    """See `tailer.sink.Appendable.confirm`."""
    found, ids, _ = table.newer(append.app_id, append.version)
    is_ours = append.note in ids
    if found == position and is_ours:
        return True
    if found == append.expected:
        table.check(append.app_id, found)
        return False
    if is_ours:
        # An append that counted as failed, but was still running.
        raise SinkUnavailable(table.name, f"progress in {table.path} is {found}, and a commit of ours is there")
    table.expect(found, append.expected)
    return False


@dataclass(frozen=True, slots=True)
class _Conforming:
    """A converter of change rows to rows of `schema` for the sink called `name`."""

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if reason := partition_refusal(rows, self.partition_by):
            raise SinkRejected(self.name, reason, "Partition the target by another column.")
        try:
            return conform(rows, self.schema)
        except Misfit as misfit:
            raise SinkRejected(self.name, str(misfit), "Choose a new path for the new schema.") from misfit

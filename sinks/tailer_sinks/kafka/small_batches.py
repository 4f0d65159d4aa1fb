"""Small batches of several versions as one: a call of the encoder costs about as much for ten rows as for a thousand.

A batch waits until there are enough rows, or until the transaction is committed: nothing of it is visible earlier.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import CHANGE_TYPE, ChangeBatch, ChangeType, joined_rows
from tailer_sinks.encoding.flat_messages import FlatMessages

__all__ = ["WaitingBatches", "joined"]

MOST_ROWS: Final = 4096
MOST_BYTES: Final = 1 << 20
MOST_BATCHES: Final = 1024
_INSERT: Final = pa.scalar(ChangeType.INSERT.value)


class WaitingBatches:
    """Batches that wait for others, up to `MOST_ROWS`, `MOST_BYTES` and `MOST_BATCHES`."""

    def __init__(self) -> None:
        self._batches: list[ChangeBatch] = []
        self._rows = self._bytes = 0

    def add(self, batches: Sequence[ChangeBatch]) -> bool:
        """Add batches that have rows; return whether there are enough now."""
        self._batches += filter(len, batches)
        self._rows += sum(map(len, batches))
        self._bytes += sum(batch.size_bytes for batch in batches)
        return self._rows >= MOST_ROWS or self._bytes >= MOST_BYTES or len(self._batches) >= MOST_BATCHES

    def take(self) -> list[ChangeBatch]:
        """Return all batches, which do not wait any more."""
        taken, self._batches = self._batches, []
        self._rows = self._bytes = 0
        return taken


def joined(encoder: object, batches: Sequence[ChangeBatch]) -> Iterator[tuple[ChangeBatch, Sequence[ChangeBatch]]]:
    """Yield the batches to encode, each with the batches in it.

    Batches are joined where that makes the same messages, one for each row: in flat rows, with a key if all are inserts
    and none is held back. A joined batch has the version of its first one.
    """
    if len(batches) < 2 or (flat := _joining(encoder)) is None:
        yield from ((batch, (batch,)) for batch in batches)
        return
    start = 0
    while start < len(batches):
        together = _together(flat, batches, start)
        first = together[0]
        if len(together) > 1:
            row_index = pa.concat_arrays([batch.row_index for batch in together])
            yield ChangeBatch(first.table_id, first.version, first.task, joined_rows(together), row_index), together
        else:
            yield first, together
        start += len(together)


def _joining(encoder: object) -> FlatMessages | None:
    """Return the encoder if it may get joined batches."""
    if not isinstance(encoder, FlatMessages) or encoder.pending is not None:
        return None
    return None if any(_has_dictionary(column.type) for column in encoder.schema) else encoder


def _together(encoder: FlatMessages, batches: Sequence[ChangeBatch], start: int) -> Sequence[ChangeBatch]:
    """Return the batches from `start` on that can be joined; at least one."""
    rows = size_bytes = 0
    for end in range(start, len(batches)):
        batch = batches[end]
        rows, size_bytes = rows + len(batch), size_bytes + batch.size_bytes
        alike = batch.rows.schema.equals(encoder.schema) and (not encoder.keyed or _all_inserts(batch.rows))
        if not alike or rows > MOST_ROWS or size_bytes > MOST_BYTES:
            return batches[start : max(end, start + 1)]
    return batches[start:]


def _all_inserts(rows: pa.RecordBatch) -> bool:
    return bool(pc.all(pc.equal(rows.column(CHANGE_TYPE), _INSERT), min_count=0).as_py())


def _has_dictionary(kind: pa.DataType) -> bool:
    """Return whether values are dictionary-encoded on some level: dictionaries of batches may not fit into one."""
    if pa.types.is_dictionary(kind):
        return True
    return pa.types.is_nested(kind) and any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))

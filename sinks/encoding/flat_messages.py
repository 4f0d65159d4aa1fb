"""Change rows as messages whose values are flat JSON: the table's columns, then `_change_type` and the other metadata.

Without a key each row is a message, as it is. With one, a reader that takes the last message of a key for the row has
the table: a delete is followed by a tombstone (the same key, no value), the images of an update come together, the
preimage first, and where they have not one key they are told as what they are to such a reader, so that `_change_type`
says `delete` of the preimage and `insert` of the postimage. Likewise an image that is alone, which says that its key
went or came. `sinks.encoding.debezium.operations` says which images belong together.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sinks.encoding.columns import DecimalForm
from sinks.encoding.debezium.images import Images, Told
from sinks.encoding.debezium.operations import DELETE, INSERT, KINDS, PREIMAGE, gone, has_deletes, moved, repeated
from sinks.encoding.flat import FlatEncoder
from sinks.encoding.messages import BYTES, Messages
from tailer.events import CHANGE_TYPE, ChangeBatch

__all__ = ["FlatMessages"]

ZERO: Final = pa.scalar(0, pa.int64())
ONE: Final = pa.scalar(1, pa.int64())
TWO: Final = pa.scalar(2, pa.int64())
NO_ROW: Final = pa.scalar(None, pa.int64())
NO: Final = pa.array([False])


class FlatMessages:
    """Encodes batches of one schema; with a key it holds back images that may belong to the next batch's.

    `sink`: what errors call the sink. `schema`: of the batches (`tailer.plan.output_schema`). `key`: the columns of the
    messages' keys, which are JSON objects. `tombstones`: one follows a delete, if there is a key. `decimal`: what
    decimals are in JSON (`sinks.encoding.columns.writer_for`). Raises `SinkRejected` for a column whose type has no
    JSON form, and for a column of the key that is not there.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        key: Sequence[str] = (),
        tombstones: bool = True,
        decimal: DecimalForm = "string",
    ) -> None:
        self.schema = schema
        self._flat = FlatEncoder(sink, schema, decimal)
        self._images = Images(sink, schema, key, decimal) if key else None
        self._tombstones = tombstones
        self._change_type = schema.get_field_index(CHANGE_TYPE)

    @property
    def pending(self) -> ChangeBatch | None:
        """The rows that are held back, at most two: progress must not reach the first of them."""
        return self._images.pending if self._images else None

    def encode(self, batch: ChangeBatch, now_ms: int) -> Messages:
        """The messages of `batch`, with a key as far as its rows can be told without those that follow.

        Messages of rows that were held back come first. `now_ms` is not in them. Raises `SinkRejected`, with a key also
        for a change type that is none of Delta's, and has changed nothing then.
        """
        if self._images is None:
            return Messages(None, self._flat.rows(batch.rows), batch.row_index)
        return self._images.encode(batch, self._written)

    def flush(self, now_ms: int) -> Messages | None:
        """The messages of the rows that are held back, None if there are none.

        To be called at the end of a task, and before the encoder is let go.
        """
        return self._images.flush(self._written) if self._images else None

    def _written(self, told: Told) -> Messages:
        """The messages of rows that have keys."""
        rows, kinds = told.batch.rows, told.kinds
        keys, row_index, order = pc.cast(told.keys, BYTES), told.batch.row_index, None
        if told.second is not None:
            kinds, order = _as_told(kinds, told.second, told.keys)
            field = rows.schema.field(self._change_type)
            rows = rows.set_column(self._change_type, field, pc.cast(KINDS.take(kinds), field.type))
        values = self._flat.rows(rows)
        if order is not None:
            values, keys, kinds = values.take(order), keys.take(order), kinds.take(order)
        if not self._tombstones or not has_deletes(kinds):
            return Messages(keys, values, row_index)
        numbers, slots = repeated(pc.if_else(pc.equal(kinds, DELETE), TWO, ONE))
        values = values.take(pc.if_else(pc.equal(slots, ZERO), numbers, NO_ROW))
        return Messages(keys.take(numbers), values, row_index.take(numbers))


def _as_told(kinds: pa.Array, second: pa.Array, keys: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """What the rows are to a reader of keys, and the order that puts preimages first; None if they are.

    `second`: as in `Pairs`.
    """
    moves = moved(second, keys)
    one_key = pc.and_not(second, moves)
    was = gone(kinds)
    updates = pc.or_(one_key, _first_of(one_key))
    kinds_then = pc.if_else(updates, kinds, pc.if_else(was, DELETE, INSERT))
    swapped = pc.and_(second, pc.equal(kinds, PREIMAGE))
    if not pc.any(swapped).as_py():
        return kinds_then, None
    numbers = pa.arange(0, len(kinds))
    order = pc.if_else(swapped, pc.subtract(numbers, ONE), numbers)
    return kinds_then, pc.if_else(_first_of(swapped), pc.add(numbers, ONE), order)


def _first_of(second: pa.Array) -> pa.Array:
    """Which rows are before those."""
    return pa.concat_arrays([second.slice(1), NO])

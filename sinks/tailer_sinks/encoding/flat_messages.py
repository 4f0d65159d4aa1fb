"""Change rows as messages of the table's columns, then `_change_type` and other metadata: flat JSON, or Arrow IPC.

Without a key each row is one message. With a key, a reader that keeps the last message of each key has the table. A
delete is followed by a tombstone (the same key, no value). The images of an update come together, the preimage first.
If they have different keys, `_change_type` is `delete` for the preimage and `insert` for the postimage. The same holds
for a single image, whose key was removed or added. `tailer_sinks.encoding.debezium.operations` pairs images.

Arrow IPC is for readers that want columns, with their types: many rows are in a message. Each message is a complete
stream, a schema and one record batch, which can be read without any other. Its rows are in order.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.events import CHANGE_TYPE
from tailer_sinks.encoding.debezium.images import Images, PairedRows, PairingEncoder, Topics
from tailer_sinks.encoding.debezium.operations import (
    DELETE,
    INSERT,
    KINDS,
    NO,
    NO_ROW,
    ONE,
    PREIMAGE,
    ZERO,
    has_deletes,
    moved,
    old_images,
    repeated,
)
from tailer_sinks.encoding.flat import FlatEncoder
from tailer_sinks.encoding.messages import BYTES, Messages
from tailer_sinks.encoding.values import FORMS, JsonForms

__all__ = ["ArrowMessages", "FlatMessages"]

MAX_BYTES: Final = 900_000  # of an Arrow message
TWO: Final = pa.scalar(2, pa.int64())


class FlatMessages(PairingEncoder):
    """An encoder of batches of one schema. With a key it holds back images until the next batch.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). `key`: the columns of the
    messages' keys, which are JSON objects. `tombstones`: whether one follows a delete, if there is a key. `forms`: of
    numbers. Raises `SinkRejected` for a column whose type has no JSON form, and for a missing column of the key.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        key: Sequence[str] = (),
        tombstones: bool = True,
        forms: JsonForms = FORMS,
    ) -> None:
        self.schema = schema
        self.keyed = bool(key)
        self._flat = FlatEncoder(sink, schema, forms)
        self.images = Images(sink, schema, key, forms, pairs=self.keyed)
        self._tombstones = tombstones
        self._change_type = schema.get_field_index(CHANGE_TYPE)

    def _encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the values of messages about rows."""
        return self._flat.rows(rows)

    @override
    def write(
        self,
        now_ms: int,
        paired: PairedRows,
        topics: Topics[Any],  # their messages are alike
    ) -> tuple[Messages, pa.Array | None]:
        if paired.kinds is None:
            return Messages(None, self._encode(paired.batch.rows), paired.batch.row_index), None
        rows, kinds = paired.batch.rows, paired.kinds
        keys, row_index, order = pc.cast(paired.keys, BYTES), paired.batch.row_index, None
        if paired.second is not None:
            kinds, order = _kinds_by_key(kinds, paired.second, paired.keys)
            field = rows.schema.field(self._change_type)
            rows = rows.set_column(self._change_type, field, pc.cast(KINDS.take(kinds), field.type))
        values = self._encode(rows)
        if order is not None:
            values, keys, kinds = values.take(order), keys.take(order), kinds.take(order)
        if not self._tombstones or not has_deletes(kinds):
            return Messages(keys, values, row_index), None
        numbers, slots = repeated(pc.if_else(pc.equal(kinds, DELETE), TWO, ONE))
        values = values.take(pc.if_else(pc.equal(slots, ZERO), numbers, NO_ROW))
        return Messages(keys.take(numbers), values, row_index.take(numbers)), numbers


def _kinds_by_key(kinds: pa.Array, second: pa.Array, keys: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Return the kinds of the rows for a reader of keys, and the order with preimages first; None: they are in order.

    `second`: as in `Pairs`.
    """
    moves = moved(second, keys)
    one_key = pc.and_not(second, moves)
    was = old_images(kinds)
    updates = pc.or_(one_key, _first_of(one_key))
    kinds_then = pc.if_else(updates, kinds, pc.if_else(was, DELETE, INSERT))
    swapped = pc.and_(second, pc.equal(kinds, PREIMAGE))
    if not pc.any(swapped).as_py():
        return kinds_then, None
    numbers = pa.arange(0, len(kinds))
    order = pc.if_else(swapped, pc.subtract(numbers, ONE), numbers)
    return kinds_then, pc.if_else(_first_of(swapped), pc.add(numbers, ONE), order)


def _first_of(second: pa.Array) -> pa.Array:
    """Return which rows come just before those."""
    return pa.concat_arrays([second.slice(1), NO])


class ArrowMessages(PairingEncoder):
    """An encoder of batches of one schema, without keys. It holds back nothing, so images may be in two messages.

    The row index of a message is that of its last row.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). `max_bytes`: of a
    message's value; only a message of a single row may be larger.
    """

    def __init__(self, sink: str, schema: pa.Schema, max_bytes: int = MAX_BYTES) -> None:
        self.images = Images(sink, schema, pairs=False)
        self._max_bytes = max_bytes

    @override
    def write(
        self, now_ms: int, paired: PairedRows, topics: "Topics[ArrowMessages]"
    ) -> tuple[Messages, pa.Array | None]:
        rows, ends, streams, end = paired.batch.rows, [], [], -1
        numbers = topics.numbers
        lengths = [len(rows)] if numbers is None else pc.value_counts(numbers).field("counts").to_pylist()
        for part_length in lengths:  # a message has rows of one topic
            for length, stream in self._streams(rows.slice(end + 1, part_length)):
                end += length
                ends.append(end)
                streams.append(stream)
        last_rows = pa.array(ends, pa.int64())
        return Messages(None, pa.array(streams, BYTES), paired.batch.row_index.take(last_rows)), last_rows

    def _streams(self, rows: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """Yield the rows as streams, each with the number of its rows."""
        step = len(rows)
        if step:
            step = max(1, min(step, self._max_bytes * step // pa.ipc.get_record_batch_size(rows)))
        start = 0
        while start < len(rows):
            piece = rows.slice(start, step)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, piece.schema) as writer:
                writer.write_batch(piece)
            stream = bytes(sink.getvalue().to_pybytes())
            if len(stream) > self._max_bytes and len(piece) > 1:
                step = (len(piece) + 1) // 2
                continue
            yield len(piece), stream
            start += len(piece)

"""Change rows as Arrow IPC messages: many rows each, with their types, for readers that want columns.

Each message is a complete stream, a schema and one record batch, which can be read without any other. Its rows are in
order, with the columns as they are delivered, `_change_type` and the other metadata last.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch
from tailer_sinks.encoding.messages import BYTES, Messages

__all__ = ["ArrowMessages"]

MAX_BYTES: Final = 900_000


class ArrowMessages:
    """An encoder of batches of one schema, without keys. It holds back nothing, so images may be in two messages.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). `max_bytes`: of a
    message's value; only a message of a single row may be larger.
    """

    def __init__(self, sink: str, schema: pa.Schema, max_bytes: int = MAX_BYTES) -> None:
        self._sink = sink
        self.schema = schema
        self._max_bytes = max_bytes

    @property
    def pending(self) -> ChangeBatch | None:
        """None: each row is in a message at once."""
        return None

    def encode(self, batch: ChangeBatch, now_ms: int) -> Messages:
        """Encode `batch`; the row index of each message is that of its last row. `now_ms` is not used.

        Raises `SinkRejected` for rows of another schema.
        """
        if not batch.rows.schema.equals(self.schema):
            raise SinkRejected(self._sink, f"rows of another schema than was announced: {batch.rows.schema.names}")
        ends, streams = [], []
        end = -1
        for length, stream in self._streams(batch.rows):
            end += length
            ends.append(end)
            streams.append(stream)
        return Messages(None, pa.array(streams, BYTES), batch.row_index.take(pa.array(ends, pa.int64())))

    def flush(self, now_ms: int) -> Messages | None:
        """Return None: nothing is held back."""
        return None

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

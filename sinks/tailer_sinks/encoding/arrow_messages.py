"""Change rows as Arrow IPC messages: many rows each, with their types, for readers that want columns.

Each message is a complete stream, a schema and one record batch, which can be read without any other. Its rows are in
order, with the columns as they are delivered, `_change_type` and the other metadata last.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer_sinks.encoding.debezium.images import Images, PairedRows, PairingEncoder, Topics
from tailer_sinks.encoding.messages import BYTES, Messages

__all__ = ["ArrowMessages"]

MAX_BYTES: Final = 900_000


class ArrowMessages(PairingEncoder):
    """An encoder of batches of one schema, without keys. It holds back nothing, so images may be in two messages.

    The row index of a message is that of its last row.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). `max_bytes`: of a
    message's value; only a message of a single row may be larger.
    """

    def __init__(self, sink: str, schema: pa.Schema, max_bytes: int = MAX_BYTES) -> None:
        self._images = Images(sink, schema, pairs=False)
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

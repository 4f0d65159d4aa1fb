"""Flat JSON Lines: each change row as one JSON object, the table's columns first, then the metadata columns.

Events between rows begin with the same three metadata columns. A reader recognises them by their `_change_type`::

    {"_change_type":"schema_change","_commit_version":5,"_commit_timestamp":"...Z","changes":["column a was added"]}
    {"_change_type":"gap","_commit_version":9,"_commit_timestamp":"...Z","first_version":7,"reason":"...",
     "snapshot":false}

(each on one line).

`FlatEncoder` is made once per schema. It returns the texts either as an Arrow array with one text per row (for
messages) or as one block of lines (for a file). It keeps nothing between calls. The caller bounds the memory of a call
by cutting batches into `slices` first. Writers of any format may have the next slices encoded by other threads while
they write one (`encoded_ahead`).
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import chain, islice
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeBatch, ControlEvent, Gap
from tailer_sinks.encoding.columns import TEXT, NoText, Texts, whole, writer_for
from tailer_sinks.encoding.values import FORMS, Int64Form, JsonForms, integer, json_bytes, timestamp_text

__all__ = [
    "AT_ONCE",
    "REMEDY",
    "FlatEncoder",
    "batch_slices",
    "encoded_ahead",
    "event_line",
    "event_values",
    "slices",
]

REMEDY: Final = "Leave the column out, or use a sink that keeps types: delta, or files with format parquet."
SLICE_ROWS: Final = 8192
SLICE_BYTES: Final = 4 << 20
WIDE_ROW_BYTES: Final = 2 << 10
WIDE_SLICE_BYTES: Final = 1 << 20
AT_ONCE: Final = 2  # slices that are encoded at once where one does not depend on another

Part = TypeVar("Part")
Encoded = TypeVar("Encoded")


class FlatEncoder:
    """An encoder of batches of one schema by the rules of `tailer_sinks.encoding.values`.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). `forms`: of numbers.
    Raises `SinkRejected` for a column whose type has no JSON form.
    """

    def __init__(self, sink: str, schema: pa.Schema, forms: JsonForms = FORMS) -> None:
        self.schema = schema
        self._sink = sink
        try:
            self._writer = writer_for(pa.struct(schema), forms)
        except NoText as error:
            raise SinkRejected(sink, str(error), REMEDY) from error

    def rows(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode one JSON text per row, as UTF-8 bytes (`large_binary`, no nulls). Raises `SinkRejected`."""
        return pc.cast(whole(self._texts(rows)), pa.large_binary())

    def lines(self, rows: pa.RecordBatch) -> pa.Buffer:
        """Encode all rows as one block of UTF-8 text, each with a newline at its end. Raises `SinkRejected`."""
        texts = self._texts(rows)
        if len(rows) == 0:
            return pa.py_buffer(b"")
        lines = whole(Texts(texts.middle, texts.before, f"{texts.after}\n"))
        _, _, data = lines.buffers()
        return data

    def _texts(self, rows: pa.RecordBatch) -> Texts:
        if not rows.schema.equals(self.schema):
            raise SinkRejected(self._sink, f"rows of another schema than was announced: {rows.schema.names}")
        if len(rows) == 0:
            return Texts(pa.array([], TEXT))
        try:
            return self._writer(rows.to_struct_array())
        except NoText as error:
            raise SinkRejected(self._sink, str(error), REMEDY) from error


def event_values(event: ControlEvent, int64: Int64Form = "number") -> dict[str, Any]:
    """Return the event as JSON-ready values, in the order in which they are written. `int64`: the form of versions."""
    moment = pa.scalar(event.timestamp_ms * 1000, pa.timestamp("us"))
    values = {
        CHANGE_TYPE: event.kind,
        COMMIT_VERSION: integer(event.version, int64),
        COMMIT_TIMESTAMP: f"{timestamp_text(moment)}Z",
    }
    if isinstance(event, Gap):
        first = integer(event.first_version, int64)
        return {**values, "first_version": first, "reason": event.reason, "snapshot": event.snapshot}
    return {**values, "changes": list(event.changes)}


def event_line(event: ControlEvent, int64: Int64Form = "number") -> bytes:
    """Return the event as a line of UTF-8 JSON with a newline at its end."""
    return json_bytes(event_values(event, int64)) + b"\n"


def slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut `rows` to slices of at most 8,192 rows and, if rows are of similar size, 1 MiB of Arrow memory.

    Rows of less than 2 kB cost more one by one than by their bytes, so their slices have up to 4 MiB.
    """
    average = rows.nbytes // max(1, len(rows))
    size = WIDE_SLICE_BYTES if average >= WIDE_ROW_BYTES else SLICE_BYTES
    step = max(1, min(SLICE_ROWS, size // max(1, average)))
    for start in range(0, len(rows), step):
        yield rows.slice(start, step)


def batch_slices(batch: ChangeBatch) -> Iterator[ChangeBatch]:
    """Cut the batch to `slices`, whose texts fit into memory."""
    start = 0
    for rows in slices(batch.rows):
        yield batch.slice(start, len(rows))
        start += len(rows)


def encoded_ahead(
    encode: Callable[[Part], Encoded], parts: Iterable[Part], at_once: int = 1
) -> Generator[Encoded, None, None]:
    """Yield what `encode` makes of each part, in order, while the next `at_once` are encoded.

    With `at_once` 1, a part is encoded after the one before it. An error is raised at its place. Whoever leaves early
    must close it, so that no thread is at work with an encoder that has a state.
    """
    rest = iter(parts)
    first = list(islice(rest, 2))
    if len(first) < 2:  # a thread costs more than it gains
        yield from map(encode, first)
        return
    rest = chain(first, rest)
    waiting: deque[Future[Encoded]] = deque(_threads().submit(encode, part) for part in islice(rest, at_once))
    try:
        while waiting:
            encoded = waiting.popleft().result()
            waiting.extend(_threads().submit(encode, part) for part in islice(rest, 1))
            yield encoded
    finally:
        wait([future for future in waiting if not future.cancel()])


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="encode")


# A forked process has none of the threads.
os.register_at_fork(after_in_child=_threads.cache_clear)

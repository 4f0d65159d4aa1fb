"""Change rows on their way to their shards: packed, and put together again in the order of their positions.

A *part* has the rows of a batch that belong to one shard, as an Arrow stream, so all types and names arrive as they
were. Parts are brought to their shard and sorted by the place of their first row. No part has rows between those of
another one, with one exception: *lone* rows. Where executors share a comparison (`tailer.spark.native.comparing`), a
preimage is read apart from its postimage, and belongs at its place. Such a row is a part by itself, with an Arrow
message only, and is put between the rows of the part before it.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changelog.carryovers import ChangelogCounts
from tailer.events import ChangeBatch
from tailer.plan import TASKS, ChangePlan
from tailer.shards.assignment import shard_numbers

__all__ = ["PARTS", "lone_rows", "note_part", "parts_of", "unpacked"]

# The shard is null where it depends on a place that is not known yet.
PARTS: Final = pa.schema(
    [
        ("_shard", pa.int32()),
        ("_version", pa.int64()),
        ("_kind", pa.int32()),
        ("_rows", pa.binary()),
        ("_task", pa.int64()),
        ("_row", pa.int64()),
    ]
)
MOST_LONE: Final = 10_000  # rows that are held back for others around them
_ROW_INDEX: Final = pa.field("", pa.int64())

Note = Callable[[ChangePlan, ChangelogCounts], None]


class PartKind(IntEnum):
    """The content of a part. Of parts with one place, those with a lower number come first."""

    NOTE = 0  # the result of comparing rows of a version, pickled
    LONE = 1  # a row whose neighbours are in other parts
    ROWS = 2  # rows that follow each other


def parts_of(batch: ChangeBatch, key: Sequence[str], shards: int) -> pa.RecordBatch:
    """Return the parts of a batch. `key`: the columns by which rows belong to shards; empty: their tasks."""
    rows = batch.rows.append_column(_ROW_INDEX, batch.row_index)
    if not key:
        return _parts(batch, [batch.task % TASKS % shards], [rows])
    numbers = shard_numbers([batch.rows.column(name) for name in key], shards)
    order = pc.sort_indices(numbers)  # stable
    own, rows = numbers.take(order), rows.take(order)
    changes = pc.not_equal(own.slice(0, len(own) - 1), own.slice(1))
    bounds = [0, *(place + 1 for place in pc.indices_nonzero(changes).to_pylist()), len(rows)]
    parts = [rows.slice(start, end - start) for start, end in pairwise(bounds)]
    return _parts(batch, [own[start].as_py() for start in bounds[:-1]], parts)


def lone_rows(batch: ChangeBatch, key: Sequence[str], shards: int) -> pa.RecordBatch:
    """Return each row of a batch as a part, at the place where it was read. Without a key it has no shard yet."""
    count = len(batch)
    messages = [batch.rows.slice(row, 1).serialize().to_pybytes() for row in range(count)]
    by_key = [batch.rows.column(name) for name in key]
    own = shard_numbers(by_key, shards).to_pylist() if key else [None] * count
    versions, kinds, tasks = [batch.version] * count, [PartKind.LONE.value] * count, [batch.task] * count
    return _record(own, versions, kinds, messages, tasks, batch.row_index.to_pylist())


def note_part(plan: ChangePlan, counts: ChangelogCounts) -> pa.RecordBatch:
    """Return a part for the first shard that tells it what comparing rows of `plan` has found."""
    result = pickle.dumps((replace(plan, tasks=()), counts))
    return _record([0], [plan.version], [PartKind.NOTE.value], [result], [-1], [-1])


def unpacked(
    parts: Iterator[pa.RecordBatch], shard: int, table_id: str, lone: Mapping[int, pa.Schema], note: Note
) -> Iterator[ChangeBatch]:
    """Yield the rows of sorted parts of `shard`, in the order of their positions.

    `lone`: by version, the schema of its lone rows. `note`: called for each result of comparing.
    """
    window = _Window(table_id)
    for batch in parts:
        for index in range(len(batch)):
            number, version, kind, data, task, row = (column[index].as_py() for column in batch.columns)
            assert number == shard, "a partition has the parts of its shard"
            if kind == PartKind.NOTE:
                note(*pickle.loads(data))
                continue
            if window.place != (version, task):
                yield from window.released()
                window.place = version, task
            if kind == PartKind.LONE:
                if window.is_full:
                    yield from window.released(row)
                window.add_lone(row, data, lone[version])
            else:
                yield from window.released(row)
                window.add(data)
    yield from window.released()


class _Window:
    """The rows of a task that are held back, until all rows between them have come. `place`: version and task."""

    def __init__(self, table_id: str) -> None:
        self.place: tuple[int, int] | None = None
        self._table_id = table_id
        self._rows: list[pa.RecordBatch] = []  # with their positions as the last column
        self._lone: list[bytes] = []
        self._lone_rows: list[int] = []
        self._schema: pa.Schema | None = None  # of the lone rows

    @property
    def is_full(self) -> bool:
        """Return whether as many lone rows are held as may be."""
        return len(self._lone) >= MOST_LONE

    def add(self, data: bytes) -> None:
        """Add the rows of a part."""
        with pa.ipc.open_stream(data) as stream:
            self._rows += list(stream)

    def add_lone(self, row: int, data: bytes, schema: pa.Schema) -> None:
        """Add a lone row of `schema` at the position `row`."""
        self._lone.append(data)
        self._lone_rows.append(row)
        self._schema = schema

    def released(self, before: int | None = None) -> Iterator[ChangeBatch]:
        """Yield the rows at positions before `before`, in order, and keep the others; None: all rows."""
        parts = self._rows
        if self._schema is not None:
            stream = b"".join([self._schema.serialize().to_pybytes(), *self._lone])
            with pa.ipc.open_stream(stream) as reader:
                lone = pa.concat_batches(list(reader))
            parts = [lone.append_column(_ROW_INDEX, pa.array(self._lone_rows, pa.int64())), *parts]
            self._lone, self._lone_rows, self._schema = [], [], None
        if len(parts) > 1:  # of rows with one position, those of the first part come first
            rows = pa.concat_batches(parts)
            parts = [rows.take(pc.sort_indices(rows.column(rows.num_columns - 1)))]
        self._rows = []
        for part in parts:
            last = part.num_columns - 1
            count = len(part) if before is None else int(pc.less(part.column(last), before).true_count)
            if count < len(part):
                self._rows.append(part.slice(count))
            if count:
                assert self.place is not None, "it has rows"
                own, schema = part.slice(0, count), pa.schema(list(part.schema)[:last])
                rows = pa.RecordBatch.from_arrays(own.columns[:last], schema=schema)
                yield ChangeBatch(self._table_id, *self.place, rows, own.column(last))


def _parts(batch: ChangeBatch, shards: Sequence[int], parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    count, streams = len(parts), list[bytes]()
    for part in parts:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
        streams.append(sink.getvalue().to_pybytes())
    firsts = [part.column(part.num_columns - 1)[0].as_py() for part in parts]
    return _record(
        shards, [batch.version] * count, [PartKind.ROWS.value] * count, streams, [batch.task] * count, firsts
    )


def _record(*columns: Sequence[object]) -> pa.RecordBatch:
    """Return parts with these values."""
    arrays = [pa.array(values, field.type) for values, field in zip(columns, PARTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PARTS)

"""Queries on the data source `tailer` without Spark: Spark's calls in its order, and its checkpoints.

Spark itself does little: it asks for offsets, records them as JSON, passes partitions to executors, and after a restart
repeats the uncommitted batch. This module does the same in a hundredth of the time.
"""

import json
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from tailer.errors import TailerError
from tailer.spark.source.data_source import BatchReader, StreamReader, TailerSource

__all__ = ["Checkpoint", "Crash", "Query", "Trigger", "read_batch", "rows_of_all"]


class Trigger(Enum):
    """The trigger of a query."""

    AVAILABLE_NOW = "up to what is there when it starts, in batches"
    ONCE = "all there is, in one batch"
    ALWAYS = "batch by batch, until there is nothing new"


class Crash(Exception):
    """An error that stands for a killed query."""


@dataclass
class Checkpoint:
    """The checkpoint of a query: its recorded offsets, and the batches that reached the sink."""

    offsets: list[str] = field(default_factory=list)
    batches: dict[int, pa.Table] = field(default_factory=dict)
    committed: int = 0

    @property
    def tables(self) -> list[pa.Table]:
        """Return the rows of every batch, in order."""
        return [self.batches[number] for number in sorted(self.batches)]

    @property
    def place(self) -> dict[str, Any]:
        """The last offset."""
        found: dict[str, Any] = json.loads(self.offsets[-1])
        return found


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _travelled(reader: Any) -> Any:
    return pickle.loads(pickle.dumps(reader))


def _rows_read(reader: BatchReader | StreamReader, schema: StructType, work: list[Any]) -> pa.Table:
    """Return the rows that executors read from partitions, in any order."""
    expected = to_arrow_schema(schema, timezone="UTC")
    batches = []
    for partition in _shuffled(work):
        for batch in _travelled(reader).read(_travelled(partition)):
            assert batch.schema.equals(expected), f"{batch.schema}\nis not\n{expected}"
            batches.append(batch)
    table = pa.Table.from_batches(batches, expected)
    table.validate(full=True)
    return table


def _shuffled(work: list[Any]) -> list[Any]:
    return random.Random(len(work)).sample(work, len(work))


def rows_of_all(checkpoint: Checkpoint) -> pa.Table:
    """Return the rows of all batches of a query with constant columns."""
    return pa.concat_tables(checkpoint.tables)


def read_batch(**options: Any) -> pa.Table:
    """Return the rows of a batch read."""
    source = TailerSource(_texts(options))
    schema = source.schema()
    reader = _travelled(_travelled(source).reader(schema))
    return _rows_read(reader, schema, reader.partitions())


class Query:
    """A streaming query with a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, **options: Any) -> None:
        self.checkpoint = checkpoint
        self._source = TailerSource(_texts(options))
        self.schema = self._source.schema()
        self.reported: list[dict[str, Any]] = []

    def run(
        self,
        trigger: Trigger = Trigger.ALWAYS,
        between: Callable[[int], object] = bool,
        crash: Callable[[int], bool] = lambda _: False,
    ) -> TailerError | None:
        """Run until there is nothing new, or until the source stops; return its error.

        `between` is called before each batch, with its number; a batch for which `crash` is true is not committed.
        """
        reader: StreamReader = _travelled(self._source).streamReader(self.schema)
        try:
            self._run(reader, trigger, between, crash)
        except TailerError as error:
            return error
        finally:
            reader.stop()
        return None

    def read(self, reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
        """Return the rows between two offsets."""
        return _rows_read(reader, self.schema, reader.partitions(start, end))

    def _run(
        self,
        reader: StreamReader,
        trigger: Trigger,
        between: Callable[[int], object],
        crash: Callable[[int], bool],
    ) -> None:
        log = self.checkpoint
        if trigger is Trigger.AVAILABLE_NOW:
            reader.prepareForTriggerAvailableNow()
        if log.committed == 0:
            # Spark does not record the start of a stream: it asks again before the first batch is committed.
            first = json.dumps(reader.initialOffset(), separators=(",", ":"))
            assert first == json.dumps(reader.initialOffset(), separators=(",", ":"))
            log.offsets[:1] = [first]
        limit: ReadLimit = ReadAllAvailable() if trigger is Trigger.ONCE else reader.getDefaultReadLimit()
        while True:
            number = log.committed
            if len(log.offsets) == number + 1:
                between(number)
                start = log.offsets[number]
                end = json.dumps(reader.latestOffset(json.loads(start), limit), separators=(",", ":"))
                reported = reader.reportLatestOffset()
                if reported is not None:
                    self.reported.append(reported)
                if end == start:
                    return
                log.offsets.append(end)
            start, end = log.offsets[number], log.offsets[number + 1]
            rows = self.read(reader, json.loads(start), json.loads(end))
            if crash(number):
                raise Crash
            log.batches[number] = rows
            log.committed += 1
            if trigger is Trigger.ONCE:
                return

"""The data source for rows that go through `tailer.read.execute`, beside the scans of Spark's own reader.

The work was planned before the query is written, and travels as the option `work`: Spark makes a data source from
options alone. `explain` shows it as `tailer_executed`.
"""

import base64
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tailer.spark.next_step import with_next_step
from tailer.spark.release import SameRelease, our_task
from tailer.spark.source.views import SparkView
from tailer.spark.splits import Split, read_split

__all__ = ["change_rows", "executed"]

_WORK: Final = "work"


Part = TypeVar("Part")
Read = Callable[[Part], Iterator[pa.RecordBatch]]
"""Yields the rows of a part of work, such as a split, on an executor. Survives pickle, and is sent with every part."""


def change_rows(view: SparkView, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the change rows of a split in the form of `view`."""
    for batch in read_split(split):
        yield from view.rows(batch)


def executed(spark: SparkSession, schema: StructType, read: Read[Part], work: Sequence[Part]) -> DataFrame:
    """Return the rows of the parts of `work`, which `read` yields in the columns `schema`."""
    spark.dataSource.register(ExecutedSource)
    travelling = pickle.dumps((SameRelease(), schema, read, list(work)))
    text = base64.b64encode(zlib.compress(travelling, 1)).decode("ascii")
    return spark.read.format(ExecutedSource.name()).option(_WORK, text).load()


class ExecutedSource(DataSource):
    """See the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "tailer_executed"

    def schema(self) -> StructType:
        """Return the columns of the rows."""
        return self._reader().schema

    def reader(self, schema: StructType) -> "ExecutedReader":
        """Make the reader of the work."""
        return self._reader()

    def _reader(self) -> "ExecutedReader":
        _, schema, read, work = pickle.loads(zlib.decompress(base64.b64decode(self.options[_WORK])))
        return ExecutedReader(schema, read, work)


class ExecutedReader(DataSourceReader):
    """A batch of work, one partition for each part."""

    def __init__(self, schema: StructType, read: Read[Any], work: Sequence[Any]) -> None:
        self._same = SameRelease()
        self.schema = schema
        self._read = read
        self._work = work

    def __getstate__(self) -> dict[str, object]:
        """Return the state for executors, each of which gets the parts it reads as partitions."""
        return {**self.__dict__, "_work": ()}

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in self._work]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part. Runs on an executor."""
        with our_task(), with_next_step():
            if partition.value is not None:  # a batch without splits has one partition with None
                yield from self._read(partition.value)

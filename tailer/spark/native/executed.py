"""The data source for rows that go through `tailer.read.execute`, beside the scans of Spark's own reader.

The work was planned before the query is written, and travels as the option `work`: Spark makes a data source from
options alone. `explain` shows it as `tailer_executed`.
"""

import base64
import pickle
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from tailer.spark.next_step import with_next_step
from tailer.spark.release import SameRelease, our_task
from tailer.spark.source.views import RowsView
from tailer.spark.splits import Split, read_split

__all__ = ["ChangeRows", "SplitView", "executed"]

_WORK: Final = "work"


Part = TypeVar("Part", contravariant=True)  # noqa: PLC0105 - a protocol's only parameter


class SplitView(Protocol[Part]):
    """A form of the rows of parts of work, such as splits. It survives pickle, and is sent with every part."""

    @property
    def spark_schema(self) -> StructType: ...

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part in this form. Runs on an executor."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeRows(SplitView[Split]):
    """Change rows of splits in the form of `view`."""

    view: RowsView

    @property
    @override
    def spark_schema(self) -> StructType:
        return self.view.spark_schema

    @override
    def read(self, part: Split) -> Iterator[pa.RecordBatch]:
        for batch in read_split(part):
            yield from self.view.rows(batch)


def executed(spark: SparkSession, view: SplitView[Part], work: Sequence[Part]) -> DataFrame:
    """Return the rows of the parts of `work`, in the form of `view`."""
    spark.dataSource.register(ExecutedSource)
    travelling = pickle.dumps((SameRelease(), view, list(work)))
    text = base64.b64encode(zlib.compress(travelling, 1)).decode("ascii")
    return spark.read.format(ExecutedSource.name()).option(_WORK, text).load()


class ExecutedSource(DataSource):
    """See the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "tailer_executed"

    def schema(self) -> StructType:
        """Return the columns of the view."""
        return self._reader().view.spark_schema

    def reader(self, schema: StructType) -> "ExecutedReader":
        """Make the reader of the work."""
        return self._reader()

    def _reader(self) -> "ExecutedReader":
        _, view, work = pickle.loads(zlib.decompress(base64.b64decode(self.options[_WORK])))
        return ExecutedReader(view, work)


class ExecutedReader(DataSourceReader):
    """A batch of work, one partition for each part."""

    def __init__(self, view: SplitView[Any], work: Sequence[Any]) -> None:
        self._same = SameRelease()
        self.view = view
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
                yield from self.view.read(partition.value)

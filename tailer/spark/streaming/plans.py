"""The data source of plans: a stream whose rows say what to read, for `tailer.spark.streaming.follow`.

It has the offsets, the admission control and the options of the data source `tailer`. Between two offsets it has a few
rows in place of all changes, each with a part of the planned work: some 200 bytes for a file. `explain` shows it as
`tailer_plans`.
"""

import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from tailer.spark.release import SameRelease
from tailer.spark.source.admission import Work
from tailer.spark.source.data_source import StreamReader, TailerSource
from tailer.spark.source.offsets import Offset
from tailer.spark.source.views import TypedView

__all__ = ["PlanSource", "work_of"]

_PART: Final = 256  # files or comparisons in a row
_ROWS: Final = 16  # in a partition
_SCHEMA: Final = StructType([StructField("work", BinaryType(), nullable=False)])
_COLUMNS: Final = pa.schema([pa.field("work", pa.binary(), nullable=False)])


class PlanSource(TailerSource):
    """See the module's docstring."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "tailer_plans"

    def schema(self) -> StructType:
        """Return the one column. Raises what reading the log raises."""
        super().schema()
        return _SCHEMA

    def streamReader(self, schema: StructType) -> "PlanReader":  # noqa: N802 - Spark's name
        """Make the reader of plans."""
        return PlanReader(*self.followed())


class PlanReader(StreamReader):
    """A stream of plans. There is at least one row between any two offsets."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, which read nothing but what a partition contains."""
        return {**super().__getstate__(), "_chosen": None, "_view": None}

    def partitions(self, start: Offset, end: Offset) -> list[Any]:
        """Return the rows between two offsets, some in each partition."""
        rows = [_row(self._view, part) for part in _parts(self.work(start, end))]
        return [InputPartition(rows[first : first + _ROWS]) for first in range(0, len(rows), _ROWS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs on an executor."""
        yield pa.record_batch([pa.array(partition.value, pa.binary())], schema=_COLUMNS)


def work_of(rows: Iterable[bytes]) -> tuple[TypedView, Work]:
    """Return what the rows of a micro-batch say: how rows look, and the work. There must be a row."""
    views, parts = [], []
    for row in rows:
        _, view, part = pickle.loads(zlib.decompress(row))
        views.append(view)
        parts.append(part)
    others = tuple(each for part in parts for each in part.others)
    return views[0], Work(others, tuple(each for part in parts for each in part.files), parts[0].opener)


def _row(view: object, part: Work) -> bytes:
    return zlib.compress(pickle.dumps((SameRelease(), view, part)), 1)


def _parts(work: Work) -> Sequence[Work]:
    count = max(1, len(work.others), len(work.files))
    cuts = [slice(first, first + _PART) for first in range(0, count, _PART)]
    return [Work(work.others[cut], work.files[cut], work.opener) for cut in cuts]

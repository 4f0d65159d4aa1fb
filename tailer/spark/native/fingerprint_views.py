"""The executor's side of a shared index: splits as fingerprints, and as sums of these.

Sums are a few numbers for many rows. Where a row has changed, the sums of its bucket are not zero. So in a version of
which few rows changed, few rows are handed to Spark (`tailer.changelog.equal_rows.fingerprints.Fingerprints.sums`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, BooleanType, IntegerType, LongType, StructField, StructType

from tailer.changelog.equal_rows.fingerprints import SUMS, Fingerprints, Wanted
from tailer.events import ChangeBatch
from tailer.read.row_bitmaps import Bitmaps, to_bytes
from tailer.spark.splits import FilesSplit, read_split

__all__ = ["FingerprintRows", "FingerprintSums", "NumberedSplit"]

_LONGS: Final = ("high", "low", "address")
_ROWS: Final = StructType([*(StructField(name, LongType()) for name in _LONGS), StructField("deleted", BooleanType())])
_SUMS: Final = StructType(
    [
        StructField("source", LongType()),
        StructField("positions", BinaryType()),
        StructField("bucket", IntegerType()),
        *(StructField(name, LongType()) for name in SUMS),
    ]
)
_COLUMNS: Final = [
    pa.field("source", pa.int64()),
    pa.field("positions", pa.binary()),
    pa.field("bucket", pa.int32()),
    *(pa.field(name, pa.int64()) for name in SUMS),
]


@dataclass(frozen=True, slots=True)
class NumberedSplit:
    """A split, and the source of each of its tasks, by version and index."""

    split: FilesSplit
    numbers: Mapping[tuple[int, int], int]

    def batches(self) -> Iterator[tuple[int, ChangeBatch]]:
        """Yield its batches with their sources."""
        for batch in read_split(self.split):
            yield self.numbers[batch.version, batch.task], batch


@dataclass(frozen=True, slots=True)
class FingerprintRows:
    """A row for each row (`tailer.spark.native.executed.SplitView`).

    `buckets`: the int32 numbers of those wanted; None: all.
    """

    fingerprints: Fingerprints
    wanted: Wanted
    buckets: pa.Array | None = None
    spark_schema: StructType = field(default_factory=lambda: _ROWS)

    def read(self, part: NumberedSplit) -> Iterator[pa.RecordBatch]:
        """See `SplitView.read`."""
        return self.fingerprints.rows(part.batches(), self.wanted, self.buckets)


@dataclass(frozen=True, slots=True)
class FingerprintSums:
    """The sums of each bucket, and the positions of each source (`tailer.spark.native.executed.SplitView`)."""

    fingerprints: Fingerprints
    wanted: Wanted
    spark_schema: StructType = field(default_factory=lambda: _SUMS)

    def read(self, part: NumberedSplit) -> Iterator[pa.RecordBatch]:
        """See `SplitView.read`."""
        positions: Bitmaps = {}
        for sums in self.fingerprints.sums(part.batches(), self.wanted, positions):
            nulls = [pa.nulls(sums.num_rows, field.type) for field in _COLUMNS[:2]]
            yield pa.RecordBatch.from_arrays([*nulls, *sums.columns], schema=pa.schema(_COLUMNS))
        count = len(positions)
        found = [pa.array(positions, pa.int64()), pa.array(map(to_bytes, positions.values()), pa.binary())]
        nulls = [pa.nulls(count, field.type) for field in _COLUMNS[2:]]
        yield pa.RecordBatch.from_arrays([*found, *nulls], schema=pa.schema(_COLUMNS))

"""The executor's side of a shared index: splits as fingerprints, and as sums of these.

Sums are a few numbers for many rows. Where a row has changed, the sums of its bucket are not zero. So in a version of
which few rows changed, few rows are exchanged (`tailer.changelog.equal_rows.fingerprints.Fingerprints.sums`). All
fingerprints are kept where they were computed, many to a row, which Spark takes in a hundredth of the time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, IntegerType, LongType, StructField, StructType

from tailer.changelog.equal_rows.addressed_rows import Wanted
from tailer.changelog.equal_rows.fingerprints import SUMS, Fingerprints
from tailer.events import ChangeBatch
from tailer.files.row_bitmaps import Bitmaps, to_bytes
from tailer.spark.splits import FilesSplit, read_split

__all__ = ["FingerprintSums", "NumberedSplit"]

_LONGS: Final = ("high", "low", "address")
_SUMS: Final = StructType(
    [
        *(StructField(name, ArrayType(LongType())) for name in _LONGS),
        StructField("deleted", ArrayType(BooleanType())),
        StructField("bucket", IntegerType()),
        *(StructField(name, LongType()) for name in SUMS),
        StructField("source", LongType()),
        StructField("positions", BinaryType()),
    ]
)
_COLUMNS: Final = pa.schema(
    [
        *(pa.field(name, pa.list_(pa.field("element", pa.int64()))) for name in _LONGS),
        pa.field("deleted", pa.list_(pa.field("element", pa.bool_()))),
        pa.field("bucket", pa.int32()),
        *(pa.field(name, pa.int64()) for name in SUMS),
        pa.field("source", pa.int64()),
        pa.field("positions", pa.binary()),
    ]
)


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
class FingerprintSums:
    """Three kinds of rows: many fingerprints, the sums of a bucket, the positions of a source.

    Columns of another kind are null (`tailer.spark.native.executed.SplitView`).
    """

    fingerprints: Fingerprints
    wanted: Wanted
    spark_schema: StructType = field(default_factory=lambda: _SUMS)

    def read(self, part: NumberedSplit) -> Iterator[pa.RecordBatch]:
        """See `SplitView.read`."""
        positions: Bitmaps = {}
        for rows in self.fingerprints.rows(part.batches(), self.wanted, positions):
            ends = pa.array([0, rows.num_rows], pa.int32())
            lists = [pa.ListArray.from_arrays(ends, column) for column in rows.columns]
            yield _of_one_kind(dict(zip(rows.schema.names, lists, strict=True)))
        for sums in self.fingerprints.sums():
            yield _of_one_kind(dict(zip(sums.schema.names, sums.columns, strict=True)))
        texts = map(to_bytes, positions.values())
        yield _of_one_kind({"source": pa.array(positions, pa.int64()), "positions": pa.array(texts, pa.binary())})


def _of_one_kind(found: Mapping[str, pa.Array]) -> pa.RecordBatch:
    count = len(next(iter(found.values())))
    columns = [
        found[field.name].cast(field.type) if field.name in found else pa.nulls(count, field.type) for field in _COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)

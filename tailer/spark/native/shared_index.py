"""An index of rows that all executors share (`tailer.changelog.equal_rows.port.TaskIndex`).

`add_tasks` has executors read the compared columns of parts of files, each its own, and add up the fingerprints of rows
by bucket, which they also keep on their disks. What did not cancel out is found among the rows in uneven buckets alone;
other queries take all rows. Spark's exchange brings equal ones together (`tailer.spark.native.equal_rows`). The driver
gets positions, as bits, and the addresses of pairs if this process must put preimages beside their postimages. So
`tailer.changelog.carryovers` decides here as it does in one process, by the same rules and in the same order.

A comparison first cancels out what did not change. If few rows are left then, what follows is left to an index of this
process, which reads these rows alone: Spark takes longer to begin.

Sums of fingerprints are a few numbers for many rows. Where a row has changed, the sums of its bucket are not zero. So
in a version of which few rows changed, few rows are exchanged
(`tailer.changelog.equal_rows.fingerprints.Fingerprints.sums`). All fingerprints are kept where they were computed, many
to a row, which Spark takes in a hundredth of the time.
"""

import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, IntegerType, LongType, StructField, StructType
from typing_extensions import override

from tailer.changelog.equal_rows.comparable_values import Wanted
from tailer.changelog.equal_rows.fingerprints import SUMS, Fingerprints
from tailer.changelog.equal_rows.port import TaskIndex
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.events import ChangeBatch, ChangeType
from tailer.files.deletion_vector import inline, load
from tailer.files.row_bitmaps import Bitmaps, bitmap_of_words, from_bytes, to_bytes
from tailer.plan import ChangeTask, TaskKind
from tailer.read.data_files import LOCAL, DataFiles
from tailer.read.decoded_files import ReadTask
from tailer.spark.native import equal_rows
from tailer.spark.native.executed import executed
from tailer.spark.session import SPARK_ERRORS
from tailer.spark.source.spark_types import spark_frame
from tailer.spark.splits import FileSlice, FilesSplit, file_splits, read_split

__all__ = ["FingerprintSums", "SharedIndex", "bitmaps"]

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
_COLUMNS: Final = to_arrow_schema(_SUMS)


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
    """Reads parts as three kinds of rows: many fingerprints, the sums of a bucket, the positions of a source.

    Columns of another kind are null.
    """

    fingerprints: Fingerprints
    wanted: Wanted

    def read(self, part: NumberedSplit) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part. Runs on an executor."""
        positions: Bitmaps = {}
        for rows in self.fingerprints.rows(part.batches(), self.wanted, positions):
            ends = pa.array([0, rows.num_rows], pa.int32())
            lists = [pa.ListArray.from_arrays(ends, column) for column in rows.columns]
            yield _of_one_kind(dict(zip(rows.schema.names, lists, strict=True)))
        for sums in self.fingerprints.sums():
            yield _of_one_kind(dict(zip(sums.schema.names, sums.columns, strict=True)))
        texts = map(to_bytes, positions.values())
        yield _of_one_kind({"source": pa.array(positions, pa.int64()), "positions": pa.array(texts, pa.binary())})


def _of_one_kind(arrays: Mapping[str, pa.Array]) -> pa.RecordBatch:
    count = len(next(iter(arrays.values())))
    columns = [arrays[own.name].cast(own.type) if own.name in arrays else pa.nulls(count, own.type) for own in _COLUMNS]
    return pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)


_TASKS_PER_CORE: Final = 4
_PLAIN: Final = (ChangeType.DELETE, ChangeType.INSERT)
_DATA_FILES: Final = (TaskKind.DELETE, TaskKind.INSERT)
_DIVIDED: Final = f"NOT ({equal_rows.SINGLE})"


class SharedIndex(TaskIndex):
    """An index of the executors of `spark`, which open files with `files`. `close` it when done.

    `local`: the index for few rows; `few_rows`: how many these are. Methods raise what Spark and `local` raise.
    """

    def __init__(self, spark: SparkSession, local: RowIndex, few_rows: int, files: DataFiles = LOCAL) -> None:
        self._spark = spark
        self._local = local
        self._files = files
        self._few_rows = few_rows
        self._maps_in_order = False
        self._fingerprints = Fingerprints(secrets.token_hex(16))
        self._added: DataFrame | None = None  # fingerprints and sums; None: the rows are those of `local`
        self._partners: DataFrame | None = None  # found by Spark
        self._paired_here = False  # whether partners are in `local`
        self._counts: dict[tuple[int, int], int] = {}
        self._kept: list[DataFrame] = []
        self._kept_partners: list[DataFrame] = []

    def close(self) -> None:
        """Free the disks of executors."""
        _release(self._kept)
        _release(self._kept_partners)

    @override
    def begin(self, maps_in_order: bool = False) -> None:
        self._maps_in_order = maps_in_order
        self._local.begin(maps_in_order)
        self._added, self._partners, self._paired_here = None, None, False
        self.close()

    @override
    def clear(self) -> None:
        self._local.clear()
        self._added = None
        _release(self._kept)

    @override
    def add_tasks(
        self,
        tasks: Sequence[tuple[int, ChangeTask]],
        read: ReadTask,
        types: tuple[ChangeType, ...],
        nulls_differ: bool = False,
    ) -> Bitmaps:
        # Whoever has the pairs compares their rows.
        if self._paired_here or (
            self._partners is None and sum(self._most_rows(task) for _, task in tasks) <= self._few_rows
        ):
            return self._local.add_tasks(tasks, read, types, nulls_differ)
        sums = FingerprintSums(self._fingerprints, Wanted(types, nulls_differ, self._maps_in_order))
        numbers = {_key(task): number for number, task in tasks}
        splits = file_splits([FileSlice(_travelling(task)) for _, task in tasks], files=self._files)
        work = [
            NumberedSplit(split, {_key(part.task): numbers[_key(part.task)] for part in split.slices})
            for split in splits
        ]
        self._added = self._keep(executed(self._spark, _SUMS, sums.read, work))
        positions: Bitmaps = {}
        rows = self._added.where("source IS NOT NULL").select("source", "positions").toArrow()
        for source, data in zip(rows["source"].to_pylist(), rows["positions"], strict=True):
            bitmap = from_bytes(data.as_py())
            positions[source] = positions[source] | bitmap if source in positions else bitmap
        if not nulls_differ and set(_PLAIN) <= set(types):
            self._counts |= {_key(task): len(positions.get(number, ())) + _dropped(task) for number, task in tasks}
        return positions

    @override
    def unmatched(self) -> Bitmaps:
        if self._added is None:
            return self._local.unmatched()
        uneven = equal_rows.uneven(self._added).toArrow()
        if len(uneven) == 0:
            return {}
        rows = self._keep(equal_rows.in_buckets(self._all_rows(), self._spark.createDataFrame(uneven)))
        counts = self._counted(rows, "all_deleted <> all_inserted")
        several, on_both_sides = equal_rows.tally(counts)
        one_sided = counts.where(f"NOT ({equal_rows.BOTH_SIDES})")
        left = equal_rows.ends(one_sided)
        left = left.union(equal_rows.of_fingerprints(rows, one_sided)) if several else left
        return bitmaps(left.union(equal_rows.first_or_last(rows, counts)) if on_both_sides else left)

    @override
    def unmatched_singles(self) -> Bitmaps:
        if self._added is None:
            return self._local.unmatched_singles()
        rows = self._all_rows()
        counts = self._counted(rows, _DIVIDED)
        left = equal_rows.ends(counts)
        return bitmaps(left.union(equal_rows.of_fingerprints(rows, counts)) if any(equal_rows.tally(counts)) else left)

    @override
    def pair(self, in_turn: bool = False) -> tuple[Bitmaps, Bitmaps, int]:
        if self._added is None:
            pairs = self._local.pair(in_turn)
            self._paired_here = self._paired_here or bool(pairs[0])
            return pairs
        rows = self._all_rows()
        counts = self._counted(rows, equal_rows.BOTH_SIDES)
        total = counts.where(_DIVIDED).selectExpr("coalesce(sum(all_deleted + all_inserted), 0) AS total").collect()
        ambiguous = int(total[0]["total"])
        if in_turn:
            paired = equal_rows.paired_in_turn(rows)
        else:
            paired = equal_rows.paired_singles(counts)
            paired = paired.union(equal_rows.paired_many(rows, counts)) if ambiguous else paired
        paired = _persisted(paired, self._kept_partners)
        self._partners = paired if self._partners is None else self._partners.union(paired)
        deleted, inserted = (bitmaps(paired.selectExpr(f"{side} AS address")) for side in ("deleted", "inserted"))
        return deleted, inserted, ambiguous

    @override
    def unpair_equal(self) -> Bitmaps:
        partners = self._partners
        if self._added is None or partners is None:
            return self._local.unpair_equal()
        equal = _persisted(equal_rows.equal_partners(self._all_rows(), partners), self._kept_partners)
        self._partners = partners.join(equal.select("inserted"), "inserted", "left_anti")
        return bitmaps(equal.selectExpr("explode(array(deleted, inserted)) AS address"))

    @override
    def partner_ranks(self) -> Generator[pa.RecordBatch, None, None]:
        if self._partners is not None:
            self._local.add_partners(self._partners.select("deleted", "inserted").toArrow())
        yield from self._local.partner_ranks()

    def partners(self) -> DataFrame:
        """Return the addresses of partners, in the columns `deleted` and `inserted`. Executors keep them to `close`."""
        return spark_frame(self._spark, self._local.partners()) if self._partners is None else self._partners

    def _most_rows(self, task: ChangeTask) -> int:
        """Return how many rows a task has at most, as far as is known."""
        count = self._counts.get(_key(task))
        # Of change files, rows of some types are not counted.
        limits = [] if count is None or task.kind not in _DATA_FILES else [max(0, count - _dropped(task))]
        limits += [] if task.include is None else [task.include.cardinality]
        return min(limits, default=self._few_rows + 1)

    def _counted(self, rows: DataFrame, condition: str) -> DataFrame:
        """Count the rows of each fingerprint, for those of a condition."""
        # Kept rows keep their partitions, of which there are 200 by default, however few the rows.
        tasks = _TASKS_PER_CORE * self._spark.sparkContext.defaultParallelism
        return self._keep(equal_rows.counted(rows).where(condition).coalesce(tasks))

    def _keep(self, rows: DataFrame) -> DataFrame:
        return _persisted(rows, self._kept)

    def _all_rows(self) -> DataFrame:
        """Return the added rows, out of what executors keep."""
        assert self._added is not None, "rows were added"
        return equal_rows.unpacked(self._added)


def _key(task: ChangeTask) -> tuple[int, int]:
    return task.version, task.index


def _dropped(task: ChangeTask) -> int:
    """Return how many rows of the task earlier results have left out."""
    dropped = None if task.refinement is None else task.refinement.dropped
    return 0 if dropped is None else dropped.cardinality


def _persisted(rows: DataFrame, kept: list[DataFrame]) -> DataFrame:
    """Have executors keep rows on their disks, and note that in `kept`."""
    kept.append(rows.persist(StorageLevel.DISK_ONLY))
    return kept[-1]


def _release(kept: list[DataFrame]) -> None:
    """Free the disks of executors. Spark's errors do not matter here: the results are complete."""
    while kept:
        with suppress(*SPARK_ERRORS):
            kept.pop().unpersist()


def _travelling(task: ChangeTask) -> ChangeTask:
    """Return the task with what was found out about its rows, not where that is on this machine's disk."""
    refinement = task.refinement
    if refinement is None:
        return task
    dropped, updated = (
        ref if ref is None or ref.uri is None else inline(load(ref, task, LOCAL.read))
        for ref in (refinement.dropped, refinement.updated)
    )
    return replace(task, refinement=replace(refinement, dropped=dropped, updated=updated))


def bitmaps(addresses: DataFrame) -> Bitmaps:
    """Collect addresses as the positions of each task."""
    words = equal_rows.words(addresses).toArrow().sort_by("task").combine_chunks()
    by_task: Bitmaps = {}
    start = 0
    for run in pc.value_counts(words["task"]).to_pylist():
        own = words.slice(start, run["counts"])
        by_task[run["values"]] = bitmap_of_words(own["word"].combine_chunks(), own["bits"].combine_chunks())
        start += run["counts"]
    return by_task

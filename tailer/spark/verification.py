"""Verification on executors: each reads parts of the source and of the mirror, and returns sums of fingerprints.

A mirror that is a table which lake-tailer can follow is read as its source is: both are planned here, and executors
read the files, by the same function as everywhere. They return the sums of each bucket of keys
(`tailer.changelog.equal_rows.keyed_difference`), whatever the number of rows is. Only the rows of buckets that differ
are read again, and come to this process. It holds the results of two parts for each core at most.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from anyio import CancelScope, to_thread

from tailer.changelog.equal_rows.keyed_difference import KeyedDifference
from tailer.errors import FileVacuumed, SinkRejected, VersionGone
from tailer.events import ChangeBatch, joined_rows
from tailer.pipeline.verification.sides import CHUNK_BYTES, CHUNK_ROWS, Sides, Source, Take
from tailer.plan import ChangePlan
from tailer.read.data_files import LOCAL, DataFiles
from tailer.sink import MirrorCopy, MirrorRows, pipeline_of
from tailer.spark.engine.executors import Executors, Run
from tailer.spark.splits import MAX_SPLIT_BYTES, FilesSplit, file_slices, file_splits, read_split
from tailer.table_log import TableLog

__all__ = ["SparkVerification"]

_ROWS_BYTES: Final = 16 * 2**20  # of the files of a part whose rows come to this process
_WRITING: Final = pa.ipc.IpcWriteOptions(compression="lz4")

_Plans = AsyncGenerator[ChangePlan, None]


@dataclass(frozen=True, slots=True)
class _Comparing:
    """A comparison that executors take part in: see `KeyedDifference`.

    `buckets`: those whose rows are wanted, in the second pass.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    salt: str
    as_stored: Callable[[pa.RecordBatch], pa.RecordBatch]
    is_source: bool = True
    buckets: pa.Array | None = None

    def begin(self) -> KeyedDifference:
        """Begin a comparison that takes part in another one."""
        return KeyedDifference(self.columns, self.key, salt=self.salt)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the rows of a side."""

    split: FilesSplit
    comparing: _Comparing

    def chunks(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield rows, in chunks of at least one: as they are read, and as the mirror would hold them."""
        waiting: list[ChangeBatch] = []
        count = size = 0
        for batch in read_split(self.split):
            waiting.append(batch)
            count += len(batch)
            size += batch.size_bytes
            if count >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield self._chunk(waiting)
                waiting, count, size = [], 0, 0
        if count:
            yield self._chunk(waiting)

    def _chunk(self, batches: list[ChangeBatch]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        rows = joined_rows(batches)
        return rows, self.comparing.as_stored(rows).select(list(self.comparing.columns))


_Work = Callable[[_Part], Iterator[bytes]]


class SparkVerification:
    """Verification of the mirrors whose files `executors` can open with `files`, as they can those of the source.

    `executors` is called in a worker thread, because Spark may have to start first. `open_log` opens the log of the
    mirror at its location. `from_bytes`: of the files of a source that is worth it.
    """

    def __init__(
        self,
        executors: Callable[[], Executors],
        open_log: Callable[[str], TableLog],
        files: DataFiles = LOCAL,
        from_bytes: int = 0,
    ) -> None:
        self._executors = executors
        self._open_log = open_log
        self._files = files
        self._from_bytes = from_bytes

    async def sides(self, source: Source, mirror: MirrorRows) -> Sides | None:
        """See `tailer.pipeline.verification.sides.OpenSides`. `EngineUnavailable` may be raised where they are read."""
        copy = mirror.copy()
        if copy is None or not await self._is_worth(source):
            return None
        executors = await to_thread.run_sync(self._executors)
        return _ExecutorSides(executors, self._files, source, mirror, copy, self._open_log(copy.location))

    async def _is_worth(self, source: Source) -> bool:
        size = 0
        async with aclosing(source.plans()) as plans:
            while size < self._from_bytes:
                plan = await anext(plans, None)
                if plan is None:
                    return False
                size += plan.size_bytes
        return True


class _ExecutorSides(Sides):
    """Sides that executors read. `copy`, `log`: of the mirror."""

    def __init__(
        self,
        executors: Executors,
        files: DataFiles,
        source: Source,
        mirror: MirrorRows,
        copy: MirrorCopy,
        log: TableLog,
    ) -> None:
        self._executors = executors
        self._files = files
        self._source = source
        self._mirror = mirror
        self._copy = copy
        self._log = log

    async def add_to(self, difference: KeyedDifference) -> tuple[int, int]:
        """See `Sides.add_to`."""
        counts = [0, 0]

        def add(side: int, sums: pa.Table) -> None:
            counts[side] += abs(int(pc.sum(sums["side"]).as_py() or 0))
            difference.add_sums(sums)

        comparing = self._comparing(difference)
        await self._run(_sums, self._source.plans(), comparing, MAX_SPLIT_BYTES, partial(add, 0))
        await self._run_mirror(_sums, replace(comparing, is_source=False), MAX_SPLIT_BYTES, partial(add, 1))
        return counts[0], counts[1]

    async def keep_in(self, difference: KeyedDifference) -> None:
        """See `Sides.keep_in`."""

        def keep(is_source: bool, rows: pa.Table) -> None:
            difference.keep(rows.to_batches(), is_source=is_source)

        comparing = self._choosing(difference)
        await self._run(_texts, self._source.plans(), comparing, _ROWS_BYTES, partial(keep, True))
        await self._run_mirror(_texts, comparing, _ROWS_BYTES, partial(keep, False))

    async def give(self, difference: KeyedDifference, take: Take) -> None:
        """See `Sides.give`."""

        def give(rows: pa.Table) -> None:
            for batch in rows.to_batches():
                take(batch)

        await self._run(_rows, self._source.plans(), self._choosing(difference), _ROWS_BYTES, give)

    def _comparing(self, difference: KeyedDifference) -> _Comparing:
        return _Comparing(self._mirror.columns, self._mirror.key, difference.salt, self._copy.as_stored)

    def _choosing(self, difference: KeyedDifference) -> _Comparing:
        return replace(self._comparing(difference), buckets=difference.buckets())

    async def _run_mirror(
        self, work: _Work, comparing: _Comparing, most_bytes: int, take: Callable[[pa.Table], None]
    ) -> None:
        try:
            await self._run(work, self._log.snapshot_plans(self._copy.version), comparing, most_bytes, take)
        except (FileVacuumed, VersionGone) as error:
            reason = f"files of {self._copy.location} were removed while it was read, such as by VACUUM: {error}"
            raise SinkRejected(pipeline_of(self._mirror.app_id), reason, "Run `tailer verify` again.") from error

    async def _run(
        self, work: _Work, plans: _Plans, comparing: _Comparing, most_bytes: int, take: Callable[[pa.Table], None]
    ) -> None:
        """Give what executors answer for the rows of `plans` to `take`, in a worker thread."""

        def begin(plan: ChangePlan) -> Run[_Part]:
            splits = file_splits(file_slices(plan), most_bytes, self._files)
            return self._executors.run(work, [_Part(split, comparing) for split in splits])

        async with aclosing(plans):
            async for plan in plans:
                results = await to_thread.run_sync(begin, plan)
                try:
                    # A cancelled wait ends with the run, which is closed below.
                    while (found := await to_thread.run_sync(next, results, None, abandon_on_cancel=True)) is not None:
                        for each in found:
                            await to_thread.run_sync(lambda data: take(_table(data)), each)
                finally:
                    with CancelScope(shield=True):
                        await to_thread.run_sync(results.close)


def _sums(part: _Part) -> Iterator[bytes]:
    """Yield the sums of the rows. Runs on an executor, as the functions below."""
    with closing(part.comparing.begin()) as difference:
        for _, stored in part.chunks():
            difference.add([stored], is_source=part.comparing.is_source)
        yield _framed(difference.sums())


def _texts(part: _Part) -> Iterator[bytes]:
    """Yield the rows of the wanted buckets as the mirror would hold them."""
    return (_framed(pa.Table.from_batches([stored.take(numbers)])) for _, stored, numbers in _chosen(part))


def _rows(part: _Part) -> Iterator[bytes]:
    """Yield the rows of the wanted buckets."""
    return (_framed(pa.Table.from_batches([rows.take(numbers)])) for rows, _, numbers in _chosen(part))


def _chosen(part: _Part) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch, pa.Array]]:
    """Yield the chunks with rows of wanted buckets, and the indices of these."""
    buckets = part.comparing.buckets
    assert buckets is not None
    with closing(part.comparing.begin()) as difference:
        for rows, stored in part.chunks():
            numbers = difference.choose(stored, buckets)
            if len(numbers):
                yield rows, stored, numbers


def _framed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_WRITING) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _table(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()

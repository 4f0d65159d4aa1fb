"""The two sides of a comparison: the rows of a source, and those of its mirror.

`LocalSides` reads them in this process. Executors of Spark read those of mirrors that they can reach
(`tailer.spark.verification`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol

import pyarrow as pa
from anyio import to_thread

from tailer.changelog.equal_rows.keyed_difference import KeyedDifference
from tailer.engine.port import Engine
from tailer.errors import TableReplaced
from tailer.events import METADATA_FIELDS, ChangeBatch, joined_rows
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan
from tailer.sink import MirrorRows, table_of
from tailer.table_log import TableLog

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "LocalSides", "OpenSides", "Sides", "Source"]

CHUNK_ROWS: Final = 2**16
CHUNK_BYTES: Final = 16 * 2**20
_METADATA: Final = frozenset(each.name for each in METADATA_FIELDS)

Take = Callable[[pa.RecordBatch], None]
_TakeAll = Callable[[Sequence[pa.RecordBatch]], None]


class Source:
    """The source at the mirror's version, by the `policy` of the pipeline."""

    def __init__(self, table: TableLog, mirror: MirrorRows, policy: Policy) -> None:
        self._table = table
        self._mirror = mirror
        self._policy = policy

    async def columns(self) -> list[str]:
        """Return the columns of the source. Raises `TableReplaced`."""
        async with aclosing(self._table.snapshot_plans(self._mirror.version)) as pages:
            page = await anext(pages)
        mirrored = table_of(self._mirror.app_id)
        if mirrored != page.table_id and mirrored not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, page.version, mirrored, page.table_id)
        return [each for each in self._policy.shape(page).schema.names if each not in _METADATA]

    async def plans(self) -> AsyncGenerator[ChangePlan, None]:
        """Yield plans of all rows."""
        async with aclosing(self._table.snapshot_plans(self._mirror.version)) as pages:
            async for page in pages:
                yield self._policy.shape(page)


class Sides(Protocol):
    """Both sides, which are read once if they are equal."""

    async def add_to(self, difference: KeyedDifference) -> tuple[int, int]:
        """Add all rows to a comparison. Return how many the source has, and the mirror."""
        ...

    async def keep_in(self, difference: KeyedDifference) -> None:
        """Let the second pass of a comparison, which has begun, keep the rows that it needs."""
        ...

    async def give(self, difference: KeyedDifference, take: Take) -> None:
        """Give the rows of the source that may differ to `take`, in chunks, after the second pass."""
        ...


# Opens other sides than `LocalSides` for a mirror with a key. None: they are read in this process.
OpenSides = Callable[[Source, MirrorRows], Awaitable[Sides | None]]


class LocalSides(Sides):
    """Sides that are read in this process, with `columns` that both have."""

    def __init__(self, source: Source, mirror: MirrorRows, engine: Engine, columns: Sequence[str]) -> None:
        self._source = source
        self._mirror = mirror
        self._engine = engine
        self._columns = list(columns)

    async def add_to(self, difference: KeyedDifference) -> tuple[int, int]:
        """See `Sides.add_to`."""
        return await self._read_both(difference.add)

    async def keep_in(self, difference: KeyedDifference) -> None:
        """See `Sides.keep_in`."""
        await self._read_both(difference.keep)

    async def give(self, difference: KeyedDifference, take: Take) -> None:
        """See `Sides.give`: all rows may differ."""
        await self._read_source(take)

    async def _read_both(self, take: Callable[..., None]) -> tuple[int, int]:
        source_rows = await self._read_source(self._as_stored(partial(take, is_source=True)))
        return source_rows, await self._read_mirror(take)

    def _as_stored(self, take: _TakeAll) -> Take:
        """Return what gives rows of the source to `take` as the mirror would hold them, in chunks."""

        def give(rows: pa.RecordBatch) -> None:
            stored = self._mirror.as_stored(rows)
            while chunk := _next_chunk(stored):
                take([each.select(self._columns) for each in chunk])

        return give

    async def _read_source(self, take: Take) -> int:
        """Give all rows of the source to `take`, in chunks. Return how many there are."""
        count = 0
        async with aclosing(self._source.plans()) as plans:
            async for plan in plans:
                count += await self._read_plan(plan, take)
        return count

    async def _read_plan(self, plan: ChangePlan, take: Take) -> int:
        waiting: list[ChangeBatch] = []
        total = count = size = 0
        async with self._engine.run(plan) as batches:
            async for batch in batches:
                waiting.append(batch)
                count += len(batch)
                size += batch.size_bytes
                if count >= CHUNK_ROWS or size >= CHUNK_BYTES:
                    await to_thread.run_sync(lambda rows: take(joined_rows(rows)), waiting)
                    total += count
                    waiting, count, size = [], 0, 0
        if waiting:
            await to_thread.run_sync(lambda rows: take(joined_rows(rows)), waiting)
        return total + count

    async def _read_mirror(self, take: Callable[..., None]) -> int:
        """Give all rows of the mirror to `take`, in chunks. Return how many there are.

        Deleted rows count for the source: to have them there is the same as not to have them in the mirror.
        """
        count = 0
        for is_source, rows in ((False, self._mirror.rows()), (True, self._mirror.deleted_rows())):
            while chunk := await to_thread.run_sync(_next_chunk, rows):
                count += sum(map(len, chunk)) * (-1 if is_source else 1)
                chosen = [each.select(self._columns) for each in chunk]
                await to_thread.run_sync(partial(take, chosen, is_source=is_source))
        return count


def _next_chunk(rows: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    count = size = 0
    while count < CHUNK_ROWS and size < CHUNK_BYTES and (batch := next(rows, None)) is not None:
        found.append(batch)
        count += len(batch)
        size += batch.nbytes
    return found

"""The two sides of a comparison: the rows of a source, and those of its mirror.

The columns of a source have the names of a later version where the mirror is a history: renamed ones are renamed there
in all states.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from anyio import to_thread

from tailer.engine import Engine
from tailer.errors import TableReplaced
from tailer.events import ChangeBatch, joined_rows
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan
from tailer.schema.changes import former_names
from tailer.schema.columns import METADATA_NAMES
from tailer.sink import MirrorRows, table_of
from tailer.table_log import TableLog

__all__ = ["Sides", "Source"]

_CHUNK_ROWS: Final = 2**16
_CHUNK_BYTES: Final = 16 * 2**20

_Take = Callable[[pa.RecordBatch], None]
_TakeAll = Callable[[Sequence[pa.RecordBatch]], None]


@dataclass(frozen=True, slots=True)
class _ColumnNames:
    """The columns of a version, each with its name in the mirror. `added`: those that came later, and are there."""

    names: Mapping[str, str]
    added: frozenset[str] = frozenset()

    def lower(self) -> "_ColumnNames":
        """Return the columns, with the names in lower case that the mirror has."""
        names = {column: name.lower() for column, name in self.names.items()}
        return _ColumnNames(names, frozenset(map(str.lower, self.added)))


class Source:
    """The source at the mirror's version, by the `policy` of the pipeline."""

    def __init__(self, table: TableLog, mirror: MirrorRows, policy: Policy) -> None:
        self._table = table
        self._mirror = mirror
        self._policy = policy

    async def columns(self) -> _ColumnNames:
        """Return the columns of the source, with their names in the mirror. Raises `TableReplaced`."""
        page = await _first_page(self._table, self._mirror.version)
        mirrored = table_of(self._mirror.app_id)
        if mirrored != page.table_id and mirrored not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, page.version, mirrored, page.table_id)
        schema, later = _delivered_columns(self._policy, page), self._mirror.columns_at
        columns = _ColumnNames({name: name for name in schema.names})
        if later is not None and later != page.version:
            columns = await _later_names(self._table, self._policy, page.version, schema, later)
        return columns.lower() if self._mirror.lower_names else columns

    async def plans(self) -> AsyncGenerator[ChangePlan, None]:
        """Yield plans of all rows."""
        async with aclosing(self._table.snapshot_plans(self._mirror.version)) as pages:
            async for page in pages:
                yield self._policy.shape(page)


class Sides:
    """Both sides, with those `columns` of the mirror that are compared. They are read once if they are equal.

    `names`: of the columns of the source in the mirror.
    """

    def __init__(
        self, source: Source, mirror: MirrorRows, engine: Engine, columns: Sequence[str], names: Mapping[str, str]
    ) -> None:
        self._source = source
        self._mirror = mirror
        self._engine = engine
        self._columns = list(columns)
        self._names = names

    async def read_both(self, take: Callable[..., None]) -> tuple[int, int]:
        """Give all rows to `take` (`KeyedDifference.add`, `keep`), those of the source as the mirror would hold them.

        Return how many the source has, and the mirror.
        """

        def take_stored(rows: pa.RecordBatch) -> None:
            stored = self._mirror.as_stored(rows)
            while chunk := _next_chunk(stored):
                take([batch.select(self._columns) for batch in chunk], is_source=True)

        return await self.read_source(take_stored), await self._read_mirror(take)

    async def read_source(self, take: _Take) -> int:
        """Give all rows of the source to `take`, in chunks with the mirror's names. Return how many there are."""
        count = 0

        def give(batches: Sequence[ChangeBatch]) -> None:
            rows = joined_rows(batches)
            take(rows.rename_columns([self._names.get(name, name) for name in rows.schema.names]))

        async with aclosing(self._source.plans()) as plans:
            async for plan in plans:
                count += await self._read_plan(plan, give)
        return count

    async def _read_plan(self, plan: ChangePlan, give: Callable[[Sequence[ChangeBatch]], None]) -> int:
        waiting: list[ChangeBatch] = []
        total = count = size = 0
        async with self._engine.run([plan]) as batches:
            async for batch in batches:
                waiting.append(batch)
                count += len(batch)
                size += batch.size_bytes
                if count >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                    await to_thread.run_sync(give, waiting)
                    total += count
                    waiting, count, size = [], 0, 0
        if waiting:
            await to_thread.run_sync(give, waiting)
        return total + count

    async def _read_mirror(self, take: Callable[..., None]) -> int:
        """Give all rows of the mirror to `take`, in chunks. Return how many there are.

        Deleted rows count for the source: to have them there is the same as not to have them in the mirror.
        """
        count = 0
        for is_source, rows in ((False, self._mirror.rows()), (True, self._mirror.deleted_rows())):
            while chunk := await to_thread.run_sync(_next_chunk, rows):
                count += sum(map(len, chunk)) * (-1 if is_source else 1)
                chosen = [batch.select(self._columns) for batch in chunk]
                await to_thread.run_sync(partial(take, chosen, is_source=is_source))
        return count


def _next_chunk(rows: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    chunk: list[pa.RecordBatch] = []
    count = size = 0
    while count < _CHUNK_ROWS and size < _CHUNK_BYTES and (batch := next(rows, None)) is not None:
        chunk.append(batch)
        count += len(batch)
        size += batch.nbytes
    return chunk


async def _first_page(table: TableLog, version: int) -> ChangePlan:
    """Return the first plan of all rows of a version."""
    async with aclosing(table.snapshot_plans(version)) as pages:
        return await anext(pages)


def _delivered_columns(policy: Policy, plan: ChangePlan) -> pa.Schema:
    """Return the columns of the rows of a plan, without their metadata."""
    return pa.schema([column for column in policy.shape(plan).schema if column.name not in METADATA_NAMES])


async def _later_names(table: TableLog, policy: Policy, version: int, schema: pa.Schema, later: int) -> _ColumnNames:
    """Return the name at version `later` of each column of `schema`, that of `version`: the last one if it is dropped.

    Every commit between the two is read if a column was dropped there.
    """
    newest = _delivered_columns(policy, await _first_page(table, later))
    names, dropped, before = _renamed(schema, newest), set[str](), schema
    added = frozenset(newest.names).difference(names.values())
    if all(name in names for name in schema.names):
        return _ColumnNames(names, added)
    names = {name: name for name in schema.names}
    await table.seek(version + 1)
    while version < later and (plan := await table.next_plan()) is not None:
        version = plan.version
        if (after := policy.shape_schema(plan.schema, table.uri, version)) is not None:
            renamed = _renamed(before, after)
            dropped |= {column for column, name in names.items() if name not in renamed}
            names |= {column: renamed[name] for column, name in names.items() if column not in dropped}
            before = after
    return _ColumnNames(names, added)


def _renamed(before: pa.Schema, after: pa.Schema) -> dict[str, str]:
    return {old: new for new, old in former_names(before, after).items()}

"""Verification: whether a mirror equals its source at the version where the mirror is.

The mirror is read as one state, with its version, so the daemon may go on meanwhile. Rows of the source are those of a
snapshot of that version, with the pipeline's columns and condition, as the destination would hold them. Both are read
once if they are equal, and twice if not (`tailer.changelog.equal_rows.keyed_difference`). A repair reads the source
once more, and replaces the rows of the keys that differ.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
from anyio import to_thread

from tailer.changelog.equal_rows.keyed_difference import Difference, DifferenceKind, KeyedDifference
from tailer.engine.port import Engine
from tailer.errors import SinkRejected, TableReplaced
from tailer.events import METADATA_FIELDS, ChangeBatch, joined_rows
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan
from tailer.sink import MirrorRows, pipeline_of, table_of
from tailer.table_log import TableLog

__all__ = ["Rewritten", "Verification", "verify"]

_CHUNK_ROWS: Final = 2**16
_CHUNK_BYTES: Final = 16 * 2**20
_METADATA: Final = frozenset(each.name for each in METADATA_FIELDS)

_Take = Callable[[Sequence[pa.RecordBatch]], None]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The repair of a mirror. `rows`: of the source that took the place of all rows with these `keys`, in numbers."""

    keys: int
    rows: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The result. `version`: of both. If columns are `missing_columns` or `unexpected_columns`, no rows were compared.

    `key`: the columns that identify a row; none: equal rows are counted. `source_rows`, `mirror_rows`: how many there
    are. `counts`: of differences. `columns`: in how many rows that both have each column differs. `differences`: the
    first ones. `rewritten`: the repair; None: none was asked for or needed, or the pipeline has committed meanwhile,
    and nothing was changed.
    """

    version: int
    key: tuple[str, ...]
    missing_columns: tuple[str, ...] = ()
    unexpected_columns: tuple[str, ...] = ()
    source_rows: int = 0
    mirror_rows: int = 0
    counts: dict[DifferenceKind, int] = field(default_factory=lambda: dict.fromkeys(DifferenceKind, 0))
    columns: dict[str, int] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    rewritten: Rewritten | None = None

    @property
    def has_same_columns(self) -> bool:
        """Return whether rows were compared."""
        return not (self.missing_columns or self.unexpected_columns)

    @property
    def is_equal(self) -> bool:
        """Return whether the mirror equals the source."""
        return self.has_same_columns and not any(self.counts.values())


async def verify(
    mirror: MirrorRows, table: TableLog, engine: Engine, policy: Policy, limit: int, *, repairs: bool = False
) -> Verification:
    """Compare `mirror` with `table`. `policy`: of the pipeline. At most `limit` differences are returned.

    `repairs`: rewrites the rows of all keys that differ, unless the pipeline has committed since the mirror was opened.

    Of a log, which has no key, the columns of the source are compared: a column that was dropped is no difference.

    Raises `TableReplaced` if the mirror is one of another table, `SinkRejected` for a log that differs where columns
    may have been renamed, what the table, the engine and the mirror raise, and `ScratchUnavailable`.
    """
    source = _Source(table, mirror, engine, policy)
    columns = await source.columns()
    missing = tuple(each for each in columns if each not in mirror.columns)
    unexpected = tuple(each for each in mirror.columns if each not in columns)
    if missing or (unexpected and mirror.key):
        return Verification(mirror.version, mirror.key, missing, unexpected)
    shared = [each for each in mirror.columns if each in columns]
    with closing(KeyedDifference(shared, mirror.key or shared)) as difference:
        source_rows = await source.read(_as_stored(mirror, shared, partial(difference.add, is_source=True)))
        mirror_rows = await _read_mirror(mirror, shared, difference.add)
        found = Verification(mirror.version, mirror.key, source_rows=source_rows, mirror_rows=mirror_rows)
        if not await to_thread.run_sync(difference.begin_second_pass):
            return found
        if unexpected:
            # A log keeps a column that was renamed beside its new one, which earlier rows lack.
            reason = (
                f"the source has no columns {', '.join(unexpected)} any more, and their values may have other names"
            )
            remedy = "Deliver to a new table, whose log has one name for each column."
            raise SinkRejected(pipeline_of(mirror.app_id), reason, remedy)
        await source.read(_as_stored(mirror, shared, partial(difference.keep, is_source=True)))
        await _read_mirror(mirror, shared, difference.keep)
        found = await to_thread.run_sync(_with_differences, found, difference, limit)
        return replace(found, rewritten=await _rewrite(source, mirror, difference)) if repairs else found


def _with_differences(found: Verification, difference: KeyedDifference, limit: int) -> Verification:
    counts = difference.pair()
    columns, first = difference.column_counts(), tuple(difference.first(limit))
    return replace(found, counts=counts, columns=columns, differences=first)


async def _rewrite(source: "_Source", mirror: MirrorRows, difference: KeyedDifference) -> Rewritten | None:
    """Replace the rows of the keys that differ by those of the source. None: the pipeline has committed meanwhile."""
    repair = await to_thread.run_sync(mirror.begin_repair)
    keys = rows = 0

    def remove() -> None:
        nonlocal keys
        for each in difference.differing_keys():
            repair.remove(each)
            keys += len(each)

    def add(batch: pa.RecordBatch) -> None:
        nonlocal rows
        numbers = difference.find(mirror.stored_keys(batch))
        if len(numbers):
            repair.add(batch.take(numbers))
            rows += len(numbers)

    await to_thread.run_sync(remove)
    await source.read(add)
    return Rewritten(keys, rows) if await to_thread.run_sync(repair.commit) else None


def _as_stored(mirror: MirrorRows, columns: list[str], take: _Take) -> Callable[[pa.RecordBatch], None]:
    """Return what gives `columns` of rows of the source to `take` as the mirror would hold them, in chunks."""

    def give(rows: pa.RecordBatch) -> None:
        stored = mirror.as_stored(rows)
        while chunk := _next_chunk(stored):
            take([each.select(columns) for each in chunk])

    return give


async def _read_mirror(mirror: MirrorRows, columns: list[str], take: Callable[..., None]) -> int:
    """Give `columns` of all rows of the mirror to `take`, in chunks. Return how many there are.

    Deleted rows count for the source: to have them there is the same as not to have them in the mirror.
    """
    count = 0
    for is_source, rows in ((False, mirror.rows()), (True, mirror.deleted_rows())):
        while chunk := await to_thread.run_sync(_next_chunk, rows):
            count += sum(map(len, chunk)) * (-1 if is_source else 1)
            await to_thread.run_sync(partial(take, [each.select(columns) for each in chunk], is_source=is_source))
    return count


def _next_chunk(rows: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    count = size = 0
    while count < _CHUNK_ROWS and size < _CHUNK_BYTES and (batch := next(rows, None)) is not None:
        found.append(batch)
        count += len(batch)
        size += batch.nbytes
    return found


class _Source:
    """The rows of the source at the mirror's version."""

    def __init__(self, table: TableLog, mirror: MirrorRows, engine: Engine, policy: Policy) -> None:
        self._table = table
        self._mirror = mirror
        self._engine = engine
        self._policy = policy

    async def columns(self) -> list[str]:
        """Return the columns of the source. Raises `TableReplaced`."""
        async with aclosing(self._table.snapshot_plans(self._mirror.version)) as pages:
            page = await anext(pages)
        mirrored = table_of(self._mirror.app_id)
        if mirrored != page.table_id and mirrored not in await self._table.ids(-1):
            raise TableReplaced(self._table.uri, page.version, mirrored, page.table_id)
        return [each for each in self._policy.shape(page).schema.names if each not in _METADATA]

    async def read(self, take: Callable[[pa.RecordBatch], None]) -> int:
        """Give all rows to `take`, in chunks. Return how many there are."""
        count = 0
        async with aclosing(self._table.snapshot_plans(self._mirror.version)) as pages:
            async for page in pages:
                count += await self._read_page(self._policy.shape(page), take)
        return count

    async def _read_page(self, plan: ChangePlan, take: Callable[[pa.RecordBatch], None]) -> int:
        waiting: list[ChangeBatch] = []
        total = count = size = 0
        async with self._engine.run(plan) as batches:
            async for batch in batches:
                waiting.append(batch)
                count += len(batch)
                size += batch.size_bytes
                if count >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
                    await to_thread.run_sync(lambda rows: take(joined_rows(rows)), waiting)
                    total += count
                    waiting, count, size = [], 0, 0
        if waiting:
            await to_thread.run_sync(lambda rows: take(joined_rows(rows)), waiting)
        return total + count

"""Verification: whether a mirror equals its source at the version where the mirror is, and its repair.

The mirror is read as one state, with its version, so the daemon may go on meanwhile. Rows of the source are those of a
snapshot of that version, with the pipeline's columns and condition, as the destination would hold them. Both are read
once if they are equal, and twice if not (`tailer.changelog.equal_rows.keyed_difference`). A history is also verified as
of versions of its source: at most `_MOST` of those that the source still has.

A repair reads the source once more, and replaces the rows of the keys that differ; then the mirror is verified again.
If the pipeline commits between the moment when the mirror is read and its repair, nothing is changed, and the mirror is
compared again.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import pyarrow as pa
from anyio import to_thread

from tailer.changelog.equal_rows.keyed_difference import Difference, DifferenceKind, KeyedDifference
from tailer.engine import Engine
from tailer.errors import ConfigError, FileVacuumed, SinkRejected, VersionGone
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.sides import Sides, Source
from tailer.sink import MirrorRows, pipeline_of
from tailer.start import Start, StartKind
from tailer.table_log import TableLog

__all__ = [
    "GoneVersions",
    "OpenAt",
    "Rewritten",
    "Verification",
    "VerificationStep",
    "repair",
    "verify",
    "verify_all",
]


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


class VerificationStep(StrEnum):
    """A step of a verification, in words for people. Before `COMMITTING`, nothing is changed."""

    COMPARING = "comparing the rows of the mirror with the source"
    FINDING = "reading the rows that differ"
    REWRITING = "rewriting the rows that differ"
    COMMITTING = "committing the repair"


_BeginStep = Callable[[VerificationStep], None]


async def verify(
    mirror: MirrorRows,
    table: TableLog,
    engine: Engine,
    policy: Policy,
    limit: int,
    *,
    repairs: bool = False,
    begin: _BeginStep = lambda _: None,
) -> Verification:
    """Compare `mirror` with `table`. `policy`: of the pipeline. At most `limit` differences are returned.

    `repairs`: rewrites the rows of all keys that differ, unless the pipeline has committed since the mirror was opened.
    `begin` is told each step.

    Of a log, which has no key, the columns of the source are compared: a column that was dropped is no difference. So
    it is of a history, where a column that was added later is null.

    Raises `TableReplaced` if the mirror is one of another table, `SinkRejected` for a log that differs where columns
    may have been renamed, what the table, the engine and the mirror raise, and `ScratchUnavailable`.
    """
    source = Source(table, mirror, policy)
    ours = await source.columns()
    columns, keeps_dropped = {*ours.names.values(), *ours.added}, mirror.columns_at is not None
    missing = tuple(column for column, name in ours.names.items() if name not in mirror.columns)
    unexpected = () if keeps_dropped else tuple(column for column in mirror.columns if column not in columns)
    if missing or (unexpected and mirror.key):
        return Verification(mirror.version, mirror.key, missing, unexpected)
    shared = [column for column in mirror.columns if column in columns]
    sides = Sides(source, mirror, engine, shared, ours.names)
    with closing(KeyedDifference(shared, mirror.key or shared)) as difference:
        begin(VerificationStep.COMPARING)
        source_rows, mirror_rows = await sides.read_both(difference.add)
        verification = Verification(mirror.version, mirror.key, source_rows=source_rows, mirror_rows=mirror_rows)
        if not await to_thread.run_sync(difference.begin_second_pass):
            return verification
        if unexpected:
            # A log keeps a column that was renamed beside its new one, which earlier rows lack.
            reason = (
                f"the source has no columns {', '.join(unexpected)} any more, and their values may have other names"
            )
            remedy = "Deliver to a new table, whose log has one name for each column."
            raise SinkRejected(pipeline_of(mirror.app_id), reason, remedy)
        begin(VerificationStep.FINDING)
        await sides.read_both(difference.keep)
        verification = await to_thread.run_sync(_with_differences, verification, difference, limit)
        return (
            replace(verification, rewritten=await _rewrite(sides, mirror, difference, begin))
            if repairs
            else verification
        )


def _with_differences(verification: Verification, difference: KeyedDifference, limit: int) -> Verification:
    counts = difference.pair()
    columns, first = difference.column_counts(), tuple(difference.first(limit))
    return replace(verification, counts=counts, columns=columns, differences=first)


async def _rewrite(
    sides: Sides, mirror: MirrorRows, difference: KeyedDifference, begin: _BeginStep
) -> Rewritten | None:
    """Replace the rows of the keys that differ by those of the source. None: the pipeline has committed meanwhile."""
    begin(VerificationStep.REWRITING)
    repair = await to_thread.run_sync(mirror.begin_repair)
    keys = rows = 0

    def remove() -> None:
        nonlocal keys
        for keys_batch in difference.differing_keys():
            repair.remove(keys_batch)
            keys += len(keys_batch)

    def add(batch: pa.RecordBatch) -> None:
        nonlocal rows
        numbers = difference.find(mirror.stored_keys(batch))
        if len(numbers):
            repair.add(batch.take(numbers))
            rows += len(numbers)

    await to_thread.run_sync(remove)
    await sides.read_source(add)
    begin(VerificationStep.COMMITTING)
    return Rewritten(keys, rows) if await to_thread.run_sync(repair.commit) else None


ATTEMPTS: Final = 3

_log = logging.getLogger(__name__)


async def repair(
    open_mirror: Callable[[], AbstractAsyncContextManager[MirrorRows]],
    table: TableLog,
    engine: Engine,
    policy: Policy,
    limit: int,
    begin: _BeginStep = lambda _: None,
) -> AsyncGenerator[Verification, None]:
    """Yield each verification until one finds no difference, comes after a repair, or cannot be repaired.

    If the last one differs and has the source's columns, either the repair of the one before it did not help, or the
    pipeline has committed in each of `ATTEMPTS`. `begin`: see `verify`. Raises as `verify` and `open_mirror` do;
    `ConfigError` for a log.
    """
    for attempt in range(1, ATTEMPTS + 1):
        async with open_mirror() as mirror:
            if not mirror.key:
                reason = "is for a mirror, and this is a log of changes"
                raise ConfigError("--repair", reason, "Deliver to a new table, under another name of the pipeline.")
            verification = await verify(mirror, table, engine, policy, limit, repairs=True, begin=begin)
        yield verification
        if verification.is_equal or not verification.has_same_columns:
            return
        if verification.rewritten is not None:
            async with open_mirror() as mirror:
                yield await verify(mirror, table, engine, policy, limit, begin=begin)
            return
        if attempt < ATTEMPTS:
            _log.warning("nothing was rewritten: the mirror was changed meanwhile; comparing again")


_MOST: Final = 20

OpenAt = Callable[[int | None], AbstractAsyncContextManager[MirrorRows]]


@dataclass(frozen=True, slots=True)
class GoneVersions:
    """Versions that the history has, from `first` to `version`, and whose rows the source has no longer."""

    first: int
    version: int


async def verify_all(
    open_mirror: OpenAt, table: TableLog, engine: Engine, policy: Policy, limit: int, begin: _BeginStep
) -> AsyncGenerator[Verification | GoneVersions, None]:
    """Yield the verification of each version of a sample, oldest first: all versions if there are at most `_MOST`.

    `open_mirror` opens a mirror as of a version. Raises as `verify` and `open_mirror` do, and the error of the last
    version if the source has none of them any more.
    """
    async with open_mirror(None) as mirror:
        newest, known_from = mirror.version, mirror.known_from
    # A change can be read if the version before it is known.
    readable = (await table.resolve(Start(StartKind.EARLIEST))).version
    oldest, compared = min(max(known_from, readable - 1), newest), 0
    steps = min(_MOST, newest - oldest + 1) - 1
    for version in [oldest + (newest - oldest) * step // steps for step in range(steps + 1)] if steps else [newest]:
        result = None
        try:
            async with open_mirror(version) as mirror:
                result = await verify(mirror, table, engine, policy, limit, begin=begin)
            compared += 1
        except (VersionGone, FileVacuumed):
            if version == newest and not compared:
                raise
        gone = known_from if version == oldest else version, version if result is None else version - 1
        if gone[0] <= gone[1]:
            yield GoneVersions(*gone)
        if result is not None:
            yield result

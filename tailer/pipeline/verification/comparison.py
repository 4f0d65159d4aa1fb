"""Verification: whether a mirror equals its source at the version where the mirror is.

The mirror is read as one state, with its version, so the daemon may go on meanwhile. Rows of the source are those of a
snapshot of that version, with the pipeline's columns and condition, as the destination would hold them. Both are read
once if they are equal, and twice if not (`tailer.changelog.equal_rows.keyed_difference`). A repair reads the source
once more, and replaces the rows of the keys that differ.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum

import pyarrow as pa
from anyio import to_thread

from tailer.changelog.equal_rows.keyed_difference import Difference, DifferenceKind, KeyedDifference
from tailer.engine.port import Engine
from tailer.errors import SinkRejected
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.sides import Sides, Source
from tailer.sink import MirrorRows, pipeline_of
from tailer.table_log import TableLog

__all__ = ["BeginStep", "Rewritten", "Verification", "VerificationStep", "verify"]


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


BeginStep = Callable[[VerificationStep], None]


async def verify(
    mirror: MirrorRows,
    table: TableLog,
    engine: Engine,
    policy: Policy,
    limit: int,
    *,
    repairs: bool = False,
    begin: BeginStep = lambda _: None,
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
        source_rows, mirror_rows = await sides.add_to(difference)
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
        await sides.keep_in(difference)
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


async def _rewrite(sides: Sides, mirror: MirrorRows, difference: KeyedDifference, begin: BeginStep) -> Rewritten | None:
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

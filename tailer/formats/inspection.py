"""Looks at the log of a table for people: at the table, and at single commits (`tailer doctor`, `tailer history`).

Following a table needs none of this, so it is apart from `TableLog`. No data file is opened.
"""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from typing_extensions import override

from tailer.errors import VersionGone
from tailer.plan import ChangePlan, Regime, TaskKind
from tailer.table_log import TableLog

__all__ = [
    "NO_ROWS",
    "CommitSummary",
    "Contradiction",
    "DeclaredKey",
    "PlanInspector",
    "RowCounts",
    "TableInspector",
    "TableProfile",
    "total",
]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Numbers of changed rows; None where the log does not know the number."""

    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None


NO_ROWS = RowCounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """One commit: `author` is the user, else the program, that wrote it; `added_bytes` is the size of its new files.

    `timestamp_ms`: as in `ChangePlan`.
    """

    version: int
    timestamp_ms: int
    operation: str | None
    author: str | None
    rows: RowCounts
    added_bytes: int


@dataclass(frozen=True, slots=True)
class DeclaredKey:
    """Columns that the table says identify a row. `source`: the words for what says so."""

    columns: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class TableProfile:
    """A table at its newest version.

    `features`: what its readers or writers must know, by name. `feed`: whether writers write change files; None: the
    format has none. `row_ids`: whether each row has an id. `files_kept_ms`, `log_kept_ms`: how long replaced files and
    old commits are kept at least; None: until somebody deletes them. `hazards`: sentences about this table alone.
    """

    version: int
    timestamp_ms: int
    schema: pa.Schema
    features: tuple[str, ...] = ()
    feed: bool | None = None
    row_ids: bool = False
    keys: tuple[DeclaredKey, ...] = ()
    files_kept_ms: int | None = None
    log_kept_ms: int | None = None
    hazards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A version whose changes do not turn the table before it into the one after it. `path`: a file that shows it."""

    version: int
    path: str
    reason: str


class TableInspector(Protocol):
    """Looks at the log of one table. Methods raise as those of `TableLog` do.

    `has_gaps`: whether there may be no version of some number between others, though nothing was cleaned up.
    """

    has_gaps: bool = False

    async def profile(self) -> TableProfile:
        """Describe the table at its newest version. Costs the same however long the log is."""
        ...

    def summaries(self, first: int, last: int) -> AsyncGenerator[CommitSummary, None]:
        """Yield the commits of versions `first` to `last` in order; those that were cleaned up are left out.

        Close the generator.
        """
        ...

    async def contradictions(self, most_files: int | None = None) -> tuple[Contradiction, ...]:
        """Return the newest versions that contradict the table's state, as far back as the state is quick to read.

        None are looked for where the table has more than `most_files` files.
        """
        return ()


class PlanInspector(TableInspector):
    """Inspects a table by the plans of its `log`: enough for a format that says no more."""

    def __init__(self, log: TableLog) -> None:
        self._log = log

    @override
    async def profile(self) -> TableProfile:
        version = await self._log.latest()
        await self._log.seek(version)
        plan = await self._log.next_plan()
        if plan is None:
            raise VersionGone(self._log.uri, version)
        kept_ms = self._log.retention_ms
        return TableProfile(version, plan.timestamp_ms, plan.schema, files_kept_ms=kept_ms, log_kept_ms=kept_ms)

    @override
    async def summaries(self, first: int, last: int) -> AsyncGenerator[CommitSummary, None]:
        await self._log.seek(first)
        for _ in range(first, last + 1):
            plan = await self._log.next_plan()
            if plan is None or plan.version > last:
                return
            inserts = [task for task in plan.tasks if task.kind is TaskKind.INSERT]
            added_bytes = sum(task.size_bytes for task in inserts)
            author, rows = await self.author(plan.version), await self.rows(plan)
            yield CommitSummary(plan.version, plan.timestamp_ms, plan.operation, author, rows, added_bytes)

    async def author(self, version: int) -> str | None:
        """Return who made a version, if the format says so."""
        return None

    async def rows(self, plan: ChangePlan) -> RowCounts:
        """Count the changed rows of a plan, as far as its tasks tell."""
        return NO_ROWS if plan.regime is Regime.NONE else RowCounts()


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None where one of the numbers is not known."""
    amount = 0
    for count in counts:
        if count is None:
            return None
        amount += count
    return amount

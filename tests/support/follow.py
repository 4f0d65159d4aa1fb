"""lake-tailer as the suites call it: the rows of a table's versions, without a pipeline.

Tests that also use Spark are synchronous, because Spark blocks, so these functions run their own event loop.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import anyio
import pyarrow as pa

from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.events import COMMIT_TIMESTAMP, ChangeBatch
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan, Position, output_schema
from tailer.stores.local import LocalStore

__all__ = ["Followed", "batches_of", "follow", "follow_until_error", "plans", "run_plan", "snapshot"]


@dataclass(frozen=True)
class Followed:
    """One version as lake-tailer delivers it."""

    plan: ChangePlan
    batches: tuple[ChangeBatch, ...]

    @property
    def tables(self) -> list[pa.Table]:
        """Return all rows of the version, in delivery order, in a table for each run of rows with the same columns."""
        runs = groupby((batch.rows for batch in self.batches), key=lambda rows: rows.schema)
        return [pa.Table.from_batches(list(rows), schema) for schema, rows in runs]

    @property
    def table(self) -> pa.Table:
        """Return all rows of the version, in delivery order, if all have the columns of the version."""
        return pa.Table.from_batches([batch.rows for batch in self.batches], output_schema(self.plan.schema))

    @property
    def positions(self) -> list[Position]:
        """Return the position of every row, in delivery order."""
        return [
            Position(batch.version, batch.task, row) for batch in self.batches for row in batch.row_index.to_pylist()
        ]


def batches_of(versions: Iterable[Followed]) -> list[tuple[pa.Schema, str]]:
    """Return schema and rows of each batch, as text, in which NaN is itself, and without the times of the objects."""
    batches = (batch.rows.drop_columns([COMMIT_TIMESTAMP]) for version in versions for batch in version.batches)
    return [(batch.schema, str(batch.to_pylist())) for batch in batches]


async def _run(plan: ChangePlan, engine: Engine, after: Position | None = None) -> Followed:
    async with engine.run([plan], after) as batches:
        return Followed(plan, tuple([batch async for batch in batches]))


async def _plans(path: Path, first: int, last: int | None, take: Callable[[ChangePlan], None]) -> None:
    log = DeltaTableLog(LocalStore(path), allowed_roots=("/",))
    await log.seek(first)
    plan = await log.next_plan()
    while plan is not None and (last is None or plan.version <= last):
        take(plan)
        plan = await log.next_plan()


async def _follow(path: Path, first: int, last: int | None, engine: Engine, found: list[Followed]) -> None:
    log = DeltaTableLog(LocalStore(path), allowed_roots=("/",))
    await log.seek(first)
    plan = await log.next_plan()
    while plan is not None and (last is None or plan.version <= last):
        found.append(await _run(plan, engine))
        plan = await log.next_plan()


async def _snapshot(path: Path, version: int | None) -> Followed:
    log = DeltaTableLog(LocalStore(path), allowed_roots=("/",))
    newest = await log.latest() if version is None else version
    pages = [await _run(plan, LocalEngine()) async for plan in log.snapshot_plans(newest)]
    return Followed(pages[0].plan, tuple(batch for page in pages for batch in page.batches))


def plans(path: Path, first: int = 0, last: int | None = None) -> list[ChangePlan]:
    """Return the plans of versions `first` to `last` (None: the latest)."""
    found: list[ChangePlan] = []
    anyio.run(_plans, path, first, last, found.append)
    return found


def run_plan(plan: ChangePlan, engine: Engine | None = None, after: Position | None = None) -> Followed:
    """Return the rows of one plan after a position (None: all of them)."""
    return anyio.run(_run, plan, engine or LocalEngine(), after)


def follow(path: Path, first: int = 0, last: int | None = None, engine: Engine | None = None) -> list[Followed]:
    """Return the changes of versions `first` to `last` (None: the latest)."""
    found: list[Followed] = []
    anyio.run(_follow, path, first, last, engine or LocalEngine(), found)
    return found


def follow_until_error(path: Path, first: int = 0) -> tuple[list[Followed], Exception | None]:
    """Return the versions that could be followed, and the error that ended this, if any."""
    found: list[Followed] = []
    try:
        anyio.run(_follow, path, first, None, LocalEngine(), found)
    except Exception as error:  # noqa: BLE001 - the caller judges it
        return found, error
    return found, None


def snapshot(path: Path, version: int | None = None) -> Followed:
    """Return all rows of `version` (None: the latest)."""
    return anyio.run(_snapshot, path, version)

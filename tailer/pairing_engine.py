"""An engine around another one that leaves out of a version what is no change, and tells updates (`tailer.pairing`).

A version is compared before its first row is delivered. What was found is the same every time (invariant 4), so nothing
of it is kept: who goes on in the middle of a version has it compared again. By other rules other rows come before a
position; so the numbers of a version's tasks tell by which it is read, and what was begun goes on by these only.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final
from zlib import crc32

from anyio import CancelScope, to_thread

from tailer.comparing import compare
from tailer.engine import Engine
from tailer.errors import ConfigError
from tailer.events import ChangeBatch
from tailer.matches import RowMatches
from tailer.pairing import PairingCounts, check_key, concerns, lacks_identity, refine
from tailer.plan import TASKS, ChangePlan, Position
from tailer.policy import PairingRules
from tailer.preimages import Preimages
from tailer.selections import Selections

__all__ = ["PairingEngine"]

_log = logging.getLogger(__name__)

_READINGS: Final = 2**28
_REMEDY: Final = "give the columns that tell rows apart as key, or leave compute_updates out"


class PairingEngine:
    """Runs plans on `engine`, by `rules`; for one pipeline. `report` is told of each version that was compared."""

    def __init__(
        self, engine: Engine, rules: PairingRules, report: Callable[[ChangePlan, PairingCounts], None] | None = None
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._report = report
        self._matches: RowMatches | None = None
        self._warned = False

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """See `Engine.run`. Raises what `tailer.pairing.refine` raises, too.

        And `ConfigError` where `after` is in the middle of the version, and was reached by other rules.
        """
        compared = concerns(plan, self._rules)
        self._warn(plan, compared)
        if compared:
            check_key(plan, self._rules)
            plan = _renumbered(plan, _reading(plan, self._rules))
        _check_reading(plan, after)
        if not compared:
            async with self._engine.run(plan, after) as batches:
                yield batches
            return
        async with _on_disk() as (selections, preimages):
            plan = await self._refined(plan, selections, preimages)
            async with self._engine.run(plan, after) as batches:
                if not preimages:
                    yield batches
                    return
                async with aclosing(_joined(batches, preimages)) as joined:
                    yield joined

    def _warn(self, plan: ChangePlan, compared: bool) -> None:
        """Say once what will stand in the way of telling updates, before it does."""
        if self._warned:
            return
        try:
            check_key(plan, self._rules)
        except ConfigError as error:
            self._warned = True
            if not compared:
                _log.warning("%s: %s; %s", plan.table, error, error.hint)
        if lacks_identity(plan, self._rules):
            self._warned = True
            _log.warning("%s: without a key, and without row tracking, no update can be told: %s", plan.table, _REMEDY)

    async def _refined(self, plan: ChangePlan, selections: Selections, preimages: Preimages) -> ChangePlan:
        if self._matches is None or self._matches.closed:
            self._matches = await to_thread.run_sync(RowMatches)
        work = partial(refine, plan, self._rules, self._matches, selections, preimages)
        refined, counts = await compare(self._matches, work)
        if self._report is not None:
            self._report(plan, counts)
        return refined


@asynccontextmanager
async def _on_disk() -> AsyncIterator[tuple[Selections, Preimages]]:
    """What is kept of a version while it is delivered. To delete it may take a while."""
    with ExitStack() as kept:
        selections, preimages = kept.enter_context(Selections()), kept.enter_context(Preimages())
        try:
            yield selections, preimages
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(kept.close)


async def _joined(batches: AsyncIterator[ChangeBatch], preimages: Preimages) -> AsyncGenerator[ChangeBatch, None]:
    async for batch in batches:
        pieces = preimages.joined(batch)
        while (piece := await to_thread.run_sync(next, pieces, None)) is not None:
            yield piece


def _reading(plan: ChangePlan, rules: PairingRules) -> int:
    """A number for this way to read a version: by which rules, and in which columns, its rows are compared."""
    return 1 + crc32(repr((rules, plan.schema.names)).encode()) % _READINGS


def _renumbered(plan: ChangePlan, reading: int) -> ChangePlan:
    tasks = tuple(replace(task, index=task.index + reading * TASKS) for task in plan.tasks)
    return replace(plan, tasks=tasks)


def _check_reading(plan: ChangePlan, after: Position | None) -> None:
    """Other rules deliver other rows before a position: behind one of theirs, rows would be lost or doubled."""
    inside = after is not None and after.version == plan.version and not after.closes_version
    if after is None or not inside or not plan.tasks or after.task // TASKS == plan.tasks[0].index // TASKS:
        return
    reason = f"version {plan.version} was delivered in part, with other choices of what to deliver or how"
    remedy = (
        "Set columns, row_ids, carryovers, compute_updates, key and skip_unchanged as they were, let the pipeline get "
        "past that version, stop it with SIGTERM, then change them."
    )
    raise ConfigError("pipeline", reason, remedy)

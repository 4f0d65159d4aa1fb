"""An engine around another one that leaves out of a version what is no change, and tells updates
(`tailer.changelog.carryovers`).

A version is compared before its first row is delivered. What was found is the same every time (invariant 4), so nothing
of it is kept: who goes on in the middle of a version has it compared again, by the same rules
(`tailer.changelog.task_ids`).
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Final

from anyio import CancelScope, to_thread

from tailer.changelog.carryovers import PairingCounts, check_key, concerns, lacks_identity, refine
from tailer.changelog.comparison import compare
from tailer.changelog.rules import PairingRules
from tailer.changelog.spill.bitmaps import Selections
from tailer.changelog.spill.preimages import Preimages
from tailer.changelog.task_ids import check_reading, renumbered
from tailer.engine.port import Engine
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position

__all__ = ["PairingEngine"]

_log = logging.getLogger(__name__)

_REMEDY: Final = "give the columns that tell rows apart as key, or leave compute_updates out"


class PairingEngine:
    """Runs plans on `engine`, by `rules`; for one pipeline. `report` is told of each version that was compared."""

    def __init__(
        self, engine: Engine, rules: PairingRules, report: Callable[[ChangePlan, PairingCounts], None] | None = None
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._report = report
        self._warned = False

    @property
    def key(self) -> tuple[str, ...]:
        """See `Engine.key`."""
        return self._rules.key if self._rules.compute_updates and self._rules.null_keys else ()

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """See `Engine.run`. Raises what `tailer.changelog.carryovers.refine` raises, too.

        And `ConfigError` where a version with rows lacks a column of the key, whether or not it must be compared, and
        where `after` is in the middle of the version, and was reached by other rules.
        """
        if plan.tasks and self._rules.compute_updates:
            check_key(plan, self._rules)
        self._warn(plan)
        compared = concerns(plan, self._rules)
        if compared:
            plan = renumbered(plan, self._rules)
        check_reading(plan, after)
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

    def _warn(self, plan: ChangePlan) -> None:
        """Warn once where updates are wanted and nothing identifies rows."""
        if not self._warned and lacks_identity(plan, self._rules):
            self._warned = True
            _log.warning("%s: without a key, and without row tracking, no update can be told: %s", plan.table, _REMEDY)

    async def _refined(self, plan: ChangePlan, selections: Selections, preimages: Preimages) -> ChangePlan:
        rules = self._rules
        refined, counts = await compare(lambda matches: refine(plan, rules, matches, selections, preimages))
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

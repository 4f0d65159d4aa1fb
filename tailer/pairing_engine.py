"""An engine around another one that leaves out of a version what is no change, and tells updates (`tailer.pairing`).

A version is compared before its first row is delivered, on a worker thread; cancelling does not wait for the end of
that. What was found is the same every time (invariant 4), so nothing of it is kept: who goes on in the middle of a
version has it compared again.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial

import anyio
from anyio import lowlevel, to_thread

from tailer.background import background
from tailer.engine import Engine
from tailer.events import ChangeBatch
from tailer.matches import RowMatches, Stopped
from tailer.pairing import PairingCounts, concerns, refine
from tailer.plan import ChangePlan, Position
from tailer.policy import PairingRules
from tailer.preimages import Preimages
from tailer.selections import Selections

__all__ = ["PairingEngine"]


class PairingEngine:
    """Runs plans on `engine`, by `rules`; for one pipeline. `report` is told of each version that was compared."""

    def __init__(
        self, engine: Engine, rules: PairingRules, report: Callable[[ChangePlan, PairingCounts], None] | None = None
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._report = report
        self._matches: RowMatches | None = None

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """See `Engine.run`. Raises what `tailer.pairing.refine` raises, too."""
        with Selections() as selections, Preimages() as preimages:
            if concerns(plan, self._rules):
                plan = await self._refined(plan, selections, preimages)
            async with self._engine.run(plan, after) as batches:
                if not preimages:
                    yield batches
                    return
                async with aclosing(_joined(batches, preimages)) as joined:
                    yield joined

    async def _refined(self, plan: ChangePlan, selections: Selections, preimages: Preimages) -> ChangePlan:
        if self._matches is None or self._matches.closed:
            self._matches = await to_thread.run_sync(RowMatches)
        comparing = _Comparing(self._matches)
        async with background() as group:
            group.start_soon(comparing.stop_when_cancelled)
            try:
                work = partial(_compare, plan, self._rules, self._matches, selections, preimages)
                refined, counts = await to_thread.run_sync(work)
            except Stopped:
                await lowlevel.checkpoint()  # raises the cancellation that it was stopped for
                raise
            finally:
                comparing.ended = True
        if self._report is not None:
            self._report(plan, counts)
        return refined


def _compare(
    plan: ChangePlan, rules: PairingRules, matches: RowMatches, selections: Selections, preimages: Preimages
) -> tuple[ChangePlan, PairingCounts]:
    try:
        return refine(plan, rules, matches, selections, preimages)
    finally:
        if matches.has_grown:
            matches.close()


async def _joined(batches: AsyncIterator[ChangeBatch], preimages: Preimages) -> AsyncGenerator[ChangeBatch, None]:
    async for batch in batches:
        yield await to_thread.run_sync(preimages.joined, batch)


class _Comparing:
    """A comparison on another thread, which does not notice by itself that nobody waits for it any more."""

    def __init__(self, matches: RowMatches) -> None:
        self.ended = False
        self._matches = matches

    async def stop_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if not self.ended:
                self._matches.stop()

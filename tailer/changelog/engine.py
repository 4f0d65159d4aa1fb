"""An engine around another one that drops unchanged rows of a version and pairs updates
(`tailer.changelog.carryovers`).

A version is compared before its first row is delivered. The result is the same every time (invariant 4), so it is not
persisted: resuming in the middle of a version compares it again, by the same rules (`tailer.changelog.task_ids`).
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from typing import Final

from anyio import CancelScope, to_thread

from tailer.changelog.carryovers import ChangelogCounts, refine
from tailer.changelog.comparison import compare
from tailer.changelog.equal_rows.port import SharedIndexes
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.changelog.images import JoinedImages, before_preimage
from tailer.changelog.rows_ahead import MOST_TASKS, RowsAhead
from tailer.changelog.rules import PairingRules, check_key, concerns, lacks_identity
from tailer.changelog.spill.bitmaps import SpilledBitmaps
from tailer.changelog.spill.preimages import SpilledPreimages
from tailer.changelog.task_ids import check_reading, renumbered
from tailer.engine.local import remaining
from tailer.engine.port import Engine
from tailer.errors import ConfigError, DataCorrupt, EngineUnavailable
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position
from tailer.read.data_files import LOCAL, DataFiles
from tailer.read.kept_rows import KeptRows

__all__ = ["ChangelogEngine"]

_log = logging.getLogger(__name__)

_REMEDY: Final = "set key to the columns that identify a row, or remove compute_updates"


class ChangelogEngine(Engine):
    """Runs plans on `engine` by `rules`, for one pipeline.

    `report` is called for each version that was compared. `files`: opens what the tasks compared name. `shared`: other
    machines that compare large versions; None: this process compares all.
    """

    def __init__(
        self,
        engine: Engine,
        rules: PairingRules,
        report: Callable[[ChangePlan, ChangelogCounts], None] | None = None,
        files: DataFiles = LOCAL,
        shared: SharedIndexes | None = None,
    ) -> None:
        self._shared = shared
        self._engine = engine
        self._rules = rules
        self._report = report
        self._files = files
        self._warned = False
        self._rows_ahead = RowsAhead(files, engine.has_room)

    @property
    def key(self) -> tuple[str, ...]:
        """See `Engine.key`."""
        return self._rules.key if self._rules.compute_updates and self._rules.null_keys else ()

    def run(
        self, plan: ChangePlan, after: Position | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ChangeBatch]]:
        """See `Engine.run`. Also raises what `tailer.changelog.carryovers.refine` raises.

        Raises `ConfigError` where a version with rows lacks a key column, whether or not it must be compared. Raises
        `ConfigError` also where `after` is inside the version and was reached by other rules.
        """
        if plan.tasks and self._rules.compute_updates:
            check_key(plan, self._rules)
        self._warn(plan)
        if must_compare := concerns(plan, self._rules):
            plan = renumbered(plan, self._rules, after)
        if after is not None:
            check_reading(plan, after)
        return self._run_comparing(plan, after) if must_compare else self._engine.run(plan, after)

    @asynccontextmanager
    async def _run_comparing(
        self, plan: ChangePlan, after: Position | None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """Compare the version, then give its rows after `after`."""
        async with _spill_files() as (bitmaps, preimages):
            rows_ahead = self._rows_ahead
            kept = KeptRows([plan], rows_ahead.read, self._engine.has_room)
            try:
                plan, counts = await self._compare(plan, bitmaps, preimages, kept)
            finally:
                rows_ahead.release(plan.version)
            first = before_preimage(after) if counts.in_place else after
            async with AsyncExitStack() as stack:
                batches = await stack.enter_async_context(self._deliver_compared(plan, first, kept))
                if counts.in_place:
                    batches = await stack.enter_async_context(aclosing(_join_images(plan, batches, after)))
                if preimages:
                    batches = await stack.enter_async_context(aclosing(_join_preimages(batches, preimages)))
                yield batches

    def expect(self, plan: ChangePlan) -> bool:
        """See `Engine.expect`. Only of plans that `run` compares in this process."""
        is_compared = self._engine.reads_here and concerns(plan, self._rules)
        return (
            is_compared
            and len(plan.tasks) <= MOST_TASKS
            and self._rows_ahead.expect(renumbered(plan, self._rules, None))
        )

    def forget(self) -> None:
        """See `Engine.forget`."""
        self._rows_ahead = RowsAhead(self._files, self._engine.has_room)

    def takes(self, plan: ChangePlan) -> bool:
        """See `Engine.takes`. Not if `run` compares the plan, or refuses it."""
        if concerns(plan, self._rules) or not self._engine.takes(plan):
            return False
        try:
            if plan.tasks and self._rules.compute_updates:
                check_key(plan, self._rules)
        except ConfigError:
            return False
        return True

    async def read_together(self, plans: Sequence[ChangePlan]) -> Sequence[Sequence[ChangeBatch]]:
        """See `Engine.read_together`."""
        for plan in plans:
            self._warn(plan)
        return await self._engine.read_together(plans)

    def _warn(self, plan: ChangePlan) -> None:
        """Warn once where updates are requested and nothing identifies rows."""
        if not self._warned and lacks_identity(plan, self._rules):
            self._warned = True
            _log.warning("%s: updates cannot be computed without a key or row tracking: %s", plan.table, _REMEDY)

    @asynccontextmanager
    async def _deliver_compared(
        self, plan: ChangePlan, after: Position | None, kept: KeptRows
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """Give the rows from memory if they are all there, else run the engine.

        An engine that does not read here may give the rows of some tasks only, so it is always run.
        """
        if not (self._engine.reads_here and kept.has_all(plan)):
            kept.forget()
            async with self._engine.run(plan, after) as batches:
                yield batches
            return
        async with aclosing(_each(await to_thread.run_sync(_rows_after, kept, plan, after))) as batches:
            yield batches

    async def _compare(
        self, plan: ChangePlan, bitmaps: SpilledBitmaps, preimages: SpilledPreimages, kept: KeptRows
    ) -> tuple[ChangePlan, ChangelogCounts]:
        def work(row_index: RowIndex) -> tuple[ChangePlan, ChangelogCounts]:
            try:
                if self._shared is not None and self._shared.is_worth(plan):
                    with self._shared.index(row_index) as index:
                        return refine(plan, self._rules, index, bitmaps, preimages, kept)
            except EngineUnavailable as error:
                _log.warning("%s: %s; this process compares version %d", plan.table, error, plan.version)
            in_place = self._engine.reads_here
            return refine(plan, self._rules, row_index, bitmaps, preimages, kept, in_place)

        refined, counts = await compare(work)
        if self._report is not None:
            self._report(plan, counts)
        return refined, counts


@asynccontextmanager
async def _spill_files() -> AsyncIterator[tuple[SpilledBitmaps, SpilledPreimages]]:
    """Provide spill files for the delivery of one version. Deleting them may take a while."""
    with ExitStack() as stack:
        bitmaps, preimages = stack.enter_context(SpilledBitmaps()), stack.enter_context(SpilledPreimages())
        try:
            yield bitmaps, preimages
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(stack.close)


def _rows_after(kept: KeptRows, plan: ChangePlan, after: Position | None) -> list[ChangeBatch]:
    batches = ((batch, row) for task, row in remaining(plan, after) for batch in kept.read(task))
    later = (batch if row < 0 else batch.after(row) for batch, row in batches)
    return [batch for batch in later if len(batch) > 0]


async def _each(batches: Iterable[ChangeBatch]) -> AsyncGenerator[ChangeBatch, None]:
    for batch in batches:
        yield batch


async def _join_images(
    plan: ChangePlan, batches: AsyncIterator[ChangeBatch], after: Position | None
) -> AsyncGenerator[ChangeBatch, None]:
    """Join images that lie side by side, and give the rows after `after`.

    Raises `DataCorrupt` where a file is another one than when it was compared.
    """
    joined = JoinedImages()

    def check(following: ChangeBatch | None) -> None:
        if (task := joined.lacks_postimage(following)) is not None:
            path = next(each.uri for each in plan.tasks if each.index == task)
            raise DataCorrupt(plan.table, plan.version, path, "it lost a postimage after its rows were compared")

    async for batch in batches:
        check(batch)
        begun = after is not None and (batch.version, batch.task) == (after.version, after.task)
        for each in joined.add(batch):
            rows = each.after(after.row) if after is not None and begun else each
            if len(rows):
                yield rows
    check(None)


async def _join_preimages(
    batches: AsyncIterator[ChangeBatch], preimages: SpilledPreimages
) -> AsyncGenerator[ChangeBatch, None]:
    async for batch in batches:
        slices = preimages.joined(batch)
        while (joined := await to_thread.run_sync(next, slices, None)) is not None:
            yield joined

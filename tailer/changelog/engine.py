"""An engine around another one that drops unchanged rows of a version and pairs updates
(`tailer.changelog.carryovers`).

A version is compared before its first row is delivered. The result is the same every time (invariant 4), so it is not
persisted: resuming in the middle of a version compares it again, by the same rules (`tailer.changelog.rules`).
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Final

from anyio import CancelScope, to_thread
from typing_extensions import override

from tailer.changelog.carryovers import ChangelogCounts, refine
from tailer.changelog.equal_rows.row_index import RowIndex, SharedIndexes, compare
from tailer.changelog.images import JoinedImages, before_preimage
from tailer.changelog.rules import PairingRules, check_key, check_reading, concerns, lacks_identity, renumbered
from tailer.changelog.spill import SpilledBitmaps, SpilledPreimages
from tailer.engine import Engine
from tailer.errors import DataCorrupt, EngineUnavailable
from tailer.events import ChangeBatch
from tailer.formats.rows import execute
from tailer.metrics import Counter
from tailer.plan import ChangePlan, Position, remaining
from tailer.read.data_files import LOCAL, DataFiles
from tailer.read.decoded_files import MOST_TASKS, DecodedFiles, compared_tasks

__all__ = ["ChangelogEngine", "ChangelogReport"]

_log = logging.getLogger(__name__)

METRICS: Final = (
    Counter("lake_tailer_carryovers_dropped", "Rows dropped because rewritten files held them unchanged."),
    Counter("lake_tailer_updates_paired", "Deletes and inserts that were made an update."),
    Counter("lake_tailer_ambiguous_rows", "Rows with a choice of partners for an update."),
    Counter("lake_tailer_unchanged_images_dropped", "Images dropped of updates that change nothing."),
)

_MOST_PARTS: Final = 100  # of a version: all are open until it ends, and inside of hundreds nothing can be cancelled
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
        self._warned = False
        self._rows = DecodedFiles(execute, engine.budget, files, use_threads=True)

    @property
    @override
    def key(self) -> tuple[str, ...]:
        return self._rules.key if self._rules.compute_updates and self._rules.null_keys else ()

    @override
    def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ChangeBatch]]:
        """Iterating also raises what `tailer.changelog.carryovers.refine` raises.

        Raises `ConfigError` where a version with rows lacks a key column, whether or not it must be compared. Raises
        `ConfigError` also where `after` is inside a version and was reached by other rules.
        """
        for plan in plans:
            if plan.tasks and self._rules.compute_updates:
                check_key(plan, self._rules)
            if not self._warned and lacks_identity(plan, self._rules):
                self._warned = True
                _log.warning("%s: updates cannot be computed without a key or row tracking: %s", plan.table, _REMEDY)
        compared = {plan.version for plan in plans if concerns(plan, self._rules)}
        plans = [renumbered(plan, self._rules, after) if plan.version in compared else plan for plan in plans]
        if after is not None:
            for plan in plans:
                check_reading(plan, after)
        return aclosing(self._in_turn(plans, compared, after)) if compared else self._engine.run(plans, after)

    async def _in_turn(
        self, plans: Sequence[ChangePlan], compared: Set[int], after: Position | None
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Yield the rows of plans. Each plan that is compared is run by itself, and those between them together."""
        for is_compared, group in groupby(plans, lambda plan: plan.version in compared):
            together = [] if is_compared else [self._engine.run(list(group), after)]
            for run in together or [self._run_comparing(plan, after) for plan in group]:
                async with run as batches:
                    async for batch in batches:
                        yield batch

    @asynccontextmanager
    async def _run_comparing(
        self, plan: ChangePlan, after: Position | None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """Compare the version, then give its rows after `after`.

        Rows of tasks that are in memory come from there, and the engine runs for those between them. It runs for all
        tasks if they change places too often, or if it does not read here: it may give the rows of some tasks only.
        """
        async with _spill_files() as (bitmaps, preimages), AsyncExitStack() as stack:
            stack.callback(self._rows.release, plan.version)
            self._rows.expect(compared_tasks(plan))
            refined, counts = await compare(partial(self._refine, plan, bitmaps, preimages))
            if self._report is not None:
                self._report(plan, counts)
            first = before_preimage(after) if counts.in_place else after
            kept = [(are_kept, tuple(tasks)) for are_kept, tasks in groupby(refined.tasks, self._rows.has)]
            if not self._engine.reads_here or len(kept) > _MOST_PARTS:
                self._rows.release(plan.version)
                kept = [(False, refined.tasks)]
            parts: list[AsyncIterator[ChangeBatch]] = []
            for are_kept, tasks in kept:
                part = replace(refined, tasks=tasks)
                run = aclosing(_from_memory(self._rows, part, first)) if are_kept else self._engine.run([part], first)
                parts.append(await stack.enter_async_context(run))
            batches = await stack.enter_async_context(aclosing(batch for part in parts async for batch in part))
            if counts.in_place:
                batches = await stack.enter_async_context(aclosing(_join_images(refined, batches, after)))
            if preimages:
                batches = await stack.enter_async_context(aclosing(_join_preimages(batches, preimages)))
            yield batches

    def _refine(
        self, plan: ChangePlan, bitmaps: SpilledBitmaps, preimages: SpilledPreimages, row_index: RowIndex
    ) -> tuple[ChangePlan, ChangelogCounts]:
        """Compare a version, on other machines where they are worth it and answer. For a worker thread."""
        try:
            if self._shared is not None and self._shared.is_worth(plan):
                with self._shared.index(row_index) as index:
                    return refine(plan, self._rules, index, bitmaps, preimages, self._rows)
        except EngineUnavailable as error:
            _log.warning("%s: %s; this process compares version %d", plan.table, error, plan.version)
        in_place = self._engine.reads_here
        return refine(plan, self._rules, row_index, bitmaps, preimages, self._rows, in_place)

    def expect(self, plan: ChangePlan) -> bool:
        """See `Engine.expect`. Only of plans that `run` compares in this process."""
        is_compared = self._engine.reads_here and concerns(plan, self._rules)
        return (
            is_compared
            and len(plan.tasks) <= MOST_TASKS
            and self._rows.expect(compared_tasks(renumbered(plan, self._rules, None)))
        )

    @override
    def forget(self) -> None:
        self._rows.release()


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


async def _from_memory(
    rows: DecodedFiles, plan: ChangePlan, after: Position | None
) -> AsyncGenerator[ChangeBatch, None]:
    batches = ((batch, row) for task, row in remaining(plan, after) for batch in rows.read(task))
    later = (batch if row < 0 else batch.after(row) for batch, row in batches)
    for batch in await to_thread.run_sync(list, later):
        if len(batch) > 0:
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
            path = next(own.uri for own in plan.tasks if own.index == task)
            raise DataCorrupt(plan.table, plan.version, path, "it lost a postimage after its rows were compared")

    async for batch in batches:
        check(batch)
        begun = after is not None and (batch.version, batch.task) == (after.version, after.task)
        for image_batch in joined.add(batch):
            rows = image_batch.after(after.row) if after is not None and begun else image_batch
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


class ChangelogReport:
    """Reports on the comparisons of the pipeline `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        for counter in METRICS:
            counter.add(name, 0)

    def note(self, plan: ChangePlan, counts: ChangelogCounts) -> None:
        """Count the results for the version of `plan`, and warn about ambiguous rows."""
        numbers = (counts.carryovers, counts.updates, counts.ambiguous, counts.unchanged)
        for counter, count in zip(METRICS, numbers, strict=True):
            counter.add(self._name, count)
        if counts.ambiguous:
            _log.warning(
                "%s: version %d: %d rows share their key with other rows; they are paired in the order of delivery",
                self._name,
                plan.version,
                counts.ambiguous,
            )

"""Net changes of a range of versions: the difference between the table before and after the range.

| existed before | exists after | delivered |
|---|---|---|
| no | no | nothing |
| no | yes | its last insert |
| yes | no | its first delete |
| yes | yes | its first preimage and its last postimage, or nothing where they are equal |

All versions of the range are planned and compared (`tailer.changelog.carryovers.refine_range`) before the first row is
delivered. Rows are delivered in version order, each with its own version and timestamp. Memory is bounded except for
the plans.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain

from typing_extensions import override

from tailer.changelog.carryovers import ChangelogCounts, refine_range
from tailer.changelog.equal_rows.row_index import compare
from tailer.changelog.rules import PairingRules, check_key
from tailer.changelog.spill import SpilledBitmaps
from tailer.engine import Engine
from tailer.events import ChangeBatch
from tailer.formats.rows import execute
from tailer.plan import ChangePlan, Position
from tailer.read.data_files import LOCAL, DataFiles
from tailer.read.decoded_files import DecodedFiles, compared_tasks
from tailer.table_log import TableLog

__all__ = ["net_changes"]


class NetChanges(Engine):
    """An engine that runs the net-change plan of each version, from `plans`."""

    def __init__(self, engine: Engine, plans: Sequence[ChangePlan]) -> None:
        self._engine = engine
        self._plans = {plan.version: plan for plan in plans}

    @property
    @override
    def key(self) -> tuple[str, ...]:
        return self._engine.key

    @asynccontextmanager
    @override
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        async with self._engine.run([self._plans[plan.version] for plan in plans], after) as batches:
            yield batches


@asynccontextmanager
async def net_changes(
    table: TableLog,
    versions: range,
    engine: Engine,
    rules: PairingRules,
    shape: Callable[[ChangePlan], ChangePlan],
    report: Callable[[ChangePlan, ChangelogCounts], None],
    files: DataFiles = LOCAL,
) -> AsyncIterator[NetChanges]:
    """Prepare an engine for the net changes of `versions`, which must exist.

    `shape` selects the delivered columns of a plan. `report` is called once, with the last plan.
    `files`: opens what the tasks of plans name.

    Raises what reading the log and `tailer.changelog.carryovers.refine_range` raise.
    """
    plans: list[ChangePlan] = []
    await table.seek(versions.start)
    due = versions.start
    while due < versions.stop and (plan := await table.next_plan()) is not None and plan.version < versions.stop:
        plans.append(shape(plan))
        due = plan.version + 1
    with SpilledBitmaps() as bitmaps:
        net: tuple[ChangePlan, ...] = ()
        if plans:
            if rules.compute_updates:
                check_key(plans[-1], rules)
            rows = DecodedFiles(execute, engine.budget, files, use_threads=True)
            try:
                rows.expect(chain.from_iterable(map(compared_tasks, plans)))
                net, counts = await compare(lambda row_index: refine_range(plans, rules, row_index, bitmaps, rows))
            finally:
                rows.release()
            report(plans[-1], counts)
        yield NetChanges(engine, net)

"""The look at the first rows of a pipeline: all errors with which `tailer run` would stop before it delivers them.

What the loop does one step after the other, up to its first error, is done here as far as each step goes, by the same
functions: so the words are those with which `tailer run` stops. Nothing is delivered, and nothing is changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from tailer.changelog.rules import is_tracked, key_faults
from tailer.config.pipelines import PipelineSettings
from tailer.daemon.checks.errors import Errors
from tailer.daemon.standing import Standing
from tailer.errors import TailerError
from tailer.events import ROW_COMMIT_VERSION, ROW_ID
from tailer.pipeline.data_loss import is_lost
from tailer.pipeline.delivery import ResumePoint, check_known_columns, first_point, tell_key
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange
from tailer.plan import ChangePlan, Regime, output_schema
from tailer.progress.lookup import check_new
from tailer.sink import Sink, app_id_of
from tailer.table_log import TableLog

__all__ = ["FirstRows"]


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The rows of `pipeline` that come first, from `table` to `sink`.

    `standing`: the pipeline's progress in the sink, which was asked for it; None: the sink had an error.
    """

    pipeline: PipelineSettings
    table: TableLog
    sink: Sink
    standing: Standing | None

    async def examine(self, errors: Errors) -> None:
        """Add all errors to `errors`."""
        if self.standing is not None and self.standing.position is None:
            with errors.gathered():
                await check_new(self.pipeline.name, self.table, await self.table.table_id(), self.sink)
        count = len(errors.found)
        with errors.gathered(unless=self._goes_on_after):
            point = await self._point()
            plan = await self._examine_at(point, errors)
            if plan is not None and len(errors.found) == count:
                await self._examine_newest(point, plan.schema, errors)

    async def _point(self) -> ResumePoint:
        """Return where the pipeline goes on or begins."""
        if self.standing is not None and self.standing.position is not None:
            return ResumePoint.following(self.standing.position)
        return await first_point(self.table, await self.table.resolve(self.pipeline.start), self.sink)

    async def _examine_at(self, point: ResumePoint, errors: Errors) -> ChangePlan | None:
        """Add the errors of the first version, and return its plan; None: it has no columns yet."""
        before = None
        if point.snapshot:
            plan = await self._snapshot(point.version)
        else:
            before = await self.table.seek(point.version)
            check_known_columns(self.table, point, before)
            plan = await self.table.next_plan() or await self._nothing_at(point.version, before)
        await tell_key(self.sink, self.table, point.version - (not point.snapshot))
        if plan.is_bare:
            return None
        plans, policy = self._examine_plan(plan, errors), self.pipeline.policy
        known = policy.shape_schema(before, self.table.uri, point.version) if plans and point.knows_columns else None
        is_new = self.standing is None or self.standing.position is None
        app_id = None if self.standing is None or is_new else self.standing.app_id
        app_id = app_id or app_id_of(self.pipeline.name, plan.table_id)
        schemas = [output_schema(known or each.schema) for each in plans]
        if is_new and plan.tasks and not is_tracked(plan) and self.sink.open_mirror(self.pipeline.name) is not None:
            # Row ids that are all null identify no row of a mirror.
            schemas = [
                pa.schema([each for each in schema if each.name not in (ROW_ID, ROW_COMMIT_VERSION)])
                for schema in schemas
            ]
        errors.add(*_shared([await self.sink.refusals(app_id, schema) for schema in schemas]))
        return plan

    async def _examine_newest(self, point: ResumePoint, schema: pa.Schema, errors: Errors) -> None:
        """Add what does not fit the columns of the newest version, where the pipeline would stop, too."""
        latest = await self.table.latest()
        if latest <= point.version or self.pipeline.policy.on_schema_change is OnSchemaChange.FAIL:
            return
        await self.table.seek(latest)
        plan = await self.table.next_plan()
        if plan is not None and not plan.schema.equals(schema, check_metadata=True):
            self._examine_plan(plan, errors)

    def _examine_plan(self, plan: ChangePlan, errors: Errors) -> list[ChangePlan]:
        """Add the errors of what is configured over the columns of a version; return its plans as `Policy.examine`."""
        plans, faults = self.pipeline.policy.examine(plan)
        errors.add(*faults)
        if self.pipeline.pairing.compute_updates:
            errors.add(*_shared([list(key_faults(each, self.pipeline.pairing)) for each in plans]))
        return plans

    async def _snapshot(self, version: int) -> ChangePlan:
        async with aclosing(self.table.snapshot_plans(version)) as pages:
            return await anext(pages)

    async def _nothing_at(self, version: int, columns: pa.Schema | None) -> ChangePlan:
        """Return the plan of a version that is not there yet."""
        table_id, columns = await self.table.table_id(), columns or pa.schema([])
        return ChangePlan(self.table.uri, table_id, version, 0, None, Regime.NONE, columns, tasks=())

    def _goes_on_after(self, error: TailerError) -> bool:
        return is_lost(error) and self.pipeline.policy.on_data_loss is not OnDataLoss.FAIL


def _shared(faults: Sequence[Sequence[TailerError]]) -> Iterator[TailerError]:
    """Yield the errors that are in all sequences, each as the first one has it."""
    texts = [set(map(str, each)) for each in faults]
    yield from (error for error in chain(*faults[:1]) if all(str(error) in each for each in texts))

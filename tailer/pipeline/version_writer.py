"""Writes the rows of versions and snapshots into a pipeline's delivery."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pyarrow as pa

from tailer.engine.port import Engine
from tailer.errors import SchemaChanged
from tailer.pipeline.policy import OnSchemaChange, Policy
from tailer.pipeline.row_ids import RowIdReport
from tailer.pipeline.sink_writer import Delivery
from tailer.plan import TASKS, ChangePlan, Position
from tailer.schema.changes import describe_changes
from tailer.table_log import TableLog

__all__ = ["VersionWriter"]


class VersionWriter:
    """Runs plans of `table` on `engine` and hands their rows to a `Delivery`, shaped by `policy`.

    `splits_snapshots`: whether a snapshot may end in the middle, once `is_stopping` says so.
    """

    def __init__(
        self,
        name: str,
        table: TableLog,
        engine: Engine,
        policy: Policy,
        splits_snapshots: bool,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._table = table
        self._engine = engine
        self._policy = policy
        self._splits_snapshots = splits_snapshots
        self._is_stopping = is_stopping
        self._row_ids = RowIdReport(name) if policy.row_ids else None

    async def version(self, delivery: Delivery, plan: ChangePlan, after: Position | None) -> None:
        """Deliver what is after `after` of a version, whose plan is shaped, and close it."""
        if after is not None and after.version == plan.version:
            begun = [task for task in plan.tasks if task.index <= after.task % TASKS]
            if any(task.schema is plan.schema for task in begun):
                delivery.schema = plan.schema  # announced with rows that were delivered already
        self.check_schema(delivery.schema, plan)
        await self._rows(delivery, plan, after)
        await delivery.close_version(plan)

    async def snapshot(self, delivery: Delivery, version: int, after: Position | None) -> bool:
        """Deliver all rows of `version` after `after`; False if stopped on the way."""
        async with aclosing(self._table.snapshot_plans(version)) as pages:
            return await self.pages(delivery, await anext(pages), pages, after)

    async def pages(
        self, delivery: Delivery, page: ChangePlan, rest: AsyncIterator[ChangePlan], after: Position | None
    ) -> bool:
        """Deliver the rows after `after` of a snapshot: `page` and the `rest`; False if stopped on the way."""
        plan = self._policy.shape(page)
        while await self._rows(delivery, plan, after, self._splits_snapshots):
            more = await anext(rest, None)
            if more is None:
                await delivery.close_version(plan)
                return True
            plan = self._policy.shape(more)
        return False

    def check_schema(self, before: pa.Schema | None, plan: ChangePlan) -> None:
        """Raise `SchemaChanged` where rows of `plan` have other columns than `before`, and that is not wanted."""
        if self._policy.on_schema_change is OnSchemaChange.FAIL:
            schemas = {id(schema): schema for schema in (*(task.schema for task in plan.tasks), plan.schema)}
            for schema in schemas.values():
                before = schema if before is None else before
                if changes := describe_changes(before, schema):
                    raise SchemaChanged(plan.table, plan.version, "; ".join(changes))

    async def _rows(self, delivery: Delivery, plan: ChangePlan, after: Position | None, may_stop: bool = False) -> bool:
        """Deliver the rows of the plan after `after`; False if it was to stop on the way, and might."""
        if self._row_ids is not None:
            self._row_ids.note(plan)
        async with delivery.batches(self._engine, plan, after) as batches:
            async for batch in batches:
                if may_stop and self._is_stopping():
                    return False
                await delivery.write(batch, plan)
        return True

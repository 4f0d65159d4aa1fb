"""The rows of versions and snapshots, on their way from the engine to the sink writer."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import pyarrow as pa

from tailer.engine.port import Engine, ReadsTogether
from tailer.engine.prefetch import PrefetchedBatches
from tailer.errors import SchemaChanged
from tailer.pipeline.policy import OnSchemaChange, Policy, RowIdReport
from tailer.pipeline.sink_writer import SinkWriter
from tailer.plan import TASKS, ChangePlan, Position
from tailer.schema.changes import describe_changes
from tailer.table_log import TableLog

__all__ = ["VersionWriter"]


class VersionWriter:
    """Runs plans of `table` on `engine` and hands their rows to a `SinkWriter`, shaped by `policy`.

    `splits_snapshots`: whether delivery may end inside a snapshot once `is_stopping` returns True. `note_step`: called
    for all batches, because one version may take long.
    """

    def __init__(
        self,
        name: str,
        table: TableLog,
        engine: Engine,
        policy: Policy,
        splits_snapshots: bool,
        is_stopping: Callable[[], bool],
        note_step: Callable[[], None],
    ) -> None:
        self._table = table
        self._engine = engine
        self._policy = policy
        self._splits_snapshots = splits_snapshots
        self._is_stopping = is_stopping
        self._note_step = note_step
        self._row_ids = RowIdReport(name) if policy.row_ids else None

    async def version(
        self, writer: SinkWriter, plan: ChangePlan, after: Position | None, ahead: PrefetchedBatches | None
    ) -> None:
        """Deliver the rows after `after` of a version, whose plan is already shaped, and close the version.

        `ahead`: its rows, if they are being read already.
        """
        if after is not None and after.version == plan.version:
            begun = [task for task in plan.tasks if task.index <= after.task % TASKS]
            if any(task.schema is plan.schema for task in begun):
                writer.schema = plan.schema  # announced with rows that were delivered already
        self.check_schema(writer.schema, plan)
        await self._rows(writer, plan, after, ahead=ahead)
        await writer.close_version(plan)

    async def together(self, writer: SinkWriter, plans: Sequence[ChangePlan]) -> None:
        """Deliver and close versions that the engine reads together (`LookAhead.next_plans`); plans are shaped.

        May end after any of them once `is_stopping` returns True.
        """
        self.check_schema(writer.schema, plans[0])
        assert isinstance(self._engine, ReadsTogether), "plans are together because the engine takes them"
        read = await writer.patiently(partial(self._engine.read_together, plans))
        self._note_step()
        if self._row_ids is not None:
            for plan in plans[: len(read)]:
                self._row_ids.note(plan)
        done = 0
        while done < len(plans) and not self._is_stopping():
            if done < len(read):
                done += await writer.write_versions(list(zip(plans[done:], read[done:], strict=False)))
            else:
                await self.version(writer, plans[done], None, None)
                done += 1
            self._note_step()

    async def snapshot(self, writer: SinkWriter, version: int, after: Position | None) -> bool:
        """Deliver all rows of `version` after `after`. Return False if it was stopped before the end."""
        async with aclosing(self._table.snapshot_plans(version)) as pages:
            return await self.pages(writer, await anext(pages), pages, after)

    async def pages(
        self, writer: SinkWriter, page: ChangePlan, rest: AsyncIterator[ChangePlan], after: Position | None
    ) -> bool:
        """Deliver the rows after `after` of a snapshot: `page`, then the `rest`. Return False if stopped early."""
        plan = self._policy.shape(page)
        while await self._rows(writer, plan, after, self._splits_snapshots):
            more = await anext(rest, None)
            if more is None:
                await writer.close_version(plan)
                return True
            plan = self._policy.shape(more)
        return False

    def check_schema(self, before: pa.Schema | None, plan: ChangePlan) -> None:
        """Raise `SchemaChanged` if `plan` has other columns than `before` and the policy forbids that."""
        if self._policy.on_schema_change is OnSchemaChange.FAIL:
            schemas = {id(schema): schema for schema in (*(task.schema for task in plan.tasks), plan.schema)}
            for schema in schemas.values():
                before = schema if before is None else before
                if changes := describe_changes(before, schema):
                    raise SchemaChanged(plan.table, plan.version, "; ".join(changes))

    async def _rows(
        self,
        writer: SinkWriter,
        plan: ChangePlan,
        after: Position | None,
        may_stop: bool = False,
        ahead: PrefetchedBatches | None = None,
    ) -> bool:
        """Deliver the rows of the plan after `after`. Return False if it was stopped before the end (`may_stop`)."""
        if self._row_ids is not None:
            self._row_ids.note(plan)
        async with writer.batches(self._engine, plan, after, ahead) as batches:
            async for some in batches:
                self._note_step()
                if may_stop and self._is_stopping():
                    return False
                await writer.write(some, plan)
        return True

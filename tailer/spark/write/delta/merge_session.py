"""Sessions that merge: a range of versions is one MERGE of Spark into a mirror.

It takes place only if nobody else has changed the mirror since (`tailer.sink.Mergeable`).

What a MERGE of Spark cannot do, the driver does in the sink's own transactions, by a session of rows
(`tailer.pipeline.row_delivery`): the first commit, snapshots, versions without rows, versions that change columns, and
whatever else the sink reserves for itself. Such a session begins with the sink's progress, and the table's log is
sought again after it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from tailer.errors import TailerError, VersionAhead
from tailer.events import Gap
from tailer.pipeline.backfill.order import BackfillOrder, Backfills
from tailer.pipeline.delivery import TakesOrders, VersionRange
from tailer.pipeline.row_delivery import RowSession
from tailer.plan import ChangePlan, Position, output_schema
from tailer.sink import Merge, Mergeable, Progress, app_id_of
from tailer.spark.splits import Split
from tailer.spark.write.delta.append import RangeAppend
from tailer.spark.write.delta.delivery import DeltaDelivery, DeltaSession
from tailer.spark.write.delta.merge import RangeMerge
from tailer.spark.write.version_ranges import VersionRanges, changes_of

__all__ = ["open_merge_session"]


async def open_merge_session(
    sink: Mergeable, delivery: DeltaDelivery, spark: SparkSession, latest_id: str, progress: Progress | None
) -> "MergeSession":
    """Open a session of `delivery` into `sink`; the rest as in `OpenSession`."""
    return MergeSession(sink, delivery, spark, latest_id, progress)


class MergeSession(DeltaSession[Mergeable]):
    """A session whose ranges are merged into `sink`; the rest as in `DeltaSession`."""

    announces_columns: Final = True
    _schema: pa.Schema | None = None
    _last: int | None = None
    _is_narrowed = False
    _nothing_lost = True

    @property
    def orders(self) -> TakesOrders:
        """See `Session.orders`. The driver carries them out."""
        return self

    async def record_start(self, plan: ChangePlan) -> None:
        """See `Session.record_start`."""
        async with self._driver() as rows:
            await rows.record_start(plan)

    async def snapshot(self, version: int, after: Position | None) -> bool:
        """See `Session.snapshot`."""
        async with self._driver() as rows:
            return await rows.snapshot(version, after)

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        """See `Session.begin`."""
        self._schema, self._last = self._schema if schema is None else schema, last
        policy = self._delivery.settings.policy
        self._ranges = VersionRanges(self._table, policy, self._schema, last, changes_alone=True)

    async def plan(self) -> VersionRange | None:
        """See `Session.plan`. The driver begins a mirror with one version, and executors go on with it."""
        assert self._ranges is not None, "begun before"
        return await self._ranges.next(1 if self.table_id is None else self._delivery.most_versions)

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """See `Session.deliver`. The target has whole versions only."""
        self._under_way = versions
        merge = await self._prepare(versions)
        if merge is None:
            await self._deliver_by_driver(versions)
        else:
            await self._merge(versions, merge)
        self._under_way = None

    def narrow(self, error: TailerError) -> bool:
        """See `Session.narrow`."""
        return self._is_narrowed or super().narrow(error)

    async def salvage(self, error: TailerError) -> bool:
        """See `Session.salvage`. The driver has committed what it could."""
        return self._nothing_lost

    async def skip(self, gap: Gap, schema: pa.Schema) -> None:
        """See `TakesOrders.skip`."""
        async with self._driver() as rows:
            await rows.skip(gap, schema)
        self._schema = schema

    async def resnapshot(self, gap: Gap, page: ChangePlan, rest: AsyncIterator[ChangePlan]) -> None:
        """See `TakesOrders.resnapshot`."""
        async with self._driver() as rows:
            await rows.resnapshot(gap, page, rest)
        self._schema = self._delivery.settings.policy.shape(page).schema

    async def backfill(self, backfills: Backfills, order: BackfillOrder) -> bool:
        """See `TakesOrders.backfill`."""
        async with self._driver() as rows:
            return await rows.backfill(backfills, order)

    async def _prepare(self, versions: VersionRange) -> Merge | None:
        """Prepare the MERGE of `versions`. None: they are the driver's."""
        last = versions.plans[-1]
        if self._schema is None or last.table_id != self.table_id or changes_of(self._schema, versions.plans[0]):
            return None
        return await self.sink.merging(app_id_of(self._name, last.table_id), output_schema(last.schema))

    async def _merge(self, versions: VersionRange, merge: Merge) -> None:
        """Deliver `versions`, which leave the columns as they are, in one commit."""

        async def prepare(splits: Sequence[Split]) -> RangeAppend:
            return RangeMerge(self._spark, self.sink.name, merge, splits, versions.last)

        await self._commit(versions, merge.app_id, prepare)
        self._schema = versions.plans[-1].schema

    async def _deliver_by_driver(self, versions: VersionRange) -> None:
        """Deliver `versions` through this process, which plans them again, and continue after them."""
        await self._table.seek(versions.first)
        async with self._driver() as rows:
            rows.begin(versions.first, self._schema, versions.last)
            due = versions.first
            while due <= versions.last and not self._delivery.retries.is_stopping():
                found = await rows.plan()
                if found is None:
                    raise VersionAhead(self._table.uri, due, due - 1)
                await rows.deliver(found, None)
                due = found.last + 1
        await self._table.seek(versions.last + 1)
        self.begin(versions.last + 1, versions.plans[-1].schema, self._last)

    @asynccontextmanager
    async def _driver(self) -> AsyncIterator[RowSession]:
        """Open a session of the driver, after the sink's progress, and commit what it delivers."""
        async with self._delivery.rows.session(self._latest_id) as rows:
            try:
                yield rows
                await rows.commit()
            except TailerError as error:
                self._is_narrowed = rows.narrow(error)
                self._nothing_lost = not self._is_narrowed and await rows.salvage(error)
                raise
            self.table_id = rows.table_id

"""Sessions that append: a range of versions is one append of Spark's Delta writer.

The sink does everything but append rows: it reads progress, checks that rows fit, and commits ranges without rows. A
snapshot is also one commit, whose `txn` is its version. A snapshot that the `delta` sink left unfinished has more than
one `txn`, which Spark's writer cannot write: it is finished as it was begun, by a `RowDelivery`.
"""

import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from tailer.errors import SinkFenced, SinkUnavailable, TailerError
from tailer.pipeline.delivery import VersionRange
from tailer.plan import ChangePlan, Position
from tailer.sink import Appendable, Progress, app_id_of
from tailer.spark.splits import Split
from tailer.spark.write.delta.append import RangeAppend
from tailer.spark.write.delta.commits import commit_without_rows
from tailer.spark.write.delta.delivery import DeltaDelivery, DeltaSession
from tailer.spark.write.version_ranges import VersionRanges, schemas_of

__all__ = ["open_append_session"]

_log = logging.getLogger(__name__)


async def open_append_session(
    sink: Appendable, delivery: DeltaDelivery, spark: SparkSession, latest_id: str, progress: Progress | None
) -> "AppendSession":
    """Open a session of `delivery` into `sink`; the rest as in `OpenSession`."""
    name = delivery.settings.name
    if progress is not None and progress.position.closes_version and not await sink.has_delivered(name):
        # Spark's first commit does not record it.
        await sink.reset(progress)
    return AppendSession(sink, delivery, spark, latest_id, progress)


class AppendSession(DeltaSession[Appendable]):
    """A session whose ranges are appends to `sink`; the rest as in `DeltaSession`."""

    announces_columns: Final = False
    orders: Final = None

    async def record_start(self, plan: ChangePlan) -> None:
        """See `Session.record_start`."""
        deadline_s = self._delivery.rows.limits.commit_deadline_s
        await commit_without_rows(self.sink, app_id_of(self._name, plan.table_id), plan, deadline_s)
        self.table_id = plan.table_id

    async def snapshot(self, version: int, after: Position | None) -> bool:
        """See `Session.snapshot`. It cannot be stopped, but for one that the driver has begun."""
        if self.resume is not None:
            return await self._finish_snapshot(version)
        async with aclosing(self._table.snapshot_plans(version)) as pages:
            versions = VersionRange.of([self._delivery.settings.policy.shape(page) async for page in pages])
        await self._append(versions)
        return True

    def begin(self, version: int, schema: pa.Schema | None, last: int | None) -> None:
        """See `Session.begin`."""
        self._ranges = VersionRanges(self._table, self._delivery.settings.policy, schema, last)

    async def deliver(self, versions: VersionRange, after: Position | None) -> None:
        """See `Session.deliver`. The target has whole versions only."""
        await self._append(versions)

    async def salvage(self, error: TailerError) -> bool:
        """See `Session.salvage`. Nothing is ever open."""
        return True

    async def _finish_snapshot(self, version: int) -> bool:
        """Deliver the rest of a snapshot that takes several commits, after the progress that their writer has read."""
        async with self._delivery.rows.session(self._latest_id) as rows:
            at = rows.resume
            if at is None or not at.snapshot or at.version != version:
                raise SinkUnavailable(self.sink.name, f"another instance finished the snapshot of version {version}")
            try:
                finished = await rows.snapshot(version, at.after)
            except TailerError as error:
                await rows.salvage(error)
                raise
            await rows.commit()
            self.table_id = rows.table_id
        return finished

    async def _append(self, versions: VersionRange) -> None:
        """Deliver the range in one commit."""
        self._under_way = versions
        last = versions.plans[-1]
        app_id = app_id_of(self._name, last.table_id)
        if self.table_id not in (None, last.table_id):
            await self._turn_to(app_id, versions.first)

        async def prepare(splits: Sequence[Split]) -> RangeAppend:
            append = await self.sink.appending(app_id, schemas_of(versions))
            return RangeAppend(self._spark, self.sink.name, append, splits, versions.last)

        await self._commit(versions, app_id, prepare)
        if self.table_id is None and not await self.sink.has_delivered(self._name):
            await self.sink.reset(Progress(app_id, Position.end(versions.last)))
        self.table_id = last.table_id
        self._under_way = None

    async def _turn_to(self, app_id: str, version: int) -> None:
        """Continue under another `app_id` from `version` on."""
        found = await self.sink.progress(app_id)
        if found is not None and found.position.version >= version:
            raise SinkFenced(self.sink.name, f"{app_id} is at version {found.position.version} already")
        if found is not None:
            await self.sink.reset(Progress(app_id, Position.end(version - 1)))
        _log.info("%s: version %d replaces the table; continuing as %s", self._name, version, app_id)

"""Delivery into a Delta table whose rows executors read and write: only progress passes through the driver.

A range of whole versions is one job and one commit of Spark: an append (`tailer.spark.write.delta.append_session`), or
a MERGE into a mirror (`tailer.spark.write.delta.merge_session`). Its `txn` is that of the sink's own commits, with the
same app_id and the same meaning, so the driver and executors continue where the other stopped (invariant 1). Each range
begins at the target's progress (invariant 2), and the commit takes place only if that is unchanged: of two instances
one fails with `SinkFenced`.

A range that fails because a version cannot be read, or is refused by the target, stops the pipeline only at that
version: the versions before it are delivered first.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from anyio import to_thread
from pyspark.sql import SparkSession

from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import open_files
from tailer.errors import TailerError
from tailer.pipeline.delivery import ResumePoint, Session, VersionRange
from tailer.pipeline.policy import PlanReport
from tailer.pipeline.retry import Retries
from tailer.pipeline.row_delivery import RowDelivery
from tailer.pipeline.status import Committed
from tailer.plan import Position
from tailer.progress.lookup import find_progress
from tailer.sink import Appendable, Mergeable, Progress, app_id_of
from tailer.spark.splits import Split
from tailer.spark.write.delta.append import RangeAppend
from tailer.spark.write.delta.commits import commit_by_spark, commit_without_rows
from tailer.spark.write.delta.spark_with_delta import check_delta
from tailer.spark.write.version_ranges import VersionRanges, fewer_versions, splits_of
from tailer.table_log import TableLog

__all__ = ["DeltaDelivery", "DeltaSession", "OpenSession"]

_log = logging.getLogger(__name__)

S = TypeVar("S", Appendable, Mergeable)

# Opens a session in Spark for the table with this id, after this progress.
OpenSession = Callable[["DeltaDelivery", SparkSession, str, Progress | None], Awaitable[Session]]


class DeltaDelivery:
    """A `Delivery`; see `tailer.spark.write.delta.pipeline.delta_pipeline`.

    `rows`: the driver's delivery into the same sink. `open_session`: of one of the two kinds. `spark`: returns a
    session of Spark with Delta, called in a worker thread. `most_versions`: how many may share a commit. `retries`: of
    the pipeline.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        table: TableLog,
        sink: Appendable | Mergeable,
        rows: RowDelivery,
        open_session: OpenSession,
        spark: Callable[[], SparkSession],
        most_versions: int,
        retries: Retries,
    ) -> None:
        self.settings: Final = settings
        self.table: Final = table
        self.sink: Final = sink
        self.rows: Final = rows
        self.retries: Final = retries
        self.report: Final = PlanReport(settings.name, settings.policy.row_ids)
        self.most_versions = most_versions
        self._open_session = open_session
        self._spark = spark
        self._checked: SparkSession | None = None

    @asynccontextmanager
    async def session(self, table_id: str) -> AsyncIterator[Session]:
        """See `Delivery.session`."""
        self._checked = spark = await to_thread.run_sync(self._ready)
        progress = await find_progress(self.settings.name, self.table, table_id, self.sink)
        yield await self._open_session(self, spark, table_id, progress)

    def _ready(self) -> SparkSession:
        spark = self._spark()
        if spark is not self._checked:
            check_delta(spark)
        return spark


class DeltaSession(Generic[S]):
    """The part that sessions of both kinds share (`Session`), into `sink`, in `spark`; the table is now `latest_id`."""

    def __init__(
        self, sink: S, delivery: DeltaDelivery, spark: SparkSession, latest_id: str, progress: Progress | None
    ) -> None:
        self.sink: S = sink
        self.resume = None if progress is None else ResumePoint.following(progress.position)
        self.table_id = None if progress is None else progress.app_id.removeprefix(f"{delivery.settings.name}/")
        self._delivery = delivery
        self._name = delivery.settings.name
        self._table = delivery.table
        self._spark = spark
        self._latest_id = latest_id
        self._ranges: VersionRanges | None = None
        self._under_way: VersionRange | None = None

    @property
    def app_id(self) -> str | None:
        """See `Session.app_id`."""
        return None if self.table_id is None else app_id_of(self._name, self.table_id)

    async def plan(self) -> VersionRange | None:
        """See `Session.plan`."""
        assert self._ranges is not None, "begun before"
        return await self._ranges.next(self._delivery.most_versions)

    async def commit(self) -> None:
        """See `Session.commit`. Nothing is ever open."""

    def narrow(self, error: TailerError) -> bool:
        """See `Session.narrow`: the next range ends before the version that failed."""
        fewer = fewer_versions(self._under_way, error)
        if fewer == 0 or self._delivery.retries.is_stopping():
            return False
        _log.warning("%s: %s; continuing with fewer versions at once", self._name, error)
        self._delivery.most_versions = fewer
        return True

    async def _commit(
        self, versions: VersionRange, app_id: str, prepare: Callable[[Sequence[Split]], Awaitable[RangeAppend]]
    ) -> None:
        """Commit `versions` under `app_id`. If they have rows, Spark does, as `prepare` says for their splits."""
        delivery, last = self._delivery, versions.plans[-1]
        for plan in versions.plans:
            delivery.report.note(plan)
        if any(plan.tasks for plan in versions.plans):
            files = open_files(delivery.settings.stores)
            splits = await to_thread.run_sync(splits_of, versions, delivery.settings.pairing, files)
            write = await prepare(splits)
            await self._table.confirm(None)  # the target has whole versions only
            await commit_by_spark(write, self.sink, Position.end(versions.last))
        else:
            await commit_without_rows(self.sink, app_id, last, delivery.rows.limits.commit_deadline_s)
        _log.debug("%s: delivered up to version %d", self._name, versions.last)
        delivery.retries.note_commit(Committed(Position.end(versions.last), {}, first=versions.first))

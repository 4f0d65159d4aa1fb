"""Large versions of the daemon into Kafka, compared by all executors together (`tailer.shards.shard_delivery`).

A shard is a pipeline (`tailer.shards.worker`), and each would compare all rows of a version by itself. So where it is
worth it, executors share one comparison (`tailer.spark.native.comparing`), and Spark brings the rows that are left to
their shards (`tailer.spark.write.exchange`). Positions and messages are the same, so a version may be begun in one way
and finished in the other.

Shards compare by themselves what this cannot deliver as they do: a version that changes columns, which only a pipeline
announces; columns that are other ones in Spark; whole versions in one transaction. They also find out by themselves
what is wrong with the key, with a version that was begun by other rules, or with files, for which Spark's job fails:
they go on from wherever it got to.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from tailer.changelog.carryovers import ChangelogCounts, concerns
from tailer.changelog.rules import check_key
from tailer.changelog.task_ids import check_reading, renumbered
from tailer.config.pipelines import PipelineSettings
from tailer.errors import ConfigError, EngineUnavailable
from tailer.plan import ChangePlan, Position
from tailer.read.data_files import DataFiles
from tailer.shards.assignment import check_shard_key
from tailer.shards.worker import ShardReport, make_sink
from tailer.spark.engine.comparisons import SparkComparisons
from tailer.spark.job_group import SPARK_ERRORS, JobGroup, run_stoppable
from tailer.spark.native import comparing
from tailer.spark.native.comparing import at_postimages, compared
from tailer.spark.native.executed import ChangeRows, executed
from tailer.spark.release import SameRelease
from tailer.spark.session import engine_name, first_sentence, is_alive
from tailer.spark.source.views import TypedView
from tailer.spark.splits import DiffSplit, file_splits
from tailer.spark.write.exchange import check_columns, deliver_exchanged, exchanged
from tailer.spark.write.shard_rows import ShardRows

__all__ = ["SharedVersions"]

_DESCRIPTION: Final = "lake-tailer: deliver a version by shards"
_log = logging.getLogger(__name__)


class SharedVersions:
    """See the module. `settings`: of the pipeline. `session`: called in a worker thread. `files`: opens data files."""

    def __init__(self, settings: PipelineSettings, session: Callable[[], SparkSession], files: DataFiles) -> None:
        self._settings = settings
        self._session = session
        self._files = files
        self._comparisons = SparkComparisons(session, files)
        sink = make_sink(settings)
        self._key = sink.demands.key
        self._cuts_versions = sink.splits_versions

    def takes(self, plan: ChangePlan, places: Sequence[Position]) -> bool:
        """See `tailer.shards.shard_delivery.WholeVersions`."""
        rules = self._settings.pairing
        # Most versions are small: nothing else is looked at.
        if plan.size_bytes < comparing.SHARED_BYTES or not self._cuts_versions or not concerns(plan, rules):
            return False
        if any(not task.schema.equals(plan.schema, check_metadata=True) for task in plan.tasks):
            return False
        try:
            check_columns(plan.schema)
            check_shard_key(self._key, plan.schema, plan.table, plan.version)
            check_key(plan, rules)
            for place in places:
                check_reading(renumbered(plan, rules), place)
        except ConfigError:
            return False
        return self._comparisons.is_worth(plan)

    async def deliver(self, plan: ChangePlan) -> list[ShardReport] | None:
        """See `tailer.shards.shard_delivery.WholeVersions`. Raises `EngineUnavailable` for Spark's errors."""
        _log.info("%s: all executors compare version %d", self._settings.name, plan.version)
        job = _Job(self._settings, self._session, self._files, self._key, plan)
        return await run_stoppable(job.run, job.stop)


class _Job:
    """The delivery of one version. `key`: the columns by which rows belong to shards."""

    def __init__(
        self,
        settings: PipelineSettings,
        session: Callable[[], SparkSession],
        files: DataFiles,
        key: Sequence[str],
        plan: ChangePlan,
    ) -> None:
        self._settings = settings
        self._open_session = session
        self._files = files
        self._key = key
        self._plan = plan
        self._group: JobGroup | None = None
        self._is_stopped = False

    def run(self) -> list[ShardReport] | None:
        """Deliver the version; return None if Spark's jobs fail. Raises `EngineUnavailable` if Spark itself has."""
        session = self._open_session()
        self._group = JobGroup(session, f"lake-tailer-{uuid4()}", _DESCRIPTION)
        try:
            with self._group, ExitStack() as kept:
                return self._delivered(session, kept)
        except SPARK_ERRORS as error:
            name, version, reason = self._settings.name, self._plan.version, first_sentence(error)
            if self._is_stopped or not is_alive(session):
                raise EngineUnavailable(engine_name(session), reason) from error
            _log.warning("%s: each shard compares version %d by itself: %s", name, version, reason)
            return None

    def stop(self) -> None:
        """Make `run` end soon. Callable from any thread, any number of times."""
        self._is_stopped = True
        if self._group is not None:
            self._group.stop()

    def _delivered(self, session: SparkSession, kept: ExitStack) -> list[ShardReport]:
        plan, shards = self._plan, self._settings.shards
        rows, counts = self._changes(session, kept)
        begin, through = Position.end(plan.version - 1), Position.end(plan.version)
        work = ShardRows(self._settings, plan.schema, plan.table_id, begin, through, SameRelease())
        reports = deliver_exchanged(exchanged(rows, self._key, shards), work)
        reports[0].note(plan, counts)
        return reports

    def _changes(self, session: SparkSession, kept: ExitStack) -> tuple[DataFrame, ChangelogCounts]:
        """Return the rows that changed, with their positions, and what was left out. Runs jobs."""
        plan, rules = renumbered(self._plan, self._settings.pairing), self._settings.pairing
        found = compared(session, DiffSplit(plan, rules, self._files), kept)
        rows = ChangeRows(TypedView(plan.schema, (), since=plan.version, positions=True))
        changes = executed(session, rows, file_splits(found.slices, files=self._files))
        if found.places is not None:
            preimages = executed(session, rows, file_splits(found.preimages, files=self._files))
            changes = changes.union(at_postimages(preimages, found.places))
        return changes, found.counts

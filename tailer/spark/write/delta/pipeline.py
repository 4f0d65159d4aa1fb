"""The pipeline of a Delta table into which executors write."""

from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from tailer.config.pipelines import PipelineSettings
from tailer.engine.port import Engine
from tailer.errors import ConfigError
from tailer.pipeline.limits import Limits
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.polling import Polling
from tailer.pipeline.retention import VacuumWatch
from tailer.pipeline.retry import Retries
from tailer.pipeline.row_delivery import RowDelivery
from tailer.pipeline.status import PipelineStatus
from tailer.sink import Appendable, Mergeable, Sink
from tailer.spark.write.delta.append_session import open_append_session
from tailer.spark.write.delta.delivery import DeltaDelivery, OpenSession
from tailer.spark.write.delta.merge_session import open_merge_session
from tailer.spark.write.version_ranges import RANGE_VERSIONS
from tailer.start import Start
from tailer.stores.wakeup import Wake
from tailer.table_log import TableLog

__all__ = ["delta_pipeline"]


def delta_pipeline(
    settings: PipelineSettings,
    table: TableLog,
    sink: Sink,
    session: Callable[[], SparkSession],
    engine: Engine,
    wake: Wake,
    limits: Limits | None = None,
    until: Start | None = None,
    range_versions: int = RANGE_VERSIONS,
    status: PipelineStatus | None = None,
) -> Pipeline:
    """Make the pipeline for `settings` whose `write` is `executors`, into `sink`: `Appendable` or `Mergeable`.

    `session`: returns a session with Delta (`tailer.spark.write.delta.spark_with_delta`), called in a worker thread.
    `engine`: the engine of the driver's own pipeline. `until`: the last version to deliver; None: continue until
    `stop`. `range_versions`: how many may share a commit. Raises `ConfigError` for another sink, and for a policy that
    executors cannot follow.
    """
    name, policy = settings.name, settings.policy
    if policy.on_data_loss is not OnDataLoss.FAIL:
        reason = f"is {policy.on_data_loss}, and only the driver can announce a gap"
        raise ConfigError(f"{name}.on_data_loss", reason, 'Leave it out, or set write = "driver".')
    open_session: OpenSession
    match sink:
        case Appendable():
            open_session = partial(open_append_session, sink)
        case Mergeable():
            open_session = partial(open_merge_session, sink)
        case _:
            reason = f"is a {settings.sink_kind} sink, to which Spark's Delta writer cannot write"
            raise ConfigError(f"{name}.sink", reason, 'Set write = "driver".')
    limits = limits or settings.limits
    retries = Retries(name, limits.retry_for_s, status or PipelineStatus(name, counts_rows=False))
    rows = RowDelivery(name, table, sink, engine, policy, limits, retries)
    delivery = DeltaDelivery(settings, table, sink, rows, open_session, session, range_versions, retries)
    polling, watch = Polling.of(limits, wake), VacuumWatch(name)
    return Pipeline(name, table, delivery, wake, settings.start, until, policy, polling, retries, watch)

"""Metrics that are computed when they are asked for, from the status of each pipeline: they are never frozen."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from tailer.daemon.status_report import rows_by_kind
from tailer.pipeline.status import PipelineState, PipelineStatus

__all__ = ["computed_metrics"]

_LABELS: Final = ("pipeline",)

_GAUGES: Final[tuple[tuple[str, str, Callable[[PipelineStatus], float | None]], ...]] = (
    (
        "lake_tailer_lag_versions",
        "Versions known and not completely delivered.",
        lambda status: status.backlog.versions,
    ),
    (
        "lake_tailer_lag_seconds",
        "Age of the oldest change that may be undelivered; 0 at the newest version.",
        lambda status: status.lag_s,
    ),
    (
        "lake_tailer_lag_bytes",
        "Bytes of files of versions that are planned and not committed.",
        lambda status: status.backlog.size_bytes,
    ),
    (
        "lake_tailer_retention_headroom_seconds",
        "Seconds until VACUUM or log cleanup may remove undelivered changes; negative: overdue.",
        lambda status: status.headroom_s,
    ),
    (
        "lake_tailer_seconds_since_progress",
        "Seconds since the pipeline last planned, wrote, committed, found nothing due, began or failed.",
        lambda status: status.seconds_since_step,
    ),
    (
        "lake_tailer_active",
        "With --standby: 1 if this process is the active instance of the pipeline, 0 while it stands by.",
        lambda status: None if status.active is None else float(status.active.is_here),
    ),
    (
        "lake_tailer_heartbeat_age_seconds",
        "With --standby: seconds since the last heartbeat of the active instance was sent or seen here.",
        lambda status: None if status.active is None else max(time.time() - status.active.heartbeat_s, 0.0),
    ),
    (
        "lake_tailer_backfill_files",
        "Files that the backfill under way reads.",
        lambda status: status.backfills.files if status.backfills.command is not None else None,
    ),
    (
        "lake_tailer_backfill_files_done",
        "Those of them that are delivered.",
        lambda status: status.backfills.files_done if status.backfills.command is not None else None,
    ),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[PipelineStatus], float | None]], ...]] = (
    ("lake_tailer_gaps", "Gaps in the changes that the pipeline got past.", lambda status: status.gaps),
    ("lake_tailer_transactions", "Transactions committed to the sink.", lambda status: status.transactions),
    (
        "lake_tailer_transaction_rows",
        "Change rows committed to the sink.",
        lambda status: status.rows.total(),
    ),
    (
        "lake_tailer_transaction_bytes",
        "Arrow memory of the rows committed to the sink.",
        lambda status: status.transaction_bytes,
    ),
)


def computed_metrics(pipelines: Sequence[PipelineStatus]) -> Iterator[Metric]:
    """Yield the metrics of `pipelines` as they are at this moment."""
    yield _states(pipelines)
    for name, meaning, value in _GAUGES:
        gauge = GaugeMetricFamily(name, meaning, labels=_LABELS)
        for pipeline in pipelines:
            if (number := value(pipeline)) is not None:
                gauge.add_metric([pipeline.name], number)
        yield gauge
    for name, meaning, value in _COUNTERS:
        counter = CounterMetricFamily(name, meaning, labels=_LABELS)
        for pipeline in pipelines:
            if (number := value(pipeline)) is not None:
                counter.add_metric([pipeline.name], number, created=pipeline.began_s)
        yield counter
    yield _rows(pipelines)
    yield _durations(pipelines)
    memory = "Arrow memory that this process holds for rows between files and sinks."
    yield GaugeMetricFamily("lake_tailer_memory_in_flight_bytes", memory, pa.total_allocated_bytes())


def _states(pipelines: Sequence[PipelineStatus]) -> Metric:
    meaning = "1 for the state that the pipeline is in, 0 for the others."
    states = GaugeMetricFamily("lake_tailer_pipeline_state", meaning, labels=("pipeline", "state"))
    for pipeline in pipelines:
        now = pipeline.state
        for state in PipelineState:
            states.add_metric([pipeline.name, state.value], state is now)
    return states


def _rows(pipelines: Sequence[PipelineStatus]) -> Metric:
    meaning = "Change rows committed to the sink, by change type."
    rows = CounterMetricFamily("lake_tailer_rows_delivered", meaning, labels=("pipeline", "kind"))
    for pipeline in pipelines:
        for kind, count in rows_by_kind(pipeline).items():
            rows.add_metric([pipeline.name, kind], count, created=pipeline.began_s)
    return rows


def _durations(pipelines: Sequence[PipelineStatus]) -> Metric:
    meaning = "Seconds from the first row of a transaction to its commit."
    durations = SummaryMetricFamily("lake_tailer_transaction_seconds", meaning, labels=_LABELS)
    for pipeline in pipelines:
        durations.add_metric([pipeline.name], pipeline.transactions, pipeline.transaction_seconds)
    return durations

"""Metrics, health and status of the daemon over HTTP.

=========== =====================================================================================================
path        answer
=========== =====================================================================================================
`/metrics`  metrics for Prometheus
`/livez`    200 while the event loop runs and no pipeline hangs; else 503, and only a restart helps
`/readyz`   200 while every pipeline delivers, or was paused; else 503. A line for each pipeline
`/status`   all pipelines as JSON (`tailer.daemon.status_report`)
=========== =====================================================================================================

`tailer.daemon.page` adds the status page at `/`, and `/history`. Every other path is 404.

Answers are made from the status of pipelines, in the thread of the server: they need nothing from the event loop that
the pipelines run in.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import anyio
import msgspec
import pyarrow as pa
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tailer.changelog import engine
from tailer.daemon.status_report import report_of, rows_by_kind
from tailer.metrics import BAD_VALUES, Counter, Metric
from tailer.pipeline import status
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.stores import traffic

__all__ = ["Monitor", "metrics_registry"]

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


def computed_metrics(pipelines: Sequence[PipelineStatus]) -> Iterator[MetricFamily]:
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
    meaning = "Change rows committed to the sink, by change type."
    rows = CounterMetricFamily("lake_tailer_rows_delivered", meaning, labels=("pipeline", "kind"))
    for pipeline in pipelines:
        for kind, count in rows_by_kind(pipeline).items():
            rows.add_metric([pipeline.name, kind], count, created=pipeline.began_s)
    yield rows
    meaning = "Seconds from the first row of a transaction to its commit."
    durations = SummaryMetricFamily("lake_tailer_transaction_seconds", meaning, labels=_LABELS)
    for pipeline in pipelines:
        durations.add_metric([pipeline.name], pipeline.transactions, pipeline.transaction_seconds)
    yield durations
    memory = "Arrow memory that this process holds for rows between files and sinks."
    yield GaugeMetricFamily("lake_tailer_memory_in_flight_bytes", memory, pa.total_allocated_bytes())


def _states(pipelines: Sequence[PipelineStatus]) -> MetricFamily:
    meaning = "1 for the state that the pipeline is in, 0 for the others."
    states = GaugeMetricFamily("lake_tailer_pipeline_state", meaning, labels=("pipeline", "state"))
    for pipeline in pipelines:
        now = pipeline.state
        for state in PipelineState:
            states.add_metric([pipeline.name, state.value], state is now)
    return states


BEAT_S: Final = 1.0
STUCK_S: Final = 30.0
HUNG_S: Final = 1800.0
_METRICS: Final = (*status.METRICS, *engine.METRICS, *traffic.METRICS, BAD_VALUES)


class Monitor:
    """The answers about `pipelines`; `beat` runs in the event loop that `/livez` checks.

    `hung_s`: after how long without progress, while work is due, a pipeline counts as hung; 0: never.
    """

    def __init__(self, pipelines: Sequence[PipelineStatus], hung_s: float = HUNG_S) -> None:
        self._pipelines = pipelines
        self._hung_s = hung_s
        self._metrics = metrics_registry(pipelines)
        self._beaten_s = time.monotonic()
        self._began_s = time.time()

    async def beat(self) -> None:
        """Record that the event loop runs, until cancelled."""
        while True:
            self._beaten_s = time.monotonic()
            await anyio.sleep(BEAT_S)

    def app(self, *more: Route) -> Starlette:
        """Return the application that answers, with `more` routes."""
        answers = {"/metrics": self._scrape, "/livez": self._live, "/readyz": self._ready, "/status": self._status}
        app = Starlette(routes=[*(Route(path, answer) for path, answer in answers.items()), *more])
        app.router.redirect_slashes = False
        return app

    def _scrape(self, request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(self._metrics), headers={"Content-Type": kind})

    def _live(self, _request: Request) -> Response:
        silent_s = time.monotonic() - self._beaten_s
        if silent_s >= STUCK_S:
            return PlainTextResponse(f"the event loop has been blocked for {silent_s:.0f} s\n", 503)
        hung = [pipeline for pipeline in self._pipelines if self._hung_s and pipeline.hangs(self._hung_s)]
        text = "".join(f"{pipeline.name}: no progress for {pipeline.seconds_since_step:.0f} s\n" for pipeline in hung)
        return PlainTextResponse(text or "live\n", 503 if hung else 200)

    def _ready(self, _request: Request) -> Response:
        ready = all(pipeline.is_ready for pipeline in self._pipelines)
        text = "".join(f"{pipeline.name}: {pipeline.state}\n" for pipeline in self._pipelines)
        return PlainTextResponse(text, 200 if ready else 503)

    def _status(self, _request: Request) -> Response:
        body = msgspec.json.encode(report_of(self._pipelines, self._began_s, time.time()))
        return Response(body, media_type="application/json")


def metrics_registry(pipelines: Sequence[PipelineStatus] = ()) -> CollectorRegistry:
    """Return what Prometheus may ask for: the metrics of all pipelines and stores of this process, and its own."""
    registry = CollectorRegistry()
    for collector in (GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, _PipelineMetrics(pipelines)):
        registry.register(collector)
    return registry


class _PipelineMetrics(Collector):
    def __init__(self, pipelines: Sequence[PipelineStatus]) -> None:
        self._pipelines = pipelines

    def collect(self) -> Iterator[MetricFamily]:
        """Yield the metrics in Prometheus's form."""
        yield from map(_family, _METRICS)
        yield from computed_metrics(self._pipelines)


def _family(metric: Metric) -> MetricFamily:
    by_labels = metric.samples().items()
    samples = (((labels,) if isinstance(labels, str) else labels, sample) for labels, sample in by_labels)
    if isinstance(metric, Counter):
        counter = CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for values, sample in samples:
            counter.add_metric(values, sample.value, created=sample.since_s)
        return counter
    gauge = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for values, sample in samples:
        gauge.add_metric(values, sample.value)
    return gauge

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
from collections.abc import Iterator, Sequence
from typing import Final

import anyio
import msgspec
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tailer.changelog import report
from tailer.daemon.computed_metrics import computed_metrics
from tailer.daemon.status_report import report_of
from tailer.metrics import Counter, Metric
from tailer.pipeline import status
from tailer.pipeline.status import PipelineStatus
from tailer.stores import traffic

__all__ = ["HUNG_S", "Monitor", "metrics_registry"]

BEAT_S: Final = 1.0
STUCK_S: Final = 30.0
HUNG_S: Final = 1800.0
_METRICS: Final = (*status.METRICS, *report.METRICS, *traffic.METRICS)


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
        hung = [each for each in self._pipelines if self._hung_s and each.hangs(self._hung_s)]
        text = "".join(f"{each.name}: no progress for {each.seconds_since_step:.0f} s\n" for each in hung)
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
    found = metric.samples().items()
    samples = (((labels,) if isinstance(labels, str) else labels, sample) for labels, sample in found)
    if isinstance(metric, Counter):
        counter = CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for values, sample in samples:
            counter.add_metric(values, sample.value, created=sample.since_s)
        return counter
    gauge = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for values, sample in samples:
        gauge.add_metric(values, sample.value)
    return gauge

"""Metrics and health checks of the daemon over HTTP.

=========== =====================================================================================================
path        answer
=========== =====================================================================================================
`/metrics`  metrics for Prometheus
`/livez`    200 while the event loop runs; 503 if it is blocked, and only a restart helps
`/readyz`   200 while every pipeline delivers, or was paused; else 503. A line for each pipeline
=========== =====================================================================================================

Every other path is 404. The server is the standard library's, the metrics are prometheus_client's; WSGI connects them.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import anyio
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from tailer.changelog import report
from tailer.daemon.computed_metrics import computed_metrics
from tailer.metrics import Counter, Labels, Metric
from tailer.pipeline import retention, status
from tailer.pipeline.status import PipelineStatus
from tailer.stores import traffic

__all__ = ["Monitor", "metrics_registry"]

_log = logging.getLogger(__name__)

BEAT_S: Final = 1.0
STUCK_S: Final = 30.0
_READ_S: Final = 10.0  # for the request of a client that is slow, or says nothing
_METRICS: Final = (*status.METRICS, *retention.METRICS, *report.METRICS, *traffic.METRICS)
_METHODS: Final = ("GET", "HEAD")


class Monitor:
    """The server for `pipelines`; `beat` runs in the event loop that `/livez` checks."""

    def __init__(self, pipelines: Sequence[PipelineStatus]) -> None:
        self._pipelines = pipelines
        self._metrics = make_wsgi_app(metrics_registry(pipelines))
        self._beaten_s = time.monotonic()

    async def beat(self) -> None:
        """Record that the event loop runs, until cancelled."""
        while True:
            self._beaten_s = time.monotonic()
            await anyio.sleep(BEAT_S)

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serve on an address of this machine, in a thread; return the port and a function that ends it.

        `port` 0 stands for any free port. Raises `OSError`.
        """
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server_class = _Server6 if family is socket.AF_INET6 else _Server
        server = make_server(str(address[0]), port, self.answer, server_class, _Quiet)
        thread = threading.Thread(target=server.serve_forever, name="monitor", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return server.server_port, stop

    def answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request, as a WSGI application."""
        match environ["PATH_INFO"]:
            case "/metrics":
                metrics: Iterable[bytes] = self._metrics(environ, start_response)
                return metrics
            case "/livez":
                status, text = self._live()
            case "/readyz":
                status, text = self._ready()
            case _:
                status, text = HTTPStatus.NOT_FOUND, "there are /metrics, /livez and /readyz\n"
        if environ["REQUEST_METHOD"] not in _METHODS:
            status, text = HTTPStatus.METHOD_NOT_ALLOWED, "use GET\n"
        body = text.encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", ", ".join(_METHODS)))
        start_response(f"{status.value} {status.phrase}", headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _live(self) -> tuple[HTTPStatus, str]:
        silent_s = time.monotonic() - self._beaten_s
        if silent_s < STUCK_S:
            return HTTPStatus.OK, "live\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, f"the event loop has been blocked for {silent_s:.0f} s\n"

    def _ready(self) -> tuple[HTTPStatus, str]:
        text = "".join(f"{pipeline.name}: {pipeline.state}\n" for pipeline in self._pipelines)
        ready = all(pipeline.is_ready for pipeline in self._pipelines)
        return HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, text


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
    samples = ((_values(labels), sample) for labels, sample in metric.samples().items())
    if isinstance(metric, Counter):
        counter = CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for values, sample in samples:
            counter.add_metric(values, sample.value, created=sample.since_s)
        return counter
    gauge = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for values, sample in samples:
        gauge.add_metric(values, sample.value)
    return gauge


def _values(labels: Labels) -> tuple[str, ...]:
    return (labels,) if isinstance(labels, str) else labels


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a client that sent nothing or went away; pipelines are not affected."""
        _log.debug("monitoring: %s", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = _READ_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
        """Log nothing: the log is for pipelines."""

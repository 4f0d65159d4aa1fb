"""OpenTelemetry: a span for each transaction, and the metrics of `/metrics`, sent by OTLP over HTTP.

The standard variables of OpenTelemetry switch it on and configure it: an endpoint (`OTEL_EXPORTER_OTLP_ENDPOINT`, or
that of traces or metrics alone). Without one nothing is imported, and no transaction costs more. The SDK sends in
threads of its own: a collector that does not answer delays nothing.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import to_thread

from tailer.errors import how_to_install
from tailer.pipeline.status import Committed, PipelineStatus, watch_commits

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.resources import Resource
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

__all__ = ["exported"]

CLOSE_S: Final = 5.0
SERVICE: Final = "lake-tailer"
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL: Final = "http/protobuf"
_PARTS: Final = ("count", "sum")  # of a summary
_FRESH_S: Final = 0.5  # for so long the metrics of one collection serve all instruments
_MOST_SERIES: Final = 1_000_000  # of one metric; the SDK's own limit of 2000 is that of 250 pipelines in 8 states

_log = logging.getLogger(__name__)


@asynccontextmanager
async def exported(pipelines: Sequence[PipelineStatus]) -> AsyncIterator[None]:
    """Send traces and metrics of `pipelines` for the length of the block, as far as the environment says so."""
    signals = [signal for signal in ("TRACES", "METRICS") if _is_wanted(signal)]
    if not signals:
        yield
        return
    try:
        closes = await to_thread.run_sync(_begin, pipelines, signals)
    except ImportError as error:
        _log.warning("%s is set, and nothing is sent: %s. %s", _ENDPOINT, error, how_to_install("otel"))
        yield
        return
    _log.info("OpenTelemetry: sending %s", " and ".join(signal.lower() for signal in signals))
    try:
        yield
    finally:
        with anyio.move_on_after(CLOSE_S, shield=True):
            for close in closes:
                await to_thread.run_sync(close, abandon_on_cancel=True)


def _is_wanted(signal: str) -> bool:
    """Return whether the environment names a place for `signal`, and a protocol that we know."""
    variables = os.environ
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if variables.get(f"OTEL_{signal}_EXPORTER", "otlp") != "otlp":
        return False
    if not (variables.get(_ENDPOINT) or variables.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")):
        return False
    name = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
    protocol = variables.get(name) or variables.get("OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOL
    if protocol != _PROTOCOL:
        text = "OpenTelemetry: no %s are sent by the protocol %s; set %s to %s"
        _log.warning(text, signal.lower(), protocol, name, _PROTOCOL)
    return protocol == _PROTOCOL


def _begin(pipelines: Sequence[PipelineStatus], signals: Sequence[str]) -> list[Callable[[], None]]:
    """Start what is wanted; return what ends it."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - an extra

    named = Resource({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
    closes = [_begin_traces(named)] if "TRACES" in signals else []
    return [*closes, _begin_metrics(pipelines, named)] if "METRICS" in signals else closes


def _begin_traces(resource: "Resource") -> Callable[[], None]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer(SERVICE)

    def note(status: PipelineStatus, done: Committed) -> None:
        end_ns = time.time_ns()
        start_ns = end_ns - int(done.seconds * 1e9)
        attributes = attributes_of(status, done)
        tracer.start_span("transaction", kind=SpanKind.PRODUCER, attributes=attributes, start_time=start_ns).end(end_ns)

    forget = watch_commits(note)

    def close() -> None:
        forget()
        provider.shutdown()

    return close


def attributes_of(status: PipelineStatus, done: Committed) -> dict[str, str | int]:
    """Return the attributes of the span of a transaction."""
    attributes: dict[str, str | int] = {
        "lake_tailer.pipeline": status.name,
        "lake_tailer.table": status.table,
        "lake_tailer.sink": status.sink_kind,
        "lake_tailer.version.first": done.position.version if done.first is None else done.first,
        "lake_tailer.version.last": done.position.version,
        "lake_tailer.position": str(done.position),
    }
    attributes |= {"lake_tailer.rows": sum(done.rows.values()), "lake_tailer.bytes": done.size_bytes}
    return attributes | {f"lake_tailer.rows.{kind}": count for kind, count in done.rows.items()}


def _begin_metrics(pipelines: Sequence[PipelineStatus], resource: "Resource") -> Callable[[], None]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415

    from tailer.daemon.monitor import metrics_registry  # noqa: PLC0415 - its libraries are an extra

    limits: dict[Any, int] = {ObservableCounter: _MOST_SERIES, ObservableGauge: _MOST_SERIES}
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), cardinality_limits=limits)
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    families = _Families(metrics_registry(pipelines))
    for name in families.current():
        family, meter = families.current()[name], provider.get_meter(SERVICE)
        meaning = family.documentation
        if family.type == "gauge":
            meter.create_observable_gauge(name, [partial(_observe, families, name, name)], description=meaning)
        # One instrument, but for a summary its number and its sum.
        samples = {
            "counter": {name: f"{name}_total"},
            "summary": {f"{name}_{part}": f"{name}_{part}" for part in _PARTS},
        }
        for ours, sample in samples.get(family.type, {}).items():
            observe = partial(_observe, families, name, sample)
            meter.create_observable_counter(ours, [observe], description=meaning)
    return partial(provider.shutdown, CLOSE_S * 1000)


class _Families:
    """The metrics of `registry` by name, collected once for all that ask at the same time."""

    def __init__(self, registry: "CollectorRegistry") -> None:
        self._registry = registry
        self._at_s = float("-inf")
        self._found: dict[str, Family] = {}

    def current(self) -> dict[str, "Family"]:
        """Return them as they are now."""
        if time.monotonic() - self._at_s > _FRESH_S:
            self._found = {family.name: family for family in self._registry.collect()}
            self._at_s = time.monotonic()
        return self._found


def _observe(families: _Families, name: str, sample: str, _options: "CallbackOptions") -> "Iterable[Observation]":
    from opentelemetry.metrics import Observation  # noqa: PLC0415

    labels: dict[str, Any]
    for measured in families.current()[name].samples:
        if measured.name == sample:
            labels = dict(measured.labels)
            yield Observation(float(measured.value), labels)

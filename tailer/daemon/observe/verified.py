"""The result of `tailer verify` as metrics in a file, which Prometheus's node exporter collects.

The command ends, so nobody could ask it. It writes the file only when it has compared, so the time in it grows old
while it fails, or is not run at all.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tailer.pipeline.verification.comparison import Verification

__all__ = ["VerifiedMetrics", "write_metrics"]

_KIND: Final = ("pipeline", "kind")


class VerifiedMetrics(Collector):
    """The metrics of the last verification of `found`, of `pipeline`, which ended at `at_s`, in seconds since 1970."""

    def __init__(self, pipeline: str, verifications: Sequence[Verification], at_s: float) -> None:
        self._pipeline = pipeline
        self._found = verifications
        self._at_s = at_s

    def collect(self) -> Iterator[GaugeMetricFamily]:
        last = self._found[-1]
        repaired = next((verification.counts for verification in self._found if verification.rewritten is not None), {})
        values = (
            ("equal", "Whether the mirror equals its source: 1 or 0.", float(last.is_equal)),
            ("version", "The version at which they were compared.", last.version),
            ("rows", "Rows of the source.", last.source_rows),
            ("timestamp_seconds", "When they were compared, in seconds since 1970.", self._at_s),
        )
        for name, meaning, value in values:
            gauge = GaugeMetricFamily(f"lake_tailer_verify_{name}", meaning, labels=("pipeline",))
            gauge.add_metric([self._pipeline], value)
            yield gauge
        counts = (
            ("differences", "Rows by which the mirror differs from its source.", last.counts),
            ("repaired", "Rows by which it differed before its repair.", repaired),
        )
        for name, meaning, by_kind in counts:
            gauge = GaugeMetricFamily(f"lake_tailer_verify_{name}", meaning, labels=_KIND)
            for kind in last.counts:
                gauge.add_metric([self._pipeline, kind.value], by_kind.get(kind, 0))
            yield gauge


def write_metrics(path: Path, metrics: VerifiedMetrics) -> None:
    """Write the file at `path`, as a whole. Raises `OSError`."""
    registry = CollectorRegistry()
    registry.register(metrics)
    write_to_textfile(str(path), registry)

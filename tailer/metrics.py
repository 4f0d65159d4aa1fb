"""Metrics of pipelines, kept in this process for whoever asks: a number for each metric and pipeline.

Only the daemon's monitor gives them to Prometheus (`tailer.daemon.monitor`). What counts and measures needs no library
for it: `tailer tail`, the Python API and executors run the same code and serve nothing.
"""

import time
from dataclasses import dataclass
from threading import Lock
from typing import Final

__all__ = ["Counter", "Gauge", "Metric", "Sample"]

_lock: Final = Lock()


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a metric for one pipeline; `since_s`: the time of the first one, in seconds since 1970."""

    value: float
    since_s: float


class Metric:
    """The shared part of counters and gauges. `meaning`: one sentence about the number."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name: Final = name
        self.meaning: Final = meaning
        self._samples: dict[str, Sample] = {}

    def samples(self) -> dict[str, Sample]:
        """Return the samples by pipeline; safe from any thread."""
        with _lock:
            return dict(self._samples)


class Counter(Metric):
    """A number that only grows."""

    def add(self, pipeline: str, amount: float) -> None:
        """Add `amount`; 0 shows the counter before there is anything to count."""
        with _lock:
            before = self._samples.get(pipeline) or Sample(0.0, time.time())
            self._samples[pipeline] = Sample(before.value + amount, before.since_s)


class Gauge(Metric):
    """A number that goes up and down."""

    def set(self, pipeline: str, value: float) -> None:
        """Replace the value."""
        with _lock:
            self._samples[pipeline] = Sample(value, time.time())

    def remove(self, pipeline: str) -> None:
        """Show nothing until the next `set`."""
        with _lock:
            self._samples.pop(pipeline, None)

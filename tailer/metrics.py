"""Metrics, kept in this process for whoever asks: a number for each metric and pipeline, or other labels.

Only the daemon's monitor gives them to Prometheus (`tailer.daemon.monitor`). What counts and measures needs no library
for it: `tailer tail`, the Python API and executors run the same code and serve nothing.
"""

import time
from dataclasses import dataclass
from threading import Lock
from typing import Final

__all__ = [
    "BAD_VALUES",
    "Counter",
    "Gauge",
    "Metric",
]

# The value of the only label, or those of several, in the order of `Metric.labels`.
Labels = str | tuple[str, ...]

_lock: Final = Lock()


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a metric for some labels; `since_s`: the time of the first one, in seconds since 1970."""

    value: float
    since_s: float


class Metric:
    """The shared part of counters and gauges. `meaning`: one sentence about the number. `labels`: their names."""

    def __init__(self, name: str, meaning: str, labels: tuple[str, ...] = ("pipeline",)) -> None:
        self.name: Final = name
        self.meaning: Final = meaning
        self.labels: Final = labels
        self._samples: dict[Labels, Sample] = {}

    def samples(self) -> dict[Labels, Sample]:
        """Return the samples by their labels; safe from any thread."""
        with _lock:
            return dict(self._samples)

    def remove(self, labels: Labels) -> None:
        """Show nothing for these labels, or for all that begin with this one, until there is another value."""
        with _lock:
            for other in [other for other in self._samples if other == labels or other[:1] == (labels,)]:
                del self._samples[other]


class Counter(Metric):
    """A number that only grows."""

    def add(self, labels: Labels, amount: float) -> None:
        """Add `amount`; 0 shows the counter before there is anything to count."""
        with _lock:
            before = self._samples.get(labels) or Sample(0.0, time.time())
            self._samples[labels] = Sample(before.value + amount, before.since_s)


class Gauge(Metric):
    """A number that goes up and down."""

    def set(self, labels: Labels, value: float) -> None:
        """Replace the value."""
        with _lock:
            self._samples[labels] = Sample(value, time.time())


BAD_VALUES: Final = Counter(
    "lake_tailer_bad_values",
    "Values that a database cannot hold, and that on_bad_value has dealt with.",
    ("pipeline", "column", "reason"),
)

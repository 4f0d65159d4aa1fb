"""The state of each pipeline for operators: metrics, and the answer to "is it ready?".

A pipeline that has stopped keeps `lake_tailer_pipeline_up` at 0 and its counters. What it would have to measure, such
as the versions it is behind, is not shown any more: an old value looks like a healthy one.
"""

import time
from enum import StrEnum
from typing import Final

from tailer.engine.metrics import Counter, Gauge

__all__ = ["METRICS", "PipelineState", "PipelineStatus"]

_UP: Final = Gauge("lake_tailer_pipeline_up", "1 while the pipeline runs, 0 once it has stopped.")
_SUCCESS: Final = Gauge(
    "lake_tailer_last_success_timestamp_seconds",
    "When the pipeline last committed something, or found that nothing was due.",
)
_ROWS: Final = Counter("lake_tailer_rows_delivered", "Change rows committed to the sink.")
_ERRORS: Final = Counter("lake_tailer_errors", "Errors that ended an attempt to deliver.")
_RETRIES: Final = Counter("lake_tailer_retries", "Attempts to deliver that followed an error.")
METRICS: Final = (_UP, _SUCCESS, _ROWS, _ERRORS, _RETRIES)


class PipelineState(StrEnum):
    """How a pipeline is. Only one that is `READY` delivers as it should."""

    STARTING = "starting"  # nothing has succeeded yet
    READY = "ready"
    RETRYING = "retrying"  # the last attempt failed
    DRAINING = "draining"  # told to stop
    STOPPED = "stopped"


class PipelineStatus:
    """The status of the pipeline `name`. Its methods are called by whoever runs it; reading is safe from any thread.

    `counts_rows`: whether rows are reported at all; without it there is no such metric. `rows`: those committed.
    """

    def __init__(self, name: str, counts_rows: bool = True) -> None:
        self.name: Final = name
        self.state = PipelineState.STARTING
        self.rows = 0
        self._counts_rows = counts_rows
        for counter in (_ROWS, _ERRORS, _RETRIES) if counts_rows else (_ERRORS, _RETRIES):
            counter.add(name, 0)

    def note_start(self) -> None:
        """The pipeline begins to run."""
        self.state = PipelineState.STARTING
        _UP.set(self.name, 1)

    def note_success(self) -> None:
        """Something was committed, or nothing was due."""
        _SUCCESS.set(self.name, time.time())
        if self.state is not PipelineState.DRAINING:
            self.state = PipelineState.READY

    def note_error(self) -> None:
        """An attempt to deliver ended in an error."""
        _ERRORS.add(self.name, 1)
        if self.state is not PipelineState.DRAINING:
            self.state = PipelineState.RETRYING

    def note_retry(self) -> None:
        """Another attempt begins after an error."""
        _RETRIES.add(self.name, 1)

    def note_rows(self, rows: int) -> None:
        """`rows` were committed."""
        self.rows += rows
        if self._counts_rows:
            _ROWS.add(self.name, rows)

    def note_drain(self) -> None:
        """The pipeline was told to stop."""
        self.state = PipelineState.DRAINING

    def note_stop(self) -> None:
        """The pipeline does not run any more."""
        self.state = PipelineState.STOPPED
        _UP.set(self.name, 0)

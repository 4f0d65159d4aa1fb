"""The state of each pipeline for operators: metrics and the readiness check.

A stopped pipeline keeps its counters, with `lake_tailer_pipeline_up` at 0. Its gauges, such as the number of versions
it is behind, are removed: an old value would look healthy.
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
    """The state of a pipeline. Only `READY` means that it delivers normally."""

    STARTING = "starting"  # nothing has succeeded yet
    READY = "ready"
    RETRYING = "retrying"  # the last attempt failed
    DRAINING = "draining"  # asked to stop
    STOPPED = "stopped"


class PipelineStatus:
    """The status of the pipeline `name`. One thread calls its methods; any thread may read it.

    `counts_rows`: whether committed rows are counted; False removes that metric. `rows`: their number.
    """

    def __init__(self, name: str, counts_rows: bool = True) -> None:
        self.name: Final = name
        self.state = PipelineState.STARTING
        self.rows = 0
        self._counts_rows = counts_rows
        for counter in (_ROWS, _ERRORS, _RETRIES) if counts_rows else (_ERRORS, _RETRIES):
            counter.add(name, 0)

    def note_start(self) -> None:
        """Note that the pipeline begins to run."""
        self.state = PipelineState.STARTING
        _UP.set(self.name, 1)

    def note_success(self) -> None:
        """Note that something was committed, or that nothing was due."""
        _SUCCESS.set(self.name, time.time())
        if self.state is not PipelineState.DRAINING:
            self.state = PipelineState.READY

    def note_error(self) -> None:
        """Note that a session ended with an error."""
        _ERRORS.add(self.name, 1)
        if self.state is not PipelineState.DRAINING:
            self.state = PipelineState.RETRYING

    def note_retry(self) -> None:
        """Note that another session begins after an error."""
        _RETRIES.add(self.name, 1)

    def note_rows(self, rows: int) -> None:
        """Note that `rows` were committed."""
        self.rows += rows
        if self._counts_rows:
            _ROWS.add(self.name, rows)

    def note_drain(self) -> None:
        """Note that the pipeline was asked to stop."""
        self.state = PipelineState.DRAINING

    def note_stop(self) -> None:
        """Note that the pipeline has stopped."""
        self.state = PipelineState.STOPPED
        _UP.set(self.name, 0)

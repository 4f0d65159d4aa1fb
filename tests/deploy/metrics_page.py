"""Print the metrics of a daemon with samples of each kind, for `promtool check metrics`."""

import sys
import time

from prometheus_client import generate_latest

from tailer.daemon.monitor import metrics_registry
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import Position

__all__ = ["metrics_page"]


def metrics_page() -> bytes:
    """Return the page of a pipeline that has delivered something and is behind."""
    status = PipelineStatus("orders", table="s3://lake/orders", sink_kind="kafka")
    status.note_start()
    status.note_work(7, int(time.time() * 1000), 1000)
    status.note_commit(Committed(Position.end(7), {"insert": 12}))
    status.note_table(9, 3_600_000)
    return generate_latest(metrics_registry([status]))


if __name__ == "__main__":
    sys.stdout.buffer.write(metrics_page())

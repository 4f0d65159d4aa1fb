"""The way of one more version to Kafka.

The pipeline is one of `row_pipeline`: a Delta table on disk without a change feed, a `ChangelogEngine` that computes
updates around a `LocalEngine`, and the `kafka` sink with flat JSON and a key. It has delivered a version and waits;
then one more version is committed. Counted is what runs from there until the pipeline has caught up. Left out are the
start and the end of the pipeline, heartbeats, the daemon around it, and the clients of Kafka.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import anyio

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.shapes import AHEAD_BYTES
from tailer.config.tables import TableRef, open_files
from tailer.engine.local import LocalEngine
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineStatus
from tailer.start import Start
from tailer.stores.wakeup import TimerWake, Wake
from tailer_sinks.kafka import link
from tailer_sinks.kafka.sink import KafkaSink
from tests.support.paths.executed import Executed
from tests.support.paths.kafka_memory import MemoryCluster, MemoryProducer
from tests.support.tables.handwritten import HandwrittenTable

__all__ = ["KINDS", "execute"]

KINDS: Final = ("append", "update")


class OneWait(TimerWake):
    """A wake-up whose first wait is `instead`."""

    def __init__(self, instead: Callable[[], None]) -> None:
        super().__init__()
        self._instead: Callable[[], None] | None = instead

    async def wait(self, timeout_s: float) -> None:
        """See `Wake.wait`."""
        instead, self._instead = self._instead, None
        if instead is None:
            await super().wait(timeout_s)
        else:
            instead()


class NotingStatus(PipelineStatus):
    """A status that calls `caught_up` with the version that the pipeline has reached each time it begins to wait."""

    def __init__(self, caught_up: Callable[[int], None]) -> None:
        super().__init__("p")
        self._caught_up = caught_up

    def note_caught_up(self, version: int, has_progress: bool = True) -> None:
        """See `PipelineStatus`."""
        super().note_caught_up(version, has_progress)
        self._caught_up(version)


def execute(kind: str, folder: Path) -> Executed:
    """Deliver one more version of a new table in `folder`: an appended file, or a rewritten one to be compared."""
    table = HandwrittenTable(folder / "table")
    table.metadata = {**table.metadata, "configuration": {}}
    table.commit({"metaData": table.metadata}, table.add(table.data("first.parquet", range(3))))
    second = table.add(table.data("second.parquet", range(1, 4)))
    actions = [second] if kind == "append" else [table.remove("first.parquet"), second]
    executed = Executed()

    def begin() -> None:
        MemoryCluster.rows.clear()
        table.commit(*actions)
        executed.counts = True

    def end(version: int) -> None:
        if version == table.version and executed.counts:
            executed.counts = False
            executed.messages = list(MemoryCluster.rows)
            pipeline.stop()

    MemoryCluster.progress.clear()
    with patch.object(link, "Cluster", MemoryCluster), patch.object(link, "PythonProducer", MemoryProducer):
        pipeline = _pipeline(table, OneWait(begin), NotingStatus(end))
        with executed.watching():
            anyio.run(pipeline.run)
    return executed


def _pipeline(table: HandwrittenTable, wake: Wake, status: PipelineStatus) -> Pipeline:
    """Make a pipeline into Kafka as the daemon does."""
    options: dict[str, Any] = {"bootstrap_servers": "none:9092", "key": ["id"], "library": "kafka-python"}
    options["transaction_timeout_s"] = 900  # so that a busy machine is not slow to give rows
    topics = {"topic": "rows", "progress_topic": "progress", "end_topic": "ends"}
    rules = PairingRules(compute_updates=True, key=("id",), null_keys=True)
    files = open_files()
    engine = ChangelogEngine(LocalEngine(files=files, ahead_bytes=AHEAD_BYTES), rules, lambda *_: None, files)
    log = TableRef(str(table.path)).open()
    limits = Limits(poll_interval_s=0.01)
    sink = KafkaSink.configure("kafka", {**options, **topics})
    start = Start.parse("earliest")
    return row_pipeline("p", log, sink, engine, wake, start, None, None, limits, None, status)

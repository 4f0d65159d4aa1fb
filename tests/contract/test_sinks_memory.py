"""The contract of a sink, kept by `memory`."""

from typing import Any

import pytest
from anyio import to_thread

from tailer.events import ChangeBatch, ControlEvent
from tailer_sinks.encoding import event_values
from tailer_sinks.memory import MemoryDestination, MemorySink
from tailer_sinks.testing import SinkTests, flat_rows


@pytest.mark.sampled(3)
class TestMemorySink(SinkTests):
    @pytest.fixture(autouse=True)
    def destination(self) -> None:
        self.memory = MemoryDestination()

    def make_sink(self) -> MemorySink:
        return MemorySink("memory", self.memory)

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return await to_thread.run_sync(self._read, list(self.memory.log.get(app_id, [])))

    def _read(self, log: list[ChangeBatch | ControlEvent]) -> list[dict[str, Any]]:
        rows = []
        for item in log:
            rows += flat_rows(item.rows) if isinstance(item, ChangeBatch) else [event_values(item)]
        return rows

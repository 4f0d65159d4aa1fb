"""The contract of a sink, kept by `memory`."""

from typing import Any

import pytest
from anyio import to_thread

from sinks.memory import MemoryDestination, MemorySink
from sinks.testing import SinkTests, flat_rows


class TestMemorySink(SinkTests):
    @pytest.fixture(autouse=True)
    def destination(self) -> None:
        self.memory = MemoryDestination()

    def make_sink(self) -> MemorySink:
        return MemorySink("memory", self.memory)

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        batches = list(self.memory.batches.get(app_id, []))
        return await to_thread.run_sync(lambda: [row for batch in batches for row in flat_rows(batch.rows)])

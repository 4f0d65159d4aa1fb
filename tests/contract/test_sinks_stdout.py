"""The contract of a sink, as far as `stdout` can keep it."""

import io
import json
from typing import Any

import pytest
from anyio import to_thread

from tailer.progress.recorded import Recorded
from tailer.sink import Progress
from tailer_sinks.memory import MemoryProgressStore
from tailer_sinks.stdout import StdoutSink
from tailer_sinks.testing import SinkTests


@pytest.mark.sampled(7)
class TestStdoutSink(SinkTests):
    exactly_once = False

    @pytest.fixture(autouse=True)
    def destination(self) -> None:
        self.outputs: dict[str, io.TextIOWrapper] = {}
        self.output = io.TextIOWrapper(io.BytesIO())
        self.records: dict[str, Progress] = {}

    def make_sink(self) -> Recorded:
        return Recorded(StdoutSink("stdout", "jsonl", self.output), MemoryProgressStore("progress", self.records))

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        buffer = self.output.buffer
        assert isinstance(buffer, io.BytesIO)
        lines = buffer.getvalue().splitlines()
        return await to_thread.run_sync(lambda: list(map(json.loads, lines)))

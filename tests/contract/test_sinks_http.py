"""The contract of a sink, as far as `http` can keep it, over a real server."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tailer.progress.recorded import Recorded
from tailer.sink import Progress
from tailer_sinks.http.options import read
from tailer_sinks.http.sink import HttpSink
from tailer_sinks.memory import MemoryProgressStore
from tailer_sinks.testing import SinkTests
from tests.support.servers.endpoint import serving

KINDS: Final = {"c": "insert", "r": "insert"}


@pytest.mark.sampled(7)
class HttpSinkTests(SinkTests):
    exactly_once = False
    form = "json"

    @pytest.fixture(autouse=True)
    def destination(self) -> Iterator[None]:
        self.records: dict[str, Progress] = {}
        with serving() as self.endpoint:
            yield

    def make_sink(self) -> Recorded:
        options = read("orders", {"url": self.endpoint.url, "format": self.form})
        return Recorded(HttpSink("orders", options), MemoryProgressStore("progress", self.records))

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return list(map(self.flat, self.endpoint.events()))

    def flat(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event as a row, or as a control event between rows."""
        del event["_event_id"]
        return event


class TestJson(HttpSinkTests):
    pass


class TestCloudEvents(HttpSinkTests):
    form = "cloudevents"

    def flat(self, event: dict[str, Any]) -> dict[str, Any]:
        data = event["data"]
        if event["type"].startswith("lake_tailer."):
            return dict(data)
        *_, version, _task, _row, operation = event["id"].split(";")
        assert data["before"] is None
        metadata = {"_change_type": KINDS[operation], "_commit_version": int(version)}
        return {**data["after"], **metadata, "_commit_timestamp": event["time"]}

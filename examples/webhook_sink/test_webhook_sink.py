"""The contract of a sink, kept by `WebhookSink`: the suite that lake-tailer's own sinks pass."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from webhook_sink import WebhookSink

from tailer.progress.recorded import Recorded
from tailer.sink import Progress
from tailer_sinks.memory import MemoryProgressStore
from tailer_sinks.testing import SinkTests


class TestWebhookSink(SinkTests):
    exactly_once = False  # rows may be early or repeated; everything else holds

    @pytest.fixture(autouse=True)
    def destination(self) -> Iterator[None]:
        self.lines: list[bytes] = []
        self.records: dict[str, Progress] = {}
        lines = self.lines

        class Service(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                lines.extend(self.rfile.read(int(self.headers["Content-Length"])).splitlines())
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
            self.url = f"http://127.0.0.1:{server.server_port}/changes"
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
            yield
            server.shutdown()

    def make_sink(self) -> Recorded:
        """Return a new instance for the service of this test. `Recorded` keeps the progress, as lake-tailer does."""
        return Recorded(WebhookSink("webhook", self.url), MemoryProgressStore("progress", self.records))

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        """Return the events that the service received."""
        return [json.loads(line) for line in self.lines]

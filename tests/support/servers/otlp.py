"""A receiver of OpenTelemetry's traces and metrics by OTLP over HTTP, on the loopback address."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Receiver", "values"]


class Receiver:
    """A receiver of OTLP over HTTP that keeps what it gets; `refuses`: answers 503."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}  # the last of each
        self.resources: list[dict[str, str]] = []
        self.headers: list[str] = []
        self.texts = b""
        self.refuses = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                """Keep the request."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.headers.append(self.headers.get("X-Key", ""))
                if not outer.refuses:
                    outer.keep(self.path, body)
                self.send_response(503 if outer.refuses else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def keep(self, path: str, body: bytes) -> None:
        """Keep what was sent to `path`."""
        self.texts += body
        if path == "/v1/traces":
            for traced in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(values(traced.resource.attributes))
                self.spans += [span for scope in traced.scope_spans for span in scope.spans]
        else:
            for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resources.append(values(measured.resource.attributes))
                self.metrics |= {each.name: each for scope in measured.scope_metrics for each in scope.metrics}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def values(attributes: Any) -> dict[str, Any]:
    """Return the attributes as a dictionary."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}

"""Tokens of OAUTHBEARER: secrets stay with the server they are for."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from tailer.errors import SinkRejected
from tailer_sinks.kafka.clients.port import OAuth
from tailer_sinks.kafka.clients.security import Tokens


class Redirecting(HTTPServer):
    """Redirects each POST to `/other` on itself, and notes the paths that were asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Redirecting

    def do_POST(self) -> None:
        """Answer with a redirect."""
        self.server.paths.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(302)
        self.send_header("Location", "/other")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Redirecting]:
    """A server that redirects."""
    with Redirecting() as found:
        thread = Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_a_redirect_is_not_followed(server: Redirecting) -> None:
    oauth = OAuth(f"http://127.0.0.1:{server.server_port}/token", "us", "hush", None)
    with pytest.raises(SinkRejected, match="it answers 302") as raised:
        Tokens("sink", oauth, None).token()
    assert server.paths == ["/token"]
    assert "hush" not in str(raised.value)

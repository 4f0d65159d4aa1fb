"""An endpoint of the `http` sink: a real HTTP server in this process that keeps what it takes."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Answer", "Endpoint", "Post", "serving"]


@dataclass(frozen=True)
class Answer:
    """The answer to a request. `before`: called before it is sent; `closes`: no answer, the connection ends."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    before: Callable[[], object] | None = None
    closes: bool = False


@dataclass(frozen=True)
class Post:
    """A request: its path, headers with names in lower case, body, the number of its connection, and its status."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    status: int

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in the body."""
        return list(json.loads(self.body))


@dataclass
class Endpoint:
    """A server. `answer` decides about each body; by default all are taken."""

    url: str = ""
    posts: list[Post] = field(default_factory=list)
    answer: Callable[[bytes], Answer] = lambda _: Answer()

    def answer_in_turn(self, answers: Sequence[Answer]) -> None:
        """Give these answers to the next requests, and take the ones after them."""
        left = list(answers)
        self.answer = lambda _: left.pop(0) if left else Answer()

    def taken(self) -> list[Post]:
        """Return the requests that were taken."""
        return [post for post in self.posts if 200 <= post.status < 300]

    def events(self) -> list[dict[str, Any]]:
        """Return the events that were taken, in order."""
        return [event for post in self.taken() for event in post.events]

    def ids(self) -> list[str]:
        """Return the ids of the events that were taken, in order."""
        return [str(event.get("_event_id") or event["id"]) for event in self.events()]


@contextmanager
def serving(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Endpoint]:
    """Serve an endpoint on this machine. `tls`: of a server with a certificate."""
    endpoint = Endpoint()

    class Service(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            body = self.rfile.read(size)
            if len(body) < size:  # the client was killed
                self.close_connection = True
                return
            answer = endpoint.answer(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            endpoint.posts.append(Post(self.path, headers, body, self.client_address[1], answer.status))
            if answer.before is not None:
                answer.before()
            if answer.closes:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_WR)
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Print nothing: clients go away in tests."""

    with Server(("127.0.0.1", port), Service) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        endpoint.url = f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}/changes"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()

"""A link between clients and a server of objects that records requests, and fails as told.

It passes whole requests, with the client's `Host`, which is part of their signature. Rules apply in order, each to as
many matching requests as it says. Every request takes at least `delay_s`, as if the server were far away.
"""

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import unquote, urlsplit

from tests.support.s3.server import S3Server

__all__ = ["Answer", "Fault", "ObjectLink", "Request", "S3Link", "Server"]

# Status, headers and body.
Answer = tuple[int, list[tuple[str, str]], bytes]

_HOP: Final = frozenset({"connection", "expect", "keep-alive", "transfer-encoding"})


class Server(Protocol):
    """A server that a link passes requests to."""

    @property
    def endpoint(self) -> str:
        """Its URL."""
        ...


@dataclass(frozen=True)
class Request:
    """A request that arrived. `path` is decoded, `query` is not."""

    method: str
    path: str
    query: str
    headers: Message

    @property
    def is_conditional_put(self) -> bool:
        """Return whether it is to create an object."""
        conditions = ("If-None-Match", "x-goog-if-generation-match")
        return self.method == "PUT" and any(name in self.headers for name in conditions)

    @property
    def is_completion(self) -> bool:
        """Return whether it is to make the object of a multipart upload appear."""
        return self.method == "POST" and "uploadId=" in self.query


@dataclass
class Fault:
    """A rule for the next `times` requests for which `where` is true.

    `status` with `code`: answer with this error; the server does not see the request. `is_lost`: the server handles the
    request, then the connection is reset without an answer. `torn_at`: the body ends after so many bytes. `stall_s`:
    wait before the answer. `before`: called before the request is passed.
    """

    where: Callable[[Request], bool] = lambda _: True
    times: int = 1
    status: int = 0
    code: str = ""
    message: str = "as told"
    headers: dict[str, str] = field(default_factory=dict)
    is_lost: bool = False
    torn_at: int | None = None
    stall_s: float = 0
    before: Callable[[], None] = lambda: None


class ObjectLink:
    """A link to `server` on a port of its own, from its making until it is closed.

    `is_serial`: pass one request at a time that writes or lists, as S3Proxy needs it.
    """

    def __init__(self, server: Server, is_serial: bool = False, delay_s: float = 0) -> None:
        self.server = server
        self.delay_s = delay_s
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self._serial = threading.Lock() if is_serial else None
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"link": self})
        self._http = _HttpServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """The URL for clients."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def methods(self) -> list[str]:
        """Return the methods of all requests, in order; a listing is LIST."""
        return ["LIST" if "list-type=" in each.query else each.method for each in self.requests]

    def close(self) -> None:
        """Stop listening."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def arrive(self, request: Request) -> Fault:
        """Record a request and return the rule for it."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times > 0 and fault.where(request):
                    fault.times -= 1
                    return fault
        return Fault()

    def forward(self, request: Request, target: str, body: bytes) -> Answer:
        """Send a request to the server and return status, headers and body of its answer."""
        if self._serial is not None and (request.method != "GET" or "list-type=" in request.query):
            with self._serial:
                return self.send(request, target, body)
        return self.send(request, target, body)

    def send(self, request: Request, target: str, body: bytes) -> Answer:
        """Send a request to the server, one of many at a time."""
        address = urlsplit(self.server.endpoint)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            connection.putrequest(request.method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in _HOP:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            data = answer.read()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
            return answer.status, kept, data
        finally:
            connection.close()


class S3Link(ObjectLink):
    """A link to an S3 server."""

    server: S3Server


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *address: Any) -> None:
        """Pass over clients that go away, as killed ones do."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*address)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    link: ObjectLink
    protocol_version = "HTTP/1.1"
    # An answer leaves in one packet.
    wbufsize = -1
    disable_nagle_algorithm = True

    def _pass(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, unquote(url.path), url.query, self.headers)
        fault = self.link.arrive(request)
        fault.before()
        if fault.status:
            self._refuse(fault)
            return
        status, headers, data = self.link.forward(request, self.path, body)
        time.sleep(fault.stall_s + self.link.delay_s)
        if fault.is_lost:
            self._reset()
            return
        with suppress(OSError):
            self._answer(status, headers, data[: fault.torn_at])
        if fault.torn_at is not None:
            self._reset()

    def _refuse(self, fault: Fault) -> None:
        text = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
        body = text.encode() if fault.code else b""
        with suppress(OSError):
            self._answer(fault.status, [("Content-Length", str(len(body))), *fault.headers.items()], body)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            self.send_header(name, value)
        if "content-length" not in names:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _reset(self) -> None:
        """Reset the connection: the client loses what it has not read yet."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RDWR)

    def handle_expect_100(self) -> bool:
        """Ask for the body at once."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def do_GET(self) -> None:
        """Pass it on."""
        self._pass()

    def do_HEAD(self) -> None:
        """Pass it on."""
        self._pass()

    def do_POST(self) -> None:
        """Pass it on."""
        self._pass()

    def do_PUT(self) -> None:
        """Pass it on."""
        self._pass()

    def do_DELETE(self) -> None:
        """Pass it on."""
        self._pass()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Do nothing: `requests` is the log."""

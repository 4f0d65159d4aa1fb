"""Serve the daemon's HTTP in a thread with an event loop of its own, to answer also while the pipelines' loop is stuck.

The server is uvicorn, the applications are Starlette's. Those that listen on TCP may ask their readers for a token.
"""

import base64
import binascii
import errno
import hmac
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server

from tailer.engine import background

__all__ = ["HttpServer", "Listener", "WithToken", "has_bearer", "listen", "listen_unix"]

_PROBE_S: Final = 5.0
_GRACE_S: Final = 1  # for answers that are under way when the daemon ends
# What answers without a token: probes of orchestrators have none, and commands have one of their own.
_OPEN: Final = ("/livez", "/readyz", "/pipelines/")


def has_bearer(headers: Headers, token: str) -> bool:
    """Return whether a request has the token as `Bearer`, which browsers send only for scripts of the same site."""
    kind, _, given = headers.get("Authorization", "").partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.encode(), token.encode())


def has_token(headers: Headers, token: str) -> bool:
    """Return whether a request has the token: as `Bearer`, or as the password of any user.

    Browsers remember a password and send it along with requests of other sites, too, so it is enough for reading only.
    """
    kind, _, given = headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return has_bearer(headers, token)
    try:
        given = base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return False
    return hmac.compare_digest(given.encode(), token.encode())


class WithToken:
    """An application whose readers need `token`, but for health checks and orders."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        app: ASGIApp = self._app
        if not scope["path"].startswith(_OPEN) and not has_token(Headers(scope=scope), self._token):
            message = "the token is missing or wrong: send the header Authorization: Bearer TOKEN"
            app = JSONResponse({"message": message}, 401, {"WWW-Authenticate": 'Basic realm="lake-tailer"'})
        await app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Listener:
    """An application on an open socket."""

    app: ASGIApp
    socket: socket.socket


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens on an address of this machine; port 0: any free one. Raises `OSError`."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    opened = socket.socket(family, kind)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen()
    except OSError:
        opened.close()
        raise
    return opened


def listen_unix(path: Path) -> socket.socket:
    """Open a Unix socket that listens at `path`, and that only this user may connect to.

    One that nobody serves is replaced. Raises `OSError`.
    """
    if path.is_socket():
        if _is_served(path):
            raise OSError(errno.EADDRINUSE, "another daemon serves it")
        path.unlink()
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        opened.bind(str(path))
        opened.listen()
    except OSError:
        opened.close()
        raise
    finally:
        os.umask(mask)
    return opened


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


class HttpServer:
    """The server of applications, each on an open socket. `tasks`: run in its event loop while it serves."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    ) -> None:
        self._tasks = tasks
        self._servers = [(_server(listener), listener.socket) for listener in listeners]
        self._thread = threading.Thread(target=anyio.run, args=(self._serve,), name="http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the answers under way, close the sockets, and return when the thread has ended."""
        for server, _ in self._servers:
            server.should_exit = True
        self._thread.join()
        for _, opened in self._servers:
            opened.close()

    async def _serve(self) -> None:
        async with background() as besides:
            for task in self._tasks:
                besides.start_soon(task)
            async with anyio.create_task_group() as group:
                for server, opened in self._servers:
                    group.start_soon(server.serve, [opened])


def _server(listener: Listener) -> Server:
    settings = Config(
        listener.app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return Server(settings)

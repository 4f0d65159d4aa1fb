"""Serve the daemon's HTTP in a thread with an event loop of its own, to answer also while the pipelines' loop is stuck.

The server is uvicorn, the applications are Starlette's.
"""

import errno
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
from starlette.types import ASGIApp
from uvicorn import Config, Server

from tailer.engine.background import background

__all__ = ["HttpServer", "listen", "listen_unix"]

_PROBE_S: Final = 5.0
_GRACE_S: Final = 1  # for answers that are under way when the daemon ends


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
        listeners: Sequence[tuple[ASGIApp, socket.socket]],
        tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    ) -> None:
        self._tasks = tasks
        self._servers = [(_server(app), opened) for app, opened in listeners]
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


def _server(app: ASGIApp) -> Server:
    settings = Config(
        app,
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

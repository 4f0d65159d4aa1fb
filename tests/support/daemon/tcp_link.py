"""A TCP link to a server of this machine that can be cut or held.

Cut, it drops connections and refuses new ones. Held, it lets no byte pass until it is mended: then what was under way
arrives.
"""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.support.servers.ports import free_ports

__all__ = ["TcpLink"]

_PIECE_BYTES: Final = 1 << 16


class TcpLink:
    """A link from `port`, which listens as soon as it is made, to the port `target`."""

    def __init__(self, target: int) -> None:
        (self.port,) = free_ports(1)
        self._target = target
        self._lock = threading.Lock()
        self._passes = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.mend()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._passes.set()
        self.cut()

    def mend(self) -> None:
        """Accept connections again, and let bytes pass."""
        self._passes.set()
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
                threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Drop all connections, and refuse new ones."""
        with self._lock:
            if self._listener is not None:
                with suppress(OSError):
                    self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
                self._listener = None
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Let no byte pass; connections stay open."""
        self._passes.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    is_cut = self._listener is not listener
                    self._open |= {client, server}
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()
                if is_cut:
                    client.shutdown(socket.SHUT_RDWR)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                self._passes.wait()
                sink.sendall(data)
        for side in (source, sink):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()

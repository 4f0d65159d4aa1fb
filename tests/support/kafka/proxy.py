"""A link between clients and one broker that can be cut, blocked, and made to lose answers.

It knows the boundaries of requests and answers, and so which answer belongs to which request: the answer to a commit
can be lost on an otherwise working link. Plaintext only. Brokers tell clients their addresses, so the broker must
advertise the proxy's port.
"""

import socket
import struct
import threading
from contextlib import suppress
from enum import Enum, auto
from types import TracebackType
from typing import Final, Self

from tests.support.servers.ports import free_ports

__all__ = ["END_TXN", "INIT_PRODUCER_ID", "PRODUCE", "Proxy"]

# Kinds of requests, by Kafka's numbers.
PRODUCE: Final = 0
INIT_PRODUCER_ID: Final = 22
END_TXN: Final = 26

_PATIENCE_S: Final = 300


class _Link(Enum):
    SOUND = auto()
    CUT = auto()
    HELD = auto()


class _Connection:
    """A client's connection and ours to the broker. `torn`: an answer was lost; nothing may follow it."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker
        self.asked: dict[int, int] = {}
        self.torn = False
        self.closed = False

    def close(self) -> None:
        self.closed = True
        for side in (self.client, self.broker):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


class Proxy:
    """A proxy that listens on a loopback port as soon as it is made; `target` is the broker's port, now or later.

    Every method that changes the link takes effect before it returns.
    """

    def __init__(self, target: int | None = None) -> None:
        self.target = target
        (self.port,) = free_ports(1)
        self._link = _Link.SOUND
        self._lost_kinds: frozenset[int] | None = frozenset()
        self._lost = 0
        self._changed = threading.Condition()
        self._connections: set[_Connection] = set()
        self._listener: socket.socket | None = None
        self._listen()

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Drop all connections and refuse new ones."""
        with self._changed:
            self._link = _Link.CUT
            self._stop_listening()
            self._drop(self._connections)
            self._changed.notify_all()

    def hold(self) -> None:
        """Let no bytes pass in either direction; connections stay open and new ones are accepted."""
        with self._changed:
            self._link = _Link.HELD

    def drop_responses(self, *requests: int) -> None:
        """Pass requests to the broker and drop its answers: to these kinds of requests, or to all.

        As on a real link, nothing follows a lost answer: the rest of that connection's answers is lost too.
        """
        with self._changed:
            self._lost_kinds = frozenset(requests) if requests else None

    def await_lost(self, answers: int = 1) -> None:
        """Wait until so many answers were lost since the link was last mended: the broker has executed the requests."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._lost >= answers, _PATIENCE_S):
                message = f"{self._lost} answers were lost, not {answers}"
                raise TimeoutError(message)

    def mend(self) -> None:
        """Restore the link. Connections on which an answer was lost are dropped, others continue."""
        with self._changed:
            self._link = _Link.SOUND
            self._lost_kinds = frozenset()
            self._lost = 0
            self._drop({connection for connection in self._connections if connection.torn})
            if self._listener is None:
                self._listen()
            self._changed.notify_all()

    def close(self) -> None:
        """Cut the link for good."""
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _drop(self, connections: set[_Connection]) -> None:
        for connection in list(connections):
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(("127.0.0.1", self.target or 0))
        except OSError:
            client.close()
            return
        for side in (client, broker):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, broker)
        with self._changed:
            if self._link is _Link.CUT:
                client.close()
                broker.close()
                return
            self._connections.add(connection)
        requests = threading.Thread(target=self._pass_requests, args=(connection,), daemon=True)
        requests.start()
        threading.Thread(target=self._pass_answers, args=(connection, requests), daemon=True).start()

    def _pass_requests(self, connection: _Connection) -> None:
        with suppress(OSError):
            while frame := _read_frame(connection.client):
                kind, _version, number = struct.unpack_from(">hhi", frame, 4)
                with self._changed:
                    self._changed.wait_for(lambda: self._passes(connection))
                    connection.asked[number] = kind
                connection.broker.sendall(frame)
        connection.close()

    def _pass_answers(self, connection: _Connection, requests: threading.Thread) -> None:
        with suppress(OSError):
            while frame := _read_frame(connection.broker):
                (number,) = struct.unpack_from(">i", frame, 4)
                with self._changed:
                    self._changed.wait_for(lambda: self._passes(connection))
                    kind = connection.asked.pop(number, None)
                    if self._lost_kinds is None or kind in self._lost_kinds:
                        connection.torn = True
                        self._lost += 1
                        self._changed.notify_all()
                if not connection.torn:
                    connection.client.sendall(frame)
        connection.close()
        with self._changed:
            self._changed.notify_all()
        requests.join()
        with self._changed:
            self._connections.discard(connection)
        connection.client.close()
        connection.broker.close()

    def _passes(self, connection: _Connection) -> bool:
        return self._link is not _Link.HELD or connection.closed


def _read_frame(source: socket.socket) -> bytes:
    """Read a request or an answer with its length before it; empty at the end of the stream."""
    head = _read(source, 4)
    return head and head + _read(source, struct.unpack(">i", head)[0])


def _read(source: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = source.recv_into(view)
        if not count:
            return b""
        view = view[count:]
    return bytes(data)

"""A login probe: kafka-python does not say why brokers refuse a login.

A broker that refuses a login gives a reason and closes the connection. The client usually sees only the closed
connection, and retries as long as it may. For an untrusted certificate it only reports that there is no connection.
"""

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

from kafka.net.sasl import get_sasl_mechanism

from tailer.errors import SinkRejected
from tailer_sinks.kafka.clients.answers import error_of
from tailer_sinks.kafka.clients.port import Connection

__all__ = ["probe_login"]

_ONE_S: Final = 3.0
_ALL_S: Final = 9.0
_LARGEST: Final = 2**20
_HANDSHAKE: Final = (17, 1)  # a request's kind and its version
_AUTHENTICATE: Final = (36, 0)


def probe_login(connection: Connection, arguments: Mapping[str, Any]) -> list[str]:
    """Return why brokers cannot be reached, one line for each; none as soon as one of them accepts the login.

    `arguments`: kafka-python's. Raises `SinkRejected` for a refused login, and for an untrusted certificate.
    """
    reasons: list[str] = []
    deadline = time.monotonic() + _ALL_S
    for server in connection.bootstrap_servers:
        if time.monotonic() > deadline:
            break
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _ONE_S) as plain:
                context: ssl.SSLContext | None = arguments.get("ssl_context")
                if context is not None:
                    with context.wrap_socket(plain, server_hostname=host) as secure:
                        _log_in(connection, arguments, secure, host)
                else:
                    _log_in(connection, arguments, plain, host)
        except ssl.SSLCertVerificationError as error:
            reason = f"{server}: its certificate is not trusted: {error.verify_message}"
            remedy = 'Check "ssl.ca.location", and that the certificate has the name of the server.'
            raise SinkRejected(connection.name, reason, remedy) from None
        except (OSError, ValueError, struct.error) as error:
            reasons.append(f"{server}: {getattr(error, 'strerror', None) or error}")
        else:
            return []
    return reasons


def _log_in(connection: Connection, arguments: Mapping[str, Any], broker: socket.socket, host: str) -> None:
    if connection.sasl is None:
        return
    name = connection.sasl.mechanism
    answer = _Answer(_ask(broker, _HANDSHAKE, struct.pack(">h", len(name)) + name.encode()))
    code = answer.number(">h")
    if code:
        offered = ", ".join(answer.text() for _ in range(answer.number(">i")))
        raise error_of(connection.name, code, f"{name}; they have {offered or 'none'}")
    mechanism = get_sasl_mechanism(name)(host=host, **arguments)
    while not mechanism.is_done():
        token = mechanism.auth_bytes()
        answer = _Answer(_ask(broker, _AUTHENTICATE, struct.pack(">i", len(token)) + token))
        code, text = answer.number(">h"), answer.text()
        if code:
            raise error_of(connection.name, code, text)
        mechanism.receive(answer.piece(answer.number(">i")))


def _ask(broker: socket.socket, kind: tuple[int, int], body: bytes) -> bytes:
    # Kind, version, correlation id, and no client name.
    request = struct.pack(">hhih", *kind, 0, -1) + body
    broker.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _read(broker, 4))
    if not 4 <= size <= _LARGEST:
        raise ValueError("the answer is not in Kafka's protocol: is this the port of a broker?")
    return _read(broker, size)[4:]


def _read(broker: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = broker.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed before the answer")
        data += more
    return data


class _Answer:
    """A reader of the fields of an answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """Read a number in a format of `struct`."""
        (value,) = struct.unpack(form, self.piece(struct.calcsize(form)))
        return int(value)

    def piece(self, size: int) -> bytes:
        """Read `size` bytes; none if `size` is -1."""
        start, self._at = self._at, self._at + max(0, size)
        return self._data[start : self._at]

    def text(self) -> str:
        """Read a text with its length before it."""
        return self.piece(self.number(">h")).decode(errors="replace")

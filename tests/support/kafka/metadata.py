"""Ask one broker for its metadata of the cluster, over a plain socket.

A client library asks any broker, in the background, and retries by itself. A test that asks whether a certain broker is
up needs the answer of that broker.
"""

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Metadata", "Partition", "ask_metadata"]

_METADATA: Final = 3
_VERSION: Final = 1
_ALL_TOPICS: Final = -1


@dataclass(frozen=True)
class Partition:
    """One partition. `leader`: -1 for none. `replicas`, `in_sync`: nodes."""

    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


@dataclass(frozen=True)
class Metadata:
    """The cluster's state. `brokers`: the nodes in it. `partitions`: by topic and number, internal topics included."""

    brokers: frozenset[int]
    partitions: Mapping[tuple[str, int], Partition]


class _Reader:
    """A reader of the primitive types of Kafka's protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(value)

    def text(self) -> str:
        size = max(self.number("h"), 0)
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def numbers(self) -> frozenset[int]:
        return frozenset(self.number("i") for _ in range(self.number("i")))


def ask_metadata(port: int, timeout_s: float = 5) -> Metadata:
    """Ask the broker at a loopback port. Raises `OSError` without an answer."""
    client = b"tests"
    request = struct.pack(">hhih", _METADATA, _VERSION, 1, len(client)) + client + struct.pack(">i", _ALL_TOPICS)
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4) or _gone())
        answer = stream.read(size)
    if len(answer) < size:
        _gone()
    return _parse(_Reader(answer))


def _gone() -> bytes:
    message = "the broker hung up"
    raise ConnectionError(message)


def _parse(reader: _Reader) -> Metadata:
    reader.number("i")  # the number of the request
    brokers = set()
    for _ in range(reader.number("i")):
        brokers.add(reader.number("i"))
        reader.text(), reader.number("i"), reader.text()  # host, port, rack
    reader.number("i")  # the controller
    partitions = {}
    for _ in range(reader.number("i")):
        reader.number("h")
        topic = reader.text()
        reader.number("?")
        for _ in range(reader.number("i")):
            reader.number("h")
            number = reader.number("i")
            partitions[topic, number] = Partition(reader.number("i"), reader.numbers(), reader.numbers())
    return Metadata(frozenset(brokers), partitions)

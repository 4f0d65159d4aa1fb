"""The port of a client library that produces for the `kafka` sink. Both clients pass one suite.

A `Producer` belongs to one `transactional.id` and is used by one thread at a time. Its methods block, and raise the
matching `tailer.errors.SinkError`. After any error it can only be closed: the progress topic then shows whether a
commit took place.

`SinkFenced` means here that the broker has invalidated this producer: because another one took its transactional id,
because its transaction was open for too long, or because it had none for so long that it was forgotten. The progress
topic also shows whether another producer took over, and whether messages in flight were committed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.settings import Compression, Mechanism

__all__ = [
    "Connection",
    "OAuth",
    "Producer",
    "ProducerFactory",
    "ProducerSettings",
    "Sasl",
    "Settings",
    "Tls",
    "TopicState",
]

Settings = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True)
class Tls:
    """The encryption of the connection. Files are PEM; `ca_file` None: the system's certificates.

    `certificate_file`, `key_file`, `key_password`: the client's certificate, if any. `checks_names`: whether a broker's
    certificate must have its name.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_names: bool = True


@dataclass(frozen=True, slots=True)
class OAuth:
    """The source of tokens by the client credentials grant (RFC 6749, section 4.4)."""

    token_endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class Sasl:
    """The credentials: `username` and `password`, or `oauth` for OAUTHBEARER."""

    mechanism: Mechanism
    username: str = ""
    password: str = field(default="", repr=False)
    oauth: OAuth | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection to the cluster. `name`: the sink's name in errors. `bootstrap_servers`: host:port each.

    `settings`: the user's, by their dotted names, over those of the client; none of them is a secret.
    """

    name: str
    bootstrap_servers: Sequence[str]
    tls: Tls | None = None
    sasl: Sasl | None = None
    client_id: str = "lake-tailer"
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of a producer.

    `transaction_timeout_ms`: after which the broker aborts an open transaction. `in_flight_bytes`: the most that is
    kept in memory until brokers have acknowledged it. `request_bytes`: the largest message with its overhead.
    `delivery_timeout_ms`: after which a message counts as lost; less than `transaction_timeout_ms`. `settings`: the
    user's, as those of a `Connection`.
    """

    transaction_timeout_ms: int = 60_000
    delivery_timeout_ms: int = 45_000
    in_flight_bytes: int = 32 * 2**20
    request_bytes: int = 2**20
    compression: Compression = "lz4"
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of a topic: its number of partitions, its settings, and its id (None: brokers are too old for ids)."""

    partitions: int
    configs: Mapping[str, str]
    topic_id: str | None = None


class Producer(Protocol):
    """A producer that runs one transaction after the other."""

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        """Send messages in order; blocks while `in_flight_bytes` are in flight.

        Keyed messages go to the partition of Java's default partitioner (murmur2); others to any one, or all to
        `partition` if given. Raises as soon as a message is known not to be stored.
        """
        ...

    def start_flush(self) -> None:
        """Send everything without waiting for more, while the caller does something else; `commit` or `abort` follows.

        Raises as `send` does. A client that sends by itself does nothing.
        """
        ...

    def flush(self) -> int | None:
        """Return when all messages are stored, with the offset of the first one; None if no broker told it.

        Raises as `send` does.
        """
        ...

    def commit(self) -> None:
        """Return when all messages are stored and visible together: each delivery is checked before the commit.

        Raises `CommitUnknown` if the answer to the commit itself is missing, `SinkUnavailable`, `SinkRejected` or
        `SinkFenced` if certainly nothing was committed.
        """
        ...

    def abort(self) -> None:
        """Abort the open transaction, so that the producer can be used again.

        Raises as `commit` does; the producer can then only be closed.
        """
        ...

    def close(self) -> None:
        """Close the connection without waiting for the open transaction, which the broker aborts at the latest.

        Never raises.
        """
        ...


ProducerFactory = Callable[[Connection, ProducerSettings, str], Producer]
"""Connects, and takes the transactional id over: its previous owner is fenced and its open transaction is gone.

Raises `SinkUnavailable` if brokers do not answer, `SinkRejected` if they refuse access or lack a feature.
"""

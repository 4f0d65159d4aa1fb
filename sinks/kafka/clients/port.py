"""What the `kafka` sink needs of a client library to produce, so that two of them can pass one suite.

A `Producer` belongs to one `transactional.id` and is used by one thread at a time. Its methods block, and raise what
`tailer.errors.SinkError` has for what went wrong. After any error it is of no use but to be closed: whether a commit
took place is then for the progress topic to say.

`SinkFenced` means here that the broker says this producer is no more: because another one took its transactional id, or
because its transaction was open for too long, or because it had none for so long that it was forgotten. Whether another
one did, and whether what was on its way was committed, is for the progress topic to say as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sinks.encoding.messages import Messages

__all__ = [
    "Compression",
    "Connection",
    "Mechanism",
    "OAuth",
    "Producer",
    "ProducerFactory",
    "ProducerSettings",
    "Sasl",
    "Tls",
]

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Compression = Literal["none", "lz4", "gzip", "zstd", "snappy"]


@dataclass(frozen=True, slots=True)
class Tls:
    """How the connection is encrypted. Files are PEM; `ca_file` None: the system's certificates.

    `certificate_file`, `key_file`, `key_password`: what the client shows of itself, if anything.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class OAuth:
    """Where to get tokens by the client credentials grant (RFC 6749, section 4.4)."""

    token_endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class Sasl:
    """Who we say we are: `username` and `password`, or `oauth` for OAUTHBEARER."""

    mechanism: Mechanism
    username: str = ""
    password: str = field(default="", repr=False)
    oauth: OAuth | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the cluster. `name`: what errors call the sink. `bootstrap_servers`: host:port each."""

    name: str
    bootstrap_servers: Sequence[str]
    tls: Tls | None = None
    sasl: Sasl | None = None
    client_id: str = "lake-tailer"


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """`transaction_timeout_ms`: after which the broker aborts what is open. `in_flight_bytes`: the most that is kept
    in memory until brokers have it. `request_bytes`: the largest message with its overhead.
    `delivery_timeout_ms`: after which a message counts as lost; less than `transaction_timeout_ms`.
    """

    transaction_timeout_ms: int = 60_000
    delivery_timeout_ms: int = 45_000
    in_flight_bytes: int = 32 * 2**20
    request_bytes: int = 2**20
    compression: Compression = "lz4"


class Producer(Protocol):
    """One transaction after the other."""

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        """Hand messages over in their order; blocks while `in_flight_bytes` are on their way.

        Keyed messages go to the partition that Java's default partitioner chooses (murmur2); others to any one, or all
        to `partition` if that is given. Raises as soon as it is known that a message was not stored.
        """
        ...

    def commit(self) -> None:
        """Return when all messages are stored and visible together: each delivery is checked before the commit.

        Raises `CommitUnknown` once the commit itself has begun and its answer is missing, `SinkUnavailable`,
        `SinkRejected` or `SinkFenced` if it is sure that nothing took place.
        """
        ...

    def abort(self) -> None:
        """Give up what is open, so that the producer can be used again. Raises as `commit` does; then it cannot."""
        ...

    def close(self) -> None:
        """Let go of the connection, without waiting for what is open: that is aborted, at the latest by the broker.

        Never raises.
        """
        ...


class ProducerFactory(Protocol):
    """Connects, and takes the transactional id over: whoever had it is fenced, and its open transaction is gone.

    Raises `SinkUnavailable` where brokers do not answer, `SinkRejected` where they refuse us or lack what we need.
    """

    def __call__(self, connection: Connection, settings: ProducerSettings, transactional_id: str) -> Producer: ...

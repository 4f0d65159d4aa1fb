"""The port of a client library that produces for the `kafka` sink. Both clients pass one suite.

A `Producer` belongs to one `transactional.id` and is used by one thread at a time. Its methods block, and raise the
matching `tailer.errors.SinkError`. After any error it can only be closed: the progress topic then shows whether a
commit took place.

`SinkFenced` means here that the broker has invalidated this producer: because another one took its transactional id,
because its transaction was open for too long, or because it had none for so long that it was forgotten. The progress
topic also shows whether another producer took over, and whether messages in flight were committed.

Brokers' error codes are those of Kafka's protocol, for any client (`error_of`). Some need a person, with a next step;
all others pass with time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tailer.errors import CommitUnknown, SinkAccessRefused, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.settings import Compression, Mechanism

__all__ = [
    "OLDEST_BROKER",
    "UNAUTHENTICATED",
    "UNKNOWN_TOPIC",
    "Connection",
    "OAuth",
    "Producer",
    "ProducerFactory",
    "ProducerSettings",
    "Sasl",
    "Settings",
    "Tls",
    "TopicState",
    "commit_error",
    "error_of",
    "too_old",
]

OLDEST_BROKER: Final = (2, 7)  # the oldest with reliable transactions in the clients

UNKNOWN_TOPIC: Final = 3
UNAUTHENTICATED: Final = 58

# An older or another epoch: InitProducerId was called since.
_FENCED: Final = frozenset({47, 90})
# The transactional id has no such producer id, or the producer is unknown: after some days without transactions.
_FORGOTTEN: Final = frozenset({49, 59})

_SMALLER = 'Raise max.message.bytes of the topic, or set large_records = "dead_letter" and a lower max_record_bytes.'
_LOGIN = (
    'Check "sasl.username", "sasl.password" and "sasl.mechanism"; for OAUTHBEARER, "sasl.oauthbearer.client.id" and '
    "what the brokers accept of its tokens."
)
_GRANT = (
    "Let this user read the progress topic and the end topic, describe (with their settings) and write all topics, "
    "create them, and describe and write the transactional id, which is the app_id (<pipeline>/<table id>)."
)
_GROUP = "Let this user read the group lake-tailer-heartbeat-PIPELINE, or start the pipeline without --standby."
_SETTINGS = "Check the number of partitions, the replication factor and the brokers' rules for new topics."
_TIMEOUT = "Lower transaction_timeout_s to what transaction.max.timeout.ms of the brokers allows, or raise that."
_BROKER = "Use brokers of version 2.7 or newer."

_TROUBLE: Final = {
    10: ("a message is larger than the destination takes", _SMALLER),
    17: ("the brokers refuse the name of the topic", "Choose another name."),
    18: ("messages are larger than the destination takes", _SMALLER),
    29: ("not authorised for the topic (TOPIC_AUTHORIZATION_FAILED)", _GRANT),
    30: ("not authorised for the group (GROUP_AUTHORIZATION_FAILED)", _GROUP),
    31: ("not authorised for the cluster (CLUSTER_AUTHORIZATION_FAILED)", _GRANT),
    33: ("the brokers do not support this SASL mechanism", _LOGIN),
    34: ("the brokers refuse SASL in this state", _LOGIN),
    35: ("the brokers do not know this request", _BROKER),
    37: ("the brokers refuse the number of partitions", _SETTINGS),
    38: ("the brokers refuse the replication factor", _SETTINGS),
    40: ("the brokers refuse a setting of the topic", _SETTINGS),
    42: ("the brokers call the request invalid", _BROKER),
    43: ("the topic's message format is too old", "Upgrade the topic's message.format.version."),
    44: ("a rule of the brokers forbids it", _SETTINGS),
    50: ("the brokers refuse the transaction timeout", _TIMEOUT),
    53: ("not authorised for the transactional id (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)", _GRANT),
    54: ("security is disabled at the brokers", _LOGIN),
    UNAUTHENTICATED: ("the brokers refuse the login", _LOGIN),
    76: ("the brokers do not know the compression", 'Choose another "compression.type".'),
    87: ("the brokers call a message invalid", "A compacted topic takes no message without a key."),
}

_NO_ACCESS: Final = frozenset({29, 30, 31, 33, 34, 53, 54, UNAUTHENTICATED})

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


def error_of(sink: str, code: int | None, text: str, topic: str | None = None) -> SinkError:
    """Translate `code` of Kafka's protocol; `text`: the client's words; `topic`: the topic in question, if known.

    `SinkFenced` means that the broker has invalidated this producer: because another one took its transactional id,
    because its transaction was open for too long, or because it had none for too long.
    """
    about = "" if topic is None else f"topic {topic}: "
    if code in _FENCED:
        return SinkFenced(sink, f"{about}the broker has invalidated this producer; it may have taken too long ({text})")
    if code in _FORGOTTEN:
        settings = "transactional.id.expiration.ms, producer.id.expiration.ms"
        return SinkFenced(sink, f"{about}the broker forgot this producer after an idle time ({settings}; {text})")
    if code == UNKNOWN_TOPIC:
        # A broker that has just started knows no topics.
        return SinkUnavailable(sink, f"{about}there is no such topic or partition, or it is not known yet ({text})")
    if code in _TROUBLE:
        reason, remedy = _TROUBLE[code]
        kind = SinkAccessRefused if code in _NO_ACCESS else SinkRejected
        return kind(sink, f"{about}{reason} ({text})", remedy)
    return SinkUnavailable(sink, f"{about}{text}")


def commit_error(error: SinkError) -> SinkError:
    """Return the error of a commit that was asked for: its outcome is unknown, unless a broker refused."""
    return error if isinstance(error, SinkFenced | SinkRejected) else CommitUnknown(error.sink, error.reason)


def too_old(sink: str, version: tuple[int, ...]) -> SinkRejected:
    """Make the error for brokers of `version`."""
    return SinkRejected(sink, f"the brokers are of version {'.'.join(map(str, version))}", _BROKER)

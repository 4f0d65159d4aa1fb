"""The settings of the client, as Kafka's documentation and that of librdkafka spell them: the table `client`.

A setting goes to whichever client is used. kafka-python, which always administers topics and reads progress, has other
names for them (`PYTHON_NAMES`). What the sink's guarantees depend on is refused by name (`refused`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from tailer.stores.secrets import WAYS, Secret
from tailer_sinks import flattened

__all__ = [
    "CONFLUENT_ONLY",
    "OF_PRODUCERS",
    "PYTHON_NAMES",
    "ClientSettings",
    "Compression",
    "Mechanism",
    "passed_on",
    "reconnect_waits",
    "spelled",
]

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Compression = Literal["none", "lz4", "gzip", "zstd", "snappy"]
# The bounds are librdkafka's, in milliseconds, bytes or a count; kafka-python has none.
Lifetime = Annotated[int, msgspec.Meta(ge=0, le=86_400_000)]
Reconnect = Annotated[int, msgspec.Meta(ge=0, le=3_600_000)]
Retry = Annotated[int, msgspec.Meta(ge=1, le=300_000)]
Linger = Annotated[int, msgspec.Meta(ge=0, le=900_000)]
SocketBuffer = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]

_ALWAYS: Final = ("is set by the sink: delivering exactly once depends on it", "Leave it out.")
_READS: Final = ("is for consumers: the sink reads its progress with settings of its own", "Leave it out.")
_TIMEOUT: Final = ("follows from the sink's option transaction_timeout_s", "Set transaction_timeout_s.")
_CLIENTS: Final = ("is set by the sink, for each client", "Leave it out.")
_LOGIN: Final = ("is for clients in Java", 'Give "sasl.username" and "sasl.password".')
_TRUST: Final = ("is for clients in Java", 'Give "ssl.ca.location", a file in PEM form.')
_KEY: Final = ("is for clients in Java", 'Give "ssl.certificate.location" and "ssl.key.location", files in PEM form.')
_FORM: Final = ("is for clients in Java", "The sink's options envelope and encoding give the form of messages.")


def _option(name: str) -> tuple[str, str]:
    return f"is the sink's option {name}", f"Set {name} in the table of the sink."


_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "transactional.id": ("is the app id of the stream: by it the brokers refuse a second instance", "Leave it out."),
    "bootstrap.servers": _option("bootstrap_servers"),
    "metadata.broker.list": _option("bootstrap_servers"),
    "transaction.timeout.ms": ("is the sink's option transaction_timeout_s", "Set transaction_timeout_s, in seconds."),
    "message.max.bytes": _option("max_record_bytes"),
    "max.request.size": _option("max_record_bytes"),
    "buffer.memory": _option("in_flight_bytes"),
    "queue.buffering.max.kbytes": _option("in_flight_bytes"),
    "queue.buffering.max.messages": _option("in_flight_bytes"),
    "allow.auto.create.topics": _option("create_topics"),
    "key.serializer": _FORM,
    "value.serializer": _FORM,
    "sasl.jaas.config": _LOGIN,
    "sasl.client.callback.handler.class": _LOGIN,
    "sasl.login.callback.handler.class": _LOGIN,
    "queue.buffering.backpressure.threshold": ("must be 1 for an idempotent producer", "Leave it out."),
    "plugin.library.paths": _CLIENTS,
    "interceptor.classes": _CLIENTS,
    **dict.fromkeys(("ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type"), _TRUST),
    **dict.fromkeys(("ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type"), _KEY),
    **dict.fromkeys(
        (
            *("enable.idempotence", "acks", "request.required.acks", "retries", "message.send.max.retries"),
            *("max.in.flight", "max.in.flight.requests.per.connection", "enable.gapless.guarantee"),
            *("partitioner", "partitioner.class", "partitioner.ignore.keys"),
        ),
        _ALWAYS,
    ),
    **dict.fromkeys(
        (
            *("delivery.timeout.ms", "message.timeout.ms", "request.timeout.ms", "socket.timeout.ms"),
            *("max.block.ms", "api.version.request.timeout.ms"),
        ),
        _TIMEOUT,
    ),
    **dict.fromkeys(
        (
            *("group.id", "group.instance.id", "isolation.level", "auto.offset.reset"),
            *("enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms"),
        ),
        _READS,
    ),
}


class ClientSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=lambda name: name.replace("_", ".")
):
    """The settings that may be given. A setting that is None is the client's own default."""

    refused: ClassVar = _REFUSED

    security_protocol: Protocol = "PLAINTEXT"  # SSL: encryption; SASL: login
    sasl_mechanism: Mechanism | None = None  # how to log in
    sasl_username: str | None = None  # for PLAIN and SCRAM
    sasl_password: Secret = Secret()  # the password
    sasl_oauthbearer_method: Literal["oidc"] | None = None  # tokens by client credentials, the only method
    sasl_oauthbearer_token_endpoint_url: str | None = None  # OAUTHBEARER: where to get a token
    sasl_oauthbearer_client_id: str | None = None  # the client
    sasl_oauthbearer_client_secret: Secret = Secret()  # its secret
    sasl_oauthbearer_scope: str | None = None  # the scope to ask for
    ssl_ca_location: str | None = None  # certificates to trust; default: the system's
    ssl_certificate_location: str | None = None  # a file with a client certificate
    ssl_key_location: str | None = None  # a file with its key
    ssl_key_password: Secret = Secret()  # its password
    ssl_endpoint_identification_algorithm: Literal["https", "none"] = "https"  # none: accept any broker's name

    client_id: str | None = None  # name in logs and quotas of brokers; default: lake-tailer
    # how addresses are looked up
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] | None = None
    # close unused connections after this time
    connections_max_idle_ms: Annotated[int, msgspec.Meta(ge=60_000, le=2**31 - 1)] | None = None
    # refresh metadata of topics after this time
    metadata_max_age_ms: Annotated[int, msgspec.Meta(ge=1, le=86_400_000)] | None = None
    reconnect_backoff_ms: Reconnect | None = None  # wait before connecting again
    reconnect_backoff_max_ms: Reconnect | None = None  # longest such wait
    retry_backoff_ms: Retry | None = None  # wait before sending again
    socket_send_buffer_bytes: SocketBuffer | None = None  # of each socket
    socket_receive_buffer_bytes: SocketBuffer | None = None  # of each socket

    compression_type: Compression = "lz4"  # of batches of messages
    linger_ms: Linger | None = None  # wait for more messages of a batch
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None  # most bytes of a batch

    # (confluent-kafka) most messages of a batch
    batch_num_messages: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    broker_address_family: Literal["any", "v4", "v6"] | None = None  # (confluent-kafka) of IP addresses
    broker_address_ttl: Lifetime | None = None  # (confluent-kafka) milliseconds to keep addresses
    compression_level: Annotated[int, msgspec.Meta(ge=-1, le=12)] | None = None  # (confluent-kafka) of the codec
    retry_backoff_max_ms: Retry | None = None  # (confluent-kafka) longest wait before sending again
    # (confluent-kafka) longest time to connect
    socket_connection_setup_timeout_ms: Annotated[int, msgspec.Meta(ge=1000, le=2**31 - 1)] | None = None
    socket_keepalive_enable: bool | None = None  # (confluent-kafka) TCP keepalive
    # (confluent-kafka) disconnect after so many failures
    socket_max_fails: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    socket_nagle_disable: bool | None = None  # (confluent-kafka) TCP_NODELAY
    # (confluent-kafka) stay at a partition, without a key
    sticky_partitioning_linger_ms: Linger | None = None
    # (confluent-kafka) refresh metadata of topics; -1: never
    topic_metadata_refresh_interval_ms: Annotated[int, msgspec.Meta(ge=-1, le=3_600_000)] | None = None

    def __repr__(self) -> str:
        """Return the names of the settings that are given, without values: some are secrets."""
        return f"ClientSettings({', '.join(sorted(msgspec.to_builtins(self, enc_hook=repr)))})"


# The settings that are passed on to both clients, by the name of kafka-python's argument.
PYTHON_NAMES: Final[Mapping[str, str]] = {
    "client.id": "client_id",
    "client.dns.lookup": "client_dns_lookup",
    "connections.max.idle.ms": "connections_max_idle_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "retry.backoff.ms": "retry_backoff_ms",
    "socket.send.buffer.bytes": "send_buffer_bytes",
    "socket.receive.buffer.bytes": "receive_buffer_bytes",
    "linger.ms": "linger_ms",
    "batch.size": "batch_size",
}
OF_PRODUCERS: Final = frozenset({"linger.ms", "batch.size"})
CONFLUENT_ONLY: Final = frozenset(
    {
        *("batch.num.messages", "broker.address.family", "broker.address.ttl", "compression.level"),
        *("retry.backoff.max.ms", "socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails"),
        *("socket.nagle.disable", "sticky.partitioning.linger.ms", "topic.metadata.refresh.interval.ms"),
    }
)

_FIRST_RECONNECT_MS: Final = 100  # librdkafka's default
_LONGEST_RECONNECT_MS: Final = 2_000

# Other names of settings, in Kafka's documentation or in librdkafka's.
_ALIASES: Final[Mapping[str, str]] = {
    "sasl.mechanisms": "sasl.mechanism",
    "compression.codec": "compression.type",
    "queue.buffering.max.ms": "linger.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}


def spelled(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a table under their names in `ClientSettings`, and the names that are given twice.

    In TOML, a name with dots and without quotes makes tables in tables. In the environment, dots are underscores.
    """
    fields = msgspec.structs.fields(ClientSettings)
    names = {field.encode_name for field in fields} | _REFUSED.keys() | _ALIASES.keys()
    secrets = {field.encode_name for field in fields if field.type is Secret}
    settings: dict[str, Any] = {}
    twice: list[str] = []
    for given, value in flattened(table):
        dotted = given.replace("_", ".")
        stem, _, way = dotted.rpartition(".")
        if stem in secrets and way in WAYS:
            settings[stem] = {**settings.get(stem, {}), way: value}
            continue
        name = dotted if dotted in names else given
        name = _ALIASES.get(name, name)
        if name in settings:
            twice.append(name)
        settings[name] = value
    return settings, twice


def passed_on(settings: ClientSettings, *, to_producers: bool) -> dict[str, Any]:
    """Return the given settings that clients take as they are: those of every connection, or those of producers.

    Settings that only confluent-kafka has count as settings of producers, which are all that it is used for.
    """
    producers = OF_PRODUCERS | CONFLUENT_ONLY
    wanted = producers if to_producers else PYTHON_NAMES.keys() - producers
    return {name: value for name, value in msgspec.to_builtins(settings, enc_hook=repr).items() if name in wanted}


def reconnect_waits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the waits before connecting again. One that is not given fits the other: the first must not be longer."""
    first, longest = "reconnect.backoff.ms", "reconnect.backoff.max.ms"
    waits = {longest: max(_LONGEST_RECONNECT_MS, settings.get(first, 0))}
    waits |= {name: settings[name] for name in (first, longest) if name in settings}
    if waits[longest] < _FIRST_RECONNECT_MS:
        waits.setdefault(first, waits[longest])
    return waits

"""The options of a `kafka` sink, checked before any I/O.

The table `client` has the settings of the Kafka client (`tailer_sinks.kafka.clients.settings`). Secrets come from the
environment, from files, or from commands (`tailer.stores.secrets`), which are read when a connection is made.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from tailer.errors import ConfigError, how_to_install
from tailer.stores.secrets import Secret
from tailer_sinks import read_options
from tailer_sinks.access import read_secret
from tailer_sinks.encoding.values import DecimalForm, JsonForms
from tailer_sinks.kafka.clients.port import Connection, OAuth, ProducerSettings, Sasl, Tls
from tailer_sinks.kafka.clients.settings import CONFLUENT_ONLY, ClientSettings, passed_on, spelled
from tailer_sinks.kafka.route import Route, is_topic, route_faults
from tailer_sinks.options import Int64Option, int64_faults

__all__ = ["Options", "connection_of", "read", "registry_secrets", "settings_of"]

_OVERHEAD = 16 * 2**10  # of a batch, and of a message's own fields
_LARGEST_REQUEST = 1_000_000_000  # librdkafka's bound
_LARGEST_TIMEOUT_S = 900
AVRO_NEEDS = ("fastavro", "httpx2")


class Options(Int64Option, msgspec.Struct, frozen=True, kw_only=True):
    """The options in the configuration."""

    refused: ClassVar = {
        field.name: ("is a setting of the client", f'Give "{field.encode_name}" in the table client of the sink.')
        for field in msgspec.structs.fields(ClientSettings)
    }

    remedies: ClassVar = {
        "client": 'Choose the client with library, such as library = "confluent-kafka"; its settings go in a table '
        "that ends with .client]."
    }

    bootstrap_servers: str | list[str]  # host:port of some brokers
    topic: str = ""  # the topic, also by a column: "shop.{country}"; default: the pipeline's name
    topics: list[str] | str | None = None  # topics that a column may name: a list, or a pattern
    other_topic: str | None = None  # for rows whose column names none of topics; default: refuse them
    key: list[str] = []  # columns of message keys; default: no keys
    envelope: Literal["flat", "debezium", "cloudevents"] = "flat"  # the form of messages
    encoding: Literal["json", "avro", "arrow"] = "json"  # arrow: many rows in a message
    embed_schemas: bool = False  # schemas in Debezium's JSON, for Kafka Connect
    cloudevents_mode: Literal["structured", "binary"] = "structured"  # binary: attributes in headers
    decimal: DecimalForm = "string"  # decimals in JSON
    # form of Variants; default: JSON in JSON, else encoded
    variant: Literal["encoded", "json"] | None = None
    tombstones: bool | None = None  # after deletes; default: not with flat
    boundary: Literal["chunk", "version"] = "chunk"  # where a transaction may end
    library: Literal["auto", "kafka-python", "confluent-kafka"] = "auto"  # auto: confluent-kafka if it is installed
    client: ClientSettings = ClientSettings()  # settings of the client, below
    large_records: Literal["fail", "dead_letter"] = "fail"  # messages of more than max_record_bytes
    max_record_bytes: int = 1_000_000  # the largest message; brokers take 1,048,588 by default
    transaction_rows: int = 50_000  # most rows in a transaction
    transaction_bytes: int = 32 * 2**20  # most bytes of rows in a transaction
    transaction_timeout_s: float = 60.0  # the broker aborts a transaction after so many seconds; at most 900
    in_flight_bytes: int = 32 * 2**20  # most bytes that brokers have not acknowledged

    shared_topic: bool = False  # others write to the topic, too
    progress_topic: str = "lake-tailer-progress"  # compacted, one partition; pipelines may share it
    end_topic: str | None = None  # a record for each complete version
    schema_topic: str | None = None  # for schema changes and gaps
    dead_letter_topic: str | None = None  # a record for each message that is too large
    heartbeat_topic: str | None = None  # heartbeats while there is nothing to deliver
    heartbeat_s: float = 10.0  # seconds between heartbeats
    create_topics: bool = False  # create missing topics
    partitions: int = 1  # of a new topic for rows
    replication_factor: int | None = None  # of new topics; default: the cluster's

    registry_url: str | list[str] = []  # schema registry, for Avro; several are tried in turn
    registry_username: str | None = None  # for basic authentication
    registry_password: Secret = Secret()  # for basic authentication
    registry_token: Secret = Secret()  # a bearer token, in place of a user and a password
    registry_tls_ca_file: str | None = None  # certificates to trust; default: the system's
    registry_tls_certificate_file: str | None = None  # a client certificate
    registry_tls_key_file: str | None = None  # its key
    registry_register: bool = True  # false: schemas must exist

    @property
    def forms(self) -> JsonForms:
        """The forms of numbers in JSON."""
        return JsonForms(decimal=self.decimal, int64=self.int64)

    @property
    def with_tombstones(self) -> bool:
        """Return whether a message without a value follows each delete."""
        return self.envelope != "flat" if self.tombstones is None else self.tombstones

    @property
    def route(self) -> Route | None:
        """The rule that names the topics of rows; None: all go to `topic`."""
        return Route.of(self.topic, self.topics or (), self.other_topic)

    def sends_to(self, topic: str) -> bool:
        """Return whether rows may go to the topic."""
        return topic == self.topic if (route := self.route) is None else route.reaches(topic)

    @property
    def servers(self) -> Sequence[str]:
        """The bootstrap servers, each `host:port`."""
        return _listed(self.bootstrap_servers)

    @property
    def registries(self) -> Sequence[str]:
        """The addresses of the schema registry."""
        return _listed(self.registry_url)

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"Options(bootstrap_servers={self.bootstrap_servers!r}, topic={self.topic!r})"


def read(name: str, options: Mapping[str, Any]) -> Options:
    """Read the options of the sink called `name`; no I/O.

    Raises `ConfigError` naming the option; several as an `ExceptionGroup`.
    """
    checks = (
        _check_servers,
        _check_topics,
        _check_messages,
        _check_packages,
        _check_sizes,
        _check_client,
        _check_tls,
        _check_sasl,
        _check_registry,
    )
    if isinstance(client := options.get("client"), Mapping):
        settings, twice = spelled(client)
        if twice:
            remedy = "Give it once; in the file, put its name in quotes."
            raise ConfigError(f"{name}.client.{twice[0]}", "is given twice, in two spellings", remedy)
        options = {**options, "client": settings}
    given = read_options(name, options, Options, *checks)
    return msgspec.structs.replace(given, topic=given.topic or name)


def connection_of(name: str, options: Options) -> Connection:
    """Build the connection, reading the files with secrets. Raises `SinkRejected` for an unreadable one."""
    client, tls, sasl = options.client, None, None
    if client.security_protocol.endswith("SSL"):
        password = read_secret(name, client.ssl_key_password)
        checks_names = client.ssl_endpoint_identification_algorithm != "none"
        files = (client.ssl_ca_location, client.ssl_certificate_location, client.ssl_key_location)
        tls = Tls(*files, password, checks_names)
    if client.sasl_mechanism == "OAUTHBEARER":
        secret = read_secret(name, client.sasl_oauthbearer_client_secret)
        endpoint, ident = client.sasl_oauthbearer_token_endpoint_url or "", client.sasl_oauthbearer_client_id or ""
        sasl = Sasl(client.sasl_mechanism, oauth=OAuth(endpoint, ident, secret or "", client.sasl_oauthbearer_scope))
    elif client.sasl_mechanism is not None:
        secret = read_secret(name, client.sasl_password)
        sasl = Sasl(client.sasl_mechanism, client.sasl_username or "", secret or "")
    return Connection(name, tuple(options.servers), tls, sasl, settings=passed_on(client, to_producers=False))


def settings_of(options: Options) -> ProducerSettings:
    """Build the producer settings."""
    timeout_ms = int(options.transaction_timeout_s * 1000)
    return ProducerSettings(
        transaction_timeout_ms=timeout_ms,
        delivery_timeout_ms=min(timeout_ms * 3 // 4, 45_000),
        in_flight_bytes=options.in_flight_bytes,
        request_bytes=options.max_record_bytes + _OVERHEAD,
        compression=options.client.compression_type,
        settings=passed_on(options.client, to_producers=True),
    )


def registry_secrets(name: str, options: Options) -> tuple[str | None, str | None]:
    """Read the password and the token for the schema registry. Raises `SinkRejected` for an unreadable file."""
    return read_secret(name, options.registry_password), read_secret(name, options.registry_token)


def _listed(value: str | list[str]) -> Sequence[str]:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _check_servers(name: str, options: Options) -> Iterator[ConfigError]:
    for server in options.servers or [""]:
        host, _, port = server.rpartition(":")
        if not host or "/" in server or "@" in server or not (port.isascii() and port.isdigit()):
            remedy = 'Give host:port, such as "broker1:9092,broker2:9092".'
            yield ConfigError(f"{name}.bootstrap_servers", "is not a list of host:port", remedy)
            return


def _check_topics(name: str, options: Options) -> Iterator[ConfigError]:
    route_faulty = False
    for option, reason, remedy in route_faults(options.topic, options.topics, options.other_topic):
        route_faulty = True
        yield ConfigError(f"{name}.{option}", reason, remedy)
    route = None if route_faulty else options.route
    topics = {
        "topic": None if route_faulty or route else options.topic or name,
        "other_topic": options.other_topic,
        "progress_topic": options.progress_topic,
        "end_topic": options.end_topic,
        "schema_topic": options.schema_topic,
        "dead_letter_topic": options.dead_letter_topic,
        "heartbeat_topic": options.heartbeat_topic,
    }
    seen: dict[str, str] = {}
    for option, topic in topics.items():
        if topic is None:
            continue
        if not is_topic(topic):
            remedy = "Use up to 249 letters, digits, '.', '_' and '-'."
            yield ConfigError(f"{name}.{option}", f"{topic!r} is not a valid topic name", remedy)
        elif topic in seen:
            yield ConfigError(f"{name}.{option}", f"{topic} is the {seen[topic]} too", "Give it a topic of its own.")
        elif option != "other_topic" and route is not None and route.reaches(topic):
            yield ConfigError(f"{name}.{option}", f"{topic} is among topics too", "Give it a topic of its own.")
        seen[topic] = option
    if (options.large_records == "dead_letter") != (options.dead_letter_topic is not None):
        remedy = 'Give both large_records = "dead_letter" and dead_letter_topic, or neither.'
        yield ConfigError(f"{name}.dead_letter_topic", "goes with large_records", remedy)


def _check_messages(name: str, options: Options) -> Iterator[ConfigError]:
    if len(set(options.key)) < len(options.key):
        yield ConfigError(f"{name}.key", "names a column twice", "Name each column once.")
    is_typed = options.encoding != "json" or options.embed_schemas
    yield from int64_faults(name, options, is_typed=is_typed)
    wrong = {
        "tombstones": (options.tombstones is True and not options.key, "needs a key", "Add key, or leave it out."),
        "embed_schemas": (
            options.embed_schemas and (options.envelope, options.encoding) != ("debezium", "json"),
            "is for Debezium's envelope in JSON",
            'Add envelope = "debezium", or leave it out.',
        ),
        "decimal": (
            options.decimal == "number" and is_typed,
            "as number is for JSON without schemas",
            "Leave it out.",
        ),
        "encoding": (
            (options.encoding == "arrow" and bool(options.envelope != "flat" or options.key))
            or (options.encoding == "avro" and options.envelope == "cloudevents"),
            f"{options.encoding} does not go with these options",
            'arrow is for envelope = "flat" without a key, avro for "flat" and "debezium".',
        ),
        "registry_url": (
            (options.encoding == "avro") != bool(options.registries and all(options.registries)),
            "goes with encoding avro",
            'Give both encoding = "avro" and registry_url, or neither.',
        ),
    }
    for option, (is_wrong, reason, remedy) in wrong.items():
        if is_wrong:
            yield ConfigError(f"{name}.{option}", reason, remedy)


def _check_packages(name: str, options: Options) -> Iterator[ConfigError]:
    missing = [package for package in AVRO_NEEDS if find_spec(package) is None]
    if options.encoding == "avro" and missing:
        yield ConfigError(f"{name}.encoding", f"Avro needs {' and '.join(missing)}", how_to_install("avro"))
    installed = find_spec("confluent_kafka") is not None
    if options.library == "confluent-kafka" and not installed:
        yield ConfigError(f"{name}.library", "confluent-kafka is not installed", how_to_install("kafka-fast"))
    if options.library == "kafka-python" or not installed:
        for setting in sorted(CONFLUENT_ONLY & passed_on(options.client, to_producers=True).keys()):
            reason = "is a setting that only confluent-kafka has, and kafka-python is used"
            yield ConfigError(f"{name}.client.{setting}", reason, "Leave it out.")


def _check_sizes(name: str, options: Options) -> Iterator[ConfigError]:
    limits: dict[str, tuple[float, float, float]] = {
        "partitions": (options.partitions, 1, 100_000),
        "replication_factor": (1 if options.replication_factor is None else options.replication_factor, 1, 32),
        "max_record_bytes": (options.max_record_bytes, 1024, _LARGEST_REQUEST - _OVERHEAD),
        "transaction_rows": (options.transaction_rows, 1, 10_000_000),
        "transaction_bytes": (options.transaction_bytes, 1, 2**32),
        "transaction_timeout_s": (options.transaction_timeout_s, 1, _LARGEST_TIMEOUT_S),
        "in_flight_bytes": (options.in_flight_bytes, 2**20, 2**31),
        "heartbeat_s": (options.heartbeat_s, 0.1, 86_400),
    }
    for option, (value, least, most) in limits.items():
        if not least <= value <= most:
            yield ConfigError(f"{name}.{option}", f"is {value}", f"Give a number from {least} to {most}.")


def _check_client(name: str, options: Options) -> Iterator[ConfigError]:
    """Check the settings that depend on options of the sink."""
    client = options.client
    if client.linger_ms is not None and 1 <= options.transaction_timeout_s <= _LARGEST_TIMEOUT_S:
        most = settings_of(options).delivery_timeout_ms // 10
        if client.linger_ms > most:
            reason = f"is {client.linger_ms}, too long for the transaction's time limit"
            remedy = f"Give at most {most}, or raise transaction_timeout_s."
            yield ConfigError(f"{name}.client.linger.ms", reason, remedy)
    first_ms, longest_ms = client.reconnect_backoff_ms, client.reconnect_backoff_max_ms
    if first_ms is not None and longest_ms is not None and longest_ms < first_ms:
        remedy = f"Give at least {first_ms}, or leave it out."
        yield ConfigError(f"{name}.client.reconnect.backoff.max.ms", "is less than reconnect.backoff.ms", remedy)


def _check_tls(name: str, options: Options) -> Iterator[ConfigError]:
    client = options.client
    given = {
        "client.ssl.ca.location": client.ssl_ca_location,
        "client.ssl.certificate.location": client.ssl_certificate_location,
        "client.ssl.key.location": client.ssl_key_location,
        "client.ssl.key.password": client.ssl_key_password.is_given or None,
    }
    for option, value in given.items():
        if value is not None and not client.security_protocol.endswith("SSL"):
            remedy = 'Add "security.protocol" = "SSL" to the table client, or "SASL_SSL" with a login.'
            yield ConfigError(f"{name}.{option}", "is of no use without TLS", remedy)
    if (client.ssl_certificate_location is None) != (client.ssl_key_location is None):
        remedy = 'Give both "ssl.certificate.location" and "ssl.key.location", or neither.'
        yield ConfigError(f"{name}.client.ssl.certificate.location", "goes with ssl.key.location", remedy)


def _check_sasl(name: str, options: Options) -> Iterator[ConfigError]:
    client = options.client
    logs_in, oauth = client.security_protocol.startswith("SASL"), client.sasl_mechanism == "OAUTHBEARER"
    if logs_in and client.sasl_mechanism is None:
        reason = f"is missing: {client.security_protocol} needs it"
        yield ConfigError(f"{name}.client.sasl.mechanism", reason, "Give PLAIN, SCRAM-SHA-512 or OAUTHBEARER.")
    if client.sasl_mechanism is not None and not logs_in:
        remedy = 'Add "security.protocol" = "SASL_SSL", or "SASL_PLAINTEXT" without encryption.'
        yield ConfigError(f"{name}.client.sasl.mechanism", "has no effect without a protocol that logs in", remedy)
    by_password = bool(client.sasl_mechanism) and not oauth
    needed = {
        "client.sasl.username": (client.sasl_username, by_password),
        "client.sasl.password": (client.sasl_password.is_given, by_password),
        "client.sasl.oauthbearer.token.endpoint.url": (client.sasl_oauthbearer_token_endpoint_url, oauth),
        "client.sasl.oauthbearer.client.id": (client.sasl_oauthbearer_client_id, oauth),
        "client.sasl.oauthbearer.client.secret": (client.sasl_oauthbearer_client_secret.is_given, oauth),
    }
    for option, (value, wanted) in needed.items():
        if wanted and not value:
            yield ConfigError(f"{name}.{option}", f"is missing: {client.sasl_mechanism} needs it", "Add it.")
        if value and not wanted:
            mechanism = "OAUTHBEARER" if "oauthbearer" in option else "PLAIN or SCRAM"
            yield ConfigError(f"{name}.{option}", "is of no use", f'It goes with "sasl.mechanism" {mechanism}.')
    endpoint = client.sasl_oauthbearer_token_endpoint_url
    if oauth and endpoint and not _is_address(endpoint):
        remedy = "Give an address such as https://login.example.com/token, without a user in it."
        option = "client.sasl.oauthbearer.token.endpoint.url"
        yield ConfigError(f"{name}.{option}", "is not the address of a server that gives tokens", remedy)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets without an address
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.username or parts.password)


def _check_registry(name: str, options: Options) -> Iterator[ConfigError]:
    for option in Options.__struct_fields__:
        given = option.startswith("registry_") and option not in {"registry_url", "registry_register"}
        if given and getattr(options, option) not in (None, Secret()) and not options.registries:
            yield ConfigError(f"{name}.{option}", "is of no use without a registry", "Add registry_url.")
    for url in options.registries:
        if not _is_address(url):
            remedy = "Give an address such as http://registry:8081, and a user as registry_username."
            yield ConfigError(f"{name}.registry_url", "is not the address of a registry", remedy)
    if bool(options.registry_username) != options.registry_password.is_given:
        remedy = "Give both registry_username and registry_password, or neither."
        yield ConfigError(f"{name}.registry_username", "goes with registry_password", remedy)
    if options.registry_username and options.registry_token.is_given:
        yield ConfigError(f"{name}.registry_token", "is given beside registry_username", "Give one of them.")

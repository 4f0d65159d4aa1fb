"""The options of the `kafka` sink: refusals before any I/O, and that secrets are not shown."""

import logging
import math
import sys
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from tailer.errors import ConfigError, SinkRejected
from tailer_sinks.kafka.clients import librdkafka
from tailer_sinks.kafka.clients.port import OAuth, Sasl, Tls
from tailer_sinks.kafka.clients.python_connection import arguments_of
from tailer_sinks.kafka.clients.python_producer import PythonProducer
from tailer_sinks.kafka.clients.settings import (
    CONFLUENT_ONLY,
    OF_PRODUCERS,
    PYTHON_NAMES,
    ClientSettings,
    reconnect_waits,
)
from tailer_sinks.kafka.link import producer_factory
from tailer_sinks.kafka.options import Options, connection_of, read, settings_of
from tailer_sinks.kafka.sink import KafkaSink
from tests.support.cases import cases

SERVERS = {"bootstrap_servers": "one:9092, two:9092"}
USER = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "ada"}
SASL = {**USER, "sasl.password": "hush"}
FIXED: Final = {"transactional.id": "orders", "enable.idempotence": True}
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


def of(**options: Any) -> Options:
    return read("orders", {**SERVERS, **options})


def faults(options: dict[str, Any]) -> list[ConfigError]:
    """Return every fault of the options."""
    try:
        of(**options)
    except ConfigError as error:
        return [error]
    except ExceptionGroup as several:
        return [error for error in several.exceptions if isinstance(error, ConfigError)]
    return []


def test_little_is_needed() -> None:
    options = of()
    assert list(options.servers) == ["one:9092", "two:9092"]
    assert (options.topic, options.envelope, options.encoding) == ("orders", "flat", "json")
    assert not options.with_tombstones
    assert of(envelope="debezium").with_tombstones


@cases(
    ("option", "given"),
    [
        ("bootstrap_servers", {"bootstrap_servers": "one"}),
        ("bootstrap_servers", {"bootstrap_servers": []}),
        ("bootstrap_servers", {"bootstrap_servers": "ada:hush@one:9092"}),
        ("bootstrap_servers", {"bootstrap_servers": "one:9092,"}),
        ("topic", {"topic": "a/b"}),
        ("topic", {"topic": "x" * 250}),
        ("progress_topic", {"topic": "same", "progress_topic": "same"}),
        ("end_topic", {"end_topic": "orders"}),
        ("dead_letter_topic", {"large_records": "dead_letter"}),
        ("dead_letter_topic", {"dead_letter_topic": "letters"}),
        ("key", {"key": ["id", "id"]}),
        ("tombstones", {"tombstones": True}),
        ("embed_schemas", {"embed_schemas": True}),
        ("embed_schemas", {"embed_schemas": True, "envelope": "debezium", "encoding": "avro"}),
        ("decimal", {"decimal": "number", "envelope": "debezium", "embed_schemas": True}),
        ("encoding", {"encoding": "arrow", "key": ["id"]}),
        ("encoding", {"encoding": "avro", "envelope": "cloudevents"}),
        ("registry_url", {"encoding": "avro"}),
        ("registry_url", {"registry_url": "http://127.0.0.1:8081"}),
        ("partitions", {"partitions": 0}),
        ("max_record_bytes", {"max_record_bytes": 10}),
        ("max_record_bytes", {"max_record_bytes": 2**30}),
        ("transaction_timeout_s", {"transaction_timeout_s": 901}),
        ("transaction_timeout_s", {"transaction_timeout_s": math.nan}),
        ("transaction_timeout_s", {"transaction_timeout_s": math.inf}),
        ("partitions", {"partitions": 10**400}),
        ("client.ssl.ca.location", {"client": {"ssl.ca.location": "ca.pem"}}),
        ("client.ssl.certificate.location", {"client": {**SASL, "ssl.certificate.location": "mine.pem"}}),
        ("sasl_password_file", {"client": SASL, "sasl_password_file": "secret"}),
        ("client.sasl.password", {"client": {**SASL, "sasl.password": {"file": "hush", "env": "hush"}}}),
        ("client.sasl.password", {"client": {**SASL, "sasl.password": {"env": ""}}}),
        ("client.sasl.username", {"client": {**OAUTH, "sasl.mechanism": "PLAIN", "sasl.password": "hush"}}),
        ("client.sasl.password", {"client": USER}),
        ("client.sasl.password", {"client": {"sasl.password": "hush"}}),
        ("client.sasl.mechanism", {"client": {"security.protocol": "SASL_SSL"}}),
        ("client.sasl.mechanism", {"client": {**SASL, "security.protocol": "SSL"}}),
        ("client.sasl.mechanism", {"client": {**SASL, "sasl.mechanism": "GSSAPI"}}),
        ("client.sasl.oauthbearer.client.secret", {"client": {**SASL, "sasl.oauthbearer.client.secret": "hush"}}),
        (
            "client.sasl.oauthbearer.token.endpoint.url",
            {"client": {**OAUTH, "sasl.oauthbearer.client.id": "a", "sasl.oauthbearer.client.secret": {"file": "b"}}},
        ),
        (
            "client.sasl.oauthbearer.token.endpoint.url",
            {
                "client": {
                    **OAUTH,
                    "sasl.oauthbearer.client.id": "a",
                    "sasl.oauthbearer.token.endpoint.url": "http://ada:hush@one/token",
                    "sasl.oauthbearer.client.secret": {"file": "b"},
                },
            },
        ),
        ("registry_url", {"encoding": "avro", "registry_url": "http://ada:hush@one:8081"}),
        ("registry_url", {"encoding": "avro", "registry_url": "one:8081"}),
        ("registry_username", {"encoding": "avro", "registry_url": "http://one:8081", "registry_username": "ada"}),
        ("registry_tls_ca_file", {"registry_tls_ca_file": "ca.pem"}),
        ("linger_ms", {"linger_ms": 5}),
        ("client.linger.mss", {"client": {"linger.mss": 5}}),
        ("client.linger.ms", {"client": {"linger.ms": "5"}}),
        ("client.linger.ms", {"client": {"linger.ms": 5000}}),
        ("client.linger.ms", {"client": {"linger.ms": 5, "linger": {"ms": 6}}}),
        ("client.batch.size", {"client": {"batch.size": 0}}),
        ("client.batch.num.messages", {"library": "kafka-python", "client": {"batch.num.messages": 9}}),
        ("client", {"client": "kafka-python"}),
        ("boundary", {"boundary": "row"}),
    ],
)
def test_invalid_options_are_refused_by_name(option: str, given: dict[str, Any]) -> None:
    found = faults(given)
    assert f"orders.{option}" in [fault.where for fault in found]
    assert all(fault.hint for fault in found)
    assert "hush" not in "".join(f"{fault}{fault.hint}" for fault in found)


@cases(
    ("given", "expected"),
    [
        ({"boundary": "row", "partitions": 0, "linger_ms": 5}, ["linger_ms", "boundary", "partitions"]),
        ({"partitions": 0, "transaction_rows": 0, "topic": "a/b"}, ["topic", "partitions", "transaction_rows"]),
        (
            {"client": {"ssl.ca.location": "a", "ssl.key.password": "hush"}},
            ["client.ssl.ca.location", "client.ssl.key.password"],
        ),
        (
            {"client": {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}},
            ["client.sasl.username", "client.sasl.password"],
        ),
        ({"client": {"acks": 1, "linger.ms": -1}, "partitions": 0}, ["client.acks", "client.linger.ms", "partitions"]),
        ({"transaction_timeout_s": -5}, ["transaction_timeout_s"]),
        ({"transaction_timeout_s": math.nan, "client": {"linger.ms": 5000}}, ["transaction_timeout_s"]),
        # A fault that only follows from another one is not reported.
        ({"key": "id", "tombstones": True}, ["key"]),
        ({"large_records": "dead_letter", "dead_letter_topic": 3}, ["dead_letter_topic"]),
        ({"bootstrap_server": "one:9092", "bootstrap_servers": 3}, ["bootstrap_server", "bootstrap_servers"]),
        ({"encoding": "avro", "registry_url": "http://[one:8081"}, ["registry_url"]),
        ({"client": {**SASL, "sasl.password": 3}}, ["client.sasl.password"]),
    ],
)
def test_all_faults_are_reported_at_once(given: dict[str, Any], expected: list[str]) -> None:
    assert [fault.where.removeprefix("orders.") for fault in faults(given)] == expected


@pytest.mark.parametrize(
    ("given", "missing", "option", "extra"),
    [
        ({"encoding": "avro", "registry_url": "http://one:8081"}, "fastavro", "encoding", "lake-tailer[avro]"),
        ({"encoding": "avro", "registry_url": "http://one:8081"}, "httpx2", "encoding", "lake-tailer[avro]"),
        ({"library": "confluent-kafka"}, "confluent_kafka", "library", "lake-tailer[kafka-fast]"),
    ],
)
def test_packages_that_are_not_installed_are_named(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], missing: str, option: str, extra: str
) -> None:
    assert faults(given) == []
    monkeypatch.setattr("tailer_sinks.kafka.options.find_spec", lambda name: None if name == missing else object())
    (fault,) = faults(given)
    assert (fault.where, extra in fault.hint) == (f"orders.{option}", True)
    assert faults({}) == []


def test_secrets_come_from_files_and_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    scram = {**USER, "sasl.mechanism": "SCRAM-SHA-512"}
    connection = connection_of("orders", of(client={**scram, "sasl.password": {"file": str(tmp_path / "secret")}}))
    assert connection.sasl == Sasl("SCRAM-SHA-512", "ada", "hush")
    options = of(client=SASL)
    assert not any("hush" in repr(each) for each in (connection, options, options.client, connection_of("o", options)))
    assert repr(options.client) == "ClientSettings(sasl.mechanism, sasl.password, sasl.username, security.protocol)"
    with pytest.raises(SinkRejected, match="cannot be read"):
        connection_of("orders", of(client={**USER, "sasl": {"password": {"file": str(tmp_path / "none")}}}))


def test_a_connection_has_what_was_given() -> None:
    mine = {"ssl.certificate.location": "c.pem", "ssl.key.location": "k.pem", "ssl.key.password": "hush"}
    ssl = {"security.protocol": "SSL", "ssl.ca.location": "ca.pem", **mine}
    assert connection_of("orders", of(client=ssl)).tls == Tls("ca.pem", "c.pem", "k.pem", "hush")
    unnamed = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}
    assert connection_of("orders", of(client=unnamed)).tls == Tls(checks_names=False)
    oauth = {
        **OAUTH,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/t",
        "sasl.oauthbearer.client.id": "a",
        "sasl.oauthbearer.client.secret": "b",
        "sasl.oauthbearer.scope": "kafka",
    }
    connection = connection_of("orders", of(client=oauth))
    assert connection.sasl == Sasl("OAUTHBEARER", oauth=OAuth("http://127.0.0.1:1/t", "a", "b", "kafka"))
    assert connection_of("orders", of()).tls is None


@pytest.mark.parametrize(
    "table",
    [
        {"client.id": "us", "socket.send.buffer.bytes": 65536, "compression.type": "zstd", "linger.ms": 7},
        {"client": {"id": "us"}, "send.buffer.bytes": 65536, "compression.codec": "zstd", "queue.buffering.max.ms": 7},
        {"client_id": "us", "socket_send_buffer_bytes": 65536, "compression_type": "zstd", "linger_ms": 7},
    ],
)
def test_settings_are_passed_on_however_they_are_spelled(table: dict[str, Any]) -> None:
    options = of(client={**table, "socket.keepalive.enable": True})
    connection, settings = connection_of("orders", options), settings_of(options)
    assert connection.settings == {"client.id": "us", "socket.send.buffer.bytes": 65536}
    assert (settings.compression, settings.settings) == ("zstd", {"linger.ms": 7, "socket.keepalive.enable": True})
    arguments = arguments_of(connection)
    assert (arguments["client_id"], arguments["send_buffer_bytes"]) == ("us", 65536)


@cases(
    ("setting", "said"),
    [
        ("transactional.id", "refuse a second instance"),
        ("enable.idempotence", "exactly once depends on it"),
        ("acks", "exactly once depends on it"),
        ("max.in.flight.requests.per.connection", "exactly once depends on it"),
        ("partitioner", "exactly once depends on it"),
        ("transaction.timeout.ms", "the sink's option transaction_timeout_s"),
        ("delivery.timeout.ms", "follows from the sink's option transaction_timeout_s"),
        ("bootstrap.servers", "the sink's option bootstrap_servers"),
        ("group.id", "is for consumers"),
        ("isolation.level", "is for consumers"),
        ("queue.buffering.backpressure.threshold", "must be 1 for an idempotent producer"),
        ("sasl.jaas.config", "is for clients in Java"),
        ("ssl.truststore.location", "is for clients in Java"),
    ],
)
def test_what_the_sink_sets_itself_is_refused_with_the_reason(setting: str, said: str) -> None:
    for given in ({setting: "hush"}, {setting.replace(".", "_"): "hush"}):
        (fault,) = faults({"client": given})
        assert (fault.where, said in fault.reason) == (f"orders.client.{setting}", True)
        assert fault.hint
        assert "hush" not in f"{fault}{fault.hint}"


def test_the_former_option_for_the_library_gets_a_hint() -> None:
    (fault,) = faults({"client": "confluent-kafka"})
    assert (fault.where, fault.reason) == ("orders.client", "must be a table")
    assert fault.hint.startswith('Choose the client with library, such as library = "confluent-kafka"')


def test_an_unknown_setting_gets_a_suggestion() -> None:
    assert faults({"client": {"linger.mss": 5}})[0].hint == "Did you mean 'linger.ms'?"
    assert faults({"linger_ms": 5})[0].hint == 'Give "linger.ms" in the table client of the sink.'


def test_both_clients_know_the_settings() -> None:
    values: dict[str, Any] = {
        "client.dns.lookup": "use_all_dns_ips",
        "broker.address.family": "v4",
        "compression.type": "lz4",
        "socket.keepalive.enable": True,
        "socket.nagle.disable": True,
        "connections.max.idle.ms": 60_000,
        "socket.connection.setup.timeout.ms": 2000,
    }
    names = {field.encode_name for field in msgspec.structs.fields(ClientSettings)}
    others = {
        name for name in names if not name.startswith(("sasl.", "ssl.", "security.")) and name not in PYTHON_NAMES
    }
    assert others == {"compression.type", *CONFLUENT_ONLY}
    quiet = logging.getLogger(__name__)
    quiet.setLevel(logging.CRITICAL)
    for name in {*PYTHON_NAMES, *others}:
        setting = {name: values.get(name, 5)}
        Producer({**FIXED, **setting, **reconnect_waits(setting)}, logger=quiet)
    of_connections = {argument for name, argument in PYTHON_NAMES.items() if name not in OF_PRODUCERS}
    assert of_connections <= KafkaProducer.DEFAULT_CONFIG.keys() & KafkaConsumer.DEFAULT_CONFIG.keys()
    assert of_connections <= KafkaAdminClient.DEFAULT_CONFIG.keys()
    assert set(PYTHON_NAMES.values()) <= KafkaProducer.DEFAULT_CONFIG.keys()


def test_numbers_have_the_bounds_of_the_client() -> None:
    quiet = logging.getLogger(__name__)
    quiet.setLevel(logging.CRITICAL)
    bounds = {
        field.encode_name: meta
        for field in msgspec.structs.fields(ClientSettings)
        for kind in get_args(field.type)
        for meta in getattr(kind, "__metadata__", ())
    }
    assert len(bounds) == 17
    for name, meta in bounds.items():
        for sound in {meta.ge, meta.le}:
            waits = reconnect_waits({name: sound})
            Producer({"message.timeout.ms": 2**31 - 1, name: sound, **waits}, logger=quiet)
        for wrong in (meta.ge - 1, meta.le + 1, 2**32 + meta.ge):
            (fault,) = faults({"client": {name: wrong}})
            assert (fault.where, fault.hint) == (f"orders.client.{name}", "Give such a number.")
        if name != "connections.max.idle.ms":  # its lower bound is the sink's own
            with pytest.raises(KafkaException):
                Producer({name: meta.ge - 1}, logger=quiet)
        if meta.le < 2**31 - 1:
            with pytest.raises(KafkaException):
                Producer({name: meta.le + 1}, logger=quiet)


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ({}, {"reconnect.backoff.max.ms": 2000}),
        ({"reconnect.backoff.ms": 5000}, {"reconnect.backoff.ms": 5000, "reconnect.backoff.max.ms": 5000}),
        ({"reconnect.backoff.max.ms": 50}, {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 50}),
        ({"reconnect.backoff.max.ms": 9000}, {"reconnect.backoff.max.ms": 9000}),
    ],
)
def test_the_waits_before_connecting_again_fit_together(given: dict[str, int], waits: dict[str, int]) -> None:
    connection = connection_of("orders", of(client=given))
    assert reconnect_waits(connection.settings) == waits
    arguments = arguments_of(connection)
    assert {name: arguments[PYTHON_NAMES[name]] for name in waits} == waits
    (fault,) = faults({"client": {"reconnect.backoff.ms": 9, "reconnect.backoff.max.ms": 8}})
    assert (fault.where, fault.hint) == ("orders.client.reconnect.backoff.max.ms", "Give at least 9, or leave it out.")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_setting_that_only_an_unusable_library_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """confluent-kafka is not there, or its library has not the functions that are called."""
    if is_there:
        monkeypatch.setattr(librdkafka, "cimpl", math)
        librdkafka.library.cache_clear()
    else:
        monkeypatch.setitem(sys.modules, "tailer_sinks.kafka.clients.confluent_producer", None)
    assert producer_factory("orders", of()) is PythonProducer
    with pytest.raises(ConfigError, match=r"orders\.library: confluent-kafka cannot be loaded"):
        producer_factory("orders", of(library="confluent-kafka"))
    with pytest.raises(ConfigError, match=r"orders\.client\.batch\.num\.messages: .* cannot be loaded"):
        producer_factory("orders", of(client={"batch.num.messages": 9}))


def test_the_client_takes_the_largest_messages() -> None:
    settings = settings_of(of(max_record_bytes=999_983_616))
    assert settings.request_bytes == 10**9
    assert faults({"max_record_bytes": 999_983_617})[0].hint == "Give a number from 1024 to 999983616."
    Producer({"message.max.bytes": settings.request_bytes})


def test_messages_time_out_before_their_transaction() -> None:
    for timeout_s in (1, 10, 60, 900):
        settings = settings_of(of(transaction_timeout_s=timeout_s))
        assert settings.delivery_timeout_ms < settings.transaction_timeout_ms == timeout_s * 1000


def test_the_sink_asks_for_its_key_and_for_small_transactions() -> None:
    sink = KafkaSink.configure("orders", {**SERVERS, "key": ["id"], "boundary": "version"})
    assert sink.demands.key == ("id",)
    assert sink.demands.max_rows == 50_000
    assert not sink.splits_versions
    assert sink.splits_snapshots
    assert KafkaSink.configure("orders", SERVERS).splits_versions

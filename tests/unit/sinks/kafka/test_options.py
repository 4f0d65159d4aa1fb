"""The options of the `kafka` sink: refusals before any I/O, and that secrets are not shown."""

from pathlib import Path
from typing import Any

import pytest

from sinks.kafka.clients.port import OAuth, Sasl, Tls
from sinks.kafka.options import Options, connection_of, read, settings_of
from sinks.kafka.sink import KafkaSink
from tailer.errors import ConfigError, SinkRejected

SERVERS = {"bootstrap_servers": "one:9092, two:9092"}
SASL = {"sasl_mechanism": "PLAIN", "sasl_username": "ada", "sasl_password": "hush"}


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


@pytest.mark.parametrize(
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
        ("transaction_timeout_s", {"transaction_timeout_s": 901}),
        ("tls_ca_file", {"tls_ca_file": "ca.pem"}),
        ("tls_certificate_file", {"tls": True, "tls_certificate_file": "mine.pem"}),
        ("sasl_password_file", {**SASL, "sasl_password_file": "secret"}),
        ("sasl_username", {"sasl_mechanism": "PLAIN", "sasl_password": "hush"}),
        ("sasl_password", {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "ada"}),
        ("sasl_password", {"sasl_password": "hush"}),
        ("oauth_client_secret", {**SASL, "oauth_client_secret": "hush"}),
        ("oauth_token_endpoint", {"sasl_mechanism": "OAUTHBEARER", "oauth_client_id": "a", "oauth_client_secret": "b"}),
        ("registry_url", {"encoding": "avro", "registry_url": "http://ada:hush@one:8081"}),
        ("registry_url", {"encoding": "avro", "registry_url": "one:8081"}),
        ("registry_username", {"encoding": "avro", "registry_url": "http://one:8081", "registry_username": "ada"}),
        ("registry_tls_ca_file", {"registry_tls_ca_file": "ca.pem"}),
        ("linger_ms", {"linger_ms": 5}),
        ("boundary", {"boundary": "row"}),
    ],
)
def test_what_cannot_be_is_refused_by_name(option: str, given: dict[str, Any]) -> None:
    found = faults(given)
    assert f"orders.{option}" in [fault.where for fault in found]
    assert all(fault.hint for fault in found)
    assert "hush" not in "".join(f"{fault}{fault.hint}" for fault in found)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"boundary": "row", "partitions": 0, "linger_ms": 5}, ["linger_ms", "boundary", "partitions"]),
        ({"partitions": 0, "transaction_rows": 0, "topic": "a/b"}, ["topic", "partitions", "transaction_rows"]),
        ({"tls_ca_file": "a", "tls_key_password": "hush"}, ["tls_ca_file", "tls_key_password"]),
        ({"sasl_mechanism": "PLAIN"}, ["sasl_username", "sasl_password"]),
        # A fault that only follows from another one is not reported.
        ({"key": "id", "tombstones": True}, ["key"]),
        ({"large_records": "dead_letter", "dead_letter_topic": 3}, ["dead_letter_topic"]),
        ({"bootstrap_server": "one:9092", "bootstrap_servers": 3}, ["bootstrap_server", "bootstrap_servers"]),
        ({"encoding": "avro", "registry_url": "http://[one:8081"}, ["registry_url"]),
    ],
)
def test_all_that_is_wrong_is_said_at_once(given: dict[str, Any], expected: list[str]) -> None:
    assert [fault.where.removeprefix("orders.") for fault in faults(given)] == expected


@pytest.mark.parametrize(
    ("given", "missing", "option", "extra"),
    [
        ({"encoding": "avro", "registry_url": "http://one:8081"}, "fastavro", "encoding", "lake-tailer[avro]"),
        ({"encoding": "avro", "registry_url": "http://one:8081"}, "httpx2", "encoding", "lake-tailer[avro]"),
        ({"client": "confluent-kafka"}, "confluent_kafka", "client", "lake-tailer[kafka-fast]"),
    ],
)
def test_packages_that_are_not_installed_are_named(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], missing: str, option: str, extra: str
) -> None:
    assert faults(given) == []
    monkeypatch.setattr("sinks.kafka.options.find_spec", lambda name: None if name == missing else object())
    (fault,) = faults(given)
    assert (fault.where, extra in fault.hint) == (f"orders.{option}", True)
    assert faults({}) == []


def test_secrets_come_from_files_and_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    options = of(sasl_mechanism="SCRAM-SHA-512", sasl_username="ada", sasl_password_file=str(tmp_path / "secret"))
    connection = connection_of("orders", options)
    assert connection.sasl == Sasl("SCRAM-SHA-512", "ada", "hush")
    assert "hush" not in repr(connection)
    assert "hush" not in repr(of(**SASL))
    missing = of(sasl_mechanism="PLAIN", sasl_username="ada", sasl_password_file=str(tmp_path / "none"))
    with pytest.raises(SinkRejected, match="cannot be read"):
        connection_of("orders", missing)


def test_a_connection_has_what_was_given() -> None:
    given = {"tls_certificate_file": "c.pem", "tls_key_file": "k.pem", "tls_key_password": "hush"}
    connection = connection_of("orders", of(tls=True, tls_ca_file="ca.pem", **given))
    assert connection.tls == Tls("ca.pem", "c.pem", "k.pem", "hush")
    oauth = {"oauth_token_endpoint": "http://127.0.0.1:1/t", "oauth_client_id": "a", "oauth_client_secret": "b"}
    connection = connection_of("orders", of(sasl_mechanism="OAUTHBEARER", **oauth, oauth_scope="kafka"))
    assert connection.sasl == Sasl("OAUTHBEARER", oauth=OAuth("http://127.0.0.1:1/t", "a", "b", "kafka"))
    assert connection_of("orders", of()).tls is None


def test_what_is_sent_is_given_up_before_its_transaction() -> None:
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

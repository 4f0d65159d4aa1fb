"""Every authentication to a broker, with both drivers and for reading; and the errors of failed ones."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from tailer.errors import SinkAccessRefused, SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.kafka.clients import confluent_producer, python_connection
from tailer_sinks.kafka.clients.confluent_producer import ConfluentProducer
from tailer_sinks.kafka.clients.port import Connection, OAuth, ProducerFactory, ProducerSettings, Sasl, Tls
from tailer_sinks.kafka.clients.python_cluster import Cluster
from tailer_sinks.kafka.clients.python_producer import PythonProducer
from tailer_sinks.kafka.clients.security import Tokens
from tailer_sinks.kafka.sink import KafkaSink
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, deliver, up_to
from tests.support.kafka.drivers import SINK, await_values, every_driver, messages_of
from tests.support.kafka.secure import PASSWORD, USER, SecureKafka
from tests.support.kafka.topics import admin, create_topic, read_topic, unique_name
from tests.support.servers.oauth_tokens import CLIENT_ID, CLIENT_SECRET
from tests.support.waiting import until

SECRETS: Final = (PASSWORD, CLIENT_SECRET, "wrong-password", "wrong-secret")


def plain_tls(kafka: SecureKafka) -> Tls:
    """TLS that trusts the cluster's authority."""
    return Tls(str(kafka.certificates.ca_file))


def mutual_tls(kafka: SecureKafka) -> Tls:
    """TLS with a client certificate."""
    certificates = kafka.certificates
    return Tls(str(certificates.ca_file), str(certificates.certificate_file), str(certificates.key_file))


def oauth(kafka: SecureKafka, secret: str = CLIENT_SECRET) -> Sasl:
    """OAUTHBEARER."""
    return Sasl("OAUTHBEARER", oauth=OAuth(kafka.tokens.uri, CLIENT_ID, secret, "topics"))


def at(kafka: SecureKafka, listener: str, tls: Tls | None = None, sasl: Sasl | None = None) -> Connection:
    """Return a connection by a listener."""
    return Connection(SINK, kafka.cluster.bootstrap(listener).split(","), tls, sasl)


WAYS: Final[dict[str, Callable[[SecureKafka], Connection]]] = {
    "PLAIN": lambda kafka: at(kafka, "SASL", None, Sasl("PLAIN", USER, PASSWORD)),
    "SCRAM-SHA-256": lambda kafka: at(kafka, "SASL", None, Sasl("SCRAM-SHA-256", USER, PASSWORD)),
    "SCRAM-SHA-512 and TLS": lambda kafka: at(
        kafka, "SASL_TLS", plain_tls(kafka), Sasl("SCRAM-SHA-512", USER, PASSWORD)
    ),
    "OAUTHBEARER": lambda kafka: at(kafka, "SASL", None, oauth(kafka)),
    "OAUTHBEARER and TLS": lambda kafka: at(kafka, "SASL_TLS", plain_tls(kafka), oauth(kafka)),
    "TLS": lambda kafka: at(kafka, "TLS", plain_tls(kafka)),
    "a certificate": lambda kafka: at(kafka, "MUTUAL_TLS", mutual_tls(kafka)),
}

every_way = pytest.mark.parametrize("way", [pytest.param(way, id=name) for name, way in WAYS.items()])


def assert_refused(driver: ProducerFactory, connection: Connection, kind: type[SinkError]) -> SinkError:
    """Assert that neither producing nor reading begins, and that no secret is printed."""
    with pytest.raises(kind) as caught:
        driver(connection, ProducerSettings(), unique_name())
    with pytest.raises(kind) as also:
        Cluster(connection).describe([])
    for error in (caught.value, also.value):
        assert error.sink == SINK
        assert not any(secret in f"{error} {error.hint} {error!r}" for secret in SECRETS)
    return caught.value


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of connections."""
    monkeypatch.setattr(python_connection, "_CONNECT_MS", 3000)
    monkeypatch.setattr(confluent_producer, "_INIT_S", 3.0)


@every_driver
@every_way
@pytest.mark.sampled(3)
def test_a_way_in(
    way: Callable[[SecureKafka], Connection],
    driver: ProducerFactory,
    secure_kafka: SecureKafka,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A transaction is committed and read; the clients do not log secrets, even with debug logging."""
    for logger in (None, "kafka", "tailer_sinks.kafka.clients.confluent_producer.librdkafka"):
        caplog.set_level(logging.DEBUG, logger)
    topic = create_topic(secure_kafka.cluster.bootstrap_servers)
    connection = way(secure_kafka)
    producer = driver(connection, ProducerSettings(), unique_name())
    try:
        producer.begin()
        producer.send(topic, messages_of([b"value"], [b"key"]))
        producer.commit()
    finally:
        producer.close()
    if driver is PythonProducer:
        cluster = Cluster(connection)
        try:
            await_values(cluster, topic, {b"key": b"value"})
        finally:
            cluster.close()
    assert not any(secret in caplog.text or secret in repr(connection) for secret in SECRETS)


@every_driver
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password(driver: ProducerFactory, secure_kafka: SecureKafka, mechanism: Any) -> None:
    """The error names the options."""
    connection = at(secure_kafka, "SASL", None, Sasl(mechanism, USER, "wrong-password"))
    refused = assert_refused(driver, connection, SinkAccessRefused)
    assert "refuse the login" in str(refused)
    assert '"sasl.username", "sasl.password"' in refused.hint


@pytest.mark.usefixtures("impatient")
@every_driver
def test_an_authority_that_is_not_known(driver: ProducerFactory, secure_kafka: SecureKafka) -> None:
    """The broker's certificate is signed by another authority."""
    assert "certificate" in str(assert_refused(driver, at(secure_kafka, "TLS", Tls()), SinkRejected))


@every_driver
def test_files_that_cannot_be_used(driver: ProducerFactory, secure_kafka: SecureKafka) -> None:
    """Missing files, or files without certificates."""
    authority = str(secure_kafka.certificates.ca_file)
    for tls in (Tls("/missing.pem"), Tls(authority, authority, "/missing.key"), Tls(authority, authority, authority)):
        assert_refused(driver, at(secure_kafka, "MUTUAL_TLS", tls), SinkRejected)


@pytest.mark.usefixtures("impatient")
@every_driver
def test_no_certificate_where_one_is_asked_for(driver: ProducerFactory, secure_kafka: SecureKafka) -> None:
    """The broker closes the connection."""
    with pytest.raises(SinkError):
        driver(at(secure_kafka, "MUTUAL_TLS", plain_tls(secure_kafka)), ProducerSettings(), unique_name())


@every_driver
def test_no_token(driver: ProducerFactory, secure_kafka: SecureKafka) -> None:
    """A wrong secret needs an operator; a server that is down, or answers nonsense, is retried."""
    wrong = at(secure_kafka, "SASL", None, oauth(secure_kafka, "wrong-secret"))
    assert "sasl.oauthbearer.client.secret" in assert_refused(driver, wrong, SinkAccessRefused).hint
    connection = at(secure_kafka, "SASL", None, oauth(secure_kafka))
    try:
        for broken, kind in (((503, "later"), SinkUnavailable), ((200, "<html>"), SinkRejected)):
            secure_kafka.tokens.broken = broken
            assert_refused(driver, connection, kind)
    finally:
        secure_kafka.tokens.broken = None
    assert connection.sasl is not None
    assert connection.sasl.oauth is not None
    nobody = replace(connection.sasl, oauth=replace(connection.sasl.oauth, token_endpoint="http://127.0.0.1:1/token"))
    assert_refused(driver, replace(connection, sasl=nobody), SinkUnavailable)


def test_tokens_are_kept_while_they_are_good(secure_kafka: SecureKafka) -> None:
    """One request for many connections; the next one before the token expires."""
    sasl = oauth(secure_kafka)
    assert sasl.oauth is not None
    tokens = Tokens(SINK, sasl.oauth, None)
    granted = len(secure_kafka.tokens.granted)
    first = tokens.token()
    assert tokens.token() == first
    assert secure_kafka.tokens.granted[granted:] == ["topics"]
    short = Tokens(SINK, sasl.oauth, plain_tls(secure_kafka))
    lifetime, secure_kafka.tokens.lifetime_s = secure_kafka.tokens.lifetime_s, 0
    try:
        short.token()
        short.token()
    finally:
        secure_kafka.tokens.lifetime_s = lifetime
    assert len(secure_kafka.tokens.granted) == granted + 3


def test_a_new_token_is_asked_for_between_transactions(secure_kafka: SecureKafka) -> None:
    """By a thread of librdkafka: nobody calls the producer meanwhile."""
    granted, lifetime = secure_kafka.tokens.granted, secure_kafka.tokens.lifetime_s
    topic, secure_kafka.tokens.lifetime_s = create_topic(secure_kafka.cluster.bootstrap_servers), 2
    try:
        producer = ConfluentProducer(at(secure_kafka, "SASL", None, oauth(secure_kafka)), ProducerSettings(), topic)
        known = len(granted)
        until(lambda: len(granted) > known + 1)
        producer.begin()
        send_and_commit(producer.send, producer.commit, topic)
        producer.close()
    finally:
        secure_kafka.tokens.lifetime_s = lifetime


@every_driver
@pytest.mark.sampled(3)
def test_missing_permissions_are_named(driver: ProducerFactory, secure_kafka: SecureKafka) -> None:
    """Another user's topic or transactional id: the error names the missing permission."""
    servers = secure_kafka.cluster.bootstrap_servers
    topic, shard = create_topic(servers), unique_name()
    theirs = [
        ACL("User:grace", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, ResourcePattern(kind, name))
        for kind, name in ((ResourceType.TOPIC, topic), (ResourceType.TRANSACTIONAL_ID, shard))
    ]
    with admin(servers) as client:
        client.create_acls(theirs)
    connection = at(secure_kafka, "SASL", None, Sasl("PLAIN", USER, PASSWORD))
    with pytest.raises(SinkRejected, match="not authorised for the transactional id"):
        driver(connection, ProducerSettings(), shard)
    producer = driver(connection, ProducerSettings(), unique_name())
    try:
        producer.begin()
        with pytest.raises(SinkRejected, match="not authorised") as caught:
            send_and_commit(producer.send, producer.commit, topic)
    finally:
        producer.close()
    assert topic in caught.value.reason
    with pytest.raises(SinkRejected, match=topic):
        Cluster(connection).read(topic)


def test_a_group_for_heartbeats_that_may_not_be_read_is_named(secure_kafka: SecureKafka) -> None:
    servers = secure_kafka.cluster.bootstrap_servers
    topic, group = create_topic(servers), unique_name("lake-tailer-heartbeat")
    theirs = ResourcePattern(ResourceType.GROUP, group)
    with admin(servers) as client:
        client.create_acls([ACL("User:grace", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, theirs)])
    cluster = Cluster(at(secure_kafka, "SASL", None, Sasl("PLAIN", USER, PASSWORD)))
    for ask in (lambda: cluster.note(group, topic, "1"), lambda: cluster.noted(group, topic)):
        with pytest.raises(SinkRejected, match="not authorised for the group") as caught:
            ask()
        assert "without --standby" in caught.value.hint
    mine = unique_name("lake-tailer-heartbeat")
    assert cluster.noted(mine, topic) is None
    assert cluster.note(mine, topic, "1")
    assert not cluster.note(mine, unique_name("no-topic"), "1")
    assert cluster.noted(mine, topic) == "1"
    cluster.close()


def send_and_commit(send: Callable[..., None], commit: Callable[[], None], topic: str) -> None:
    """Send a message that is refused at once, or at the commit."""
    send(topic, messages_of([b"1"]))
    commit()


@every_driver
def test_the_sink_s_own_options(driver: ProducerFactory, secure_kafka: SecureKafka, tmp_path: Path) -> None:
    """Secrets from files; errors about them do not contain them."""
    client = "kafka-python" if driver is PythonProducer else "confluent-kafka"
    for name, secret in (("password", PASSWORD), ("client-secret", CLIENT_SECRET), ("wrong", "wrong-password")):
        (tmp_path / name).write_text(f"{secret}\n")
    certificates = secure_kafka.certificates
    ca_file = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.ca_file)}
    mine = {
        "ssl.certificate.location": str(certificates.certificate_file),
        "ssl.key.location": str(certificates.key_file),
    }
    user = {**ca_file, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": USER}
    tokens = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": secure_kafka.tokens.uri,
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.scope": "topics",
    }
    tuned = {"client.id": "tuned", "linger.ms": 5, "batch.size": 100_000, "metadata.max.age.ms": 60_000}
    token_secret = {"sasl.oauthbearer.client.secret": {"file": str(tmp_path / "client-secret")}}
    ways: list[tuple[str, dict[str, Any]]] = [
        ("SASL_TLS", {"client": {**user, "sasl.password": {"file": str(tmp_path / "password")}}}),
        ("SASL", {"client": {**tokens, **token_secret}}),
        ("MUTUAL_TLS", {"client": {**ca_file, **mine, **tuned}}),
        ("SASL_TLS", {"client": {**user, "sasl.password": PASSWORD, "ssl.endpoint.identification.algorithm": "none"}}),
    ]
    topic, progress_topic = unique_name("orders"), unique_name("progress")

    def sink(listener: str, options: dict[str, Any]) -> KafkaSink:
        servers = secure_kafka.cluster.bootstrap(listener)
        topics = {"topic": topic, "progress_topic": progress_topic, "create_topics": True}
        return KafkaSink.configure(SINK, {"bootstrap_servers": servers, "library": client, **topics, **options})

    async def deliver_by_all() -> None:
        for version, (listener, options) in enumerate(ways, 1):
            by_it = sink(listener, options)
            await deliver(by_it, numbered(version))
            assert await by_it.progress(APP) == up_to(APP, version)
            await by_it.aclose()
        refused = sink("SASL_TLS", {"client": {**user, "sasl.password": {"file": str(tmp_path / "wrong")}}})
        with pytest.raises(SinkAccessRefused) as caught:
            await refused.progress(APP)
        assert "wrong-password" not in f"{caught.value} {caught.value.hint} {caught.value!r}"
        (tmp_path / "wrong").write_text(PASSWORD)  # it is read again for the next login
        assert await refused.progress(APP) == up_to(APP, len(ways))
        await refused.aclose()

    anyio.run(deliver_by_all)
    records = read_topic(secure_kafka.cluster.bootstrap_servers, topic)
    assert [json.loads(record.value or b"")["_commit_version"] for record in records] == [
        version for version in range(1, len(ways) + 1) for _ in range(3)
    ]

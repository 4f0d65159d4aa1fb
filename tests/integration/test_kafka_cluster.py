"""The test cluster does what tests of the sink rely on: it runs, dies, freezes and loses answers.

On every landing: one node that dies, freezes and loses answers, in this module.
"""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.jars.where import MissingJarsError
from tests.support.kafka.cluster import KafkaCluster, KafkaDownError
from tests.support.kafka.metadata import ask_metadata
from tests.support.kafka.proxy import END_TXN, PRODUCE, Proxy
from tests.support.kafka.secure import PASSWORD, USER, SecureKafka
from tests.support.kafka.topics import Follower, create_topic, end_offsets, read_topic, unique_name

pytestmark = pytest.mark.kafka


@contextmanager
def producing(bootstrap_servers: str, **settings: Any) -> Iterator[KafkaProducer]:
    """A producer that waits for every replica, and not at all when it is closed."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers.split(","), acks="all", **settings)
    try:
        yield producer
    finally:
        producer.close(timeout=0)


def values(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    """Return the values that a reader of committed records sees."""
    return [record.value for record in read_topic(bootstrap_servers, topic)]


def test_records_come_back_as_they_were_sent(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=2, configs={"cleanup.policy": "compact"})
    with producing(kafka.bootstrap_servers) as producer:
        producer.send(topic, b"v", key=b"k", partition=1, timestamp_ms=7, headers=[("h", b"x")]).get(60)
        producer.send(topic, None, key=b"k", partition=1).get(60)
    first, second = read_topic(kafka.bootstrap_servers, topic)
    assert (first.partition, first.offset, first.timestamp) == (1, 0, 7)
    assert (first.key, first.value, first.headers) == (b"k", b"v", (("h", b"x"),))
    assert (second.offset, second.value) == (1, None)


def test_only_what_is_committed_is_read(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    with (
        producing(kafka.bootstrap_servers, transactional_id=unique_name("transaction")) as producer,
        Follower(kafka.bootstrap_servers, [topic]) as follower,
    ):
        producer.init_transactions()
        for value, end in ((b"gone", producer.abort_transaction), (b"there", producer.commit_transaction)):
            producer.begin_transaction()
            producer.send(topic, value).get(60)
            end()
        assert [record.value for record in follower.finish()] == [b"there"]
    assert [record.value for record in read_topic(kafka.bootstrap_servers, topic, "read_uncommitted")] == [
        b"gone",
        b"there",
    ]


@pytest.mark.parametrize("hard", [True, False], ids=["hard", "clean"])
@pytest.mark.sampled(3)
def test_a_bounced_node_keeps_what_it_had(mortal_kafka: KafkaCluster, hard: bool) -> None:
    topic = create_topic(mortal_kafka.bootstrap_servers)
    with (
        producing(mortal_kafka.bootstrap_servers) as producer,
        Follower(mortal_kafka.bootstrap_servers, [topic]) as follower,
    ):
        producer.send(topic, b"before").get(60)
        follower.await_records(1)
        before = mortal_kafka.pid()
        mortal_kafka.bounce(hard=hard)
        assert mortal_kafka.pid() != before
        producer.send(topic, b"after").get(60)
        assert [record.value for record in follower.finish()] == [b"before", b"after"]


def test_a_frozen_node_answers_when_it_is_thawed(mortal_kafka: KafkaCluster) -> None:
    topic = create_topic(mortal_kafka.bootstrap_servers)
    with producing(mortal_kafka.bootstrap_servers) as producer:
        producer.send(topic, b"first").get(60)
        mortal_kafka.freeze()
        sent = producer.send(topic, b"second")
        with pytest.raises(TimeoutError):
            ask_metadata(mortal_kafka.port("INTERNAL"), 0.5)
        assert not sent.is_done
        mortal_kafka.thaw()
        sent.get(60)
    assert values(mortal_kafka.bootstrap_servers, topic) == [b"first", b"second"]


def test_nothing_passes_a_link_that_is_cut(kafka: KafkaCluster, kafka_link: Proxy) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    with producing(kafka_link.address, delivery_timeout_ms=500, request_timeout_ms=400, linger_ms=0) as producer:
        producer.send(topic, b"before").get(60)
        kafka_link.cut()
        with pytest.raises(KafkaError):
            producer.send(topic, b"lost").get(60)
    kafka_link.mend()
    with producing(kafka_link.address) as producer:
        producer.send(topic, b"after").get(60)
    assert values(kafka.bootstrap_servers, topic) == [b"before", b"after"]


def test_a_held_link_goes_on_where_it_was(kafka: KafkaCluster, kafka_link: Proxy) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    with producing(kafka_link.address) as producer:
        producer.send(topic, b"before").get(60)
        kafka_link.hold()
        sent = producer.send(topic, b"after")
        with pytest.raises((TimeoutError, KafkaTimeoutError)):
            sent.get(0.5)
        assert values(kafka.bootstrap_servers, topic) == [b"before"]
        kafka_link.mend()
        sent.get(60)
    assert values(kafka.bootstrap_servers, topic) == [b"before", b"after"]


def test_an_answer_is_lost_and_the_record_is_there(kafka: KafkaCluster, kafka_link: Proxy) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    with producing(kafka_link.address, retries=0, enable_idempotence=False) as producer:
        producer.send(topic, b"before").get(60)
        kafka_link.drop_responses(PRODUCE)
        sent = producer.send(topic, b"after")
        kafka_link.await_lost()
        assert not sent.is_done
        kafka_link.mend()
        with pytest.raises(KafkaError):
            sent.get(60)
    assert values(kafka.bootstrap_servers, topic) == [b"before", b"after"]


def test_the_answer_to_a_commit_is_lost_and_nothing_else(kafka: KafkaCluster, kafka_link: Proxy) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    with producing(kafka_link.address, transactional_id=unique_name("transaction")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        kafka_link.drop_responses(END_TXN)
        producer.send(topic, b"row").get(60)
        commit = threading.Thread(target=producer.commit_transaction)
        commit.start()
        kafka_link.await_lost()
        assert values(kafka.bootstrap_servers, topic) == [b"row"]
        kafka_link.mend()
        commit.join()
    assert list(end_offsets(kafka.bootstrap_servers, [topic]).values()) == [2]


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, secure: SecureKafka) -> None:
        self._secure = secure

    def token(self) -> str:
        return self._secure.tokens.token()


@pytest.mark.parametrize("listener", ["SASL", "SASL_TLS"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.sampled(3)
def test_clients_that_authenticate_are_accepted(secure_kafka: SecureKafka, listener: str, mechanism: str) -> None:
    cluster = secure_kafka.cluster
    topic = create_topic(cluster.bootstrap_servers)
    who: dict[str, Any] = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    if mechanism == "OAUTHBEARER":
        who = {"sasl_oauth_token_provider": _Tokens(secure_kafka)}
    with producing(
        cluster.bootstrap(listener),
        security_protocol="SASL_SSL" if listener == "SASL_TLS" else "SASL_PLAINTEXT",
        ssl_cafile=str(secure_kafka.certificates.ca_file),
        sasl_mechanism=mechanism,
        **who,
    ) as producer:
        producer.send(topic, b"in").get(60)
    assert values(cluster.bootstrap_servers, topic) == [b"in"]


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL_TLS"])
@pytest.mark.sampled(3)
def test_clients_with_a_certificate_are_accepted(secure_kafka: SecureKafka, listener: str) -> None:
    cluster, certificates = secure_kafka.cluster, secure_kafka.certificates
    topic = create_topic(cluster.bootstrap_servers)
    shown = {"ssl_certfile": str(certificates.certificate_file), "ssl_keyfile": str(certificates.key_file)}
    with producing(
        cluster.bootstrap(listener),
        security_protocol="SSL",
        ssl_cafile=str(certificates.ca_file),
        **(shown if listener == "MUTUAL_TLS" else {}),
    ) as producer:
        producer.send(topic, b"in").get(60)
    assert values(cluster.bootstrap_servers, topic) == [b"in"]


@pytest.mark.nightly
def test_two_of_three_nodes_go_on(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path / "kafka", 3) as cluster:
        topic = create_topic(cluster.bootstrap_servers, partitions=3)
        with producing(cluster.bootstrap_servers) as producer:
            cluster.stop(2, hard=True)
            for partition in range(3):
                producer.send(topic, b"without", partition=partition).get(120)
        cluster.start(2)
        cluster.await_in_sync()
        cluster.stop(1, hard=True)
        assert values(cluster.bootstrap_servers, topic) == [b"without"] * 3


@pytest.mark.nightly
def test_a_node_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(KafkaDownError, match=r"(?s)node 1.*num\.network\.threads"):
        KafkaCluster(tmp_path / "kafka", properties={"num.network.threads": "none"})


def test_missing_jars_are_fetched_by_make_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TAILER_KAFKA_JARS", str(tmp_path / "jars"))
    with pytest.raises(MissingJarsError, match="`make setup`"):
        KafkaCluster(tmp_path / "kafka")


@pytest.mark.nightly
def test_no_node_outlives_tests_that_are_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.support.kafka.cluster import KafkaCluster\n"
        "cluster = KafkaCluster(Path(sys.argv[1])); print(cluster.pid(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "kafka")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        node = int(tests.stdout.readline())
        watched = os.pidfd_open(node)
        tests.kill()
    # A process has ended when its descriptor can be read from.
    assert select.select([watched], [], [], 120)[0]
    os.close(watched)

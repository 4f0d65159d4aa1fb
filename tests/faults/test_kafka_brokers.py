"""Brokers that are killed, shut down or unreachable while the daemon delivers: the five figures are 0.

Each fault comes while both clients deliver, and ends before the next one. Concurrent readers check the result.

On every landing: one broker that is killed, in this module.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import CLIENTS, Daemon, Lane, Lanes
from tests.support.kafka.proxy import END_TXN, PRODUCE, Proxy

pytestmark = pytest.mark.kafka

SHORT: dict[str, Any] = {"transaction_timeout_s": 5.0}
LOST_ANSWERS = [(END_TXN,), (PRODUCE,), ()]


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A history in which every fourth version takes several transactions."""
    return History(tmp_path / "table", seed=4, length=160, large=1_500, large_every=4)


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers; topics have three replicas, and two must have a record."""
    with KafkaCluster(tmp_path_factory.mktemp("three-brokers"), 3) as cluster:
        yield cluster


def finish(lanes: Lanes, daemon: Daemon) -> None:
    """Deliver some more versions, end without an error, and check all figures."""
    lanes.history.publish(4)
    lanes.await_caught_up(daemon)
    assert daemon.terminate() == 0, daemon.said
    lanes.check()


def test_broker_killed_and_shut_down(tmp_path: Path, history: History, mortal_kafka: KafkaCluster) -> None:
    pipelines = [Lane(client) for client in CLIENTS]
    with (
        Lanes(tmp_path, history, mortal_kafka.bootstrap_servers, pipelines, **SHORT) as lanes,
        Daemon(lanes.config) as daemon,
    ):
        daemon.await_running()
        for hard in (True, False):
            lanes.publish_until(daemon, lambda: bool(lanes.open()))
            mortal_kafka.stop(hard=hard)
            history.publish(2)
            mortal_kafka.start()
            lanes.await_more(daemon)
        finish(lanes, daemon)


def test_link_cut_held_and_losing_answers(
    tmp_path: Path, history: History, kafka: KafkaCluster, kafka_link: Proxy
) -> None:
    pipelines = [Lane(client) for client in CLIENTS]
    with (
        Lanes(tmp_path, history, kafka.bootstrap_servers, pipelines, kafka_link.address, **SHORT) as lanes,
        Daemon(lanes.config) as daemon,
    ):
        daemon.await_running()
        for kinds in LOST_ANSWERS:
            lanes.publish_until(daemon, lambda: bool(lanes.open()))
            kafka_link.drop_responses(*kinds)
            history.publish(2)
            kafka_link.await_lost(2)
            kafka_link.mend()
            lanes.await_more(daemon)
        for trouble in (kafka_link.cut, kafka_link.hold):
            lanes.publish_until(daemon, lambda: bool(lanes.open()))
            trouble()
            history.publish(2)
            daemon.wait_for(lambda: not lanes.open())  # the broker aborts open transactions
            kafka_link.mend()
            lanes.await_more(daemon)
        finish(lanes, daemon)


@pytest.mark.nightly
def test_brokers_of_three_killed_in_turn(tmp_path: Path, history: History, three_brokers: KafkaCluster) -> None:
    pipelines = [Lane(client) for client in CLIENTS]
    with (
        Lanes(tmp_path, history, three_brokers.bootstrap_servers, pipelines, **SHORT) as lanes,
        Daemon(lanes.config) as daemon,
    ):
        daemon.await_running()
        for node in three_brokers.nodes:
            lanes.publish_until(daemon, lambda: bool(lanes.open()))
            three_brokers.stop(node, hard=True)
            history.publish(2)
            lanes.await_more(daemon)  # two brokers are enough
            three_brokers.start(node)
            three_brokers.await_in_sync()
        finish(lanes, daemon)

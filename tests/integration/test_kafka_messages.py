"""Messages about broker failures: their text, and how soon they come."""

import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tailer.errors import SinkUnavailable
from tailer_sinks.kafka.sink import KafkaSink
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, deliver, up_to
from tests.support.daemon.commands import Orders
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.lanes import CLIENTS, Daemon
from tests.support.kafka.topics import admin, unique_name
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A Kafka that forgets transactional ids after a second instead of days."""
    properties = {
        "transactional.id.expiration.ms": "1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with KafkaCluster(tmp_path_factory.mktemp("forgetful"), properties=properties) as cluster:
        yield cluster


def await_forgotten(cluster: KafkaCluster, transactional_id: str) -> None:
    """Return when the broker has forgotten the id."""
    with admin(cluster.bootstrap_servers) as client:
        until(lambda: transactional_id not in str(client.list_transactions()))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_producer_that_was_idle_for_too_long(forgetful: KafkaCluster, client: str) -> None:
    """The message has neither the client's term for the consequence nor the claim that a transaction was too slow."""
    topic = unique_name("orders")
    servers = {"bootstrap_servers": forgetful.bootstrap_servers, "library": client, "create_topics": True}
    sink = KafkaSink.configure("sink", {**servers, "topic": topic, "progress_topic": f"{topic}.progress"})

    async def run() -> None:
        try:
            await deliver(sink, numbered(1))
            await anyio.to_thread.run_sync(await_forgotten, forgetful, APP)
            with pytest.raises(SinkUnavailable, match="the broker forgot this producer") as raised:
                await deliver(sink, numbered(2))
            assert "transactional.id.expiration.ms" in raised.value.reason
            assert await sink.progress(APP) == up_to(APP, 1)
            await deliver(sink, numbered(2))
            assert await sink.progress(APP) == up_to(APP, 2)
        finally:
            await sink.aclose()

    anyio.run(run)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_broker_that_cannot_be_reached_is_reported_at_once(tmp_path: Path, client: str) -> None:
    """The daemon also ends on request."""
    Orders(tmp_path / "orders").insert(1)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = tmp_path / "tailer.toml"
    config.write_text(
        '[pipelines.orders]\ntable = "orders"\n[pipelines.orders.sink]\nkind = "kafka"\n'
        f'bootstrap_servers = "{address}"\nlibrary = "{client}"\n'
    )
    with Daemon(config) as daemon:
        daemon.await_running()
        began_s = time.monotonic()
        daemon.wait_for(lambda: f"no broker can be reached ({address}: Connection refused)" in daemon.said)
        assert time.monotonic() - began_s < 5, daemon.said
        began_s = time.monotonic()
        daemon.terminate()
        assert time.monotonic() - began_s < 5, daemon.said

"""The contract of a sink, kept by `kafka` over a real broker, with each of the two clients.

On every landing: routed topics on a broker, and with kills, in `integration/test_kafka_routes.py`.
"""

import json
from typing import Any

import msgspec
import pytest
from anyio import to_thread
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import TransactionState

from tailer.events import CHANGE_TYPE, COMMIT_VERSION, Gap, SchemaChange
from tailer_sinks.kafka import route
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import Options, read
from tailer_sinks.kafka.progress import ProgressTopic
from tailer_sinks.kafka.sink import KafkaSink
from tailer_sinks.kafka.stream import Stream
from tailer_sinks.testing import SinkTests
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import admin, end_offsets, unique_name
from tests.support.waiting import until

EVENTS = (SchemaChange.kind, Gap.kind)
ENDING = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class TopicPerStream(KafkaSink):
    """A sink with a topic per stream: streams share a topic, and flat rows do not name their table."""

    def _stream(self, app_id: str) -> Stream:
        if app_id not in self._streams:
            options = self.own_options(app_id)
            self._streams[app_id] = Stream(LinkOfOne(self.name, options, self._link.instance), app_id)
        return self._streams[app_id]

    def own_options(self, app_id: str) -> Options:
        """Return the options of the link of a stream."""
        return msgspec.structs.replace(self._options, topic=topic_of(self._options.topic, app_id))

    async def aclose(self) -> None:
        await super().aclose()
        for stream in self._streams.values():
            await to_thread.run_sync(stream.link.close)


class LinkOfOne(Link):
    """The link of one of an instance's streams."""

    def __init__(self, name: str, options: Any, instance: str) -> None:
        super().__init__(name, options)
        self.instance = instance  # type: ignore[misc]


class TwoTopicsPerStream(TopicPerStream):
    """A sink that routes version 1 of each stream to a topic of its own."""

    def own_options(self, app_id: str) -> Options:
        """Return the options of the link of a stream."""
        other = topic_of(self._options.topic, app_id)
        by_version = {"topic": f"{other}.{{{COMMIT_VERSION}}}", "topics": [f"{other}.1"], "other_topic": other}
        return msgspec.structs.replace(self._options, **by_version)


def topic_of(prefix: str, app_id: str) -> str:
    return f"{prefix}-{app_id.replace('/', '-')}"


@pytest.mark.sampled(5)
class KafkaSinkTests(SinkTests):
    client = ""

    @pytest.fixture(autouse=True)
    def destination(self, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        # Each table of a pipeline has a topic of its own here, so the rows of the replaced one are elsewhere.
        monkeypatch.setattr(ProgressTopic, "predecessor", lambda _self, _app_id: None)
        self.kafka = kafka
        self.topic = unique_name("contract")

    @property
    def options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "topic": self.topic,
            "progress_topic": f"{self.topic}-progress",
            "create_topics": True,
            "library": self.client,
            "max_record_bytes": 1_000_000,
        }

    def make_sink(self) -> KafkaSink:
        return TopicPerStream("sink", read("sink", self.options))

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        return await to_thread.run_sync(self._read, topic_of(self.topic, app_id))

    def _read(self, topic: str) -> list[dict[str, Any]]:
        """Read the committed messages as a consumer that does not wait for open transactions.

        Brokers write the markers of a transaction after they have acknowledged its commit: this waits for these.
        """
        if not end_offsets(self.kafka.bootstrap_servers, [topic]):
            return []
        with admin(self.kafka.bootstrap_servers) as client:
            until(lambda: not any(client.list_transactions(state_filters=ENDING).values()))
        consumer = KafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap_servers, isolation_level="read_committed", group_id=None
        )
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            end = consumer.end_offsets([partition])[partition]
            rows = []
            while consumer.position(partition) < end:
                rows += [json.loads(record.value) for record in consumer.poll(100).get(partition, ())]
            return rows
        finally:
            consumer.close()


@pytest.mark.nightly
class TestRouted(KafkaSinkTests):
    """The rows of the contract have no column in common, so the version of rows names their topic."""

    client = "confluent-kafka"
    keeps_order = False  # between topics

    @pytest.fixture(autouse=True)
    def versions_name_topics(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(route, "_ADDED", frozenset())

    def make_sink(self) -> KafkaSink:
        return TwoTopicsPerStream("sink", read("sink", self.options))

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        """Read both topics; each has the events between rows."""
        topic = topic_of(self.topic, app_id)
        rows, others = [await to_thread.run_sync(self._read, each) for each in (topic, f"{topic}.1")]
        assert {row[COMMIT_VERSION] for row in others if row[CHANGE_TYPE] not in EVENTS} <= {1}
        events = [row for row in others if row[CHANGE_TYPE] in EVENTS and row in rows]
        return rows + [row for row in others if row not in events]


class TestWithKafkaPython(KafkaSinkTests):
    client = "kafka-python"


class TestWithConfluentKafka(KafkaSinkTests):
    client = "confluent-kafka"

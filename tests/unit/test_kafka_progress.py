"""Records of the progress topic, and topics that are fit for what they hold."""

from collections.abc import Mapping
from typing import Any

import pytest

from sinks.kafka.options import Options, read
from sinks.kafka.progress import Count, Entry, decode, encode
from sinks.kafka.topics import TopicState, check
from tailer.errors import SinkRejected
from tailer.plan import SNAPSHOT_TASKS, Position

APP = "orders/5f0c"


@pytest.mark.parametrize(
    "entry",
    [
        Entry(None, "me", "orders", 1),
        Entry(Position.end(-1), "me", "orders", 1),
        Entry(Position.end(2**53 + 1), "me", "orders", 6),
        Entry(Position(7, 3, 99), "me", "orders", 6, "json: id integer", Count(100, 2)),
        Entry(Position(7, 3, -1), "me", "orders", 6, "json: id integer", Count(100, 2)),
        Entry(Position(7, SNAPSHOT_TASKS + 3, 99), "me", "orders", 6, count=Count(100)),
        Entry(Position(7, SNAPSHOT_TASKS + 3), "me", "orders", 6, count=Count(100)),
    ],
    ids=lambda entry: str(entry.position),
)
def test_what_is_written_is_read(entry: Entry) -> None:
    assert decode("sink", "progress", {APP.encode(): encode(entry)}) == {APP: entry}


def test_a_deleted_record_is_none() -> None:
    assert decode("sink", "progress", {APP.encode(): None}) == {}


@pytest.mark.parametrize("value", [b"", b"7", b'{"version":7}', b'{"instance":1,"topic":"a","partitions":1}'])
def test_what_is_no_progress_stops(value: bytes) -> None:
    with pytest.raises(SinkRejected, match="progress topic") as raised:
        decode("sink", "progress", {b"somebody": value})
    assert "progress_topic" in raised.value.hint


class Topics:
    """Topics in memory."""

    def __init__(self, **topics: TopicState) -> None:
        self.topics = {name.replace("_", "-"): state for name, state in topics.items()}
        self.created: dict[str, tuple[int, int, dict[str, str]]] = {}

    def describe(self, topics: list[str]) -> Mapping[str, TopicState]:
        return {topic: self.topics[topic] for topic in topics if topic in self.topics}

    def create(self, topic: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> None:
        self.created[topic] = (partitions, replication_factor, dict(configs))
        self.topics[topic] = TopicState(partitions, {"max.message.bytes": "1048588", **configs})


def options(**given: Any) -> Options:
    return read("sink", {"bootstrap_servers": "one:9092", "topic": "orders", "progress_topic": "progress", **given})


DELETED = TopicState(3, {"cleanup.policy": "delete", "max.message.bytes": "1048588"})
COMPACTED = TopicState(1, {"cleanup.policy": "compact"})


def test_topics_are_created_on_request_only() -> None:
    topics = Topics()
    with pytest.raises(SinkRejected, match="there is no topic orders") as raised:
        check("sink", topics, options())
    assert "create_topics" in raised.value.hint
    assert not topics.created
    wanted = options(
        create_topics=True, partitions=6, replication_factor=3, max_record_bytes=5_000_000, end_topic="end"
    )
    assert check("sink", topics, wanted) == 6
    partitions, replicas, configs = topics.created["orders"]
    assert (partitions, replicas) == (6, 3)
    assert configs["min.insync.replicas"] == "2"
    assert int(configs["max.message.bytes"]) > 5_000_000
    assert topics.created["progress"][0] == 1
    assert topics.created["progress"][2]["cleanup.policy"] == "compact"
    assert set(topics.created) == {"orders", "progress", "end"}
    topics.created.clear()
    assert check("sink", topics, wanted) == 6
    assert not topics.created


@pytest.mark.parametrize(
    ("topics", "given", "reason"),
    [
        (Topics(orders=DELETED, progress=DELETED), {}, "has 3 partitions"),
        (Topics(orders=DELETED, progress=TopicState(1, {"cleanup.policy": "delete"})), {}, "would forget progress"),
        (Topics(orders=DELETED, progress=TopicState(1, {"cleanup.policy": "compact,delete"})), {}, "would forget"),
        (Topics(orders=COMPACTED, progress=COMPACTED), {}, "is compacted"),
        (Topics(orders=DELETED, progress=COMPACTED), {"max_record_bytes": 2**20}, "less than max_record_bytes"),
        (Topics(orders=DELETED, progress=COMPACTED, end=COMPACTED), {"end_topic": "end"}, "is compacted"),
    ],
)
def test_what_does_not_fit_is_refused(topics: Topics, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(SinkRejected, match=reason) as raised:
        check("sink", topics, options(**given))
    assert raised.value.hint


def test_a_compacted_topic_takes_keyed_messages() -> None:
    topics = Topics(orders=COMPACTED, progress=COMPACTED)
    assert check("sink", topics, options(key=["id"])) == 1

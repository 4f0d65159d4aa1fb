"""Records of the progress topic, and checks of the topics' settings."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer_sinks.kafka.clients.port import Connection, TopicState
from tailer_sinks.kafka.clients.python_cluster import Cluster
from tailer_sinks.kafka.first_start import LastEnds
from tailer_sinks.kafka.options import Options, read
from tailer_sinks.kafka.progress import Count, Entry, decode, encode
from tailer_sinks.kafka.records import end_records
from tailer_sinks.kafka.topics import check, check_id, check_present
from tests.support.cases import cases

APP = "orders/5f0c"


@cases(
    "entry",
    [
        Entry(None, "me", "orders", 1),
        Entry(Position.end(-1), "me", "orders", 1),
        Entry(Position.end(2**53 + 1), "me", "orders", 6),
        Entry(Position(7, 3, 99), "me", "orders", 6, "json: id integer", Count(100, 2)),
        Entry(Position(7, 3, -1), "me", "orders", 6, "json: id integer", Count(100, 2)),
        Entry(Position(7, SNAPSHOT_TASKS + 3, 99), "me", "orders", 6, count=Count(100)),
        Entry(Position(7, SNAPSHOT_TASKS + 3), "me", "orders", 6, count=Count(100)),
        Entry(Position.end(7), "me", "orders", 6, topic_id="226281ba-0a32-4a47-9a7a-e683a7d7cace"),
    ],
)
def test_records_are_read_back(entry: Entry) -> None:
    assert decode("sink", "progress", {APP.encode(): encode(entry)}) == {APP: entry}


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        (b'{"instance":"me","topic":"orders","partitions":6}', Entry(None, "me", "orders", 6)),
        (
            b'{"instance":"me","topic":"orders","partitions":6,"version":7,"task":3,"row":99,"events":9}',
            Entry(Position(7, 3, 99), "me", "orders", 6, count=Count(9)),
        ),
    ],
)
def test_records_of_format_1_are_read(value: bytes, entry: Entry) -> None:
    """They have no topic id."""
    assert decode("sink", "progress", {APP.encode(): value}) == {APP: entry}


def test_a_record_of_format_2() -> None:
    entry = Entry(Position.end(7), "me", "orders", 6, "json: id integer", topic_id="226281ba-0a32")
    value = (
        b'{"instance":"me","topic":"orders","partitions":6,"key":"json: id integer","version":7,'
        b'"topic_id":"226281ba-0a32","format":2}'
    )
    assert encode(entry) == value
    assert decode("sink", "progress", {APP.encode(): value}) == {APP: entry}


def test_a_record_of_a_later_format_stops() -> None:
    with pytest.raises(SinkRejected, match="format 3"):
        decode("sink", "progress", {APP.encode(): b'{"instance":"me","topic":"orders","partitions":6,"format":3}'})


def test_a_deleted_record_is_none() -> None:
    assert decode("sink", "progress", {APP.encode(): None}) == {}


@pytest.mark.parametrize("value", [b"", b"7", b'{"version":7}', b'{"instance":1,"topic":"a","partitions":1}'])
def test_invalid_records_are_refused(value: bytes) -> None:
    with pytest.raises(SinkRejected, match="progress topic") as raised:
        decode("sink", "progress", {b"somebody": value})
    assert "progress_topic" in raised.value.hint


class Topics(Cluster):
    """Topics in memory."""

    def __init__(self, **topics: TopicState) -> None:
        super().__init__(Connection("sink", ["one:9092"]))
        self.topics = {name.replace("_", "-"): state for name, state in topics.items()}
        self.created: dict[str, tuple[int, int, dict[str, str]]] = {}

    @override
    def describe(self, topics: Sequence[str], with_configs: bool = True) -> dict[str, TopicState]:
        return {topic: self.topics[topic] for topic in topics if topic in self.topics}

    @override
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
    assert check("sink", topics, wanted).partitions == 6
    partitions, replicas, configs = topics.created["orders"]
    assert (partitions, replicas) == (6, 3)
    assert configs["min.insync.replicas"] == "2"
    assert int(configs["max.message.bytes"]) > 5_000_000
    assert topics.created["progress"][0] == 1
    assert topics.created["progress"][2]["cleanup.policy"] == "compact"
    assert set(topics.created) == {"orders", "progress", "end"}
    topics.created.clear()
    assert check("sink", topics, wanted).partitions == 6
    assert not topics.created


@cases(
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
def test_unfit_topics_are_refused(topics: Topics, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(SinkRejected, match=reason) as raised:
        check("sink", topics, options(**given))
    assert raised.value.hint


def test_all_topics_are_named_at_once() -> None:
    topics = Topics(progress=TopicState(3, {"cleanup.policy": "delete"}), notes=COMPACTED)
    given = options(end_topic="end", schema_topic="notes")
    with pytest.raises(SinkRejected) as raised:
        check_present("sink", topics, given)
    where = "the topic progress (progress_topic) has"
    assert raised.value.reason.split("; ") == [
        "there is no topic orders (topic), and no topic end (end_topic)",
        f"{where} 3 partitions, and must have 1",
        f"{where} cleanup.policy=delete, and would forget progress",
        "the topic notes (schema_topic) is compacted: only messages with a key can be kept there",
    ]
    assert raised.value.hint.startswith("Create them, or set create_topics = true. Give another topic")
    with pytest.raises(SinkRejected, match=r"^sink sink: the topic progress"):
        check("sink", topics, options(end_topic="end", schema_topic="notes", create_topics=True))
    assert not topics.created
    with pytest.raises(SinkRejected) as raised:
        check_present("sink", Topics(), options())
    assert raised.value.hint == (
        "Create them, progress with one partition and cleanup.policy=compact, or set create_topics = true."
    )


def test_a_topic_that_rows_were_delivered_to_is_not_created() -> None:
    topics = Topics(progress=COMPACTED)
    with pytest.raises(SinkRejected, match="the topic orders was deleted: rows up to version 7") as raised:
        check("sink", topics, options(create_topics=True), Position.end(7))
    assert "progress reset PIPELINE --to VERSION" in raised.value.hint
    assert not topics.created


@pytest.mark.parametrize(("known_id", "topic_id"), [(None, "one"), ("one", None), ("one", "one")])
def test_a_topic_whose_id_is_not_known_is_not_another_one(known_id: str | None, topic_id: str | None) -> None:
    check_id("sink", "orders", Position.end(7), known_id, topic_id)


def test_a_topic_with_another_id_stops() -> None:
    with pytest.raises(SinkRejected, match=r"orders was deleted: rows up to version 6 .* another id now") as raised:
        check_id("sink", "orders", Position(7, 3, 99), "one", "other")
    assert "with 6 it continues" in raised.value.hint


TABLES = ["one", "former"]


def ends_of(*records: tuple[str, int, int, int]) -> LastEnds:
    """Make END records of these tables, versions, shards and numbers of shards."""
    ends = LastEnds("orders".__eq__, TABLES)
    for table_id, version, shard, shards in records:
        app_id = f"p/{shard}-of-{shards}/{table_id}" if shards > 1 else f"p/{table_id}"
        (value,) = end_records(app_id, {version: {"orders": Count(3)}}, 1).values.to_pylist()
        ends.take(value)
    return ends


@cases(
    ("records", "found", "version"),
    [
        ([], False, None),
        ([("one", 3, 0, 1), ("one", 4, 0, 1), ("other", 9, 0, 1)], True, 4),
        ([("other", 9, 0, 1)], False, None),
        ([("former", 3, 0, 1)], True, 3),
        ([("one", 7, 0, 1), ("one", 5, 0, 1)], True, 5),  # reset, and delivered again
        ([("one", 7, 0, 2)], True, None),
        ([("one", 7, 0, 2), ("one", 6, 1, 2), ("one", 8, 0, 2)], True, 6),
        ([("one", 7, 0, 2), ("one", 7, 1, 2), ("one", 8, 0, 1)], True, 8),  # sharded before
    ],
)
def test_last_end_records(records: list[tuple[str, int, int, int]], found: bool, version: int | None) -> None:
    ends = ends_of(*records)
    assert (ends.found, ends.version) == (found, version)


@cases(
    "value",
    [
        b"",
        b"\xff",
        b"7",
        b'{"status":"END"}',
        b'{"status":"BEGIN","id":"one:1","commit_version":1,"data_collections":[{"data_collection":"orders"}]}',
        b'{"status":"END","id":"one:1","commit_version":1,"data_collections":[{"data_collection":"others"}]}',
    ],
)
def test_foreign_records_in_an_end_topic_are_ignored(value: bytes) -> None:
    ends = LastEnds("orders".__eq__, TABLES)
    ends.take(value)
    assert not ends.found


def test_a_compacted_topic_takes_keyed_messages() -> None:
    topics = Topics(orders=COMPACTED, progress=COMPACTED)
    assert check("sink", topics, options(key=["id"])).partitions == 1

"""The `kafka` sink beyond its contract, on a real broker: other topics, other formats, and refusals."""

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Timer
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

import tailer_sinks.kafka.sink as sink_module
from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import CHANGE_TYPE, ChangeBatch, Gap, SchemaChange
from tailer.plan import Position
from tailer.sink import Progress
from tailer_sinks.kafka import encoders
from tailer_sinks.kafka.clients.port import Producer
from tailer_sinks.kafka.clients.python_cluster import Owner
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.sink import OWNER_S, KafkaSink
from tailer_sinks.kafka.stream import Stream
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, OTHER, SCHEMA, deliver, up_to
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.proxy import Proxy
from tests.support.kafka.topics import Record, admin, create_topic, end_offsets, read_topic, unique_name
from tests.support.servers.schema_registry import serving_registry
from tests.support.tables.change_rows import DELETE, INSERT, POST, PRE, changes

TABLE_ID = APP.rpartition("/")[2]


class Place:
    """A topic of the test's own, with its companion topics, and sinks that write there."""

    def __init__(self, kafka: KafkaCluster, **options: Any) -> None:
        self.servers = kafka.bootstrap_servers
        self.topic = unique_name("orders")
        self.options = {
            "bootstrap_servers": self.servers,
            "topic": self.topic,
            "progress_topic": f"{self.topic}.progress",
            "create_topics": True,
            **options,
        }

    def sink(self, **options: Any) -> KafkaSink:
        return KafkaSink.configure("sink", {**self.options, **options})

    def run(self, *work: Callable[[KafkaSink], Awaitable[Any]], **options: Any) -> None:
        """Run each function with one instance of the sink, one after the other."""

        async def all_of_it() -> None:
            sink = self.sink(**options)
            try:
                for each in work:
                    await each(sink)
            finally:
                await sink.aclose()

        anyio.run(all_of_it)

    def read(self, suffix: str = "") -> list[Record]:
        return read_topic(self.servers, f"{self.topic}{suffix}")

    def values(self, suffix: str = "") -> list[Any]:
        return [record.value and json.loads(record.value) for record in self.read(suffix)]


def delivering(*items: Any, progress: Progress | None = None) -> Callable[[KafkaSink], Awaitable[None]]:
    return lambda sink: deliver(sink, *items, progress=progress)


def inside(version: int, task: int, row: int) -> Progress:
    return Progress(APP, Position(version, task, row))


def in_version(batch: ChangeBatch, version: int) -> ChangeBatch:
    rows = batch.rows.set_column(
        batch.rows.schema.get_field_index("_commit_version"),
        batch.rows.schema.field("_commit_version"),
        pa.array([version] * len(batch), pa.int64()),
    )
    return ChangeBatch(batch.table_id, version, batch.task, rows, batch.row_index)


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_every_version_has_an_end_with_its_count(kafka: KafkaCluster, client: str) -> None:
    place = Place(kafka, end_topic=unique_name("end"), library=client)
    place.run(delivering(numbered(3, rows=5), numbered(3, rows=2, task=1), numbered(5, rows=4)))
    part, rest = numbered(6, rows=9).slice(0, 4), numbered(6, rows=9).slice(4, 5)
    place.run(delivering(part, progress=inside(6, 0, 3)))
    place.run(delivering(rest))
    place.run(delivering(numbered(8)), lambda sink: sink.reset(up_to(APP, 20)), delivering(numbered(22)))
    ends = [json.loads(record.value or b"") for record in read_topic(place.servers, str(place.options["end_topic"]))]
    assert [(end["commit_version"], end["event_count"]) for end in ends] == [
        (3, 7),
        (4, 0),
        (5, 4),
        (6, 9),
        (7, 0),
        (8, 3),
        (21, 0),
        (22, 3),
    ]
    assert {end["status"] for end in ends} == {"END"}
    assert ends[0]["id"] == f"{TABLE_ID}:3"
    assert ends[0]["data_collections"] == [{"data_collection": place.topic, "event_count": 7}]


def test_dead_letters_come_with_the_rows_and_are_counted(kafka: KafkaCluster) -> None:
    letters, ends = unique_name("letters"), unique_name("end")
    place = Place(
        kafka,
        large_records="dead_letter",
        dead_letter_topic=letters,
        max_record_bytes=2000,
        end_topic=ends,
        key=["id"],
    )
    names = ["a", "b" * 3000, "c", "d" * 5000]
    batch = change_batch(1, {"id": pa.array([1, 2, 3, 4]), "name": pa.array(names)}, task=7, first_row=10)
    place.run(delivering(batch.slice(0, 2), progress=inside(1, 7, 11)))
    place.run(delivering(batch.slice(2, 2)))
    assert [value["id"] for value in place.values()] == [1, 3]
    found = read_topic(place.servers, letters)
    assert [record.key for record in found] == [b'{"id":2}', b'{"id":4}']
    messages = [json.loads(record.value or b"") for record in found]
    assert [(each["commit_version"], each["task"], each["row"]) for each in messages] == [(1, 7, 11), (1, 7, 13)]
    assert all("max_record_bytes is 2000" in each["reason"] for each in messages)
    (end,) = (json.loads(record.value or b"") for record in read_topic(place.servers, ends))
    assert (end["event_count"], end["dead_letters"]) == (2, 2)


def test_a_large_message_stops_and_leaves_nothing(kafka: KafkaCluster) -> None:
    place = Place(kafka, max_record_bytes=2000)
    batch = change_batch(4, {"name": pa.array(["a", "b" * 3000])}, task=2, first_row=5)
    with pytest.raises(SinkRejected, match="version 4, task 2, row 6") as raised:
        place.run(delivering(batch))
    assert "max_record_bytes" in raised.value.hint
    assert place.values() == []
    place.run(delivering(batch.slice(0, 1)))
    assert len(place.values()) == 1


def test_a_version_may_be_one_transaction(kafka: KafkaCluster) -> None:
    place = Place(kafka, boundary="version")
    assert not place.sink().splits_versions
    with pytest.raises(SinkRejected, match="boundary is version"):
        place.run(delivering(numbered(1), progress=inside(1, 0, 1)))
    place.run(delivering(numbered(1)))
    assert len(place.values()) == 3


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_a_version_too_long_for_its_transaction_is_sent_twice(
    kafka: KafkaCluster, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not retried endlessly; versions before it restart the count."""
    monkeypatch.setattr(encoders, "MOST_ROWS", 1)
    place = Place(kafka, boundary="version", transaction_timeout_s=3, library=client)

    async def slow(sink: KafkaSink, version: int) -> None:
        async with sink.begin(APP, SCHEMA) as transaction:
            for task in range(100):
                await transaction.write(numbered(version, task=task))
                await anyio.sleep(0.05)  # the time that the version takes is the fault itself
            await transaction.commit(up_to(APP, version))

    async def late(sink: KafkaSink, version: int) -> SinkError:
        with pytest.raises(SinkError, match="brokers give it up after 3") as failure:
            await slow(sink, version)
        return failure.value

    async def all_of_it(sink: KafkaSink) -> None:
        first = await late(sink, 1)
        assert isinstance(first, SinkUnavailable)
        assert "transaction_timeout_s" in first.reason
        await deliver(sink, numbered(1))
        errors = [await late(sink, 2), await late(sink, 2)]
        while isinstance(errors[-1], SinkUnavailable) and len(errors) < 6:  # a busy machine pauses, too
            errors.append(await late(sink, 2))
        assert isinstance(errors[0], SinkUnavailable)
        assert isinstance(errors[-1], SinkRejected)
        assert "for the second time" in errors[-1].reason
        assert "transaction_timeout_s" in errors[-1].hint
        assert 'boundary = "chunk"' in errors[-1].hint

    place.run(all_of_it)
    assert {value["_commit_version"] for value in place.values()} == {1}


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_a_version_that_stalls_make_too_long_is_tried_again(
    kafka: KafkaCluster, kafka_link: Proxy, client: str
) -> None:
    """Brokers give the transaction up, but it will be shorter once the network works."""
    place = Place(
        kafka, bootstrap_servers=kafka_link.address, boundary="version", transaction_timeout_s=2, library=client
    )

    async def stalled(sink: KafkaSink) -> None:
        async with sink.begin(APP, SCHEMA) as transaction:
            await transaction.write(numbered(1))
            await anyio.sleep(1)  # so that messages are not given up before the transaction is
            kafka_link.hold()
            mended = Timer(4, kafka_link.mend)
            mended.start()
            try:
                await transaction.write(numbered(1, task=1))
                await transaction.commit(up_to(APP, 1))
            finally:
                await to_thread.run_sync(mended.join)

    async def all_of_it(sink: KafkaSink) -> None:
        for _ in range(3):
            with pytest.raises(SinkUnavailable, match="brokers give it up after 2"):
                await stalled(sink)
        await deliver(sink, numbered(1), numbered(1, task=1))

    place.run(all_of_it)
    assert len(place.values()) == 6


def test_a_chunk_that_takes_too_long_is_tried_again(kafka: KafkaCluster) -> None:
    """The chunk may be shorter at the next attempt."""
    place = Place(kafka, transaction_timeout_s=1)

    async def late(sink: KafkaSink) -> None:
        async with sink.begin(APP, SCHEMA) as transaction:
            await transaction.write(numbered(1))
            await anyio.sleep(2.5)  # the pause is the fault itself
            await transaction.commit(up_to(APP, 1))

    async def all_of_it(sink: KafkaSink) -> None:
        for _ in range(2):
            with pytest.raises(SinkUnavailable, match="brokers give it up after 1"):
                await late(sink)

    place.run(all_of_it)


def test_a_new_id_of_a_table_does_not_begin_behind_another_instance(kafka: KafkaCluster) -> None:
    """After REPLACE TABLE, an instance goes on under the new id from what it has seen under the former one."""
    place = Place(kafka)

    async def delivering_more(late: KafkaSink) -> None:
        assert await late.progress(APP) is None
        other = place.sink()
        try:
            await deliver(other, numbered(1))
        finally:
            await other.aclose()
        with pytest.raises(SinkUnavailable, match="more than this instance had seen"):
            await deliver(late, numbered(2), app_id=OTHER)
        assert await late.progress(OTHER) is None
        assert await late.progress(APP) == up_to(APP, 1)
        await deliver(late, numbered(2), app_id=OTHER)

    place.run(delivering_more)
    assert [value["_commit_version"] for value in place.values()] == [1] * 3 + [2] * 3


WIDER = pa.schema([*list(SCHEMA)[:2], pa.field("more", pa.int64()), *list(SCHEMA)[2:]])
CHANGE = SchemaChange("table", 2, 1_000, SCHEMA, WIDER, ("column more long was added",))
GAP = Gap("table", 3, 5, 2_000, "gone", snapshot=False)


@pytest.mark.parametrize(("key", "int64"), [([], "number"), (["id"], "string")])
def test_flat_rows_have_events_between_them_in_every_partition(kafka: KafkaCluster, key: list[str], int64: str) -> None:
    place = Place(kafka, partitions=3, key=key, int64=int64)
    create_topic(place.servers, place.topic, 3, configs={"cleanup.policy": "compact"} if key else {})
    place.run(delivering(numbered(1), CHANGE))
    values = [(record.partition, json.loads(record.value or b"")) for record in place.read()]
    events = [partition for partition, value in values if value[CHANGE_TYPE] == "schema_change"]
    assert sorted(events) == [0, 1, 2]
    assert {type(value["_commit_version"]) for _, value in values} == {str if int64 == "string" else int}


def test_events_may_have_a_topic_of_their_own(kafka: KafkaCluster) -> None:
    events = unique_name("events")
    place = Place(kafka, schema_topic=events, envelope="debezium", end_topic=unique_name("end"))
    place.run(delivering(numbered(1), CHANGE))
    place.run(delivering(GAP), int64="string")  # without keys, the form may change
    assert len(place.values()) == 3
    messages = [json.loads(record.value or b"") for record in read_topic(place.servers, events)]
    assert [event[CHANGE_TYPE] for event in messages] == ["schema_change", "gap"]
    assert messages[0]["changes"] == list(CHANGE.changes)
    assert (messages[1]["first_version"], messages[1]["_commit_version"]) == ("3", "5")
    ends = [json.loads(record.value or b"") for record in read_topic(place.servers, str(place.options["end_topic"]))]
    assert [end["commit_version"] for end in ends] == [1, 2]  # a lost version has no END


def test_a_gap_without_an_event_topic_is_refused(kafka: KafkaCluster) -> None:
    place = Place(kafka, envelope="debezium")
    with pytest.raises(SinkRejected, match="no topic to report that") as raised:
        place.run(delivering(GAP))
    assert "schema_topic" in raised.value.hint


def test_heartbeats_come_now_and_then(kafka: KafkaCluster) -> None:
    beats = unique_name("beats")
    place = Place(kafka, heartbeat_topic=beats, heartbeat_s=3600)
    rests: list[float | None] = []

    async def beat(sink: KafkaSink) -> None:
        rests.append(await sink.beat(APP))

    place.run(delivering(numbered(1)), beat, beat)
    assert rests == pytest.approx([OWNER_S] * 2, abs=OWNER_S / 2)  # until the next look at who is the writer
    (record,) = read_topic(place.servers, beats)
    assert json.loads(record.key or b"") == {"serverName": "sink"}
    assert json.loads(record.value or b"")["ts_ms"] > 0
    assert len(place.values()) == 3


def test_another_topic_or_more_partitions_stop_the_stream(kafka: KafkaCluster) -> None:
    place = Place(kafka, key=["id"], partitions=2)
    place.run(delivering(numbered(1)))
    other = unique_name("other")
    with pytest.raises(SinkRejected, match=f"was delivered to the topic {place.topic}, not {other}") as raised:
        place.run(delivering(numbered(2)), topic=other)
    assert "progress reset" in raised.value.hint

    async def grow(_: KafkaSink) -> None:
        with admin(place.servers) as client:
            client.create_partitions({place.topic: 4})
            client.wait_for_topics([place.topic])

    with pytest.raises(SinkRejected, match="has 4 partitions and had 2"):
        place.run(delivering(numbered(2)), grow, delivering(numbered(3)))  # noticed while it runs
    with pytest.raises(SinkRejected, match="has 4 partitions and had 2"):
        place.run(delivering(numbered(3)))  # and at a start
    assert {value["_commit_version"] for value in place.values()} == {1, 2}
    place.run(lambda sink: sink.reset(up_to(APP, 2)), delivering(numbered(3)))
    assert {value["_commit_version"] for value in place.values()} == {1, 2, 3}


def test_a_key_of_another_type_stops_the_stream(kafka: KafkaCluster) -> None:
    wide = pa.schema([pa.field("id", pa.decimal128(20, 0)), *list(SCHEMA)[1:]])
    change = SchemaChange("table", 2, 1_000, SCHEMA, wide, ("column id was widened",))
    place = Place(kafka, key=["id"], partitions=2)
    with pytest.raises(SinkRejected, match="message keys would be") as raised:
        place.run(delivering(numbered(1), change))
    assert "progress reset" in raised.value.hint
    assert place.values() == []
    place.run(delivering(numbered(1)))
    rows = numbered(3).rows.set_column(0, "id", pa.array(range(3), pa.decimal128(20, 0)))
    other = ChangeBatch("table", 3, 0, rows, numbered(3).row_index)
    with pytest.raises(SinkRejected, match="message keys would be"):
        place.run(delivering(other))  # as after a gap
    with pytest.raises(SinkRejected, match="message keys would be"):
        place.run(delivering(numbered(3)), decimal="number")
    with pytest.raises(SinkRejected, match="id integer with int64 as string, and those in"):
        place.run(delivering(numbered(3)), int64="string")
    place.run(lambda sink: sink.reset(up_to(APP, 2)), delivering(other))
    assert sorted(len(str(value["id"])) for value in place.values()) == [1] * 3 + [7] * 3
    wide_numbers = Place(kafka, key=["id"], partitions=2)
    short = pa.schema([pa.field("id", pa.int16()), *list(SCHEMA)[1:]])
    wide_numbers.run(delivering(SchemaChange("table", 2, 1_000, short, SCHEMA, ("widened",)), numbered(2)))
    assert len([value for value in wide_numbers.values() if "id" in value]) == 3


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_takes_no_rows_without_a_key(kafka: KafkaCluster, policy: str) -> None:
    """One error, before anything is sent, however many rows there are."""
    place = Place(kafka)
    create_topic(place.servers, place.topic, configs={"cleanup.policy": policy})
    refusal = f"the topic {place.topic} .topic. is compacted: only messages with a key"
    for work in (delivering(numbered(1, rows=5000)), lambda sink: sink.progress(APP)):
        with pytest.raises(SinkRejected, match=refusal) as raised:
            place.run(work)
        assert raised.value.hint == f"Set cleanup.policy=delete for {place.topic}, or give key."
    with admin(place.servers) as client:
        assert place.options["progress_topic"] not in client.list_topics()
    assert end_offsets(place.servers, [place.topic])[TopicPartition(place.topic, 0)] == 0
    place.run(delivering(numbered(1)), key=["id"])
    assert len(place.read()) == 3


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_a_topic_that_is_compacted_later_takes_no_more_rows_without_a_key(
    kafka: KafkaCluster, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One error for all rows, and nothing is delivered; a new instance names the topic's setting."""
    place = Place(kafka, library=client)

    async def compact(_: KafkaSink) -> None:
        with admin(place.servers) as broker:
            configs = {"cleanup.policy": "compact"}
            broker.alter_configs([ConfigResource(ConfigResourceType.TOPIC, place.topic, configs=configs)])

    with pytest.raises(SinkRejected, match="the brokers call a message invalid") as raised:
        place.run(delivering(numbered(1)), compact, delivering(numbered(2, rows=5000)))
    assert place.topic in raised.value.reason
    assert str(place.options["progress_topic"]) not in raised.value.reason
    assert raised.value.hint == "A compacted topic takes no message without a key."
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert len(place.read()) == 3
    with pytest.raises(SinkRejected, match="is compacted"):
        place.run(delivering(numbered(2)))


def test_a_refusal_lets_readers_go_on(kafka: KafkaCluster) -> None:
    """Messages sent before the refusal are aborted at once, not left for the broker's timeout."""
    place = Place(kafka, max_record_bytes=2000, transaction_timeout_s=600)
    batch = change_batch(4, {"name": pa.array(["a"] * 9000 + ["b" * 3000])})
    with pytest.raises(SinkRejected):
        place.run(delivering(batch))
    assert place.values() == []  # returns only when no transaction is open


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_partitions_added_during_a_transaction_stop_it_and_readers_go_on(kafka: KafkaCluster, client: str) -> None:
    """The topics are looked at after the last row, while messages are under way; what was sent is aborted at once."""
    place = Place(kafka, key=["id"], partitions=2, library=client, transaction_timeout_s=600)

    async def grow_and_commit(sink: KafkaSink) -> None:
        async with sink.begin(APP, SCHEMA) as transaction:
            await transaction.write(numbered(2))
            await to_thread.run_sync(grow)
            with pytest.raises(SinkRejected, match="has 4 partitions and had 2"):
                await transaction.commit(up_to(APP, 2))
        found = await to_thread.run_sync(place.values)  # returns only when no transaction is open
        assert {value["_commit_version"] for value in found} == {1}

    def grow() -> None:
        with admin(place.servers) as brokers:
            brokers.create_partitions({place.topic: 4})
            brokers.wait_for_topics([place.topic])

    place.run(delivering(numbered(1)), grow_and_commit)


@pytest.mark.parametrize("tombstones", [True, False])
def test_a_key_that_changes(kafka: KafkaCluster, tombstones: bool) -> None:
    columns = {"id": pa.array([1, 1, 2, 3, 4]), "name": pa.array(["a", "b", "c", "d", "e"])}
    batch = in_version(changes([PRE, POST, PRE, POST, DELETE], columns, [0, 0, 1, 2, 3]), 1)
    place = Place(kafka, key=["id"], tombstones=tombstones)
    place.run(delivering(batch))
    messages = [(record.key, record.value and json.loads(record.value)[CHANGE_TYPE]) for record in place.read()]
    expected: list[tuple[bytes, str | None]] = [
        (b'{"id":1}', "update_preimage"),
        (b'{"id":1}', "update_postimage"),
        (b'{"id":2}', "delete"),
        (b'{"id":2}', None),
        (b'{"id":3}', "insert"),
        (b'{"id":4}', "delete"),
        (b'{"id":4}', None),
    ]
    assert messages == [each for each in expected if tombstones or each[1] is not None]


def test_held_back_rows_are_not_progress(kafka: KafkaCluster) -> None:
    """The end of a transaction separates two images that may be one update."""
    columns = {"id": pa.array([1, 2, 2]), "name": pa.array(["a", "b", "c"])}
    batch = in_version(changes([INSERT, PRE, POST], columns, [0, 1, 2], task=0), 1)
    place = Place(kafka, envelope="debezium", end_topic=unique_name("end"))

    async def in_one_session(sink: KafkaSink) -> None:
        assert await sink.progress(APP) is None
        await deliver(sink, batch.slice(0, 2), progress=inside(1, 0, 1))
        assert await sink.progress(APP) == inside(1, 0, 0)
        await deliver(sink, batch.slice(2, 1))

    place.run(in_one_session)
    assert [value["op"] for value in place.values()] == ["c", "u"]

    other = Place(kafka, envelope="debezium", end_topic=unique_name("end"))
    other.run(delivering(batch.slice(0, 2), progress=inside(1, 0, 1)))  # and is killed
    other.run(delivering(batch.slice(1, 2)))  # continues after its progress
    third = Place(kafka, envelope="debezium", end_topic=unique_name("end"))
    third.run(
        delivering(batch.slice(0, 2), progress=inside(1, 0, 1)),
        lambda sink: sink.progress(APP),  # another session begins, and continues from there
        delivering(batch.slice(1, 2)),
    )
    for each in (place, other, third):
        assert [value["op"] for value in each.values()] == ["c", "u"]
        (end,) = (json.loads(r.value or b"") for r in read_topic(each.servers, str(each.options["end_topic"])))
        assert end["event_count"] == 2


def test_the_other_forms_arrive(kafka: KafkaCluster) -> None:
    events = Place(kafka, envelope="cloudevents", key=["id"])
    events.run(delivering(numbered(1)))
    assert [value["data"]["after"]["id"] for value in events.values()] == [1_000_000, 1_000_001, 1_000_002]
    assert dict(events.read()[0].headers)["content-type"].startswith(b"application/cloudevents+json")
    arrow = Place(kafka, encoding="arrow")
    arrow.run(delivering(numbered(1, rows=100)))
    tables = [pa.ipc.open_stream(record.value).read_all() for record in arrow.read()]
    assert pa.concat_tables(tables).to_batches()[0].schema.equals(SCHEMA)
    assert sum(map(len, tables)) == 100


def test_the_last_to_come_takes_over(kafka: KafkaCluster) -> None:
    place = Place(kafka)

    async def both() -> None:
        first, second = place.sink(), place.sink()
        try:
            assert await second.progress(APP) is None
            await deliver(first, numbered(1))
            with pytest.raises(SinkUnavailable, match="has delivered more than"):
                await deliver(second, numbered(1))
            with pytest.raises((SinkFenced, CommitUnknown)):
                await deliver(first, numbered(2))
            with pytest.raises(SinkFenced):
                await first.progress(APP)
            assert await second.progress(APP) == up_to(APP, 1)
            await deliver(second, numbered(2))
        finally:
            await first.aclose()
            await second.aclose()

    anyio.run(both)
    assert [value["_commit_version"] for value in place.values()] == [1] * 3 + [2] * 3


def test_reading_progress_does_not_fence_a_writer(kafka: KafkaCluster) -> None:
    place = Place(kafka)

    async def looking(sink: KafkaSink) -> None:
        async with sink.begin(APP, SCHEMA) as transaction:
            await transaction.write(numbered(1))
            other = place.sink()
            assert await other.progress(APP) is None
            assert not await other.has_delivered("orders")
            await other.aclose()
            await transaction.commit(up_to(APP, 1))

    place.run(looking, delivering(numbered(2)))
    assert len(place.values()) == 6


async def leave_open(place: Place, stream: Stream, version: int) -> None:
    """Leave the transaction of a stream open, with the progress record of a version."""
    topic, entry = str(place.options["progress_topic"]), stream.entry(Position.end(version))
    end = await to_thread.run_sync(end_offsets, place.servers, [topic])
    await to_thread.run_sync(stream.link.record_progress, stream.producer, APP, entry)
    await to_thread.run_sync(stream.producer.start_flush)
    while await to_thread.run_sync(end_offsets, place.servers, [topic]) == end:  # noqa: ASYNC110
        await anyio.sleep(0.05)


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
@pytest.mark.parametrize("done", [0, 1])
def test_the_open_transaction_of_a_killed_instance_delays_nobody(kafka: KafkaCluster, client: str, done: int) -> None:
    """Neither its successor, which ends it, nor another stream, nor a look at either.

    `done`: the versions that the killed instance had delivered. Brokers would end the transaction after 15 minutes.
    """
    place = Place(kafka, library=client, transaction_timeout_s=900.0)
    before = up_to(APP, done) if done else None

    async def all_of_them() -> None:
        killed, successor, other = place.sink(), place.sink(), place.sink(topic=f"{place.topic}.bills")
        try:
            for version in range(1, done + 1):
                await deliver(killed, numbered(version))
            async with killed.begin(APP, SCHEMA) as transaction:
                await transaction.write(numbered(done + 1))
                await leave_open(place, killed._stream(APP), done + 1)
                with anyio.fail_after(300):
                    assert await other.progress(APP) == before
                    assert await other.progress("bills/5f0c") is None
                    assert not await other.has_delivered("bills")
                    await other.check_first_start("bills", ["5f0c"])
                    await deliver(other, numbered(1), app_id="bills/5f0c")
                    assert await other.progress("bills/5f0c") == up_to("bills/5f0c", 1)
                    assert killed._stream(APP).link.progress_of(APP).open == {APP}  # type: ignore[union-attr]
                    assert await successor.progress(APP) == before
                    assert await successor.has_delivered("orders") == bool(done)
                    await successor.check_first_start("orders", ["5f0c"])
                    await deliver(successor, numbered(done + 1))
        finally:
            for sink in (killed, successor, other):
                await sink.aclose()

    anyio.run(all_of_them)
    assert [value["_commit_version"] for value in place.values()] == [v for v in range(1, done + 2) for _ in range(3)]


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_an_idle_instance_notices_the_one_that_takes_over(kafka: KafkaCluster, client: str) -> None:
    place = Place(kafka, library=client)

    async def both() -> None:
        first, second = place.sink(), place.sink()
        try:
            for each in (first, first, second, second):
                assert await each.progress(APP) is None
                assert await each.beat(APP) == OWNER_S
            for _ in range(2):
                with pytest.raises(SinkFenced, match=second._link.instance):
                    await first.beat(APP)
                with pytest.raises(SinkFenced):
                    await first.progress(APP)
            await deliver(second, numbered(1))
            rest_s = await second.beat(APP)
            assert rest_s is not None
            assert 0 < rest_s <= OWNER_S
        finally:
            await first.aclose()
            await second.aclose()

    anyio.run(both)


def test_an_instance_that_has_just_committed_does_not_ask_who_is_the_writer(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(kafka)
    asked: list[str] = []
    owner = Link.owner

    def ask(link: Link, app_id: str) -> Owner | None:
        asked.append(app_id)
        return owner(link, app_id)

    async def both() -> None:
        first, second = place.sink(), place.sink()
        try:
            await deliver(first, numbered(1))
            asked.clear()
            monkeypatch.setattr(sink_module, "OWNER_S", 3600.0)
            await first.beat(APP)
            assert asked == []
            first._stream(APP).discard()  # as after an error: the next producer has committed nothing
            await first.beat(APP)
            assert asked == [APP]
            await deliver(first, numbered(2))
            await second.progress(APP)
            await second.beat(APP)
            monkeypatch.setattr(sink_module, "OWNER_S", 0.0)
            with pytest.raises(SinkFenced, match=second._link.instance):
                await first.beat(APP)
        finally:
            await first.aclose()
            await second.aclose()

    monkeypatch.setattr(Link, "owner", ask)
    anyio.run(both)


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_a_sink_goes_on_with_a_table_after_a_reset_of_another_one(kafka: KafkaCluster, client: str) -> None:
    """Taking the other one over ends what the sink itself has of the first."""

    async def deliver_and_reset(sink: KafkaSink) -> None:
        await deliver(sink, numbered(1))
        await sink.reset(up_to(OTHER, 4))
        assert await sink.progress(APP) == up_to(APP, 1)
        await deliver(sink, numbered(2))
        assert await sink.progress(OTHER) == up_to(OTHER, 4)

    place = Place(kafka, library=client)
    place.run(deliver_and_reset)
    assert len(place.read()) == 6


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_what_a_new_table_costs_does_not_grow_with_former_ones(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """Each takeover of a transactional id takes a producer, which kafka-python makes in 0.2 s."""
    place, taken = Place(kafka, library=client), list[str]()
    made = Link.producer

    def producer(self: Link, app_id: str) -> Producer:
        taken.append(app_id)
        return made(self, app_id)

    monkeypatch.setattr(Link, "producer", producer)

    async def deliver_to(app_id: str, batch: ChangeBatch, sink: KafkaSink) -> None:
        await deliver(sink, batch, app_id=app_id)

    app_ids = [f"orders/table-{number}" for number in range(6)]
    for number, app_id in enumerate(app_ids):
        taken.clear()
        place.run(partial(deliver_to, app_id, numbered(number)))
        assert taken == [*app_ids[number - 1 : number], app_id] if number else [app_id]


def test_a_topic_that_is_missing_stops(kafka: KafkaCluster) -> None:
    place = Place(kafka, create_topics=False)
    with pytest.raises(SinkRejected, match=f"there is no topic {place.topic}") as raised:
        place.run(lambda sink: sink.progress(APP))
    assert "create_topics" in raised.value.hint


def test_a_progress_topic_that_is_gone_is_not_an_empty_one(kafka: KafkaCluster) -> None:
    place = Place(kafka)

    async def lose(_: KafkaSink) -> None:
        with admin(place.servers) as client:
            client.delete_topics([str(place.options["progress_topic"])])
            while str(place.options["progress_topic"]) in client.list_topics():  # noqa: ASYNC110
                await anyio.sleep(0.1)

    with pytest.raises(SinkUnavailable, match="gone, or is not known"):
        place.run(delivering(numbered(1)), lose, lambda sink: sink.progress(APP))


@pytest.mark.parametrize("envelope", ["flat", "debezium"])
def test_avro_arrives_with_its_schemas_registered(kafka: KafkaCluster, envelope: str) -> None:
    with serving_registry() as registry:
        avro = {"encoding": "avro", "registry_url": registry.uris[0], "envelope": envelope}
        place = Place(kafka, key=["id"], **avro)
        place.run(delivering(numbered(1)))
        frames = (
            {(record.key or b"")[:5] for record in place.read()},
            {(record.value or b"")[:5] for record in place.read()},
        )
    assert all(len(each) == 1 for each in frames)  # one schema for keys, one for values
    assert all(frame[0] == 0 for each in frames for frame in each)


@pytest.mark.parametrize("envelope", ["flat", "debezium"])
def test_a_schema_that_the_registry_refuses_stops_before_its_version(kafka: KafkaCluster, envelope: str) -> None:
    """Whichever subject refuses it, none gets it. When the rule allows it, all of the version comes."""
    with serving_registry() as registry:
        avro = {"encoding": "avro", "registry_url": registry.uris[0], "envelope": envelope}
        place = Place(kafka, key=["id"], schema_topic=unique_name("events"), end_topic=unique_name("ends"), **avro)
        place.run(delivering(numbered(1)))
        subjects = {subject: list(numbers) for subject, numbers in registry.subjects.items()}
        assert {subject: len(numbers) for subject, numbers in subjects.items()} == {
            f"{place.topic}-key": 1,
            f"{place.topic}-value": 1,
        }
        rows = change_batch(2, {"id": pa.array(["a", "b"]), "name": pa.array(["x", "y"])})
        changed = SchemaChange("table", 2, 0, SCHEMA, rows.rows.schema, ("column id was long and is string",))
        for subject in (f"{place.topic}-value", f"{place.topic}-key"):
            registry.rules = dict.fromkeys(subjects, "NONE") | {subject: "FULL"}
            with pytest.raises(SinkRejected, match=f"subject {subject} .* by its rule FULL: column id was") as raised:
                place.run(lambda sink: sink.reset(up_to(APP, 1)), delivering(changed, rows))
            assert "such as NONE" in raised.value.hint
            assert registry.subjects == subjects
        assert (len(place.read()), read_topic(place.servers, str(place.options["schema_topic"]))) == (3, [])
        registry.rules = dict.fromkeys(subjects, "NONE")
        place.run(lambda sink: sink.reset(up_to(APP, 1)), delivering(changed, rows))
        assert {subject: len(numbers) for subject, numbers in registry.subjects.items()} == dict.fromkeys(subjects, 2)
    assert len(place.read()) == 5
    assert len(read_topic(place.servers, str(place.options["schema_topic"]))) == 1

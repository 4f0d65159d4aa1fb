"""Topics that are deleted, recreated or emptied: a pipeline stops with a hint, and is exact after following it."""

import random
import re
import time
from pathlib import Path

import anyio
import pytest

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer.sink import Progress, SinkTransaction, app_id_of, shard_name
from tailer_sinks.kafka.clients.port import ProducerSettings
from tailer_sinks.kafka.clients.python_producer import PythonProducer
from tailer_sinks.kafka.sink import KafkaSink
from tailer_sinks.kafka.stream import Stream
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import SCHEMA
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.drivers import messages_of, producing
from tests.support.kafka.pipeline import TABLE_ID, Pipe
from tests.support.kafka.topics import unique_name

every_client = pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])


@pytest.fixture
def pipe(kafka: KafkaCluster, tmp_path: Path) -> Pipe:
    """A pipeline of a table with five versions; nothing is delivered yet."""
    made = Pipe(kafka.bootstrap_servers, tmp_path / "table")
    made.publish(5)
    return made


def named_version(error: SinkRejected) -> int:
    """Return the version in the hint, after which to continue."""
    found = re.search(r"--to (\d+)`", error.hint) or re.search(r"with (\d+) it continues", error.hint)
    assert found is not None, error.hint
    return int(found[1])


def put(servers: str, topic: str, key: bytes | None, value: bytes | None) -> None:
    """Write a message with another producer."""
    with producing(PythonProducer, servers, unique_name(), ProducerSettings()) as producer:
        producer.begin()
        producer.send(topic, messages_of([value], None if key is None else [key]), partition=0)
        producer.commit()


@every_client
@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("how", ["deleted", "recreated", "expired"])
@pytest.mark.sampled(5)
def test_progress_that_is_lost_stops(pipe: Pipe, client: str, start: str, how: str) -> None:
    pipe.options["library"] = client
    pipe.deliver(start="0")
    pipe.publish(3)
    {
        "deleted": lambda: pipe.delete(pipe.progress_topic),
        "recreated": lambda: pipe.recreate(pipe.progress_topic),
        "expired": pipe.expire_progress,
    }[how]()
    for _ in range(2):  # the failed start must not leave anything that would let the next one continue
        with pytest.raises(SinkRejected, match="was its progress lost") as raised:
            pipe.deliver(start=start)
        assert named_version(raised.value) == 4
    assert pipe.delivered() == [0, 1, 2, 3, 4]
    pipe.reset(4)
    pipe.deliver(start=start)
    assert pipe.delivered() == list(range(8))


def test_without_an_end_topic_a_person_must_know(pipe: Pipe) -> None:
    pipe.options["end_topic"] = None
    pipe.deliver()
    pipe.recreate(pipe.progress_topic)
    with pytest.raises(SinkRejected, match=f"the topic {pipe.topic} has messages") as raised:
        pipe.deliver()
    assert "progress reset PIPELINE --to VERSION" in raised.value.hint
    assert "shared_topic = true" in raised.value.hint


def test_rows_that_are_gone_by_age_were_delivered(pipe: Pipe) -> None:
    """The topic for rows is empty, but its rows were delivered."""
    pipe.options["end_topic"] = None
    pipe.deliver()
    pipe.expire(pipe.topic)
    pipe.recreate(pipe.progress_topic)
    with pytest.raises(SinkRejected, match="has messages, or had some"):
        pipe.deliver()


def test_a_topic_that_others_filled(pipe: Pipe, kafka: KafkaCluster, tmp_path: Path) -> None:
    """Two pipelines share the topics for rows, for ENDs and for progress."""
    pipe.deliver()
    shared = {name: pipe.options[name] for name in ("topic", "end_topic", "progress_topic")}
    other = Pipe(kafka.bootstrap_servers, tmp_path / "other", table_id="another", **shared)
    other.publish(2)
    with pytest.raises(SinkRejected, match=f"the topic {pipe.topic} has messages") as raised:
        other.deliver()
    assert "shared_topic = true" in raised.value.hint
    other.options["shared_topic"] = pipe.options["shared_topic"] = True
    other.deliver()
    other.publish()
    pipe.publish()
    other.deliver()
    pipe.deliver()
    assert pipe.delivered() == sorted([*range(3), *range(6)])
    pipe.recreate(pipe.progress_topic)
    for each, last in ((pipe, 5), (other, 2)):
        with pytest.raises(SinkRejected, match="has END records of it") as raised:
            each.deliver()
        assert named_version(raised.value) == last
        assert "shared_topic" not in raised.value.hint


@every_client
def test_records_aborted_before_the_first_commit_are_ignored(
    pipe: Pipe, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream was claimed when the topic was empty."""
    pipe.options["library"] = client

    def die(stream: Stream) -> None:
        stream.producer._client.flush(30)  # type: ignore[attr-defined]
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "check_topics", die)
        with pytest.raises(RuntimeError, match="killed"):
            pipe.deliver()
    pipe.deliver()
    assert pipe.delivered() == list(range(5))


def test_progress_that_vanishes_while_it_runs(pipe: Pipe) -> None:
    async def run(sink: KafkaSink) -> None:
        await pipe.deliver_by(sink)
        await anyio.to_thread.run_sync(put, pipe.servers, pipe.progress_topic, pipe.app_id.encode(), None)
        pipe.publish()
        with pytest.raises(SinkRejected, match="is gone from") as raised:
            await pipe.deliver_by(sink)
        assert named_version(raised.value) == 4
        assert "cleanup.policy=compact" in raised.value.hint

    pipe.with_sink(run)
    with pytest.raises(SinkRejected, match="was its progress lost"):
        pipe.deliver()
    pipe.reset(4)
    pipe.deliver()
    assert pipe.delivered() == list(range(6))


@pytest.mark.parametrize("shards", [0, 2, 3])
@pytest.mark.sampled(3)
def test_the_number_of_shards_is_lost(pipe: Pipe, shards: int) -> None:
    """Shards have progress, so the pipeline must not pass for an undivided one."""
    pipe.deliver(shards=2)
    put(pipe.servers, pipe.progress_topic, f"{pipe.name}/shards/layout".encode(), None)
    put(pipe.servers, pipe.progress_topic, pipe.app_id.encode(), None)
    pipe.publish()
    for _ in range(2):
        with pytest.raises(SinkRejected, match="progress of its shards") as raised:
            pipe.deliver(shards=shards)
        assert named_version(raised.value) == 4
    pipe.reset(4, shards)
    pipe.deliver(shards=shards)
    assert pipe.delivered() == list(range(6))


def test_the_progress_of_a_shard_is_lost(pipe: Pipe) -> None:
    pipe.deliver(shards=2)
    put(pipe.servers, pipe.progress_topic, app_id_of(shard_name(pipe.name, 1, 2), TABLE_ID).encode(), None)
    pipe.publish()
    for shards in (2, 3, 0):
        with pytest.raises(SinkRejected, match="progress"):
            pipe.deliver(shards=shards)
    pipe.reset(4, 2)
    pipe.deliver(shards=2)
    assert pipe.delivered() == list(range(6))


def test_the_number_of_shards_outlives_their_progress(pipe: Pipe) -> None:
    pipe.deliver()
    pipe.deliver(shards=2)
    for name in (pipe.name, *(shard_name(pipe.name, shard, 2) for shard in (0, 1))):
        put(pipe.servers, pipe.progress_topic, app_id_of(name, TABLE_ID).encode(), None)
    for shards in (2, 3, 0):
        with pytest.raises(SinkRejected, match="progress"):
            pipe.deliver(shards=shards)
    assert pipe.delivered() == list(range(5))


def test_progress_is_lost_after_shards_were_put_together(pipe: Pipe) -> None:
    pipe.deliver(shards=2)
    pipe.deliver()
    put(pipe.servers, pipe.progress_topic, pipe.app_id.encode(), None)
    for shards in (0, 3, 0):
        with pytest.raises(SinkRejected, match="progress of its shards"):
            pipe.deliver(shards=shards)
    assert pipe.delivered() == list(range(5))


def test_all_progress_of_shards_is_lost(pipe: Pipe) -> None:
    pipe.deliver(shards=2)
    pipe.recreate(pipe.progress_topic)
    pipe.publish()
    for shards in (2, 0):
        with pytest.raises(SinkRejected, match="was its progress lost") as raised:
            pipe.deliver(shards=shards)
        assert named_version(raised.value) == 4
    pipe.reset(4, 3)
    pipe.deliver(shards=3)
    assert pipe.delivered() == list(range(6))


@every_client
@pytest.mark.parametrize("shards", [0, 2])
@pytest.mark.parametrize("creates", [True, False])
@pytest.mark.sampled(5)
def test_a_topic_that_was_created_again_stops(pipe: Pipe, client: str, shards: int, creates: bool) -> None:
    pipe.options["library"] = client
    pipe.deliver(shards)
    pipe.options["create_topics"] = creates
    pipe.publish()
    pipe.delete(pipe.topic)
    with pytest.raises(SinkRejected, match=f"the topic {pipe.topic} was deleted|there is no topic {pipe.topic}"):
        pipe.deliver(shards)
    assert not pipe.exists()
    pipe.create(pipe.topic)
    for _ in range(2):
        with pytest.raises(SinkRejected, match=f"the topic {pipe.topic} was deleted.*another id") as raised:
            pipe.deliver(shards)
        assert named_version(raised.value) == 4
    assert pipe.delivered() == []
    pipe.reset(-1, shards)
    pipe.deliver(shards)
    assert pipe.delivered() == list(range(6))


@pytest.mark.parametrize("how", ["deleted", "recreated"])
@pytest.mark.sampled(2)
def test_a_topic_that_was_created_again_before_the_table_was_replaced_stops(pipe: Pipe, how: str) -> None:
    """The new table id has no progress yet: that of the previous id names the topic."""
    pipe.deliver()
    (pipe.delete if how == "deleted" else pipe.recreate)(pipe.topic)
    pipe.replace_table()
    with pytest.raises(SinkRejected, match="was deleted: rows up to version 4 were delivered") as refused:
        pipe.deliver()
    assert named_version(refused.value) == 4
    pipe.reset(4)
    pipe.deliver()
    assert pipe.delivered() == [5]


def test_a_replaced_table_goes_on_in_the_same_topic(pipe: Pipe) -> None:
    pipe.deliver()
    pipe.replace_table()
    pipe.publish()
    pipe.deliver()
    assert pipe.delivered() == list(range(7))


@every_client
@pytest.mark.parametrize("how", ["deleted", "recreated"])
@pytest.mark.sampled(3)
def test_a_topic_is_created_again_while_it_runs(pipe: Pipe, client: str, how: str) -> None:
    pipe.options["library"] = client

    async def run(sink: KafkaSink) -> None:
        await pipe.deliver_by(sink)
        await anyio.to_thread.run_sync(pipe.delete if how == "deleted" else pipe.recreate, pipe.topic)
        pipe.publish()
        with pytest.raises(SinkRejected, match=f"the topic {pipe.topic} was deleted"):
            await pipe.deliver_by(sink)

    pipe.with_sink(run)
    assert pipe.exists() == (how == "recreated")
    pipe.reset(4)
    pipe.deliver()
    assert pipe.delivered() == [5]


@every_client
def test_progress_without_a_topic_id_resumes_and_gets_one(pipe: Pipe, client: str) -> None:
    """As earlier versions wrote it."""
    pipe.options["library"] = client
    pipe.deliver()
    old = b'{"instance":"me","topic":"%s","partitions":1,"version":4}' % pipe.topic.encode()
    put(pipe.servers, pipe.progress_topic, pipe.app_id.encode(), old)
    before = pipe.entry()
    assert before is not None
    assert before.topic_id is None
    pipe.publish()
    pipe.deliver()
    assert pipe.delivered() == list(range(6))
    after = pipe.entry()
    assert after is not None
    assert after.topic_id is not None
    pipe.recreate(pipe.topic)
    pipe.publish()
    with pytest.raises(SinkRejected, match="another id"):
        pipe.deliver()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.sampled(2)
def test_random_losses_of_topics_neither_duplicate_nor_skip_rows(pipe: Pipe, seed: int) -> None:
    """Random starts, numbers of shards and losses; after a refused start its hint is followed."""
    chance = random.Random(seed)
    expected: list[int] = []
    reached, was_lost = -1, False
    for _ in range(8):
        shards = chance.choice([0, 2, 3])
        if was_lost:
            with pytest.raises(SinkRejected) as raised:
                pipe.deliver(shards)
            named = re.search(r"--to (\d+)`|with (\d+) it continues", raised.value.hint)
            assert named is None or int(named[1] or named[2]) == reached, raised.value.hint
            pipe.reset(reached, shards)
        pipe.deliver(shards)
        expected += range(reached + 1, pipe.versions)
        reached = pipe.versions - 1
        delivered = pipe.delivered()
        assert delivered == expected, (delivered, expected, reached, shards)
        pipe.publish(chance.randrange(1, 3))
        loss = chance.choice(["none", "progress deleted", "progress expired", "one record", "rows"])
        if loss == "progress deleted":
            pipe.delete(pipe.progress_topic)
        elif loss == "progress expired":
            pipe.expire_progress()
        elif loss == "one record":
            names = [pipe.name, *(shard_name(pipe.name, shard, shards) for shard in range(shards))]
            put(pipe.servers, pipe.progress_topic, app_id_of(names[-1], TABLE_ID).encode(), None)
        elif loss == "rows":
            pipe.recreate(pipe.topic)
            expected = []
        was_lost = loss != "none"


@every_client
@pytest.mark.parametrize("which", ["topic", "progress_topic"])
@pytest.mark.sampled(3)
def test_a_topic_that_is_deleted_is_reported_at_once(pipe: Pipe, client: str, which: str) -> None:
    """Not only when the delivery times out."""
    pipe.options["library"] = client

    async def run(sink: KafkaSink) -> None:
        async with sink.begin(pipe.app_id, SCHEMA) as transaction:
            await anyio.to_thread.run_sync(pipe.delete, str(pipe.options[which]))
            began_s = time.monotonic()
            with pytest.raises(SinkUnavailable, match=str(pipe.options[which])):
                await write_and_commit(transaction, pipe)
        assert time.monotonic() - began_s < 7

    pipe.with_sink(run)


async def write_and_commit(transaction: SinkTransaction, pipe: Pipe) -> None:
    """Deliver a version."""
    await transaction.write(numbered(1))
    await transaction.commit(Progress(pipe.app_id, Position.end(1)))

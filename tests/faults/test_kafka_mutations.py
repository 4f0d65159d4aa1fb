"""Six deliberate mistakes that lose or duplicate messages: the figures detect each, and are 0 without it.

A test runs twice under the same fault, which fires at a named place in the code: with the code as it is, and with one
mistake in it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import SinkFenced, SinkUnavailable
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Position
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka import link
from tailer_sinks.kafka.clients import python_cluster, python_producer, python_records
from tailer_sinks.kafka.clients.port import Producer
from tailer_sinks.kafka.clients.python_producer import PythonProducer
from tailer_sinks.kafka.clients.python_records import Record, batches
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import settings_of
from tailer_sinks.kafka.progress import Entry, encode
from tailer_sinks.kafka.sink import KafkaSink
from tailer_sinks.kafka.stream import Stream
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.figures import Figures
from tests.support.kafka.history import History
from tests.support.kafka.lanes import Lane, Lanes
from tests.support.kafka.proxy import Proxy
from tests.support.kafka.topics import end_offsets

PATIENCE_S = 30.0


@dataclass
class Scene:
    """A table and a stream of it, delivered in this process, two versions per transaction."""

    kafka: KafkaCluster
    lanes: Lanes

    @property
    def history(self) -> History:
        """The table."""
        return self.lanes.history

    def sink(self, address: str | None = None, transaction_s: float = 2.0) -> KafkaSink:
        """Make a new sink. `address`: of the cluster, by default the one without a proxy. Messages expire earlier."""
        options = self.lanes.lanes[0].sink_options(address or self.kafka.bootstrap_servers, self.lanes.progress_topic)
        return KafkaSink.configure("sink", options | {"transaction_timeout_s": transaction_s})

    def deliver(self, sink: KafkaSink, then_close: bool = True) -> None:
        """Deliver all published versions."""
        anyio.run(self._deliver, sink, then_close)

    async def _deliver(self, sink: KafkaSink, then_close: bool) -> None:
        engine = ChangelogEngine(LocalEngine(1), PairingRules())
        table = DeltaTableLog(LocalStore(self.history.path))
        start, until = Start.parse("earliest"), Start.parse("latest")
        limits = Limits(max_versions=2, poll_interval_s=0.01)
        pipeline = row_pipeline("p", table, sink, engine, TimerWake(), start, until, limits=limits)
        try:
            await pipeline.run()
        finally:
            if then_close:
                await sink.aclose()

    def figures(self) -> Figures:
        """Return the figures of what readers see now."""
        (found,) = self.lanes.figures()
        return found


@pytest.fixture
def scene(tmp_path: Path, kafka: KafkaCluster) -> Iterator[Scene]:
    """A stream to one topic through kafka-python."""
    history = History(tmp_path / "table", seed=5, length=12, large=60, large_every=4)
    with Lanes(tmp_path, history, kafka.bootstrap_servers, [Lane("kafka-python", "flat", partitions=1)]) as lanes:
        yield Scene(kafka, lanes)


def at_call(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, nth: int, act: Callable[..., Any]) -> None:
    """Replace the nth call of a method: `act` is called with the original and its arguments."""
    original, calls = getattr(owner, name), count(1)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if next(calls) == nth:
            return act(partial(original, self), *arguments, **named)
        return original(self, *arguments, **named)

    monkeypatch.setattr(owner, name, method)


mistaken = pytest.mark.parametrize("mistaken", [False, True], ids=["as it is", "mistaken"])


@mistaken
def test_deliveries_unchecked_before_the_commit(
    scene: Scene, kafka_link: Proxy, monkeypatch: pytest.MonkeyPatch, mistaken: bool
) -> None:
    if mistaken:
        monkeypatch.setattr(PythonProducer, "_check_delivered", lambda *_: None)

    def send_twice(send: Callable[..., None], topic: str, messages: Messages, *partition: int) -> None:
        """Send the first message while the link is up, so that the transaction has the topic; then the others."""
        send(topic, messages.slice(0, 1), *partition)
        producer: PythonProducer = send.args[0]  # type: ignore[attr-defined]  # it is a partial method
        await_outcome(producer, stored=True)
        kafka_link.cut()
        send(topic, messages.slice(1, len(messages) - 1), *partition)
        await_outcome(producer, stored=False)
        kafka_link.mend()

    def begin(original: Callable[[], None]) -> None:
        original()
        at_call(monkeypatch, PythonProducer, "send", 1, send_twice)

    # A message times out long before its transaction.
    monkeypatch.setattr(link, "settings_of", lambda given: replace(settings_of(given), transaction_timeout_ms=60_000))
    # The first transaction is the claim's; during the second one the client learns about the topics.
    at_call(monkeypatch, PythonProducer, "begin", 3, begin)
    scene.history.publish(8)
    scene.deliver(
        scene.sink(kafka_link.address, transaction_s=10.0)
    )  # on a busy machine only those that must expire do
    figures = scene.figures()
    assert (figures.missing > 0) if mistaken else figures.all_zero, figures


def await_outcome(producer: PythonProducer, stored: bool) -> None:
    """Return when the client knows whether all messages are stored, or that one of them is not."""
    deadline = time.monotonic() + PATIENCE_S
    futures = [future for chunk in producer._in_flight for future in chunk.futures]
    while not all(future.is_done for future in futures):
        assert time.monotonic() < deadline, futures
        time.sleep(0.02)
    assert all(future.succeeded() for future in futures) is stored


@mistaken
def test_progress_read_before_the_other_one_is_fenced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, mistaken: bool
) -> None:
    if mistaken:
        monkeypatch.setattr(Stream, "_claimable", lambda self, *_: self.seen)

    def connect_late(connect: Callable[[str], Producer], app_id: str) -> Producer:
        scene.deliver(scene.sink())  # another instance
        return connect(app_id)

    at_call(monkeypatch, Link, "producer", 1, connect_late)
    scene.history.publish(8)
    with suppress(SinkFenced):
        scene.deliver(scene.sink())
    scene.deliver(scene.sink())
    figures = scene.figures()
    assert (figures.doubled > 0) if mistaken else figures.all_zero, figures


@mistaken
def test_progress_read_to_the_committed_end_only(scene: Scene, monkeypatch: pytest.MonkeyPatch, mistaken: bool) -> None:
    if mistaken:
        monkeypatch.setattr(python_cluster, "batches", committed_batches)
    first, topic = scene.sink(), scene.lanes.progress_topic
    scene.history.publish(3)
    scene.deliver(first, then_close=False)
    other = KafkaProducer(bootstrap_servers=scene.kafka.bootstrap_servers, transactional_id=topic)
    other.init_transactions()

    def record_behind(record: Callable[..., None], *arguments: Any) -> None:
        """Record progress after that of another stream, whose transaction stays open."""
        other.begin_transaction()
        other.send(topic, encode(Entry(None, "other", "other", 1)), key=b"other/stream", partition=0).get(30)
        record(*arguments)

    at_call(monkeypatch, Link, "record_progress", 1, record_behind)
    scene.history.publish(4)
    scene.deliver(first)
    scene.history.publish(2)
    scene.deliver(scene.sink())
    other.abort_transaction()
    other.close()
    figures = scene.figures()
    assert (figures.doubled > 0) if mistaken else figures.all_zero, figures


@mistaken
def test_progress_read_as_a_former_leader_has_it(scene: Scene, monkeypatch: pytest.MonkeyPatch, mistaken: bool) -> None:
    """Until the stream is claimed, a broker that does not know yet that another one leads gives a former end."""
    if mistaken:
        claimable, found = Stream._claimable, dict[Stream, Entry | None]()

        def read_once(stream: Stream, reset_to: Position | None, before: int | None = None) -> Entry | None:
            if before is None:
                found[stream] = claimable(stream, reset_to)
            return found[stream]

        monkeypatch.setattr(Stream, "_claimable", read_once)
    scene.history.publish(3)
    scene.deliver(scene.sink())
    topic = TopicPartition(scene.lanes.progress_topic, 0)
    former = end_offsets(scene.kafka.bootstrap_servers, [topic.topic])[topic]
    scene.history.publish(4)
    scene.deliver(scene.sink())

    ends, commit, claimed = python_cluster._ends, PythonProducer.commit, Event()

    def ends_of_former_leader(admin: Any, partitions: Sequence[TopicPartition]) -> Any:
        found = ends(admin, partitions)
        if topic in found and not claimed.is_set():
            found[topic] = SimpleNamespace(offset=former, leader_epoch=found[topic].leader_epoch)
        return found

    def commit_claim(producer: PythonProducer) -> None:
        commit(producer)
        claimed.set()

    monkeypatch.setattr(python_cluster, "_ends", ends_of_former_leader)
    monkeypatch.setattr(PythonProducer, "commit", commit_claim)
    scene.deliver(scene.sink())
    figures = scene.figures()
    assert (figures.doubled > 0) if mistaken else figures.all_zero, figures


def committed_batches(admin: Any, partition: Any, position: int, end: int) -> Iterator[Any]:
    """Yield what `read_committed` consumers see: what comes before any open transaction."""
    stable = admin.list_partition_offsets({partition: OffsetSpec.LATEST}, IsolationLevel.READ_COMMITTED)[partition]
    return (each for each in batches(admin, partition, position, end) if each.next_offset <= stable.offset)


@mistaken
def test_progress_of_a_transaction_that_was_aborted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, mistaken: bool
) -> None:
    if mistaken:
        monkeypatch.setattr(python_records.Transactions, "take", every_record)

    def fail(commit: Callable[[], None]) -> None:
        commit.args[0]._flush()  # type: ignore[attr-defined]  # it is a partial method
        raise SinkUnavailable("sink", "the connection is cut")

    at_call(monkeypatch, PythonProducer, "commit", 3, fail)  # the first is the claim's
    scene.history.publish(8)
    scene.deliver(scene.sink())
    figures = scene.figures()
    assert (figures.missing > 0) if mistaken else figures.all_zero, figures


def every_record(_: Any, batch: Any) -> list[Record]:
    """Take records for committed as soon as they are there."""
    return [] if batch.is_control_batch else [Record(each.offset, each.key, each.value, (0, 0)) for each in batch]


@mistaken
def test_progress_outside_of_the_transaction(
    scene: Scene, kafka_link: Proxy, monkeypatch: pytest.MonkeyPatch, mistaken: bool
) -> None:
    if mistaken:
        record = Link.record_progress

        def record_twice(at: Link, producer: Producer, *progress: Any) -> None:
            record_outside(scene.kafka.bootstrap_servers, at.options.progress_topic, *progress)
            record(at, producer, *progress)

        monkeypatch.setattr(Link, "record_progress", record_twice)

    monkeypatch.setattr(python_producer, "_END_MS", 2_000)

    def commit_without_link(commit: Callable[[], None]) -> None:
        kafka_link.cut()
        try:
            commit()
        finally:
            kafka_link.mend()

    at_call(monkeypatch, PythonProducer, "commit", 2, commit_without_link)  # the first is the claim's
    scene.history.publish(8)
    scene.deliver(scene.sink(kafka_link.address))
    figures = scene.figures()
    assert (figures.missing > 0) if mistaken else figures.all_zero, figures


def record_outside(bootstrap_servers: str, topic: str, app_id: str, entry: Entry) -> None:
    """Record progress without a transaction."""
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers)
    producer.send(topic, encode(entry), key=app_id.encode(), partition=0).get(30)
    producer.close()

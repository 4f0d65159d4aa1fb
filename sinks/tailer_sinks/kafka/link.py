"""The parts shared by all streams of a sink: the instance's name, the cluster's topics, and the producer factory.

Everything here blocks and is called from worker threads.
"""

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailer.errors import ConfigError, SinkAccessRefused, SinkFenced, SinkUnavailable, how_to_install
from tailer.plan import Position
from tailer.sink import instance_name, pipeline_of, table_of
from tailer_sinks.encoding.messages import BYTES, Messages
from tailer_sinks.kafka.clients.port import Connection, Producer, ProducerFactory, TopicState
from tailer_sinks.kafka.clients.python_cluster import Cluster, Owner
from tailer_sinks.kafka.clients.python_producer import PythonProducer
from tailer_sinks.kafka.clients.settings import CONFLUENT_ONLY
from tailer_sinks.kafka.options import Options, connection_of, settings_of
from tailer_sinks.kafka.progress import Entry, ProgressTopic, app_id_in, decode, encode
from tailer_sinks.kafka.topics import check, check_present, check_routed, wanted

if TYPE_CHECKING:
    from tailer_sinks.encoding.avro.registry import SchemaRegistry

__all__ = ["Link", "producer_factory"]

KNOWN_S: Final = 5.0
_VISIBLE_S: Final = 5.0
_HEARTBEATS: Final = "lake-tailer-heartbeat-"  # and the pipeline: a group of consumers, without a member


class Link:
    """The cluster of one sink, seen by one instance.

    `instance`: a name that no other instance has. `registry`: of schemas, kept for its cache; None if not in use.
    `only_looks`: whether nothing is changed, as for a check beside a running instance. `seen`: by app_id, the position
    of a stream when it was last read, or that was committed since.
    """

    def __init__(self, name: str, options: Options) -> None:
        self.name: Final = name
        self.options: Final = options
        self.instance: Final = instance_name()
        self.only_looks = False
        self.registry: SchemaRegistry | None = None
        self.seen: Final = dict[str, Position | None]()
        self._factory = producer_factory(name, options)
        self._lock = Lock()
        self._checked = False
        self._cluster: Cluster | None = None
        self._connection: Connection | None = None

    def progress(self, before: int | None = None) -> ProgressTopic | None:
        """Read the progress of every stream from the progress topic. None: the topic is to be created.

        `before`: an offset that a producer was told, to read every record before it, whichever broker answers.

        Raises `SinkError`, also for wrong topics, so that a new pipeline fails before there is something to deliver.
        """
        topic = self.options.progress_topic
        with self._lock, self._forgetting_refused():
            if not self._checked:
                self._await_topics()
                check_present(self.name, self._connected(), self.options)
                self._checked = True
            content = self._connected().read(topic, before)
        if content is None and not self.options.create_topics:
            raise SinkUnavailable(self.name, f"the topic {topic} is gone, or is not known yet")
        if content is None:
            return None
        records = sorted(content.records.items(), key=lambda each: each[1].offset)
        return ProgressTopic.of(
            decode(self.name, topic, {key: record.value for key, record in records}),
            map(app_id_in, content.open_keys),
            {app_id_in(key): record.writer for key, record in content.records.items()},
        )

    def progress_of(self, app_id: str) -> ProgressTopic | None:
        """Read the progress as `progress` does, with all of the stream's that was committed before the call.

        A commit is visible some milliseconds after it was acknowledged. If it does not become so in `_VISIBLE_S`, or a
        later transaction has progress, the stream is among those that are `open`.
        """
        deadline, read = time.monotonic() + _VISIBLE_S, self.progress()
        while read is not None and app_id in read.open and time.monotonic() < deadline:
            owner = self.owner(app_id)
            if owner is not None and owner.in_transaction:
                return self.progress()
            time.sleep(_VISIBLE_S / 200)
            read = self.progress()
        return read

    def decided_progress(self, pipeline: str) -> ProgressTopic | None:
        """Read the progress as `progress` does, with that of `pipeline` decided.

        Of its streams, those that a killed instance left with an open transaction are taken over, which ends it.
        """
        read = self.progress()
        undecided = (
            []
            if read is None or self.only_looks
            else [stream for stream in read.open if pipeline_of(stream) == pipeline]
        )
        for app_id in undecided:
            now = self.progress_of(app_id)
            if now is not None and app_id in now.open:
                self.producer(app_id).close()
        return self.progress() if undecided else read

    def owner(self, app_id: str) -> Owner | None:
        """Return the producer that took `app_id` over last; None: unknown. Raises `SinkError`."""
        with self._lock:
            return self._connected().owner(app_id)

    def check_topics(self, delivered: Position | None = None) -> TopicState:
        """See `tailer_sinks.kafka.topics.check`."""
        with self._lock:
            self._await_topics(delivered is not None)
            return check(self.name, self._connected(), self.options, delivered)

    def check_topic(self, topic: str, has_rows: bool) -> TopicState:
        """Return a topic that a column names, which is created if it is missing and may be. Raises `SinkError`.

        `has_rows`: whether rows were delivered to it, so that it must exist.
        """
        with self._lock:
            if has_rows or not self.options.create_topics:
                self._await([topic])
            return check_routed(self.name, self._connected(), self.options, topic, has_rows)

    def look_at_topics(self, topics: Collection[str]) -> Mapping[str, TopicState]:
        """Describe topics for rows as they are now, without their settings.

        Raises `SinkError` if one of them or the progress topic is missing. A producer would wait for a deleted topic
        until the delivery times out.
        """
        wanted = [*topics, self.options.progress_topic]
        with self._lock:
            try:
                states = self._connected().describe(wanted, with_configs=False)
            except SinkUnavailable:
                # The connection may have been cut since its last use: try a new one.
                states = self._connected().describe(wanted, with_configs=False)
        for topic in wanted:
            if topic not in states:
                raise SinkUnavailable(self.name, f"the topic {topic} is gone, or is not known yet")
        return states

    def present(self, topics: Collection[str]) -> Mapping[str, TopicState]:
        """Describe those of the topics that exist, after a moment for those that a broker does not know yet."""
        with self._lock:
            self._await(topics)
            return self._connected().describe(list(topics), with_configs=False) if topics else {}

    def row_topics(self) -> Sequence[str]:
        """Return the topics that may have rows: for a pattern, those that exist. Raises `SinkError`."""
        route = self.options.route
        if route is None:
            return [self.options.topic]
        if not isinstance(route.topics, re.Pattern):
            return route.listed
        with self._lock:
            return sorted(filter(route.reaches, self._connected().names()))

    def had_messages(self, topic: str) -> bool:
        """Return whether a topic has or ever had messages; False without such a topic. Raises `SinkError`."""
        with self._lock:
            return self._connected().had_messages(topic)

    def scan(self, topic: str, take: Callable[[bytes], None]) -> None:
        """Pass the value of every committed message in partition 0 of a topic, if it exists, to `take`.

        Raises `SinkError`.
        """
        with self._lock:
            self._connected().scan(topic, take)

    def producer(self, app_id: str) -> Producer:
        """Make a producer that has taken `app_id` over: what was open is ended, its former writer is fenced.

        Raises `SinkError`.
        """
        if self._connection is None:
            self._connection = connection_of(self.name, self.options)
        try:
            with self._forgetting_refused():
                return self._factory(self._connection, settings_of(self.options), app_id)
        except SinkFenced as error:
            # Another instance does the same now: the progress topic shows which one was last.
            raise SinkUnavailable(self.name, error.reason) from error

    def fence_replaced(self, app_id: str, seen: set[str] | None) -> Mapping[str, tuple[int, int] | None]:
        """Take over the streams in tables that this one has replaced: who is frozen in one commits nothing more.

        Return all streams in such tables, and their writers before. Raises `SinkUnavailable` if there are others than
        those that were `seen` with the progress; None: none was read.
        """
        read = self.progress() or ProgressTopic()
        replaced = read.replaced_by(app_id)
        if seen is not None and not replaced <= seen:
            raise self.replaced(app_id)
        for former in read.able_to_commit(replaced):
            self.producer(former).close()
        return {former_id: read.writers.get(former_id) for former_id in replaced}

    def replaced(self, app_id: str) -> SinkUnavailable:
        """Make the error of a stream whose pipeline has gone on with another source table."""
        return SinkUnavailable(self.name, f"another source table has taken the place of {table_of(app_id)}")

    def record_progress(self, producer: Producer, app_id: str, entry: Entry) -> None:
        """Send the progress record of the stream as part of the producer's transaction."""
        columns = (pa.array([value], BYTES) for value in (app_id.encode(), encode(entry)))
        keys, values = columns
        producer.send(self.options.progress_topic, Messages(keys, values, pa.array([0], pa.int64())), partition=0)

    def note_heartbeat(self, pipeline: str, text: str) -> None:
        """Replace the heartbeat of a pipeline. Raises `SinkError`."""
        group, topic = f"{_HEARTBEATS}{pipeline}", self.options.progress_topic
        with self._lock:
            is_noted = self._connected().note(group, topic, text)
        if not is_noted:
            self.check_topics()
            with self._lock:
                is_noted = self._connected().note(group, topic, text)
        if not is_noted:
            raise SinkUnavailable(self.name, f"the topic {topic} is gone, or is not known yet")

    def heartbeat(self, pipeline: str) -> str | None:
        """Return the heartbeat of a pipeline that was noted last; None: none. Raises `SinkError`."""
        with self._lock:
            return self._connected().noted(f"{_HEARTBEATS}{pipeline}", self.options.progress_topic)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()
                self._cluster = None

    @contextmanager
    def _forgetting_refused(self) -> Iterator[None]:
        """Read the secrets again for the next login, if this one is refused."""
        try:
            yield
        except SinkAccessRefused:
            cluster, self._cluster, self._connection = self._cluster, None, None
            if cluster is not None:
                cluster.close()
            raise

    def _await_topics(self, has_rows: bool = False) -> None:
        """Wait a moment for required topics: a broker that has just started knows none.

        `has_rows`: whether the topic for rows is required, though we may create topics.
        """
        names = [topic.name for topic in wanted(self.options)]
        if self.options.create_topics:
            names = [self.options.topic] if has_rows and self.options.route is None else []
        self._await(names)

    def _await(self, names: Collection[str]) -> None:
        """Wait a moment for topics to be known."""
        deadline = time.monotonic() + KNOWN_S
        while names and len(self._connected().describe(list(names), with_configs=False)) < len(names):
            if time.monotonic() >= deadline:
                return
            time.sleep(KNOWN_S / 10)

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(connection_of(self.name, self.options))
        return self._cluster


def producer_factory(name: str, options: Options) -> ProducerFactory:
    """Return the chosen client, or else the fastest that is installed. Raises `ConfigError`."""
    if options.library == "kafka-python":
        return PythonProducer
    try:
        # Its client is an extra.
        from tailer_sinks.kafka.clients.confluent_producer import ConfluentProducer  # noqa: PLC0415
        from tailer_sinks.kafka.clients.librdkafka import library  # noqa: PLC0415

        library()
    except ImportError as error:
        if options.library != "auto":
            remedy = how_to_install("kafka-fast")
            raise ConfigError(f"{name}.library", f"confluent-kafka cannot be loaded: {error}", remedy) from error
        # The options accept settings that kafka-python lacks if confluent-kafka is found.
        for setting in sorted(CONFLUENT_ONLY & settings_of(options).settings.keys()):
            reason = f"is a setting that only confluent-kafka has, which cannot be loaded: {error}"
            remedy = "Leave it out, or install confluent-kafka again."
            raise ConfigError(f"{name}.client.{setting}", reason, remedy) from error
        return PythonProducer
    return ConfluentProducer

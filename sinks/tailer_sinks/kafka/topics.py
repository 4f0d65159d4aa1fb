"""The topics of a sink: created on request, with settings that keep their records, and checked before any use."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer_sinks.kafka.clients.port import TopicState
from tailer_sinks.kafka.clients.python_cluster import Cluster
from tailer_sinks.kafka.options import Options

__all__ = ["check", "check_id", "check_partitions", "check_present", "check_routed", "recreated", "wanted"]

_log = logging.getLogger(__name__)

_BATCH_OVERHEAD: Final = 1024
_FOR_ROWS: Final = frozenset(["topic", "topics", "other_topic"])
_SMALL_SEGMENT: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Topic:
    """The requirements on a topic. `option`: the option with its name. `compacted` None: either.

    `partitions` None: any number. `record_bytes`: the largest message that it must accept.
    """

    name: str
    option: str
    partitions: int | None = None
    compacted: bool | None = None
    record_bytes: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)


def wanted(options: Options) -> list[Topic]:
    """List the topics that a sink with `options` writes, the one for rows first."""
    route = options.route
    topics = [_row_topic(options, topic) for topic in ([options.topic] if route is None else route.listed)]
    topics += [
        # It is read from beginning to end at every start: small segments are compacted early.
        Topic(
            options.progress_topic,
            "progress_topic",
            partitions=1,
            compacted=True,
            configs={"segment.bytes": str(_SMALL_SEGMENT), "min.cleanable.dirty.ratio": "0.1"},
        ),
    ]
    others = {
        "end_topic": options.end_topic,
        "schema_topic": options.schema_topic,
        "dead_letter_topic": options.dead_letter_topic,
    }
    topics += [Topic(name, option, compacted=False) for option, name in others.items() if name is not None]
    if options.heartbeat_topic is not None:
        topics.append(Topic(options.heartbeat_topic, "heartbeat_topic"))
    return topics


def _row_topic(options: Options, topic: str) -> Topic:
    """Return the requirements on a topic for rows."""
    option = "topic" if options.route is None else "other_topic" if topic == options.other_topic else "topics"
    # A compacted topic takes no message without a key.
    compacted = None if options.key else False
    return Topic(topic, option, compacted=compacted, record_bytes=options.max_record_bytes)


def check_present(name: str, cluster: Cluster, options: Options) -> None:
    """Check existing topics, and that all exist which will not be created. Raises as `check` does."""
    topics = wanted(options)
    _refuse(name, topics, cluster.describe([topic.name for topic in topics]), options)


def check(name: str, cluster: Cluster, options: Options, delivered: Position | None = None) -> TopicState:
    """Return the topic for rows; an empty state if a column names it.

    Creates missing topics if configured, but never one to which rows were delivered. `delivered`: the last delivered
    position, None for none. Raises `SinkRejected` naming all topics that are missing or unsuitable, `SinkUnavailable`
    for one that not all brokers know yet, and what `cluster` raises. `name`: the sink's name in errors.
    """
    topics = wanted(options)
    states = cluster.describe([topic.name for topic in topics])
    routed = options.route is not None
    if delivered is not None and options.topic not in states and not routed:
        raise recreated(name, options.topic, delivered)
    states = _with_created(name, cluster, options, topics, states)
    return TopicState(0, {}) if routed else states[options.topic]


def check_routed(name: str, cluster: Cluster, options: Options, topic: str, has_rows: bool) -> TopicState:
    """Return a topic that a column names. Raises as `check` does.

    `has_rows`: whether rows were delivered to it, so that it is not created.
    """
    states = cluster.describe([topic])
    if topic not in states and has_rows:
        raise SinkUnavailable(name, f"the topic {topic} is gone, or is not known yet")
    return _with_created(name, cluster, options, [_row_topic(options, topic)], states)[topic]


def _with_created(
    name: str, cluster: Cluster, options: Options, topics: list[Topic], states: dict[str, TopicState]
) -> dict[str, TopicState]:
    """Create those of `topics` that `states` lacks, if they may be created, and return the states of all."""
    absent = [topic for topic in topics if topic.name not in states]
    _refuse(name, topics, states, options)
    for topic in absent:
        _create(cluster, topic, options)
        _log.info("%s: created the topic %s (%s)", name, topic.name, topic.option)
    if absent:
        states = states | cluster.describe([topic.name for topic in absent])
    for topic in absent:
        if topic.name not in states:
            # Other brokers may learn of it later than the one that created it.
            raise SinkUnavailable(name, f"the topic {topic.name} was created, and not all brokers know it yet")
    _refuse(name, absent, states, options)
    return states


def check_id(name: str, topic: str, delivered: Position, former_id: str | None, topic_id: str | None) -> None:
    """Raise `SinkRejected` if `topic` has `topic_id` now and had `former_id` when rows up to `delivered` were sent.

    None is an unknown id: of a record without one, or of a broker without ids.
    """
    if None not in (former_id, topic_id) and former_id != topic_id:
        raise recreated(name, topic, delivered, f"has another id now ({topic_id}, not {former_id})")


def check_partitions(name: str, topic: str, before: int, now: int) -> None:
    """Raise `SinkRejected` if a topic with keys has another number of partitions than `before`."""
    if now != before:
        reason = (
            f"the topic {topic} has {now} partitions and had {before}: keys would move, and the order of a key's "
            "messages would be lost"
        )
        remedy = (
            "Deliver to a new topic, by another pipeline; or continue with it nevertheless, after the delivered rows: "
            "`tailer progress reset PIPELINE --to VERSION`."
        )
        raise SinkRejected(name, reason, remedy)


def recreated(name: str, topic: str, delivered: Position, what: str = "is not there any more") -> SinkRejected:
    """Make the error for a topic that was deleted after rows up to `delivered` were sent to it."""
    last = delivered.version if delivered.closes_version else delivered.version - 1
    reason = f"the topic {topic} was deleted: rows up to version {last} were delivered to it, and it {what}"
    remedy = (
        "Choose the content of a new topic: `tailer progress reset PIPELINE --to VERSION` delivers the versions after "
        f"VERSION (-1: all versions); with {last} it continues without the deleted rows."
    )
    return SinkRejected(name, reason, remedy)


def _refuse(name: str, topics: list[Topic], states: Mapping[str, TopicState], options: Options) -> None:
    """Raise `SinkRejected` naming all of `topics` that are unsuitable, or missing and must not be created."""
    absent = [topic for topic in topics if topic.name not in states]
    faults: list[tuple[str, str]] = []  # each with the next step
    if absent and not options.create_topics:
        them = "it" if len(absent) == 1 else "them"
        compacted = next((topic.name for topic in absent if topic.option == "progress_topic"), None)
        settings = "" if compacted is None else f", {compacted} with one partition and cleanup.policy=compact"
        listed = ", and no topic ".join(f"{topic.name} ({topic.option})" for topic in absent)
        faults.append((f"there is no topic {listed}", f"Create {them}{settings}, or set create_topics = true."))
    faults += [fault for topic in topics if topic.name in states for fault in _faults(topic, states[topic.name])]
    if faults:
        reasons, remedies = zip(*faults, strict=True)
        raise SinkRejected(name, "; ".join(reasons), " ".join(remedies))


def _create(cluster: Cluster, topic: Topic, options: Options) -> None:
    configs = dict(topic.configs)
    if topic.compacted:
        configs["cleanup.policy"] = "compact"
    if options.replication_factor is not None and options.replication_factor > 2:
        configs["min.insync.replicas"] = "2"
    if topic.record_bytes > 1_000_000:
        configs["max.message.bytes"] = str(topic.record_bytes + _BATCH_OVERHEAD)
    partitions = options.partitions if topic.option in _FOR_ROWS else 1
    replicas = -1 if options.replication_factor is None else options.replication_factor
    cluster.create(topic.name, partitions, replicas, configs)


def _faults(topic: Topic, state: TopicState) -> Iterator[tuple[str, str]]:
    """Yield the reason and the next step of each thing that makes a topic unsuitable."""
    policies = [policy.strip() for policy in state.configs.get("cleanup.policy", "delete").split(",")]
    where = f"the topic {topic.name} ({topic.option})"
    if topic.partitions is not None and state.partitions != topic.partitions:
        reason = f"{where} has {state.partitions} partitions, and must have {topic.partitions}"
        yield reason, "Give another topic: partitions cannot be taken away."
    if topic.compacted and policies != ["compact"]:
        # Deletion by age would drop the progress of idle streams.
        reason = f"{where} has cleanup.policy={','.join(policies)}, and would forget progress"
        yield reason, f"Set cleanup.policy=compact for {topic.name}."
    if topic.compacted is False and "compact" in policies:
        why = "only messages with a key can be kept there"
        or_key = ", or give key" if topic.option in _FOR_ROWS else ""
        yield f"{where} is compacted: {why}", f"Set cleanup.policy=delete for {topic.name}{or_key}."
    needed = topic.record_bytes + _BATCH_OVERHEAD
    largest = int(state.configs.get("max.message.bytes", needed))
    if largest < needed:
        reason = f"{where} takes messages of {largest} bytes, less than max_record_bytes ({topic.record_bytes})"
        yield reason, f"Raise max.message.bytes of {topic.name}, or lower max_record_bytes."

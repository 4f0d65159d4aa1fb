"""The compacted progress topic: one record per app_id, written in the transaction of its rows.

A record's key is the app_id, its value JSON::

    {"format": 2,                                   of this record; none: 1, which has no topic_id
     "version": 7, "task": 0, "row": 99,            only the version where it is closed; none of them before any
     "instance": "host-7-5c1e...",                  the process that wrote it; the next one claims the stream with it
     "topic": "orders", "partitions": 6,            where the rows are
     "topic_id": "226281ba-0a32-...",               another one once the topic was deleted and created again
     "key": "json: id integer",                     what keys are made of; none without a key, or before the first row
     "events": 120000, "dead_letters": 1}           of the version that is under way: messages so far

A stream whose rows go to topics by the value of a column has further records, `<app_id>#topic=<topic>`, one for each
topic that it has sent rows to. They are like the others, and written with the first rows, and whenever a transaction
ends inside of a version, with the counts of the topic. Progress itself is in the record of the app_id alone, which has
the option `topic` as it is written, no partitions and no id.

Compaction keeps the last record of each key for ever, so the topic is as small as the number of streams.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tailer.errors import SinkRejected
from tailer.plan import END, Position
from tailer.sink import is_layout, main_app_id, pipeline_of, table_of

__all__ = ["Count", "Counts", "Entry", "ProgressTopic", "app_id_in", "decode", "encode", "topic_key"]

FORMAT: Final = 2
_TOPIC: Final = "#topic="


@dataclass(frozen=True, slots=True)
class Count:
    """The number of messages about rows of a version, and of its rows that have only a dead letter."""

    events: int = 0
    dead_letters: int = 0


class Counts:
    """The counts of versions that are not yet complete, by topic for rows."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[str, Count]] = {}

    def add(self, version: int, topic: str, count: Count) -> None:
        """Count messages of a version."""
        of_version = self._counts.setdefault(version, {})
        before = of_version.get(topic, Count())
        of_version[topic] = Count(before.events + count.events, before.dead_letters + count.dead_letters)

    def of(self, version: int) -> Mapping[str, Count]:
        """Return the counts of a version, in the order of topics' names."""
        return dict(sorted(self._counts.get(version, {}).items()))

    def total(self, version: int) -> Count:
        """Return the sum of a version's counts."""
        counts = self._counts.get(version, {}).values()
        return Count(sum(count.events for count in counts), sum(count.dead_letters for count in counts))

    def first(self, otherwise: int) -> int:
        """Return the first version that has any; `otherwise` without one."""
        return min(self._counts, default=otherwise)

    def clear(self) -> None:
        """Forget all."""
        self._counts.clear()


@dataclass(frozen=True, slots=True)
class Entry:
    """The progress of a stream in the progress topic. `position`: None if claimed, but nothing was delivered yet.

    `key`: as `tailer_sinks.kafka.encoders.key_form` describes it. `count`: of the version that contains `position`.
    `topic_id`: None in records of format 1, and if brokers are too old for ids.
    """

    position: Position | None
    instance: str
    topic: str
    partitions: int
    key: str | None = None
    count: Count = Count()
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProgressTopic:
    """The content of the progress topic, by app_id.

    `entries`: as committed last, in the order of their records. `open`: the streams that have a record in an open
    transaction. `writers`: the id and the epoch of the producer of each entry. `topics`: the entries of the topics that
    a column names.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    writers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, Entry]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, entries: Mapping[str, Entry], open_keys: Iterable[str], writers: Mapping[str, tuple[int, int]]
    ) -> "ProgressTopic":
        """Return the content of the topic by the keys of its records."""
        streams, topics = {}, dict[str, dict[str, Entry]]()
        for key, entry in entries.items():
            app_id, mark, topic = key.rpartition(_TOPIC)
            if mark:
                topics.setdefault(app_id, {})[topic] = entry
            else:
                streams[key] = entry
        return cls(streams, frozenset(key for key in open_keys if _TOPIC not in key), writers, topics)

    def replaced_by(self, app_id: str) -> set[str]:
        """Return the streams of the pipeline of `app_id` in other tables that were written later than its own.

        Those with an open transaction may be, too.
        """
        keys = list(self.entries)
        later = {*keys[keys.index(app_id) + 1 if app_id in self.entries else 0 :], *self.open}
        pipeline = pipeline_of(app_id)
        return {
            other
            for other in later
            if not is_layout(other)
            and pipeline_of(main_app_id(other)) == pipeline
            and table_of(other) != table_of(app_id)
        }

    def able_to_commit(self, replaced: Collection[str]) -> list[str]:
        """Return those of the streams `replaced` by another table that may still commit.

        Whoever goes on with another table takes over the streams of the one before it, and lets nobody claim those of
        earlier tables. So these are the streams of the table that was written last, but for backfills that are done,
        and all with an open transaction.
        """
        last = next((table_of(stream) for stream in reversed(list(self.entries)) if stream in replaced), None)
        return [
            stream
            for stream in replaced
            if stream in self.open or (table_of(stream) == last and not self._is_done(stream))
        ]

    def claimed_since(self, fenced: Mapping[str, tuple[int, int] | None], app_id: str) -> bool:
        """Return whether a stream that replaces `app_id` was claimed since those with the writers `fenced` were fenced.

        Claims have an order in the topic: of two instances with different tables, the later one finds the other.
        """
        return any(
            stream not in fenced or stream in self.open or self.writers.get(stream) != fenced[stream]
            for stream in self.replaced_by(app_id)
        )

    def further_than(self, seen: Mapping[str, Position | None], app_id: str) -> str | None:
        """Return a stream that has more than an instance has `seen`, if `app_id` is to begin where former ones ended.

        After `REPLACE TABLE`, a pipeline goes on in the stream of the new id. Another instance may have delivered more
        meanwhile in the streams of former ids, and also in this one if it was not read.
        """
        pipeline, table = pipeline_of(app_id), table_of(app_id)
        former = [
            stream
            for stream in seen
            if pipeline_of(stream) == pipeline
            and table_of(stream) != table
            and not (is_layout(stream) or is_layout(app_id))
        ]
        if self._position(app_id) is not None:
            return app_id if former and app_id not in seen else None
        return next((stream for stream in former if self._position(stream) != seen[stream]), None)

    def predecessor(self, app_id: str) -> Entry | None:
        """Return the latest progress of the pipeline in a table that this one replaced, whose rows are in the topic."""
        pipeline = pipeline_of(app_id)
        others = (entry for key, entry in self.entries.items() if key != app_id and pipeline_of(key) == pipeline)
        delivered = ((entry.position, entry) for entry in others if entry.position is not None)
        return max(delivered, key=lambda entry: entry[0], default=(None, None))[1]

    def _position(self, app_id: str) -> Position | None:
        entry = self.entries.get(app_id)
        return None if entry is None else entry.position

    def _is_done(self, app_id: str) -> bool:
        """Return whether a stream is a backfill with all of its rows delivered."""
        position = self.entries[app_id].position
        return main_app_id(app_id) != app_id and position is not None and position.closes_version


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    instance: str
    topic: str
    partitions: int
    key: str | None = None
    version: int | None = None
    task: int = END
    row: int = END
    events: int = 0
    dead_letters: int = 0
    topic_id: str | None = None
    format: int = 1


def encode(entry: Entry) -> bytes:
    """Encode the value of a record."""
    position, count = entry.position, entry.count
    place: dict[str, Any] = (
        {} if position is None else {"version": position.version, "task": position.task, "row": position.row}
    )
    of_part = position is not None and not position.closes_version
    counted: dict[str, Any] = {"events": count.events, "dead_letters": count.dead_letters} if of_part else {}
    record = _Record(
        entry.instance,
        entry.topic,
        entry.partitions,
        entry.key,
        topic_id=entry.topic_id,
        format=FORMAT,
        **place,
        **counted,
    )
    return msgspec.json.encode(record)


def decode(name: str, topic: str, records: Mapping[bytes | None, bytes | None]) -> dict[str, Entry]:
    """Decode the newest record of each app_id. A deleted record (a tombstone) counts as none.

    Raises `SinkRejected` for a foreign record; `name`: the sink's name in it.
    """
    return {app_id_in(key): _entry(name, topic, key, value) for key, value in records.items() if value is not None}


def topic_key(app_id: str, topic: str) -> str:
    """Return the key of the record of a topic that a column names."""
    return f"{app_id}{_TOPIC}{topic}"


def app_id_in(key: bytes | None) -> str:
    """Return the app_id that is the key of a record."""
    return (key or b"").decode(errors="replace")


def _entry(name: str, topic: str, key: bytes | None, value: bytes) -> Entry:
    try:
        record = msgspec.json.decode(value, type=_Record)
    except msgspec.DecodeError as error:
        reason = f"the progress topic {topic} has a record of {key!r} that is not progress: {error}"
        raise SinkRejected(name, reason, "Give a topic of its own as progress_topic.") from None
    if record.format > FORMAT:
        reason = f"the progress topic {topic} has a record of {key!r} in format {record.format}"
        raise SinkRejected(name, reason, "Use the version of lake-tailer that wrote it, or a newer one.")
    position = None if record.version is None else Position(record.version, record.task, record.row)
    count = Count(record.events, record.dead_letters)
    return Entry(position, record.instance, record.topic, record.partitions, record.key, count, record.topic_id)

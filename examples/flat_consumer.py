"""Keep a table of SQLite equal to a topic of flat messages, each change applied once.

    pip install 'lake-tailer[kafka]'
    python flat_consumer.py localhost:9092 shop.orders copy.db

A flat topic (`envelope = "flat"`, with a `key`) holds more than rows, and this reads all of it:

- `insert` and `update_postimage`: the row is there now. `delete`: it is gone. `update_preimage`: only for readers who
  want to know the former values.
- `schema_change`, in each partition: later rows have other columns.
- `gap`, in each partition: changes were lost. With `"snapshot": true` all rows follow, and the former ones are void.
- a message without a value: the tombstone of a deleted row, if `tombstones = true`.

Rows and the offset after them are committed together, so a consumer that is killed goes on where it was. It reads
committed messages alone: others may be taken back.
"""

import json
import sqlite3
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

from kafka import KafkaConsumer, TopicPartition

SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, place INTEGER, value TEXT);
CREATE TABLE IF NOT EXISTS offsets (place INTEGER PRIMARY KEY, next INTEGER);
"""


def apply(copy: sqlite3.Connection, place: int, key: bytes | None, value: bytes | None) -> None:
    """Apply one message of the partition `place`."""
    if value is None:
        return
    row = json.loads(value)
    kind = row["_change_type"]
    if kind in {"insert", "update_postimage"}:
        assert key is not None
        copy.execute("REPLACE INTO rows VALUES (?, ?, ?)", (key.decode(), place, value.decode()))
    elif kind == "delete":
        assert key is not None
        copy.execute("DELETE FROM rows WHERE key = ?", (key.decode(),))
    elif kind == "gap" and row["snapshot"]:
        copy.execute("DELETE FROM rows WHERE place = ?", (place,))
    elif kind == "gap":
        print(f"changes from version {row['first_version']} on are lost: {row['reason']}", file=sys.stderr)
    elif kind == "schema_change":
        print(*row["changes"], sep="\n", file=sys.stderr)


def batches(consumer: KafkaConsumer) -> Iterator[dict[TopicPartition, Any]]:
    """Yield what comes, until nothing has come for ten seconds; a service would go on."""
    quiet = count()
    while next(quiet) < 10:
        if polled := consumer.poll(timeout_ms=1000):
            quiet = count()
            yield polled


def main(servers: str, topic: str, path: str) -> None:
    """Apply all messages of the topic that are not in the file yet."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",  # an error where the topic no longer has the message that is next
    )
    places = [TopicPartition(topic, place) for place in consumer.partitions_for_topic(topic) or ()]
    if not places:
        sys.exit(f"error: {servers} has no topic {topic}: is the name right, and has the pipeline delivered?")
    copy = sqlite3.connect(path)
    copy.executescript(SCHEMA)
    offsets = dict(copy.execute("SELECT place, next FROM offsets"))
    consumer.assign(places)
    for place, first in consumer.beginning_offsets(places).items():
        consumer.seek(place, offsets.get(place.partition, first))
    for polled in batches(consumer):
        with copy:  # one transaction: the rows, and the offset after them
            for place, messages in polled.items():
                for message in messages:
                    apply(copy, place.partition, message.key, message.value)
                copy.execute("REPLACE INTO offsets VALUES (?, ?)", (place.partition, messages[-1].offset + 1))
    consumer.close()
    copy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Messages that are not about one row, and dead letters."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import CHANGE_TYPE, ChangeBatch, ControlEvent
from tailer.sink import shard_of
from tailer_sinks.encoding.flat import event_values
from tailer_sinks.encoding.messages import BYTES, Messages
from tailer_sinks.encoding.values import Int64Form, json_bytes
from tailer_sinks.kafka.options import Options
from tailer_sinks.kafka.progress import Count

__all__ = [
    "end_records",
    "event_record",
    "gap_remedy",
    "heartbeat",
    "oversized",
    "without_large",
]

_NO_BYTES: Final = pa.scalar(0, pa.int64())


def _single(value: bytes, key: bytes | None = None) -> Messages:
    """Make one message that is about no row."""
    keys = None if key is None else pa.array([key], BYTES)
    return Messages(keys, pa.array([value], BYTES), pa.array([0], pa.int64()))


def gap_remedy(options: Options) -> str:
    """Return the option that would give readers a place to learn of gaps; empty: there is one."""
    knows_events = (options.envelope, options.encoding) == ("flat", "json")
    return "" if knows_events or options.schema_topic is not None else "Give the sink a schema_topic."


def event_record(event: ControlEvent, app_id: str, keyed: bool, int64: Int64Form = "number") -> Messages:
    """Make the message of a schema change or a gap; `keyed`: among messages with keys, so it needs one.

    Each shard of a pipeline sends it at its own place between its rows, with the number of the shard.
    """
    values = event_values(event, int64) | _shard(app_id)
    return _single(json_bytes(values), json_bytes({CHANGE_TYPE: values[CHANGE_TYPE]}) if keyed else None)


def end_records(app_id: str, counts: Mapping[int, Mapping[str, Count]], now_ms: int) -> Messages:
    """Make Debezium's END records: versions are complete, each with its number of messages (without tombstones).

    `counts`: of each version, by topic. For a shard: its part is complete. A version is complete with the records of
    all shards, and its counts are their sums.
    """
    table_id, shard = app_id.rpartition("/")[2], _shard(app_id)
    values = [
        {
            "status": "END",
            "id": f"{table_id}:{version}",
            "ts_ms": now_ms,
            "event_count": sum(count.events for count in by_topic.values()),
            "data_collections": [
                {"data_collection": topic, "event_count": count.events} for topic, count in by_topic.items()
            ],
            "commit_version": version,
            "dead_letters": sum(count.dead_letters for count in by_topic.values()),
        }
        | shard
        for version, by_topic in counts.items()
    ]
    keys = pa.array([table_id.encode()] * len(values), BYTES)
    return Messages(keys, pa.array(map(json_bytes, values), BYTES), pa.array([0] * len(values), pa.int64()))


def heartbeat(name: str, now_ms: int) -> Messages:
    """Make Debezium's heartbeat: this pipeline is alive and has nothing to deliver."""
    return _single(json_bytes({"ts_ms": now_ms}), json_bytes({"serverName": name}))


def oversized(messages: Messages, limit: int) -> pa.Array | None:
    """Return which of the messages are larger than `limit` bytes, headers included; None: none is."""
    sizes = pc.cast(pc.fill_null(pc.binary_length(messages.values), _NO_BYTES), pa.int64())
    columns = [column for _, column in messages.headers]
    if messages.keys is not None:
        columns.append(messages.keys)
    for column in columns:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), _NO_BYTES))
    names = sum(len(name) for name, _ in messages.headers)
    if len(sizes) == 0 or pc.max(sizes).as_py() + names <= limit:
        return None
    return pc.greater(sizes, pa.scalar(limit - names, pa.int64()))


def without_large(batch: ChangeBatch, messages: Messages, topic: str, limit: int) -> tuple[Messages, Messages | None]:
    """Return the messages about rows of `batch` of at most `limit` bytes, and dead letters for the others, if any."""
    too_large = oversized(messages, limit)
    if too_large is None:
        return messages, None
    # A tombstone whose key is too large goes with its delete.
    large = messages.filter(pc.and_(too_large, messages.values.is_valid()))
    letters = _dead_letters(batch, large, topic, limit) if len(large) else None
    return messages.filter(pc.invert(too_large)), letters


def _dead_letters(batch: ChangeBatch, messages: Messages, topic: str, limit: int) -> Messages:
    """Make the dead letters of oversized messages about rows of `batch`: the rows' positions, and the reason."""
    keys = [None] * len(messages.values) if messages.keys is None else messages.keys.to_pylist()
    letters = []
    for key, value, row in zip(keys, messages.values.to_pylist(), messages.row_index.to_pylist(), strict=True):
        size = len(value or b"") + len(key or b"")
        letter = {
            "topic": topic,
            "table_id": batch.table_id,
            "commit_version": batch.version,
            "task": batch.task,
            "row": row,
            "size_bytes": size,
            "reason": f"the message has {size} bytes, and max_record_bytes is {limit}",
        }
        letters.append(json_bytes(letter))
    small = [key if key is not None and len(key) <= limit // 2 else None for key in keys]
    return Messages(pa.array(small, BYTES), pa.array(letters, BYTES), messages.row_index)


def _shard(app_id: str) -> dict[str, int]:
    shard = shard_of(app_id)
    return {} if shard is None else {"shard": shard[0], "shards": shard[1]}

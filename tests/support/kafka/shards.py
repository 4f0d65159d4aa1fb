"""Shards without Spark: an exchange in this process, and their combined END records."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from anyio import to_thread
from pyspark.sql import SparkSession

from tailer.errors import SinkFenced
from tailer.shards.packed_rows import PARTS, note_part, parts_of
from tailer.shards.worker import ShardReport, ShardWork
from tailer.spark.release import SameRelease
from tailer.spark.splits import Split, read_split
from tailer.spark.write.exchange import ShardExchange
from tailer.spark.write.shard_rows import ShardRows, packed_changes
from tests.support.kafka.topics import Record

__all__ = ["LocalExchange", "by_key", "together"]

PATIENCE_S: Final = 1.0
ATTEMPTS: Final = 4


class LocalExchange(ShardExchange):
    """An exchange in this process: a thread for each shard. `only`: deliver this shard alone; None: all shards."""

    def __init__(self, only: int | None = None) -> None:
        super().__init__(_no_session)
        self._only = only

    async def deliver(self, splits: Sequence[Split], work: ShardWork, key: Sequence[str]) -> list[ShardReport]:
        """See `ShardExchange.deliver`."""
        return await to_thread.run_sync(self._deliver, splits, work, key)

    def _deliver(self, splits: Sequence[Split], work: ShardWork, key: Sequence[str]) -> list[ShardReport]:
        shards, notes = work.settings.shards, []
        read = (
            batch for split in splits for batch in read_split(split, lambda *found: notes.append(note_part(*found)))
        )
        parts = [PARTS.empty_table(), *(pa.Table.from_batches([parts_of(batch, key, shards)]) for batch in read)]
        ordered = pa.concat_tables([*parts, *(pa.Table.from_batches([note]) for note in notes)]).sort_by(
            [(name, "ascending") for name in ("_version", "_task", "_row", "_kind")]
        )
        some = range(shards) if self._only is None else [self._only]
        delivered = ShardRows(SameRelease(), work, partial(packed_changes, work.table_id, {}))
        with ThreadPoolExecutor(shards) as threads:
            return list(threads.map(lambda shard: _delivered(delivered, ordered, shard), some))


def _delivered(delivered: ShardRows, parts: pa.Table, shard: int) -> ShardReport:
    """Deliver a shard; a task that was fenced runs again, as in Spark."""
    own = parts.filter(pc.equal(parts["_shard"], shard)).to_batches()
    for attempt in range(ATTEMPTS - 1):
        with suppress(SinkFenced):
            return delivered.report(shard, iter(own), PATIENCE_S * 2**attempt)
    return delivered.report(shard, iter(own), PATIENCE_S)


def _no_session() -> SparkSession:
    raise AssertionError("no session is needed")


def by_key(records: Sequence[Record]) -> list[Record]:
    """Sort records by key, those of a key in their order: shards have no other common order."""
    return sorted(records, key=lambda record: record.key or b"")


def together(ends: Sequence[Record], shards: int) -> list[Record]:
    """Return one record for each version that every shard has ended, with the sums of their counts, in version order.

    Each shard must have them in version order, and once.
    """
    found: dict[int, dict[int, Any]] = defaultdict(dict)
    reached: dict[int, int] = {}
    for record in ends:
        end = json.loads(record.value or b"")
        version, shard = end["commit_version"], end["shard"]
        assert end["shards"] == shards, end
        assert reached.get(shard, -1) < version, f"shard {shard}: the end of {version} after that of {reached[shard]}"
        reached[shard] = version
        found[version][shard] = end
    return [
        replace(ends[0], value=json.dumps(_sum(list(of_version.values()))).encode())
        for _, of_version in sorted(found.items())
        if len(of_version) == shards
    ]


def _sum(ends: list[Any]) -> Any:
    counts = {name: sum(end[name] for end in ends) for name in ("event_count", "dead_letters")}
    of_topics: Counter[str] = Counter()
    for end in ends:
        of_topics.update({each["data_collection"]: each["event_count"] for each in end["data_collections"]})
    topics = [{"data_collection": topic, "event_count": count} for topic, count in sorted(of_topics.items())]
    return {**ends[0], **counts, "data_collections": topics}

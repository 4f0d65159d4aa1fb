"""Shards without Spark: a runner in this process, and their combined END records."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tests.support.kafka.topics import Record

__all__ = ["ThreadRunner", "by_key", "together"]


class ThreadRunner:
    """A runner with a thread for each item."""

    def run(self, work: Callable[[Any], Iterator[bytes]], items: Sequence[Any]) -> "_Results":
        """See `tailer.shards.shard_delivery.Runner`."""
        threads = ThreadPoolExecutor(len(items))
        return _Results(threads, [threads.submit(lambda item: list(work(item)), item) for item in items])


class _Results(Iterator[list[bytes]]):
    def __init__(self, threads: ThreadPoolExecutor, running: list[Future[list[bytes]]]) -> None:
        self._threads = threads
        self._running = running

    def __next__(self) -> list[bytes]:
        if not self._running:
            raise StopIteration
        return self._running.pop(0).result()

    def close(self) -> None:
        self._threads.shutdown()


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
    return {**ends[0], **counts}

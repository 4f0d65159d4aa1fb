"""Kafka in the memory of this process: in place of the clients below `Producer` and `Cluster`."""

import json
from collections.abc import Sequence
from typing import Any, Final

from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.port import Connection, Producer, ProducerSettings, TopicState
from tailer_sinks.kafka.clients.python_cluster import Owner, ReadResult
from tailer_sinks.kafka.clients.python_records import Record

__all__ = ["MemoryCluster", "MemoryProducer"]

_TOPICS: Final = ("rows", "progress", "ends")
_WRITER: Final = (0, 0)


class MemoryCluster:
    """A cluster with the topics of the sink, and one writer of progress. Stands for `Cluster`."""

    progress: Final[dict[bytes, bytes]] = {}
    rows: Final[list[dict[str, Any]]] = []

    def __init__(self, connection: Connection) -> None:
        """Connect to nothing."""

    def describe(self, topics: Sequence[str], with_configs: bool = True) -> dict[str, TopicState]:
        """See `Cluster`."""
        configs = {"cleanup.policy": "compact"}
        return {topic: TopicState(1, configs if topic == "progress" else {}) for topic in topics if topic in _TOPICS}

    def read(self, topic: str, before: int | None = None) -> ReadResult:
        """See `Cluster`."""
        return ReadResult({key: Record(0, key, value, _WRITER) for key, value in self.progress.items()}, frozenset())

    def owner(self, transactional_id: str) -> Owner:
        """See `Cluster`."""
        return Owner(_WRITER, in_transaction=False)

    def had_messages(self, topic: str) -> bool:
        """See `Cluster`."""
        return False

    def close(self) -> None:
        """See `Cluster`."""


class MemoryProducer(Producer):
    """A producer whose messages `MemoryCluster` keeps."""

    def __init__(self, connection: Connection, settings: ProducerSettings, transactional_id: str) -> None:
        """Connect to nothing."""

    def begin(self) -> None: ...

    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        if topic == "rows":
            MemoryCluster.rows.extend(json.loads(value) for value in messages.values.to_pylist())
        elif topic == "progress" and messages.keys is not None:
            MemoryCluster.progress.update(zip(messages.keys.to_pylist(), messages.values.to_pylist(), strict=True))

    def start_flush(self) -> None: ...

    def flush(self) -> int:
        return 0

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...

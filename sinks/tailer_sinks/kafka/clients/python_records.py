"""Reading records past open transactions, with kafka-python.

A `read_committed` consumer stops before the oldest open transaction of any producer. One that a killed process left
open hides what others commit after it, until brokers abort it. So everything is read, and transactions are decided here
as brokers do when they load `__consumer_offsets`: the records of a transaction count from its commit marker on, and not
at all after its abort marker. Compaction keeps the marker for as long as any record of its transaction.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka import TopicPartition
from kafka.errors import CorruptRecordError, KafkaTimeoutError, UnsupportedForMessageFormatError, for_code
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords

__all__ = ["Record", "Transactions", "batches"]

_FETCH_BYTES: Final = 4 * 2**20
_WAIT_MS: Final = 200
_PATIENCE_S: Final = 20.0
_NAMES_TOPICS: Final = 12  # the last version of the request that has topics by name
_FORMAT: Final = 2  # of messages since Kafka 0.11: the first one with transactions


@dataclass(frozen=True, slots=True)
class Record:
    """A record. `writer`: the id and the epoch of its producer."""

    offset: int
    key: bytes | None
    value: bytes | None
    writer: tuple[int, int]


class Transactions:
    """The open transactions of a partition, as far as it was read."""

    def __init__(self) -> None:
        self._open: dict[int, list[Record]] = {}

    @property
    def open_keys(self) -> frozenset[bytes | None]:
        """The keys of records that are not decided yet."""
        return frozenset(record.key for records in self._open.values() for record in records)

    def take(self, batch: Any) -> Sequence[Record]:
        """Take the next batch, and return the records that are committed with it."""
        if batch.is_control_batch:
            marker = next(iter(batch), None)
            # Compaction leaves empty batches behind.
            if marker is None or not (marker.commit or marker.abort):
                return ()
            decided = self._open.pop(batch.producer_id, ())
            return decided if marker.commit else ()
        writer = batch.producer_id, batch.producer_epoch
        records = [Record(message.offset, message.key, message.value, writer) for message in batch]
        if not batch.is_transactional:
            return records
        self._open.setdefault(batch.producer_id, []).extend(records)
        return ()


def batches(admin: Any, partition: TopicPartition, position: int, end: int) -> Iterator[Any]:
    """Yield the batches of a partition from the offset `position` up to `end`, which it has reached or will.

    `admin`: a `KafkaAdminClient`. Raises what the client raises.
    """
    moved_s = time.monotonic()
    while position < end:
        for batch in MemoryRecords(_fetch(admin, partition, position)):
            if batch.magic < _FORMAT:
                raise UnsupportedForMessageFormatError(f"{partition.topic} has messages from before Kafka 0.11")
            if not batch.validate_crc():
                raise CorruptRecordError(f"{partition.topic}, at offset {batch.base_offset}")
            if batch.base_offset >= end:
                return
            position, moved_s = batch.next_offset, time.monotonic()
            yield batch
        if time.monotonic() > moved_s + _PATIENCE_S:
            raise KafkaTimeoutError(f"{partition.topic} was not read from offset {position} to {end}")


def _fetch(admin: Any, partition: TopicPartition, offset: int) -> bytes:
    """Fetch whole batches from an offset on, perhaps none; the last one may be cut off."""
    topic = FetchRequest.FetchTopic
    part = topic.FetchPartition(partition=partition.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
        topics=[topic(topic=partition.topic, partitions=[part])],
        max_version=_NAMES_TOPICS,
    )
    # The client has no public call for one request; its own calls are made like this.
    manager = admin._manager  # noqa: SLF001

    async def ask_leader() -> Any:
        leaders = await admin._async_get_leader_for_partitions([partition])  # noqa: SLF001
        return await manager.send(request, node_id=next(iter(leaders)))

    response = manager.run(ask_leader)
    answer = response.responses[0].partitions[0] if response.responses else response
    if response.error_code or answer.error_code:
        raise for_code(response.error_code or answer.error_code)(f"reading {partition.topic} from offset {offset}")
    return bytes(answer.records or b"")

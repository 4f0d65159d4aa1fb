"""Records of interleaved transactions, read without waiting for the open ones."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tailer_sinks.kafka.clients.python_cluster import _Read
from tests.support.seeds import seeds


@dataclass(frozen=True)
class _Record:
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True)
class _Marker:
    commit: bool

    @property
    def abort(self) -> bool:
        return not self.commit


@dataclass(frozen=True)
class _Batch:
    next_offset: int
    producer_id: int
    content: tuple[_Record | _Marker, ...]
    is_control_batch: bool = False
    is_transactional: bool = True
    producer_epoch: int = 0

    def __iter__(self) -> Iterator[_Record | _Marker]:
        return iter(self.content)


class Partition:
    """A partition that producers write to, in transactions. What counts is known beside the batches."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.batches: list[_Batch] = []
        self.end = 0
        self.open: dict[int, list[_Record]] = {}
        self.newest: dict[bytes, _Record] = {}

    def step(self) -> None:
        """Write records of a producer, with or without a transaction, or end its transaction."""
        producer = self.random.randrange(4)
        if producer in self.open and self.random.random() < 0.4:
            self._end_transaction(producer, commit=self.random.random() < 0.6)
            return
        in_transaction = producer > 0
        keys = [b"%d" % self.random.randrange(5) for _ in range(self.random.randrange(3))]
        records = [_Record(self.end + place, key, b"%d" % (self.end + place)) for place, key in enumerate(keys)]
        self.end += len(records) + self.random.randrange(2)  # compaction leaves gaps, and empty batches
        self.batches.append(_Batch(self.end, producer, tuple(records), is_transactional=in_transaction))
        if in_transaction:
            self.open.setdefault(producer, []).extend(records)
        else:
            self._commit(records)

    def _end_transaction(self, producer: int, *, commit: bool) -> None:
        records = self.open.pop(producer)
        self.end += 1
        self.batches.append(_Batch(self.end, producer, (_Marker(commit),), is_control_batch=True))
        if commit:
            self._commit(records)

    def _commit(self, records: list[_Record]) -> None:
        for record in records:
            known = self.newest.get(record.key)
            if known is None or known.offset < record.offset:
                self.newest[record.key] = record


@pytest.mark.parametrize("seed", seeds(6))
def test_what_is_committed_at_any_time(seed: int) -> None:
    partition, read = Partition(seed), _Read("id", 0, 0)
    for _ in range(150):
        partition.step()
        for batch in partition.batches:
            read.take(batch)
        partition.batches.clear()
        assert read.position == partition.end
        assert {key: record.value for key, record in read.newest.items()} == {
            key: record.value for key, record in partition.newest.items()
        }
        assert read.transactions.open_keys == {record.key for records in partition.open.values() for record in records}


def test_a_marker_that_compaction_has_emptied_ends_nothing() -> None:
    read = _Read("id", 0, 0)
    read.take(_Batch(1, 1, (_Record(0, b"a", b"1"),)))
    read.take(_Batch(2, 2, (), is_control_batch=True))
    assert read.transactions.open_keys == {b"a"}

"""Reading objects ahead: the bytes are those of the object, requests and memory are few, whatever is read."""

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import ObjectNotFound, StorageRefused, StorageUnavailable, TailerError
from tailer.stores.pieces import Limits, Range
from tailer.stores.read_ahead import _THREADS, ReadAhead, _threads
from tests.support.ranges import PREFIX, StoredObjects
from tests.support.seeds import repeats

SMALL = Limits(tail_bytes=100, held_bytes=2000, piece_bytes=300, least_bytes=50, near_bytes=10, gap_bytes=100)
MB = 2**20


def stored(path: Path, size: int) -> bytes:
    """Write an object and return its bytes."""
    content = Random(size).randbytes(size)
    path.write_bytes(content)
    return content


def opened(objects: StoredObjects, path: Path, limits: Limits = SMALL) -> ReadAhead:
    return ReadAhead(objects(f"{PREFIX}{path}"), limits)


def settle(objects: StoredObjects) -> None:
    """Wait until no request is waiting or running."""
    deadline = time.monotonic() + 20
    while (_threads()._work_queue.qsize() or objects.running) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.01)  # for one that is taken from the queue and not yet running
    assert _threads()._work_queue.qsize() == 0
    while objects.running and time.monotonic() < deadline:
        time.sleep(0.001)
    assert objects.running == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


RANGES = st.lists(st.tuples(st.integers(-50, 6000), st.integers(-50, 3000)), max_size=8)
READS = st.lists(st.tuples(st.integers(0, 6000), st.integers(1, 900)), max_size=12)
LIMITS = st.builds(
    Limits,
    tail_bytes=st.integers(1, 300),
    held_bytes=st.integers(20, 3000),
    piece_bytes=st.integers(20, 500),
    least_bytes=st.integers(20, 100),
    near_bytes=st.integers(20, 50),
    gap_bytes=st.integers(1, 200),
)


@settings(max_examples=repeats(25))
@given(st.integers(0, 6000), LIMITS, st.lists(st.tuples(RANGES, RANGES, READS), max_size=4))
def test_any_reads_after_any_expectations(
    place: Path, size: int, limits: Limits, rounds: list[tuple[list[Range], list[Range], list[Range]]]
) -> None:
    """Expected ranges may overlap, be empty, or lie outside of the object; reads need not be among them."""
    content, objects = stored(place / "any", size), StoredObjects()
    ahead = opened(objects, place / "any", limits)
    assert ahead.size_bytes == size
    for now, later, reads in rounds:
        ahead.expect([(begin, begin + length) for begin, length in now], [(at, at + length) for at, length in later])
        for begin, length in [*reads, *((max(begin, 0), max(length, 1)) for begin, length in now)]:
            assert bytes(ahead.read(begin, length)) == content[begin : begin + length]
    ahead.close()


def test_a_small_object_is_there_after_one_request(tmp_path: Path) -> None:
    content, objects = stored(tmp_path / "f", 100), StoredObjects()
    ahead = opened(objects, tmp_path / "f")
    ahead.expect([(0, 50)], [(50, 90)])
    assert bytes(ahead.read(3, 200)) == content[3:]
    assert len(objects.requests) == 1


def test_an_end_larger_than_expected_takes_a_second_request(tmp_path: Path) -> None:
    content, objects = stored(tmp_path / "f", 5000), StoredObjects()
    ahead = opened(objects, tmp_path / "f")
    for _ in range(3):
        assert bytes(ahead.read(4992, 8)) == content[4992:]
        assert bytes(ahead.read(3000, 2000)) == content[3000:]
        ahead.expect([(0, 10)])
        settle(objects)
    assert len(objects.requests) == 3


def test_neighbours_share_a_request(tmp_path: Path) -> None:
    stored(tmp_path / "f", 5000)
    for gap, requests in ((10, 2), (50, 3)):
        objects = StoredObjects()
        ahead = opened(objects, tmp_path / "f")
        ahead.expect([(0, 40), (40 + gap, 80 + gap)])
        ahead.read(0, 40)
        ahead.read(40 + gap, 40)
        assert len(objects.requests) == requests


def test_columns_side_by_side_within_a_bound(tmp_path: Path) -> None:
    """Twelve columns of 5 kB with room for 2 kB: each byte is fetched once, a piece ahead of its reader."""
    count, size = 12, 5000
    content, objects = stored(tmp_path / "f", count * size + 100), StoredObjects(delay_s=0.001)
    ahead = opened(objects, tmp_path / "f")
    ahead.expect([(column * size, (column + 1) * size) for column in range(count)])
    for at in range(0, size, 100):
        for column in range(count):
            begin = column * size + at
            assert bytes(ahead.read(begin, 100)) == content[begin : begin + 100]
            assert ahead._held_bytes <= 1.3 * SMALL.held_bytes
    settle(objects)
    assert objects.fetched_bytes == len(content)
    assert max(request.end - request.begin for request in objects.requests) <= SMALL.piece_bytes
    assert objects.most_running > 1


def test_many_objects_share_a_bound(tmp_path: Path) -> None:
    stored(tmp_path / "f", 10_000)
    objects = StoredObjects()
    limits = replace(SMALL, shared_bytes=8000)
    many = [opened(objects, tmp_path / "f", limits) for _ in range(10)]
    for ahead in many:
        ahead.expect([(0, 9000)])
    assert [ahead._held_bytes <= 2000 for ahead in many] == [True] * 10
    assert max(ahead._held_bytes for ahead in many[5:]) <= 1400
    for ahead in many[1:]:
        ahead.close()
    for at in range(0, 9000, 100):
        many[0].read(at, 100)
        assert many[0]._held_bytes <= 2000
    assert many[0]._most_held == 2000


def test_what_comes_later_is_fetched_when_there_is_room(tmp_path: Path) -> None:
    content, objects = stored(tmp_path / "f", 5000), StoredObjects()
    ahead = opened(objects, tmp_path / "f")
    ahead.expect([(0, 1000)], [(1000, 2000)])
    settle(objects)
    before = len(objects.requests)
    assert bytes(ahead.read(0, 1000)) == content[:1000]
    ahead.expect([(1000, 2000)])
    assert bytes(ahead.read(1000, 1000)) == content[1000:2000]
    assert len(objects.requests) == before


def test_tiny_reads_that_follow_each_other_share_requests(tmp_path: Path) -> None:
    content, objects = stored(tmp_path / "f", 50_000), StoredObjects()
    ahead = opened(objects, tmp_path / "f")
    ahead.expect([(40_000, 40_001)])
    for at in range(0, 30_000, 7):
        assert bytes(ahead.read(at, 7)) == content[at : at + 7]
    assert len(objects.requests) < 150


def test_a_large_read_that_nobody_expected_is_not_kept(tmp_path: Path) -> None:
    content, objects = stored(tmp_path / "f", 50_000), StoredObjects()
    ahead = opened(objects, tmp_path / "f")
    ahead.expect([(49_000, 49_001)])
    assert bytes(ahead.read(0, 20_000)) == content[:20_000]
    assert len(ahead._around) <= SMALL.held_bytes


def test_a_read_does_not_wait_for_those_of_other_objects(tmp_path: Path) -> None:
    """All threads are busy for long with objects that nobody reads now."""
    stored(tmp_path / "f", 60_000)
    slow, quick = StoredObjects(), StoredObjects()
    others = [opened(slow, tmp_path / "f") for _ in range(4)]
    slow.delay_s = 0.5
    for other in others:
        other.expect([(0, 2000)])
    ahead = opened(quick, tmp_path / "f")
    ahead.expect([(0, 2000)])
    began = time.monotonic()
    ahead.read(0, 2000)
    assert time.monotonic() - began < 0.4
    for other in [*others, ahead]:
        other.close()
    settle(slow)
    assert len(slow.requests) <= 4 + 2 * _THREADS


def test_closing_cancels_requests_and_frees_memory(tmp_path: Path) -> None:
    stored(tmp_path / "f", 40 * MB)
    objects = StoredObjects()
    ahead = ReadAhead(objects(f"{PREFIX}{tmp_path / 'f'}"))
    objects.delay_s = 0.2
    ahead.expect([(0, 38 * MB)])
    began = time.monotonic()
    ahead.close()
    assert time.monotonic() - began < 0.1
    settle(objects)
    assert len(objects.requests) <= 1 + _THREADS
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is bytes and len(found) > MB]


class Failure:
    """Spoils the n-th answer."""

    def __init__(self, number: int, spoil: Callable[[bytes], bytes]) -> None:
        self.number = number
        self.spoil = spoil

    def __call__(self, number: int, data: bytes) -> bytes:
        return self.spoil(data) if number == self.number else data


def refused(_data: bytes) -> bytes:
    raise StorageRefused("memory:/f", "no")


def gone(_data: bytes) -> bytes:
    raise ObjectNotFound("memory:/f")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [(refused, StorageRefused), (gone, ObjectNotFound), (lambda data: data[:-1], StorageUnavailable)],
    ids=["refused", "gone", "cut short"],
)
@pytest.mark.parametrize("number", [1, 2, 5])
def test_errors_come_out_as_they_are(
    tmp_path: Path, number: int, spoil: Callable[[bytes], bytes], error: type[TailerError]
) -> None:
    stored(tmp_path / "f", 5000)
    objects = StoredObjects(spoil=Failure(number, spoil))
    with pytest.raises(error):  # noqa: PT012 - any of them
        ahead = opened(objects, tmp_path / "f")
        ahead.expect([(0, 4000)])
        for at in range(0, 4000, 100):
            ahead.read(at, 100)
    settle(objects)


def test_a_forked_process_has_threads_of_its_own(tmp_path: Path) -> None:
    content, objects = stored(tmp_path / "f", 5000), StoredObjects()

    def read() -> bool:
        ahead = opened(objects, tmp_path / "f")
        ahead.expect([(0, 4000)])
        time.sleep(0.05)
        return bytes(ahead.read(0, 4000)) == content[:4000] and len(objects.requests) > 2

    assert read()
    child = os.fork()
    if child == 0:
        os._exit(0 if read() else 1)
    assert os.waitpid(child, 0)[1] == 0

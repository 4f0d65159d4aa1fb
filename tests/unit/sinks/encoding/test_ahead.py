"""`encoded_ahead`: the same in the same order, with at most so many parts ahead, and nobody left at work."""

import threading
import time
from collections.abc import Iterator

import pytest

from tailer_sinks.encoding.flat import AT_ONCE, encoded_ahead


@pytest.mark.parametrize("at_once", [1, AT_ONCE, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_order(count: int, at_once: int) -> None:
    def encode(part: int) -> int:
        time.sleep((part % 3) / 1000)
        return -part

    assert list(encoded_ahead(encode, range(count), at_once)) == [-part for part in range(count)]


def test_an_error_comes_at_its_place() -> None:
    def encode(part: int) -> int:
        if part == 3:
            raise ValueError(part)
        return part

    found = encoded_ahead(encode, range(9), 4)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3"):
        next(found)


@pytest.mark.parametrize("at_once", [1, 3])
def test_parts_are_not_taken_before_their_turn(at_once: int) -> None:
    taken: list[int] = []

    def parts() -> Iterator[int]:
        for part in range(20):
            taken.append(part)
            yield part

    found = encoded_ahead(lambda part: part, parts(), at_once)
    for number in range(10):
        assert next(found) == number
        assert len(taken) <= number + 1 + at_once


def test_one_after_the_other() -> None:
    """With one ahead, an encoder with a state sees one part at a time, from whichever thread."""
    running = threading.Lock()

    def encode(part: int) -> int:
        assert running.acquire(blocking=False)
        time.sleep(0.001)
        running.release()
        return part

    assert list(encoded_ahead(encode, range(20))) == list(range(20))


def test_nobody_is_left_at_work() -> None:
    working = threading.Event()

    def encode(part: int) -> int:
        if part:
            working.set()
            time.sleep(0.05)
            working.clear()
        return part

    found = encoded_ahead(encode, range(5), 2)
    assert next(found) == 0
    assert working.wait(5)
    found.close()
    assert not working.is_set()

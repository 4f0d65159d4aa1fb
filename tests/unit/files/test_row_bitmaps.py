"""Row positions as bitmaps, Arrow arrays and words of bits."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailer.files.row_bitmaps import WORD_BITS, bitmap_of, bitmap_of_words, positions_of, words_of

POSITIONS = st.sets(st.integers(0, 300) | st.sampled_from([63, 64, 127, 128]), max_size=80)


@given(POSITIONS)
def test_words_and_back(positions: set[int]) -> None:
    words = words_of(BitMap64(positions), 301)
    numbers = pa.array(range(len(words)), pa.int64())
    assert set(bitmap_of_words(numbers, words)) == positions
    some = pa.compute.not_equal(words, 0)
    assert set(bitmap_of_words(numbers.filter(some), words.filter(some))) == positions


def test_words_far_apart_in_any_order() -> None:
    found = bitmap_of_words(pa.array([2**34, 3, 0], pa.int64()), pa.array([1, -(2**63), -1], pa.int64()))
    assert list(found) == [*range(64), 3 * WORD_BITS + 63, 2**34 * WORD_BITS]


@given(POSITIONS)
def test_positions_and_back(positions: set[int]) -> None:
    assert positions_of(BitMap64(positions)).to_pylist() == sorted(positions)
    assert set(bitmap_of(pa.array(list(positions), pa.int64()))) == positions


def test_positions_of_a_slice() -> None:
    assert list(bitmap_of(pa.array([9, 3, 1, 7], pa.int64())[1:3])) == [1, 3]

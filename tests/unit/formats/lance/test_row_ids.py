"""Tests for `tailer.formats.lance.row_ids`."""

import random
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from tailer.formats.lance.protobuf import InvalidMessage
from tailer.formats.lance.row_ids import parse_row_ids, parse_row_versions
from tests.support.tables.lance_files import field


def segment(kind: int, content: bytes) -> bytes:
    """Encode a segment of a sequence."""
    return field(1, field(kind, content))


def between(first: int, end: int) -> bytes:
    """Encode the ends of a range."""
    return field(1, first) + field(2, end)


def encoded(values: Sequence[int], width: int, base: int = 0) -> bytes:
    """Encode numbers with 2, 4 or 8 bytes each, from a base on."""
    code = {2: "H", 4: "I", 8: "Q"}[width]
    content = field(1, base) + field(2, array(code, [value - base for value in values]).tobytes())
    return field({2: 1, 4: 2, 8: 3}[width], content)


HOLES = field(3, encoded([12, 15], 2, 10))
EACH_KIND = {
    "range": (segment(1, between(5, 9)), [5, 6, 7, 8]),
    "range with holes": (segment(2, between(11, 17) + HOLES), [11, 13, 14, 16]),
    "range without holes": (segment(2, between(11, 13)), [11, 12]),
    "bitmap, least significant bit first": (segment(3, between(20, 30) + field(3, b"\x0d\x02")), [20, 22, 23, 29]),
    "bits after the range": (segment(3, between(20, 22) + field(3, b"\xff")), [20, 21]),
    "sorted": (segment(4, encoded([40, 2**40], 8)), [40, 2**40]),
    "array of 16 bits": (segment(5, encoded([1009, 1001], 2, 1000)), [1009, 1001]),
    "array of 32 bits": (segment(5, encoded([2**40 + 9, 2**40], 4, 2**40)), [2**40 + 9, 2**40]),
    "array of 64 bits": (segment(5, encoded([2**63 + 1, 3], 8)), [2**63 + 1, 3]),
    "nothing": (segment(1, between(3, 3)), []),
}


@pytest.mark.parametrize("kind", EACH_KIND)
def test_every_kind_of_segment(kind: str) -> None:
    data, ids = EACH_KIND[kind]
    found = parse_row_ids(data)
    assert len(found) == len(ids)
    assert found.at(BitMap(range(len(ids)))).to_pylist() == ids
    assert found.all == BitMap64(ids)


def test_segments_follow_each_other() -> None:
    parts = [EACH_KIND[kind] for kind in ("array of 32 bits", "range", "bitmap, least significant bit first")]
    found = parse_row_ids(b"".join(data for data, _ in parts))
    ids = [each for _, part in parts for each in part]
    assert found.at(BitMap([0, 3, 9])).to_pylist() == [ids[0], ids[3], ids[9]]
    assert found.set_at(BitMap([1, 2])) == BitMap64([2**40, 5])
    assert found.offsets_of(BitMap64([5, 29, 2**40, 777])) == BitMap([1, 2, 9])
    assert found.live(BitMap([0, 1, 2, 3])) == BitMap64([7, 8, 20, 22, 23, 29])


def test_a_sequence_of_no_rows() -> None:
    found = parse_row_ids(b"")
    assert (len(found), found.all, found.offsets_of(BitMap64([1]))) == (0, BitMap64(), BitMap())
    assert (found.at(BitMap()).to_pylist(), found.set_at(BitMap())) == ([], BitMap64())


def test_an_offset_after_the_last_row_is_an_error() -> None:
    found = parse_row_ids(segment(1, between(5, 9)))
    for ask in (found.at, found.set_at, found.live):
        with pytest.raises(IndexError, match="offset 4 of 4 rows"):
            ask(BitMap([4]))


def test_a_hundred_million_rows_stay_one_range() -> None:
    end = 2**40 + 10**8
    found = parse_row_ids(segment(1, between(2**40, end)))
    later = parse_row_ids(segment(1, between(end - 2, end + 10**8)))
    assert found.offsets_of(found.all) == BitMap(range(10**8))
    assert found.set_at(BitMap(range(10**8))) == found.all
    assert found.all & later.all == BitMap64([end - 2, end - 1])
    assert found.live(BitMap(range(5, 10**8))) == BitMap64(range(2**40, 2**40 + 5))


@given(st.lists(st.integers(0, 300), unique=True), st.randoms(use_true_random=False))
def test_any_ids_in_any_encoding(ids: list[int], choose: random.Random) -> None:
    data, cut = b"", sorted(choose.randint(0, len(ids)) for _ in range(2))
    parts = [ids[: cut[0]], sorted(ids[cut[0] : cut[1]]), ids[cut[1] :]]
    for part in parts:
        whole = range(part[0], part[-1] + 1) if part and part == sorted(part) else range(0)
        holes = [each for each in whole if each not in part]
        bits = sum(1 << at for at, each in enumerate(whole) if each in part).to_bytes((len(whole) + 7) // 8, "little")
        ways = [segment(5, encoded(part, choose.choice([2, 4, 8])))]
        if part == sorted(part):
            ways += [segment(4, encoded(part, choose.choice([2, 4, 8])))]
            ways += [segment(2, between(whole.start, whole.stop) + field(3, encoded(holes, 4)))]
            ways += [segment(3, between(whole.start, whole.stop) + field(3, bits))]
        data += choose.choice(ways)
    expected = [each for part in parts for each in part]
    found = parse_row_ids(data)
    asked = BitMap([at for at in range(len(expected)) if choose.random() < 0.5])
    assert found.at(asked).to_pylist() == [expected[at] for at in asked]
    assert found.live(asked) == BitMap64(expected) - BitMap64([expected[at] for at in asked])
    wanted = BitMap64([each for each in range(301) if choose.random() < 0.5])
    assert found.offsets_of(wanted) == BitMap([at for at, each in enumerate(expected) if each in wanted])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (field(1, b""), "no encoding that is known"),
        (field(1, field(6, b"")), "no encoding that is known"),
        (field(1, field(1, b"") + field(4, b"")), "exclude each other"),
        (segment(1, between(9, 5)), "ranges from 9 to 5"),
        (segment(1, between(0, 2**33)), "ranges from 0 to"),
        (segment(1, between(2**64 - 5, 2**64 - 1)), "ranges from"),
        (segment(1, between(0, 2**32)) + segment(1, between(2**32, 2**32 + 1)), "more than 4294967296 rows"),
        (segment(2, between(11, 14) + HOLES), "a hole is not between 11 and 14"),
        (segment(2, between(1, 9) + field(3, encoded([4, 3], 2))), "must be sorted are not"),
        (segment(3, between(0, 9) + field(3, b"\xff")), "a bitmap of 1 bytes for 9 numbers"),
        (segment(4, encoded([2, 1], 8)), "must be sorted are not"),
        (segment(4, encoded([2, 2], 8)), "must be sorted are not, or occur twice"),
        (segment(5, encoded([2, 2], 8)), "2 rows have 1 different ids"),
        (segment(1, between(1, 5)) + segment(1, between(4, 6)), "6 rows have 5 different ids"),
        (segment(5, field(1, field(2, b"\x01"))), "1 bytes for numbers of 2 bytes"),
        (segment(5, field(1, field(1, 2**64 - 1) + field(2, b"\x01\0"))), "more than 64 bits"),
    ],
)
def test_what_is_no_sequence_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        parse_row_ids(data)


def test_versions_of_rows_in_runs() -> None:
    spans = [field(1, between(0, 3)), field(3, between(50, 60) + field(3, b"\x05\x02")), field(1, between(0, 1))]
    runs = [field(1, span) + field(2, version) for span, version in zip(spans, (7, 9, 7), strict=True)]
    found = parse_row_versions(b"".join(field(1, run) for run in runs))
    assert found.runs == ((range(3), 7), (range(3, 6), 9), (range(6, 7), 7))
    assert len(found) == 7
    assert (found.offsets_with(7), found.offsets_with(9)) == (BitMap([0, 1, 2, 6]), BitMap([3, 4, 5]))
    assert found.offsets_with(1) == BitMap()


def test_versions_of_no_rows() -> None:
    found = parse_row_versions(b"")
    assert (len(found), found.offsets_with(0)) == (0, BitMap())
    assert len(parse_row_versions(field(1, field(2, 5)))) == 0


def test_versions_of_too_many_rows_are_refused() -> None:
    run = field(1, field(1, field(1, between(0, 2**32))) + field(2, 1))
    with pytest.raises(InvalidMessage, match="versions of more than"):
        parse_row_versions(run + run)

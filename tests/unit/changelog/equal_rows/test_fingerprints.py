"""`Fingerprints`: equal for equal rows wherever they are computed; `test_row_index.py` has values of every type."""

import pickle
import struct
from collections import Counter
from typing import Any, Final

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailer.changelog.equal_rows.comparable_values import MAX_ROWS, Wanted
from tailer.changelog.equal_rows.fingerprints import BUCKETS, Fingerprints
from tailer.events import METADATA_FIELDS, ChangeBatch, ChangeType
from tailer.files.row_bitmaps import Bitmaps

SALT: Final = "a salt"
ALL: Final = Wanted(tuple(ChangeType))
OTHER_NAN: Final = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]


def batch(columns: list[pa.Array], kinds: list[str], positions: list[int]) -> ChangeBatch:
    """Make rows of a task."""
    metadata = [pa.array(kinds, pa.string()), *(pa.nulls(len(kinds), field.type) for field in METADATA_FIELDS[1:])]
    names = [*(f"x{index}" for index in range(len(columns))), *(field.name for field in METADATA_FIELDS)]
    rows = pa.RecordBatch.from_arrays([*columns, *metadata], names)
    return ChangeBatch("id", 1, 7, rows, pa.array(positions, pa.int64()))


def of(fingerprints: Fingerprints, source: int, rows: ChangeBatch) -> pa.RecordBatch:
    """Return the fingerprints of a batch."""
    (found,) = fingerprints.rows([(source, rows)], ALL, {})
    return found


def fingerprints_of(*values: Any, salt: str = SALT) -> list[tuple[int, int]]:
    """Return the fingerprints of rows of one column."""
    rows = batch([pa.array(values)], ["insert"] * len(values), list(range(len(values))))
    found = of(Fingerprints(salt), 0, rows)
    return list(zip(found["high"].to_pylist(), found["low"].to_pylist(), strict=True))


def test_rows_in_any_order_and_process() -> None:
    columns = [pa.array([1, 2, 1, None]), pa.array(["a", "b", "a", None])]
    rows = batch(columns, ["delete", "insert", "update_preimage", "update_postimage"], [5, 6, 8, 2**33])
    fingerprints = Fingerprints(SALT)
    first = of(fingerprints, 3, rows)
    assert first.schema == pa.schema(
        [("high", pa.int64()), ("low", pa.int64()), ("address", pa.int64()), ("deleted", pa.bool_())]
    )
    assert first["address"].to_pylist() == [3 * MAX_ROWS + row for row in (5, 6, 8, 2**33)]
    assert first["deleted"].to_pylist() == [True, False, True, False]
    sent: Fingerprints = pickle.loads(pickle.dumps(fingerprints))
    assert of(sent, 3, rows) == first
    halves = list(zip(first["high"].to_pylist(), first["low"].to_pylist(), strict=True))
    assert halves[0] == halves[2]
    assert len(set(halves)) == 3
    later = batch([column.slice(2, 1) for column in columns], ["insert"], [0])
    again = of(Fingerprints(SALT), 0, later)
    assert (again["high"][0].as_py(), again["low"][0].as_py()) == halves[0]


def test_values() -> None:
    zero, minus, nan, other_nan, null = fingerprints_of(0.0, -0.0, float("nan"), OTHER_NAN, None)
    assert nan == other_nan
    assert len({zero, minus, nan, null}) == 4
    empty, absent = fingerprints_of("", None)
    assert empty != absent


def test_no_fingerprint_is_known_without_the_salt() -> None:
    assert not set(fingerprints_of(1, 2)) & set(fingerprints_of(1, 2, salt="another"))


def test_no_rows() -> None:
    nothing = batch([pa.array([], pa.int64())], [], [])
    fingerprints = Fingerprints(SALT)
    assert list(fingerprints.rows([(0, nothing)], ALL, {})) == []
    assert list(fingerprints.sums()) == []


def test_only_wanted_rows() -> None:
    rows = batch([pa.array([1, None, 3, 4])], ["delete", "insert", "insert", "update_postimage"], [0, 1, 2, 3])
    wanted = Wanted((ChangeType.DELETE, ChangeType.INSERT), nulls_differ=True)
    positions: Bitmaps = {}
    (found,) = Fingerprints(SALT).rows([(0, rows)], wanted, positions)
    assert found["address"].to_pylist() == [0, 2]
    assert positions == {0: BitMap64([0, 2])}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 2)), max_size=40), st.integers(1, 7))
def test_sums_are_zero_where_both_sides_have_the_same_rows(rows: list[tuple[int, bool, int]], size: int) -> None:
    """The sums of any sources, added up, name the buckets of rows that are there more often on one side."""
    fingerprints = Fingerprints(SALT)
    totals: dict[int, list[int]] = {}
    found: Bitmaps = {}
    for source in range(3):
        own = [(value, gone) for value, gone, place in rows if place == source]
        parts = [own[first : first + size] for first in range(0, len(own), size)]
        batches = [
            batch(
                [pa.array([value for value, _ in part], pa.int64())],
                ["delete" if gone else "insert" for _, gone in part],
                list(range(number * size, number * size + len(part))),
            )
            for number, part in enumerate(parts)
        ]
        list(fingerprints.rows([(source, each) for each in batches], ALL, found))
        for sums in fingerprints.sums():
            for bucket, *values in zip(*(column.to_pylist() for column in sums.columns), strict=True):
                known = totals.get(bucket, [0] * len(values))
                totals[bucket] = [one + other for one, other in zip(known, values, strict=True)]
        assert len(found.get(source, [])) == len(own)
    counts = Counter[int]()
    for value, gone, _ in rows:
        counts[value] += 1 if gone else -1
    uneven = {fingerprints_of(value)[0][1] % BUCKETS for value, count in counts.items() if count}
    assert {bucket for bucket, values in totals.items() if any(values)} == uneven

"""`Fingerprints`: equal for equal rows wherever they are computed; `test_row_index.py` has values of every type."""

import pickle
import struct
from typing import Any, Final

import pyarrow as pa

from tailer.changelog.equal_rows.fingerprints import MAX_ROWS, Fingerprints
from tailer.events import METADATA_FIELDS, ChangeBatch

SALT: Final = "a salt"
OTHER_NAN: Final = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]


def batch(columns: list[pa.Array], kinds: list[str], positions: list[int]) -> ChangeBatch:
    """Make rows of a task."""
    metadata = [pa.array(kinds, pa.string()), *(pa.nulls(len(kinds), field.type) for field in METADATA_FIELDS[1:])]
    names = [*(f"x{index}" for index in range(len(columns))), *(field.name for field in METADATA_FIELDS)]
    rows = pa.RecordBatch.from_arrays([*columns, *metadata], names)
    return ChangeBatch("id", 1, 7, rows, pa.array(positions, pa.int64()))


def fingerprints_of(*values: Any, salt: str = SALT) -> list[tuple[int, int]]:
    """Return the fingerprints of rows of one column."""
    rows = batch([pa.array(values)], ["insert"] * len(values), list(range(len(values))))
    found = Fingerprints(salt).of(0, rows)
    return list(zip(found["high"].to_pylist(), found["low"].to_pylist(), strict=True))


def test_rows_in_any_order_and_process() -> None:
    columns = [pa.array([1, 2, 1, None]), pa.array(["a", "b", "a", None])]
    rows = batch(columns, ["delete", "insert", "update_preimage", "update_postimage"], [5, 6, 8, 2**33])
    fingerprints = Fingerprints(SALT)
    first = fingerprints.of(3, rows)
    assert first.schema == pa.schema(
        [("high", pa.int64()), ("low", pa.int64()), ("address", pa.int64()), ("deleted", pa.bool_())]
    )
    assert first["address"].to_pylist() == [3 * MAX_ROWS + row for row in (5, 6, 8, 2**33)]
    assert first["deleted"].to_pylist() == [True, False, True, False]
    sent: Fingerprints = pickle.loads(pickle.dumps(fingerprints))
    assert sent.of(3, rows) == first
    halves = list(zip(first["high"].to_pylist(), first["low"].to_pylist(), strict=True))
    assert halves[0] == halves[2]
    assert len(set(halves)) == 3
    later = batch([column.slice(2, 1) for column in columns], ["insert"], [0])
    again = Fingerprints(SALT).of(0, later)
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
    assert len(Fingerprints(SALT).of(0, batch([pa.array([], pa.int64())], [], []))) == 0

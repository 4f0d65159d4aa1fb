"""`RowIndex` against counting in Python: rows of every type, equal exactly if their values are, in little memory."""

import re
import resource
import struct
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from tailer.changelog.equal_rows import database_index
from tailer.changelog.equal_rows.comparable_values import comparable, most_bytes, row_bytes
from tailer.changelog.equal_rows.database_index import DatabaseIndex
from tailer.changelog.equal_rows.memory_index import FEW_BYTES, FEW_ROWS, MemoryIndex
from tailer.changelog.equal_rows.port import Stopped
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.changelog.spill import open_database, spill_failure
from tailer.errors import FileVacuumed, StorageUnavailable
from tailer.events import METADATA_FIELDS, ChangeBatch, ChangeType
from tailer.files.row_bitmaps import Bitmaps, bitmap_of
from tests.support.cases import cases
from tests.support.seeds import examples, repeats

ALL = tuple(ChangeType)
GONE = ("delete", "update_preimage")
SPILLING_BYTES = 64 * 2**20
EDGE = 2**63


def batch(columns: Sequence[pa.Array], kinds: str | Sequence[str] = "insert", first: int = 0) -> ChangeBatch:
    """Make rows of one task, at positions from `first` on."""
    count = len(columns[0])
    types = pa.array([kinds] * count if isinstance(kinds, str) else list(kinds), pa.string())
    metadata = [types, *(pa.nulls(count, field.type) for field in METADATA_FIELDS[1:])]
    names = [*(f"x{index}" for index in range(len(columns))), *(field.name for field in METADATA_FIELDS)]
    rows = pa.RecordBatch.from_arrays([*columns, *metadata], names)
    return ChangeBatch("id", 1, 0, rows, pa.array(range(first, first + count), pa.int64()))


def add(
    matches: RowIndex,
    source: int,
    batches: Iterator[ChangeBatch],
    types: tuple[ChangeType, ...],
    nulls_differ: bool = False,
) -> BitMap64:
    """Add the rows of one source; return their positions."""
    return matches.add([(source, batches)], types, nulls_differ)[source]


def paired(matches: RowIndex) -> tuple[Bitmaps, int]:
    """Return the paired rows of both sides, and the number of ambiguous ones."""
    gone, come, unclear = matches.pair()
    assert sum(map(len, gone.values())) == sum(map(len, come.values()))
    both = {source: gone.get(source, BitMap64()) | come.get(source, BitMap64()) for source in gone.keys() | come.keys()}
    return both, unclear


def lists(found: Bitmaps) -> dict[int, list[int]]:
    return {source: list(rows) for source, rows in sorted(found.items())}


def in_database(memory_bytes: int = 8 * SPILLING_BYTES) -> RowIndex:
    """Make an index that compares all rows in its database."""
    return RowIndex(memory_bytes, few_rows=0)


def moving() -> RowIndex:
    """Make an index whose rows move to a database when there are a few."""
    return RowIndex(few_rows=4)


@pytest.fixture(scope="module", params=[RowIndex, in_database, moving])
def shared(request: pytest.FixtureRequest) -> RowIndex:
    """One index for many small questions: each begins with `begin`."""
    made: RowIndex = request.param()
    return made


# Values of Delta's types, as Python has them; dates and timestamps are numbers, because Python's calendar is smaller.
TEXT = st.text(alphabet="ab\0\x01\x7fé\N{OLD ITALIC LETTER A}", max_size=3) | st.text(max_size=70)
BYTES = st.lists(st.sampled_from(b"\x00\x01\x02\xfe\xffa"), max_size=4).map(bytes) | st.binary(max_size=40)
FLOATS = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), 1e-45, 3.4e38]
NANS = [0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FFFFFFFE0000000, 0xFFFFFFFFE0000000]
FLOAT = st.sampled_from(FLOATS + [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in NANS])


def whole(bits: int) -> st.SearchStrategy[int]:
    edge = 2 ** (bits - 1)
    near = [-edge, -edge + 1, -1, 0, 1, edge - 2, edge - 1]
    return st.sampled_from(near) | st.integers(-edge, edge - 1)


def decimal(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    edge = 10**precision - 1
    numbers = st.sampled_from([-edge, 0, 1, edge]) | st.integers(-edge, edge)
    return numbers.map(lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)))


LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): TEXT,
    pa.binary(): BYTES,
    pa.int8(): whole(8),
    pa.int16(): whole(16),
    pa.int32(): whole(32),
    pa.int64(): whole(64),
    pa.float32(): FLOAT.map(lambda value: struct.unpack("<f", struct.pack("<f", value))[0]),
    pa.float64(): FLOAT,
    pa.bool_(): st.booleans(),
    pa.date32(): whole(32),
    pa.timestamp("us"): whole(64),
    pa.timestamp("us", tz="UTC"): whole(64),
    pa.decimal128(5, 2): decimal(5, 2),
    pa.decimal128(18, 0): decimal(18, 0),
    pa.decimal128(38, 18): decimal(38, 18),
    pa.null(): st.none(),
}
KEYS = [kind for kind in LEAVES if kind != pa.null()]


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(inner, min_size=1, max_size=3)
    structs = fields.map(lambda kinds: pa.struct([(f"f{index}", kind) for index, kind in enumerate(kinds)]))
    return inner.map(pa.list_) | structs | st.builds(pa.map_, st.sampled_from(KEYS), inner)


# For void inside other types, which no table has, Arrow itself makes invalid arrays.
TYPES = st.just(pa.null()) | st.recursive(st.sampled_from(KEYS), nested, max_leaves=4)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        found: st.SearchStrategy[Any] = st.lists(values(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        pairs = st.tuples(LEAVES[kind.key_type], values(kind.item_type))
        found = st.lists(pairs, max_size=3, unique_by=lambda pair: identity(pair[0], kind.key_type))
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    else:
        found = LEAVES[kind]
    return st.none() | found


def identity(value: Any, kind: pa.DataType) -> Any:
    """Return a value that is equal for two values exactly if no reader can distinguish them."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return ("list", *(identity(each, kind.value_type) for each in value))
    if pa.types.is_map(kind):
        entries = ((identity(key, kind.key_type), identity(item, kind.item_type)) for key, item in value)
        return ("map", *sorted(entries, key=lambda entry: repr(entry[0])))
    if pa.types.is_struct(kind):
        return ("struct", *(identity(value[field.name], field.type) for field in kind))
    if pa.types.is_floating(kind):
        return "NaN" if value != value else struct.pack("<d", value)  # noqa: PLR0124 - only NaN is not itself
    return value


def turned(value: Any, kind: pa.DataType) -> Any:
    """Return a value with the entries of all its maps in the other order."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [turned(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(key, turned(item, kind.item_type)) for key, item in reversed(value)]
    if pa.types.is_struct(kind):
        return {field.name: turned(value[field.name], field.type) for field in kind}
    return value


def stored(kind: pa.DataType) -> pa.DataType:
    """Return `kind` with numbers in place of the types for which Python lacks values."""
    if pa.types.is_list(kind):
        return pa.list_(stored(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(stored(kind.key_type), stored(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, stored(field.type)) for field in kind])
    return {pa.date32(): pa.int32(), pa.timestamp("us"): pa.int64(), pa.timestamp("us", "UTC"): pa.int64()}.get(
        kind, kind
    )


def column(kind: pa.DataType, rows: Sequence[Any]) -> pa.Array:
    """Make a column that is a slice of a longer one."""
    longer = pa.array([rows[-1], *rows, rows[0]], stored(kind))
    return longer.cast(kind).slice(1, len(rows))


Place = tuple[int, int]
Sides = tuple[list[Place], list[Place]]


def unmatched(sides: Sides) -> list[Place]:
    gone, come = sides
    return gone[: max(len(gone) - len(come), 0)] + come[len(gone) :]


def unmatched_singles(sides: Sides) -> list[Place]:
    gone, come = sides
    return [] if len(gone) == len(come) == 1 else gone + come


def pairs(sides: Sides) -> list[Place]:
    gone, come = sides
    return gone[: len(come)] + come[: len(gone)]


def ambiguous(sides: Sides) -> int:
    gone, come = sides
    return 0 if not gone or not come or len(gone) == len(come) == 1 else len(gone) + len(come)


def expected(rows: Iterable[tuple[Any, bool, Place]], meaning: Callable[[Sides], list[Place]]) -> dict[int, list[int]]:
    """Return the rows that `meaning` leaves, each an identity, a deleted flag and a position."""
    found: dict[int, list[int]] = {}
    for source, row in sorted(place for each in grouped(rows) for place in meaning(each)):
        found.setdefault(source, []).append(row)
    return found


def grouped(rows: Iterable[tuple[Any, bool, Place]]) -> list[Sides]:
    found: dict[Any, Sides] = defaultdict(lambda: ([], []))
    for key, is_gone, place in rows:
        found[key][not is_gone].append(place)
    return [(sorted(gone), sorted(come)) for gone, come in found.values()]


EXAMPLES = settings(max_examples=examples(37))


MOVES = RowIndex()
KEEPS = st.tuples(st.sampled_from(["delete", "insert"]), st.integers(0, 3), st.integers(0, 2))


@settings(EXAMPLES, max_examples=repeats(30))
@given(steps=st.lists(st.lists(KEEPS, max_size=6), min_size=1, max_size=4), few_rows=st.integers(0, 12))
def test_wherever_rows_are_compared_the_answers_are_the_same(
    steps: list[list[tuple[str, int, int]]], few_rows: int
) -> None:
    """Also when rows and partners move in the middle of a comparison."""
    answers = []
    for most in (few_rows, FEW_ROWS, 0):
        index = MOVES
        index.begin()
        index._memory = MemoryIndex(most)
        found: list[Any] = []
        for number, rows in enumerate(steps):
            index.clear()
            for column in (1, 2):
                for source, (kind, *values) in enumerate(rows):
                    one = batch([pa.array([values[column - 1]])], kind, number)
                    index.add([(source, iter([one]))], ALL)
                found += [lists(index.unmatched()), lists(index.unmatched_singles())]
                if column == 1:
                    taken = index.pair(in_turn=number % 2 == 1)
                    found += [lists(taken[0]), lists(taken[1]), taken[2]]
                    index.clear()
            found += [lists(index.unpair_equal()), ranks(index)]
        answers.append(found)
    assert answers[0] == answers[1] == answers[2]


@EXAMPLES
@given(data=st.data())
def test_rows_of_any_types_against_counting(shared: RowIndex, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    pool = data.draw(st.lists(st.tuples(*map(values, kinds)), min_size=1, max_size=6))
    pool += [tuple(turned(value, kind) for value, kind in zip(row, kinds, strict=True)) for row in pool]
    sources = data.draw(
        st.lists(st.lists(st.tuples(st.sampled_from(pool), st.sampled_from(ALL)), min_size=1, max_size=8), max_size=3)
    )
    shared.begin()
    rows: list[tuple[Any, bool, Place]] = []
    for source, taken in enumerate(sources):
        columns = [column(kind, [row[index] for row, _ in taken]) for index, kind in enumerate(kinds)]
        change_types = [change.value for _, change in taken]
        cut = data.draw(st.integers(0, len(taken)))
        whole_batch = batch(columns, change_types, first=5)
        parts = [part for part in (whole_batch.slice(0, cut), whole_batch.slice(cut, len(taken) - cut)) if len(part)]
        assert list(add(shared, source, iter(parts), ALL)) == list(range(5, 5 + len(taken)))
        for index, (row, change) in enumerate(taken):
            key = tuple(identity(value, kind) for value, kind in zip(row, kinds, strict=True))
            rows.append((key, change.value in GONE, (source, 5 + index)))
    assert lists(shared.unmatched()) == expected(rows, unmatched)
    assert lists(shared.unmatched_singles()) == expected(rows, unmatched_singles)
    found, unclear = paired(shared)
    assert lists(found) == expected(rows, pairs)
    assert unclear == sum(map(ambiguous, grouped(rows)))


def different(matches: RowIndex, columns: Sequence[pa.Array]) -> bool:
    """Return whether all rows are distinct: each deleted row has at most one equal row among the inserted ones."""
    matches.begin()
    add(matches, 0, iter([batch(columns, "delete")]), ALL)
    add(matches, 1, iter([batch(columns)]), ALL)
    found, unclear = paired(matches)
    every = list(range(len(columns[0])))
    assert lists(found) == {0: every, 1: every}
    return unclear == 0


def raw_floats(kind: pa.DataType, bits: Sequence[int]) -> pa.Array:
    return pa.array(bits, pa.uint64() if kind == pa.float64() else pa.uint32()).view(kind)


MOMENTS = pa.array([-EDGE, -EDGE + 1, -EDGE + 2, -1, 0, EDGE - 2, EDGE - 1, None], pa.int64())
DEEP = pa.struct([("a", pa.struct([("b", pa.list_(pa.float64()))]))])
DIFFERENT: dict[str, list[pa.Array]] = {
    "texts": [pa.array(["a\0b", "a", "a\0", "", "\0", "\0\0", None, "\x01", "é", "e\N{COMBINING ACUTE ACCENT}", "A"])],
    "long texts": [pa.array(["x" * 99999 + "y", "x" * 99999 + "z", "x" * 100000 + "\0", "x" * 100000])],
    "texts of every length": [pa.array(["a" * length for length in range(70)])],
    "bytes": [pa.array([b"", b"\0", b"\0\0", b"\1", b"\1\0", b"\1\1", b"\0\1", b"\xff", b"\xfe", None])],
    "columns of texts": [
        pa.array(["ab", "a", "", None, "", "abc", "", None, "a", "a\0"]),
        pa.array(["c", "bc", "abc", "abc", None, "", "", None, "\0bc", "bc"]),
    ],
    "columns of bytes": [pa.array([b"\0", b"", b"\0\0", b""]), pa.array([b"\0", b"\0\0", b"", b"\1\1"])],
    "columns of numbers": [pa.array([1, 2, None, 1], pa.int8()), pa.array([2, 1, 1, None], pa.int64())],
    "moments": [MOMENTS.view(pa.timestamp("us"))],
    "moments of UTC": [MOMENTS.view(pa.timestamp("us", tz="UTC"))],
    "days": [pa.array([-(2**31), -(2**31) + 1, 2**31 - 1, 2**31 - 2, 0, None], pa.int32()).view(pa.date32())],
    "decimals": [pa.array([Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0), None], pa.decimal128(38, 0))],
    "doubles": [raw_floats(pa.float64(), [0, 1 << 63, 1, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48])],
    "floats": [raw_floats(pa.float32(), [0, 1 << 31, 1, 0x7F8 << 20, 0xFF8 << 20, 0x7FC << 20])],
    "lists of nulls": [pa.array([[None], None, [], [None, None]], pa.list_(pa.null()))],
    "lists of texts": [pa.array([["a", "b"], ["ab"], ["a", "b", None], ["a", None, "b"], [""], ["", ""], [None], []])],
    "lists of lists": [
        pa.array([[[None]], [[]], [None], [], None, [[], []], [[None, None]], [[1], [2]], [[1, 2]], [[1, 2], []]])
    ],
    "columns of lists": [pa.array([["a"], ["a", "b"], []]), pa.array([["b"], [], ["a", "b"]])],
    "structs of nulls": [pa.array([{"x": None}, None], pa.struct([("x", pa.null())]))],
    "structs": [pa.array([{"x": None, "y": "a"}, {"x": "a", "y": None}, {"x": "", "y": "a"}, {"x": None, "y": None}])],
    "structs of structs": [
        pa.array([{"a": None}, {"a": {"b": None}}, {"a": {"b": []}}, {"a": {"b": [None]}}, {"a": {"b": [0.0]}}], DEEP)
    ],
    "maps": [
        pa.array(
            [[("a", 1), ("b", 2)], [("b", 2), ("a", 2)], [("a", 2), ("b", 1)], [("a", None)], [], None],
            pa.map_(pa.string(), pa.int64()),
        )
    ],
    "maps of nulls": [pa.array([[("a", None)], [], None], pa.map_(pa.string(), pa.null()))],
    "keys twice": [
        pa.array([[("a", 1), ("a", 2)], [("a", 2), ("a", 1)], [("a", 1)]], pa.map_(pa.string(), pa.int64()))
    ],
    "keys twice, of doubles": [
        pa.array([[("a", 1.0), ("a", 2.0)], [("a", 2.0), ("a", 1.0)]], pa.map_(pa.string(), pa.float64()))
    ],
    "keys twice, inside": [
        pa.array([[[(1, b"x"), (1, b"y")]], [[(1, b"x")]]], pa.list_(pa.map_(pa.int64(), pa.binary())))
    ],
    "a thousand columns": [*[pa.array([1, 1])] * 999, pa.array([1, 2])],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DIFFERENT)
def test_different_rows_are_different(shared: RowIndex, name: str) -> None:
    columns = DIFFERENT[name]
    assert different(shared, columns)


@cases("name", DIFFERENT)
def test_few_rows_are_compared_in_memory(name: str) -> None:
    """Of every type that a table may have."""
    index = RowIndex()
    assert different(index, DIFFERENT[name])
    assert index._database is None


@cases("name", DIFFERENT)
def test_rows_have_no_more_bytes_than_are_counted(name: str) -> None:
    columns = [comparable(column) for column in DIFFERENT[name]]
    made = row_bytes(columns, len(columns[0]))
    assert sum(map(len, made.to_pylist())) <= sum(map(most_bytes, columns))


SHARED = pa.repeat(pa.scalar(None, pa.struct([(f"f{index}", pa.int64()) for index in range(300)])), 8192)
HEAVY: dict[str, tuple[pa.Array, int]] = {
    "fields that share a buffer": (SHARED, 1),
    "many batches of a row": (pa.array([True]), 60_000),
    "elements without bytes": (pa.ListArray.from_arrays([0, 2**25], pa.nulls(2**25)), 1),
}


@pytest.mark.parametrize("name", HEAVY)
def test_rows_that_take_more_than_they_seem_go_to_the_database(name: str) -> None:
    column, batches = HEAVY[name]
    index = MemoryIndex()
    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(len(column), pa.int64()), pa.nulls(len(column), pa.bool_()), column], ["address", "deleted", "c0"]
    )
    assert rows.get_total_buffer_size() * batches < FEW_BYTES
    assert not all(index.add(rows) for _ in range(batches))


def test_a_source_that_fails_after_a_stop_was_stopped() -> None:
    index = RowIndex()

    def closed() -> Iterator[ChangeBatch]:
        yield from many(10)
        index.stop()
        raise OSError("the file was closed")

    with pytest.raises(Stopped):
        add(index, 0, closed(), ALL)


MASKED = pa.array([True, False])
MAP = pa.map_(pa.string(), pa.int64())
INNER = pa.list_(pa.struct([("m", MAP)]))
KEY = pa.struct([("x", pa.string()), ("y", pa.float64())])
KEYED = [{"x": "a", "y": 1.0}, {"x": None, "y": -1.0}, {"x": "a", "y": None}]
ENTRIES = pa.array([[("b", 1), ("c", 2)], [("a", 1)]], MAP)
STRUCTS = pa.StructArray.from_arrays([pa.array([1.5, 1.5]), pa.array(["a", "a"])], ["x", "y"], mask=MASKED)
EQUAL: dict[str, tuple[pa.Array, pa.Array]] = {
    "NaNs": (
        raw_floats(pa.float64(), [0x7FF8 << 48, (0x7FF8 << 48) + 1, 0xFFF << 52 | 1]),
        raw_floats(pa.float64(), [(1 << 64) - 1, 0x7FF8 << 48, (0x7FF << 52) + 1]),
    ),
    "NaNs of floats": (
        raw_floats(pa.float32(), [0x7FC << 20, 0xFFC << 20]),
        raw_floats(pa.float32(), [(0x7F8 << 20) + 1, 0xFFFFFFFF]),
    ),
    "nulls over other numbers": (
        pa.array([1.0, float("nan")], mask=pa.array([True, True])),
        pa.array([None, None], pa.float64()),
    ),
    "nulls over other texts": (pa.array(["x"], mask=pa.array([True])), pa.array([None], pa.string())),
    "null structs over values": (STRUCTS, pa.array([None, {"x": 1.5, "y": "a"}], STRUCTS.type)),
    "null structs over values, inside": (
        pa.ListArray.from_arrays([0, 2], STRUCTS),
        pa.array([[None, {"x": 1.5, "y": "a"}]], pa.list_(STRUCTS.type)),
    ),
    "null structs over texts": (
        pa.StructArray.from_arrays([pa.array(["b", "a"])], ["y"], mask=MASKED),
        pa.array([None, {"y": "a"}]),
    ),
    "null lists over values": (
        pa.ListArray.from_arrays([0, 1, 2], pa.array([1.0, 2.0]), mask=MASKED),
        pa.array([None, [2.0]]),
    ),
    "null lists over whole numbers": (
        pa.ListArray.from_arrays([0, 1, 2], pa.array([1, 2]), mask=MASKED),
        pa.array([None, [2]]),
    ),
    "lists from the middle": (
        pa.array([[9.0], [1.0, float("nan")], None, [], [9.0]]).slice(1, 3),
        pa.array([[1.0, float("nan")], None, []]),
    ),
    "maps from the middle": (
        pa.array([[(9, 9.0)], [(1, float("nan"))], None, []], pa.map_(pa.int64(), pa.float64())).slice(1, 3),
        pa.array([[(1, float("nan"))], None, []], pa.map_(pa.int64(), pa.float64())),
    ),
    "maps in another order": (
        pa.array([[("b", 1), ("a", None)], [("", 2), ("é", 3), ("ab", 4)], None], MAP),
        pa.array([[("a", None), ("b", 1)], [("ab", 4), ("", 2), ("é", 3)], None], MAP),
    ),
    "maps in maps in another order": (
        pa.array([[("k", [{"m": [("a", 1), ("b", 2)]}]), ("l", [])]], pa.map_(pa.string(), INNER)),
        pa.array([[("l", []), ("k", [{"m": [("b", 2), ("a", 1)]}])]], pa.map_(pa.string(), INNER)),
    ),
    "maps with keys of several fields in another order": (
        pa.array([[(KEYED[0], 1), (KEYED[1], 2), (KEYED[2], 3)], None], pa.map_(KEY, pa.int64())),
        pa.array([[(KEYED[2], 3), (KEYED[0], 1), (KEYED[1], 2)], None], pa.map_(KEY, pa.int64())),
    ),
    "maps with bytes of one length in another order": (
        pa.array([[(b"ab", 1), (b"aa", 2)]], pa.map_(pa.binary(2), pa.int64())),
        pa.array([[(b"aa", 2), (b"ab", 1)]], pa.map_(pa.binary(2), pa.int64())),
    ),
    "maps with a key twice, around another": (
        pa.array([[("a", 1), ("b", 3), ("a", 2)]], MAP),
        pa.array([[("b", 3), ("a", 1), ("a", 2)]], MAP),
    ),
    "maps in another order, from the middle": (
        pa.array([[("z", 1)], [("b", 1), ("a", 2)], None, [("d", 1), ("c", 2)]], MAP).slice(1),
        pa.array([[("a", 2), ("b", 1)], None, [("c", 2), ("d", 1)]], MAP),
    ),
    "null maps over values": (
        pa.Array.from_buffers(MAP, 2, [pa.py_buffer(b"\2"), *ENTRIES.buffers()[1:2]], children=[ENTRIES.values]),
        pa.array([None, [("a", 1)]], MAP),
    ),
    "structs from the middle": (STRUCTS.slice(1), pa.array([{"x": 1.5, "y": "a"}], STRUCTS.type)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EQUAL)
def test_equal_rows_are_equal(shared: RowIndex, name: str) -> None:
    one, other = EQUAL[name]
    for row in range(len(one)):
        shared.begin()
        add(shared, 0, iter([batch([one.slice(row, 1)], "delete")]), ALL)
        add(shared, 1, iter([batch([other.slice(row, 1)])]), ALL)
        assert shared.unmatched() == {}


def numbers(values: Sequence[Any], kinds: str | Sequence[str] = "insert", first: int = 0) -> Iterator[ChangeBatch]:
    return iter([batch([pa.array(values, pa.int64())], kinds, first)])


def test_of_equal_rows_the_first_that_go_and_the_last_that_come_are_left(shared: RowIndex) -> None:
    shared.begin()
    add(shared, 3, numbers([7, 8, 7], "delete", first=10), ALL)
    add(shared, 2, numbers([7], "update_preimage", first=40), ALL)
    add(shared, 0, numbers([7, 8, 8, 8]), ALL)
    assert lists(shared.unmatched()) == {0: [2, 3], 2: [40], 3: [10]}
    assert lists(shared.unmatched_singles()) == {0: [0, 1, 2, 3], 2: [40], 3: [10, 11, 12]}
    found, unclear = paired(shared)
    assert lists(found) == {0: [0, 1], 2: [40], 3: [11]}
    assert unclear == 8


@pytest.mark.parametrize(
    ("types", "taken"),
    [
        (ALL, [0, 1, 2, 3]),
        ((ChangeType.DELETE, ChangeType.INSERT), [0, 1]),
        ((ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE), [2, 3]),
        ((ChangeType.UPDATE_POSTIMAGE,), [3]),
    ],
)
def test_only_rows_of_some_types_are_compared(
    shared: RowIndex, types: tuple[ChangeType, ...], taken: list[int]
) -> None:
    shared.begin()
    kinds = ["delete", "insert", "update_preimage", "update_postimage", "strange"]
    assert list(add(shared, 0, numbers([1, 2, 3, 4, 5], kinds), types)) == taken
    assert lists(shared.unmatched()) == {0: taken}


def test_null_keys_are_no_keys(shared: RowIndex) -> None:
    columns = [pa.array([1, None, 1, None]), pa.array(["a", "a", None, None])]
    shared.begin()
    assert list(add(shared, 0, iter([batch(columns, "delete")]), ALL, nulls_differ=True)) == [0]
    assert list(add(shared, 1, iter([batch(columns)]), ALL, nulls_differ=True)) == [0]
    assert lists(paired(shared)[0]) == {0: [0], 1: [0]}
    inner = [pa.array([{"x": None}, None])]
    shared.begin()
    assert list(add(shared, 0, iter([batch(inner)]), ALL, nulls_differ=True)) == [0]


def test_nothing_to_compare(shared: RowIndex) -> None:
    shared.begin()
    assert list(add(shared, 0, iter([]), ALL)) == []
    assert list(add(shared, 1, numbers([1, 2], "strange"), ALL)) == []
    assert (shared.unmatched(), shared.unmatched_singles(), paired(shared)) == ({}, {}, ({}, 0))


def ranks(matches: RowIndex) -> list[int]:
    return [rank for found in matches.partner_ranks() for rank in found["rank"].to_pylist()]


def test_partners_over_several_questions(shared: RowIndex) -> None:
    """Rows are deleted at 0 and 1, inserted at 2 and 3; each of two keys pairs some of them."""
    shared.begin()
    assert (ranks(shared), shared.unpair_equal()) == ([], {})
    for source, keys, kind in ((0, [1, 2], "delete"), (2, [9, 1], "insert")):
        add(shared, source, numbers(keys, kind, first=10), ALL)
    assert (lists(paired(shared)[0]), ranks(shared)) == ({0: [10], 2: [11]}, [0])
    shared.clear()
    for source, keys, kind in ((0, [0, 5], "delete"), (1, [6], "delete"), (3, [6, 5], "insert")):
        add(shared, source, numbers(keys, kind, first=10), ALL)
    assert lists(paired(shared)[0]) == {0: [11], 1: [10], 3: [10, 11]}
    # In the order of the deleted rows: 0/10 with 2/11, 0/11 with 3/11, 1/10 with 3/10.
    assert ranks(shared) == [0, 2, 1]
    shared.clear()
    for source, row_values, kind in ((0, [7, 8], "delete"), (1, [7], "delete"), (2, [7, 8], "insert")):
        add(shared, source, numbers(row_values, kind, first=10), ALL)
    add(shared, 3, numbers([7, 8], first=10), ALL)
    # 0/10 and 2/11 are 7 and 8, 0/11 and 3/11 are both 8, 1/10 and 3/10 are both 7.
    assert lists(shared.unpair_equal()) == {0: [11], 1: [10], 3: [10, 11]}
    assert ranks(shared) == [0]
    assert shared.unpair_equal() == {}
    shared.begin()
    assert ranks(shared) == []


@given(
    gone=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)), max_size=12),
    come=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)), max_size=12),
)
def test_partners_against_counting(
    shared: RowIndex, gone: list[tuple[int, int, int]], come: list[tuple[int, int, int]]
) -> None:
    """Rows of a source, a key and a value: paired rows have one key; rows of one value are removed first."""
    sides = []
    for first, rows in ((0, gone), (3, come)):
        sources = [[row[1:] for row in rows if row[0] == number] for number in range(3)]
        sides.append(
            [((first + number, place), row) for number, of in enumerate(sources) for place, row in enumerate(of)]
        )

    def take(part: int) -> None:
        shared.clear()
        for source in range(6):
            taken = [row[part] for each in sides for place, row in each if place[0] == source]
            add(shared, source, numbers(taken, "delete" if source < 3 else "insert") if taken else iter([]), ALL)

    shared.begin()
    take(0)
    found, unclear = paired(shared)
    partners, counted = [], 0
    for key in range(4):
        one, other = ([(place, row[1]) for place, row in each if row[0] == key] for each in sides)
        partners += list(zip(one, other, strict=False))
        counted += 0 if not one or not other or len(one) == len(other) == 1 else len(one) + len(other)
    assert unclear == counted
    assert places(found) == sorted(place for pair in partners for place, _ in pair)
    take(1)
    equal = [(one, other) for one, other in partners if one[1] == other[1]]
    assert places(shared.unpair_equal()) == sorted(place for pair in equal for place, _ in pair)
    left = sorted((one[0], other[0]) for one, other in partners if one[1] != other[1])
    order = sorted(other for _, other in left)
    assert ranks(shared) == [order.index(other) for _, other in left]


def places(found: Bitmaps) -> list[Place]:
    return [(source, row) for source, rows in sorted(found.items()) for row in rows]


@pytest.mark.parametrize("forget", [RowIndex.begin, RowIndex.clear])
def test_begin_discards_earlier_rows(shared: RowIndex, forget: Callable[[RowIndex], None]) -> None:
    shared.begin()
    add(shared, 0, numbers([1], "delete"), ALL)
    forget(shared)
    add(shared, 1, numbers([1]), ALL)
    assert lists(shared.unmatched()) == {1: [0]}
    assert lists(shared.unmatched()) == {1: [0]}


def test_positions_with_holes_and_beyond_four_billion(shared: RowIndex) -> None:
    expected_rows = [[3, 5, 2**33], [2**33 + 1, 2**33 + 2, 2**39], [2**40 - 3, 2**40 - 2, 2**40 - 1]]
    sources = []
    for rows in expected_rows:
        whole_batch = batch([pa.array([1, 1, 1])])
        sources.append(ChangeBatch("id", 1, 0, whole_batch.rows, pa.array(rows, pa.int64())))
    shared.begin()
    assert list(add(shared, 0, iter(sources), ALL)) == list(chain(*expected_rows))
    assert lists(shared.unmatched()) == {0: list(chain(*expected_rows))}


def many(count: int, kind: str = "insert", begin: int = 0) -> Iterator[ChangeBatch]:
    """Make rows whose values count from `begin`."""
    for first in range(0, count, 8192):
        rows = range(first, min(first + 8192, count))
        yield batch([pa.array(range(begin + rows.start, begin + rows.stop), pa.int64())], kind, first)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_little_memory_and_what_is_left_on_the_disk(folder: Path) -> None:
    """More rows than fit into memory, half of which have an equal row, with duplicates in both halves."""
    count = 300_000
    answers = []
    for memory in (SPILLING_BYTES, 8 * SPILLING_BYTES):
        matches = RowIndex(memory)
        matches.begin()
        add(matches, 0, many(count, "delete"), ALL)
        add(matches, 1, many(count, begin=count // 2), ALL)
        add(matches, 2, many(count), ALL)
        answers.append((matches.unmatched(), matches.unmatched_singles(), paired(matches)))
        spilled = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        assert (spilled > 0) is (memory == SPILLING_BYTES)
        del matches
        assert [path for path in folder.glob("lake-tailer-*/**/*") if path.name != "lock"] == []
    little, plenty = answers
    assert little == plenty
    half = list(range(count // 2))
    rest = list(range(count // 2, count))
    assert lists(little[0]) == {1: rest, 2: rest}
    assert lists(little[1]) == {0: rest, 1: half + rest, 2: rest}
    assert lists(little[2][0]) == {0: half + rest, 1: half, 2: half}
    assert little[2][1] == 3 * len(half)


def test_other_rows_of_a_bucket_do_not_cancel_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows, sums over buckets say which to look at; here some buckets have one row of each side."""
    monkeypatch.setattr(database_index, "_MANY_ROWS", 0)
    matches = in_database()
    matches.begin()
    add(matches, 0, many(3000, "delete"), ALL)
    add(matches, 1, many(3000, begin=2000), ALL)
    assert lists(matches.unmatched()) == {0: list(range(2000)), 1: list(range(1000, 3000))}


@pytest.mark.parametrize("good", [0, 1, 40])
def test_errors_of_the_source_pass_unchanged(shared: RowIndex, good: int) -> None:
    error = FileVacuumed("t", 3, "gone.parquet")

    def failing() -> Iterator[ChangeBatch]:
        yield from many(good * 8192)
        raise error

    shared.begin()
    with pytest.raises(FileVacuumed) as caught:
        add(shared, 0, failing(), ALL)
    assert caught.value is error
    shared.begin()
    add(shared, 0, numbers([1]), ALL)
    assert lists(shared.unmatched()) == {0: [0]}


def test_slow_answers_show_no_progress_on_standard_output() -> None:
    matches = DatabaseIndex()
    assert matches._database.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]
    matches.close()


def test_stopped_for_good() -> None:
    matches = RowIndex()
    matches.begin()
    matches.stop()
    for ask in (matches.begin, matches.clear, matches.unmatched, matches.unmatched_singles, matches.pair):
        with pytest.raises(Stopped):
            ask()
    with pytest.raises(Stopped):
        add(matches, 0, numbers([1]), ALL)


def test_stopped_when_it_is_closed_or_about_to_be() -> None:
    """Both calls come from different threads, in any order."""
    matches = DatabaseIndex()
    connections = list(matches._connections)
    matches.close()
    matches.stop()
    assert matches.closed
    other = DatabaseIndex()
    other._connections.extend(connections)
    other.stop()
    assert other.closed
    other._connections.pop()
    other.close()


def test_stopped_while_rows_come() -> None:
    """Another thread stops it while it reads rows of an endless source."""
    matches, reading = RowIndex(), threading.Event()
    matches.begin()

    def endless() -> Iterator[ChangeBatch]:
        for number in range(2**40):
            yield batch([pa.array([number])], first=number)
            if number == 100:
                reading.set()

    def stop() -> None:
        reading.wait()
        matches.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Stopped):
        add(matches, 0, endless(), ALL)
    thread.join()


def test_stopped_while_answers_come(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = RowIndex()
    matches.begin()
    add(matches, 0, many(400_000), ALL)
    calls: list[int] = []

    def stopping(rows: pa.Array) -> BitMap64:
        calls.append(len(rows))
        matches.stop()
        return bitmap_of(rows)

    monkeypatch.setattr("tailer.changelog.equal_rows.comparable_values.bitmap_of", stopping)
    with pytest.raises(Stopped):
        matches.unmatched()
    assert len(calls) < 6


@contextmanager
def full_disk(free_bytes: int) -> Iterator[None]:
    """Limit the size of all files of this process to `free_bytes`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("folder")
def test_a_full_disk_while_rows_come() -> None:
    matches = RowIndex(SPILLING_BYTES // 2)
    matches.begin()
    with full_disk(100_000), pytest.raises(StorageUnavailable, match="cannot write temporary files: comparing rows"):
        add(matches, 0, many(2_000_000), ALL)
    matches.begin()
    add(matches, 0, numbers([1]), ALL)
    assert lists(matches.unmatched()) == {0: [0]}


def test_a_full_disk_is_named_without_the_settings_of_duckdb(tmp_path: Path) -> None:
    with closing(open_database(str(tmp_path), 2**20)) as database:
        database.execute("SET max_temp_directory_size = '64KiB'")
        with pytest.raises(duckdb.OutOfMemoryException, match="memory_limit") as caught:
            database.execute("CREATE TABLE rows AS SELECT repeat('x', 100) || range FROM range(1000000)")
    text = str(spill_failure(str(tmp_path), caught.value))
    disk = r"its disk, of which \d+\.\d of \d+\.\d GB are free, has no space for more of them"
    assert re.fullmatch(f"{re.escape(str(tmp_path))}: cannot write temporary files: comparing rows: {disk}", text)
    assert "memory" not in text.lower()
    assert "max_temp_directory_size" not in text


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("question", [RowIndex.unmatched, RowIndex.pair])
def test_a_full_disk_while_answers_are_made(question: Callable[[RowIndex], object]) -> None:
    """Every row has equal rows, so that all of them are sorted."""
    matches = RowIndex(SPILLING_BYTES // 2)
    matches.begin()
    for source, kind in enumerate(["delete", "insert", "insert"]):
        add(matches, source, many(200_000, kind), ALL)
    with full_disk(100_000), pytest.raises(StorageUnavailable, match="cannot write temporary files: comparing rows"):
        question(matches)
    matches.begin()
    add(matches, 0, numbers([1]), ALL)
    assert lists(matches.unmatched()) == {0: [0]}


@pytest.mark.usefixtures("folder")
def test_less_memory_than_it_takes() -> None:
    matches = RowIndex(2**20)
    with pytest.raises(StorageUnavailable, match="cannot write temporary files: comparing rows"):
        ask_much(matches)


def ask_much(matches: RowIndex) -> None:
    matches.begin()
    for source, kind in enumerate(["delete", "insert", "insert"]):
        add(matches, source, many(60_000, kind), ALL)
    matches.unmatched()
    paired(matches)


@pytest.mark.parametrize("place", ["missing", "file"])
def test_nowhere_to_put_temporary_files(folder: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (folder / "file").write_bytes(b"")
    monkeypatch.setattr(tempfile, "tempdir", str(folder / place))
    with pytest.raises(StorageUnavailable, match=place):
        DatabaseIndex()

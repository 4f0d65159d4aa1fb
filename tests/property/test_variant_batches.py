"""Many Variants at once: the same texts and the same errors as the strict decoder gives, row by row.

Values are random, damaged and hostile, mixed with sound ones, so that fast and slow rows share a batch.
"""

import random
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.variant import UNSHREDDED, InvalidVariant, compare_keys, json_texts, unshred
from tailer.variant.batch import BatchTexts
from tailer.variant.columns import DecodedAssembler, KeyForm
from tailer.variant.scalars import JsonForm
from tailer.variant.shredded import SQL_NULL, ColumnReader
from tests.support.seeds import examples
from tests.support.variant.encoder import Encoded, Layout, Scalar, array, encode, metadata, names_in, object_of
from tests.support.variant.strategies import LAYOUTS, TEXTS, VALUES

Row = tuple[bytes | None, bytes | None] | None

NONE: Final = metadata([])
# Enough rows for a batch.
SOUND: Final[list[Row]] = [(metadata(["a", "b"]), object_of([0, 1], [b"\x0c\x05", bytes([5, 120])]))] * 20


def column(rows: Sequence[Row]) -> pa.StructArray:
    """Return a column of encoded values."""
    fields = [pa.field("metadata", pa.binary()), pa.field("value", pa.binary())]
    found = [None if row is None else {"metadata": row[0], "value": row[1]} for row in rows]
    return pa.array(found, pa.struct(fields))


def by_row(values: pa.StructArray, form: Any) -> list[str | None] | str:
    """Return the texts of the strict decoder, or its error."""
    try:
        found = ColumnReader(values.type, DecodedAssembler(form)).read(values)
    except InvalidVariant as error:
        return str(error)
    return [None if value is SQL_NULL else msgspec.json.encode(value).decode() for value in found]


def outcome(work: Callable[[], list[str | None]]) -> list[str | None] | str:
    """Return the texts, or the error."""
    try:
        return work()
    except InvalidVariant as error:
        return str(error)


def agree(rows: Sequence[Row]) -> None:
    """Compare both ways of reading, for each form, also within a slice."""
    values = column(rows)
    assert outcome(lambda: json_texts(values)) == by_row(values, JsonForm())
    plain = outcome(lambda: json_texts(values, quote_decimals=False))
    assert plain == by_row(values, JsonForm(quotes_decimals=False))
    assert outcome(lambda: json_texts(values, quote_int64=True)) == by_row(values, JsonForm(quotes_int64=True))
    assert outcome(lambda: compare_keys(values).to_pylist()) == by_row(values, KeyForm())
    part = values.slice(3)
    assert outcome(lambda: json_texts(part)) == by_row(part, JsonForm())


def bits(number: int, size: int) -> st.SearchStrategy[Encoded]:
    """Return primitives of a type and any content."""
    return st.binary(min_size=size, max_size=size).map(lambda data: Encoded(bytes([number << 2]) + data))


def near(number: int, size: int, *limits: int) -> st.SearchStrategy[Encoded]:
    """Return primitives of a type that are integers near the limits."""
    numbers = st.sampled_from(limits).flatmap(lambda limit: st.integers(limit - 2, limit + 2))
    return numbers.map(lambda n: Encoded(bytes([number << 2]) + n.to_bytes(size, "little", signed=True)))


def floats(number: int, layout: str, width: Literal[32, 64]) -> st.SearchStrategy[Encoded]:
    """Return floats, many of them with few digits."""
    few = st.builds(lambda n, power: n * 10.0**power, st.integers(-999, 999), st.integers(-8, 12))
    found = st.floats(width=width) | few
    return found.map(lambda value: Encoded(bytes([number << 2]) + struct.pack(layout, value)))


def scaled(number: int, size: int, digits: int) -> st.SearchStrategy[Encoded]:
    """Return decimals of any scale, small ones and those of the most digits, and some that are too long."""

    def build(scale: int, length: int, n: int) -> Encoded:
        unscaled = n if length == 0 else (1 if n > 0 else -1) * (10**length - abs(n) % 2)
        return Encoded(bytes([number << 2, scale]) + unscaled.to_bytes(size, "little", signed=True))

    return st.builds(build, st.integers(0, 39), st.integers(0, digits), st.integers(-50, 50))


DAYS: Final = (-719_162, 2_932_896)
US: Final = 86_400_000_000
LEAVES: Final = st.one_of(
    floats(7, "<d", 64),
    floats(14, "<f", 32),
    bits(7, 8),
    bits(14, 4),
    scaled(8, 4, 9),
    scaled(9, 8, 18),
    scaled(10, 16, 38),
    bits(10, 17),
    near(11, 4, 0, *DAYS, -(2**31) + 2, 2**31 - 3),
    bits(11, 4),
    near(12, 8, 0, DAYS[0] * US, (DAYS[1] + 1) * US, -(2**63) + 2, 2**63 - 3),
    bits(12, 8),
    near(13, 8, 0, DAYS[0] * US, (DAYS[1] + 1) * US),
    bits(18, 8),
    bits(19, 8),
    near(17, 8, 0, US),
    bits(20, 16),
    st.binary(max_size=9).map(lambda data: Encoded(bytes([15 << 2]) + struct.pack("<I", len(data)) + data)),
    TEXTS.map(lambda text: Scalar(16, f'{text}\\"\x7f\n\x01', "")),
)
MIXED: Final = st.recursive(
    LEAVES | VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcö"), inner)
)


@st.composite
def encoded_rows(draw: st.DrawFn) -> list[Row]:
    """Return rows that are sound apart from what a leaf holds, some without anything."""
    layouts = draw(LAYOUTS)
    rows: list[Row] = []
    for value in draw(st.lists(MIXED, max_size=8)):
        names = draw(st.permutations(sorted(names_in(value))))
        rows.append((metadata(names, draw(st.integers(1, 4))), encode(value, names, cycle(layouts))))
    return rows + draw(st.lists(st.sampled_from([None, (NONE, None)]), max_size=2))


@settings(max_examples=examples(50))
@given(encoded_rows(), st.randoms())
def test_random_values(rows: list[Row], chance: random.Random) -> None:
    mixed = rows * 9 + SOUND
    chance.shuffle(mixed)
    agree(mixed)


@settings(max_examples=examples(50))
@given(encoded_rows(), st.data())
def test_damaged_values(rows: list[Row], data: st.DataObject) -> None:
    """One value is damaged; it stands alone, and ten times."""
    mixed = rows + SOUND
    place = data.draw(st.integers(0, len(mixed) - 1))
    parts = [bytearray(part or b"") for part in mixed[place] or (b"", b"")]
    for _ in range(data.draw(st.integers(1, 2))):
        part = parts[data.draw(st.sampled_from([0, 1, 1, 1]))]
        at = data.draw(st.integers(0, max(len(part) - 1, 0)))
        match data.draw(st.sampled_from(["change", "cut", "grow"])):
            case "change" if part:
                part[at] = data.draw(st.integers(0, 255))
            case "cut":
                del part[at:]
            case _:
                part += data.draw(st.binary(min_size=1, max_size=4))
    broken = (bytes(parts[0]), bytes(parts[1]))
    agree([*mixed[:place], broken, *mixed[place + 1 :]])
    agree([broken] * 20)


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.sampled_from([NONE, metadata(["a", "b"])]), st.binary(max_size=40)), min_size=1, max_size=3)
)
def test_any_bytes(rows: list[Row]) -> None:
    agree(rows * 10)
    agree(rows + SOUND)


def bomb(levels: int) -> bytes:
    """Return arrays of two children at one place."""
    data = b"\x00"
    for _ in range(levels):
        data = bytes([3 | 1 << 2, 2]) + b"".join(n.to_bytes(2, "little") for n in (0, 0, len(data))) + data
    return data


def nested(levels: int) -> bytes:
    """Return arrays in arrays."""
    data = b"\x00"
    for _ in range(levels - 1):
        data = array([data], Layout(offsets=2))
    return data


def overlapping() -> bytes:
    """Return an array of two texts that share bytes, and a gap so that their sizes fit."""
    return b"\x03\x02\x00\x01\x09" + b"\x0d\x05xy" + bytes(5)


HOSTILE: Final = {
    "shared children": (NONE, bomb(40)),
    "2^32 items": (NONE, b"\x1f\xff\xff\xff\xff" + bytes(100)),
    "2^32 fields": (NONE, b"\x7e\xff\xff\xff\xff" + bytes(100)),
    "2^32 bytes": (NONE, b"\x40\xff\xff\xff\xff" + bytes(100)),
    "2^32 names": (b"\xc1\xff\xff\xff\xff" + bytes(20), b"\x00"),
    "128 levels": (NONE, nested(128)),
    "129 levels": (NONE, nested(129)),
    "texts that share bytes": (NONE, overlapping()),
    "one name twice": (metadata(["a", "a"]), object_of([0, 1], [b"\x00", b"\x00"])),
    "names out of order": (metadata(["b", "a"]), object_of([0, 1], [b"\x00", b"\x04"])),
    "an offset beyond the buffer": (NONE, b"\x0f\x01\xff\xff\xff\xff\x01\x00\x00\x00\x00"),
    "a text that is not UTF-8": (NONE, b"\x05\xff"),
    "half a character in each of two texts": (NONE, array([b"\x05\xc3", b"\x05\xa9"])),
    "a name beyond the metadata": (metadata(["a"]), object_of([1], [b"\x00"])),
    "an unknown type": (NONE, bytes([21 << 2])),
    "no value": (NONE, b""),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("copies", [1, 1000])
def test_hostile_values(name: str, copies: int) -> None:
    agree(SOUND + [HOSTILE[name]] * copies)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("work", [json_texts, compare_keys, unshred])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_take_little_time_and_memory(name: str, work: Callable[[pa.Array], Any]) -> None:
    cheap(column([*SOUND, HOSTILE[name]] * 10), work)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("work", [json_texts, compare_keys, unshred])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_in_shredded_columns(name: str, work: Callable[[pa.Array], Any]) -> None:
    """The value is the rest of an object with one column, and an item of an array."""
    place = pa.struct([("value", pa.binary()), ("typed_value", pa.int32())])
    rest = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.struct([("a", place)]))])
    items = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.list_(place))])
    names, value = HOSTILE[name]
    cheap(pa.array([{"metadata": names, "value": value, "typed_value": {"a": {}}}] * 20, rest), work)
    cheap(pa.array([{"metadata": names, "typed_value": [{"value": value}] * 3}] * 20, items), work)


def cheap(values: pa.StructArray, work: Callable[[pa.Array], Any]) -> None:
    """Assert that the work, which may raise `InvalidVariant`, takes little time and memory."""
    allocated = pa.total_allocated_bytes()
    began = time.process_time()
    outcome(lambda: work(values))
    assert time.process_time() - began < 1
    tracemalloc.start()  # slows the work down
    outcome(lambda: work(values))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
    assert pa.total_allocated_bytes() - allocated < 4 << 20


def test_memory_and_time_are_linear() -> None:
    """The most values that bytes can hold: arrays of nulls."""
    data = array([b"\x00"] * 1000, Layout(offsets=2))
    seconds, peaks = [], []
    for rows in (500, 4000):
        values = pa.array([{"metadata": NONE, "value": data}] * rows, UNSHREDDED)
        reader = BatchTexts(JsonForm())
        began = time.process_time()
        tracemalloc.start()
        assert not reader.read(values)[1]
        peaks.append(tracemalloc.get_traced_memory()[1] - rows * 5050)
        tracemalloc.stop()
        seconds.append(time.process_time() - began)
    assert seconds[1] < 30 * seconds[0]
    assert peaks[1] < 2 * peaks[0] < 200 << 20


@pytest.mark.parametrize(("number", "size", "digits"), [(8, 4, 9), (9, 8, 18), (10, 16, 38)])
def test_decimals_of_every_scale_and_length(number: int, size: int, digits: int) -> None:
    """Every number of digits with every scale, and one digit and one step of scale too many."""
    lengths = [10**length - less for length in range(digits + 1) for less in (0, 1)]
    rows: list[Row] = [
        (NONE, bytes([number << 2, scale]) + (sign * n).to_bytes(size, "little", signed=True))
        for scale in range(39)
        for n in lengths[:-2] + lengths[-1:]
        for sign in (1, -1)
    ]
    agree(rows)
    agree([*rows, (NONE, bytes([number << 2, 0]) + (10**digits).to_bytes(size, "little"))])
    agree([*rows, (NONE, bytes([number << 2, 39]) + bytes(size))])


def test_floats_of_every_magnitude() -> None:
    for number, layout in ((7, "<d"), (14, "<f")):
        found = [
            sign * digits * 10.0**power for power in range(-37, 36) for digits in (1, 9.5, 9.999999) for sign in (1, -1)
        ]
        agree([(NONE, bytes([number << 2]) + struct.pack(layout, each)) for each in [0.0, -0.0, *found]])


def test_long_names_that_come_often() -> None:
    """One byte stands for a name of 60,000: the texts are made in parts."""
    names = metadata(["n" * 60_000], 4)
    value = array([object_of([0], [b"\x00"])] * 100, Layout(offsets=2))
    agree([(names, value)] * 20)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_types_of_columns(kind: pa.DataType) -> None:
    rows = [None, *({"value": value, "metadata": names} for names, value in filter(None, SOUND))]
    values = pa.array(rows, pa.struct([("value", kind), ("metadata", kind)]))
    assert json_texts(values) == [None] + ['{"a":5,"b":"x"}'] * len(SOUND)
    assert json_texts(values.slice(1)) == ['{"a":5,"b":"x"}'] * len(SOUND)
    assert json_texts(pa.nulls(40, values.type)) == [None] * 40


def test_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tailer.variant.batch", None)  # an import that fails
    agree([None, *SOUND])


def test_sound_values_are_read_at_once() -> None:
    """Nothing of ordinary values is left to the strict decoder."""
    values = [
        {"id": Scalar(6, n, ""), "name": Scalar(16, f"n {n}", "", short=True), "tags": [Scalar(16, "é", "")] * (n % 3)}
        | ({"at": Scalar(12, n, ""), "price": Scalar(8, f"{n}E-2", "")} if n % 2 else {"ok": Scalar(1, None, "")})
        for n in range(100)
    ]
    names = ["id", "name", "tags", "at", "price", "ok"]
    rows: list[Row] = [(metadata(names), encode(value, names, cycle([Layout()]))) for value in values]
    texts, odd = BatchTexts(JsonForm()).read(column(rows))
    assert odd == []
    assert texts == by_row(column(rows), JsonForm())

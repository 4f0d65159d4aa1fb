"""Keys of Variants: equal for equal values in any encoding, different for different ones."""

import struct
from collections.abc import Sequence
from itertools import cycle
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.variant import UNSHREDDED, InvalidVariant, compare_keys
from tests.support.seeds import examples, repeats
from tests.support.variant.encoder import Layout, Scalar, encode, metadata, names_in
from tests.support.variant.shredder import Shredding, shred, shreddings
from tests.support.variant.strategies import LAYOUTS, NAMES, VALUES

# Each row is one value in several encodings; the values of any two rows differ.
CLASSES: tuple[tuple[Any, ...], ...] = (
    (Scalar(0, None, ""),),
    (Scalar(1, None, ""),),
    (Scalar(2, None, ""),),
    (*(Scalar(number, 1, "") for number in (3, 4, 5, 6)), Scalar(8, "1", ""), Scalar(10, "1.00", "")),
    (Scalar(3, 10, ""), Scalar(8, "10", ""), Scalar(9, "10.0", "")),
    (Scalar(3, 100, ""), Scalar(8, "100", "")),
    (Scalar(3, 0, ""), Scalar(6, 0, ""), Scalar(8, "0", ""), Scalar(10, "0." + "0" * 38, "")),
    (Scalar(3, -1, ""), Scalar(9, "-1.0", "")),
    (Scalar(8, "0.1", ""), Scalar(9, "0.10", ""), Scalar(10, "0." + "1" + "0" * 37, "")),
    (Scalar(10, "9" * 38, ""),),
    (Scalar(10, "9" * 37 + "8", ""),),
    (Scalar(6, 2**63 - 1, ""), Scalar(10, f"{2**63 - 1}.0", "")),
    (Scalar(7, 1.0, ""),),
    (Scalar(14, 1.0, ""),),
    (Scalar(7, 0.0, ""),),
    (Scalar(7, -0.0, ""),),
    (Scalar(7, float("nan"), ""), Scalar(7, struct.unpack("<d", b"\x01" * 6 + b"\xf8\xff")[0], "")),
    (Scalar(14, float("nan"), ""),),
    (Scalar(7, float("inf"), ""),),
    (Scalar(14, float("inf"), ""),),
    (Scalar(11, 1, ""),),
    (Scalar(17, 1, ""),),
    (Scalar(12, 1, ""), Scalar(18, 1000, "")),
    (Scalar(13, 1, ""), Scalar(19, 1000, "")),
    (Scalar(18, 1, ""),),
    (Scalar(19, 1, ""),),
    (Scalar(12, -(2**63), ""),),
    (Scalar(16, "1", "", short=True), Scalar(16, "1", "")),
    (Scalar(16, "null", ""),),
    (Scalar(16, "Y1", ""),),
    (Scalar(16, "", "", short=True), Scalar(16, "", "")),
    (Scalar(15, b"1", ""),),
    (Scalar(15, b"", ""),),
    (Scalar(20, UUID(int=1).bytes, ""),),
    (Scalar(15, UUID(int=1).bytes, ""),),
    ([],),
    ({},),
    ([Scalar(3, 1, "")], [Scalar(10, "1.0", "")]),
    ([[Scalar(3, 1, "")]],),
    ([Scalar(3, 1, ""), Scalar(3, 1, "")],),
    ({"a": Scalar(3, 1, "")}, {"a": Scalar(8, "1.0", "")}),
    ({"b": Scalar(3, 1, "")},),
    ({"a": Scalar(0, None, "")},),
    ({"a": Scalar(3, 1, ""), "b": Scalar(3, 2, "")}, {"b": Scalar(4, 2, ""), "a": Scalar(3, 1, "")}),
    ({"a": Scalar(3, 2, ""), "b": Scalar(3, 1, "")},),
)


def column(values: Sequence[tuple[bytes, bytes] | None]) -> pa.StructArray:
    """Return a column of encoded values."""
    rows = [None if value is None else {"metadata": value[0], "value": value[1]} for value in values]
    return pa.array(rows, UNSHREDDED)


def test_each_value_has_one_key() -> None:
    values = [(metadata(names), encode(v, names, cycle([Layout()]))) for names in (["a", "b"], ["x", "b", "a"])
              for same in CLASSES for v in same]  # fmt: skip
    keys = iter(compare_keys(column(values)).to_pylist())
    for _ in range(2):
        found = [{next(keys) for _ in same} for same in CLASSES]
        assert [len(each) for each in found] == [1] * len(CLASSES)
        assert len(set.union(*found)) == len(CLASSES)


def test_null_and_errors() -> None:
    assert compare_keys(column([None, (metadata([]), b"\x00")])).to_pylist() == [None, "null"]
    assert compare_keys(column([])).type == pa.large_string()
    with pytest.raises(InvalidVariant, match="row 1: a value has the unknown type 21"):
        compare_keys(column([None, (metadata([]), bytes([21 << 2]))]))


def canonical(value: Any) -> Any:
    """Return what two equal values have in common: the number of exact numbers, whatever their scale."""
    if isinstance(value, dict):
        return ("object", frozenset((name, canonical(child)) for name, child in value.items()))
    if isinstance(value, list):
        return ("array", tuple(canonical(child) for child in value))
    if value.number in (3, 4, 5, 6):
        return ("number", value.value, 0)
    if value.number in (8, 9, 10):
        unscaled, _, scale = value.value.partition("E-")
        number, power = int(unscaled), -int(scale)
        while number % 10 == 0 and number:
            number, power = number // 10, power + 1
        return ("number", number * 10**power, 0) if power >= 0 else ("number", number, power if number else 0)
    return (value.number, value.value)


@settings(max_examples=examples(50))
@given(VALUES, VALUES, LAYOUTS, LAYOUTS, st.lists(NAMES, max_size=4), st.randoms())
def test_keys_of_any_two_values(
    one: Any, other: Any, some: list[Layout], others: list[Layout], more: list[str], chance: Any
) -> None:
    def encoded(value: Any, layouts: list[Layout]) -> tuple[bytes, bytes]:
        names = [*names_in(value) | set(more)]
        chance.shuffle(names)
        return metadata(names), encode(value, names, cycle(layouts))

    rows = [encoded(one, some), encoded(one, others), encoded(other, others)]
    keys = compare_keys(column([*rows])).to_pylist()
    assert keys[0] == keys[1]
    assert (keys[0] == keys[2]) == (canonical(one) == canonical(other))


@settings(max_examples=repeats(25))
@given(st.lists(st.none() | VALUES, max_size=4), shreddings(), LAYOUTS)
def test_shredding_changes_no_key(rows: list[Any], shredding: Shredding, layouts: list[Layout]) -> None:
    plain = compare_keys(shred(rows, Shredding(), cycle(layouts)))
    assert compare_keys(shred(rows, shredding, cycle(layouts))).equals(plain)

"""Random Variants: encoded and decoded again, shredded in every way, and damaged."""

import json
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.variant import UNSHREDDED, Metadata, Variant, json_texts, unshred
from tests.support.seeds import examples
from tests.support.variant.encoder import Layout, encode, metadata, names_in
from tests.support.variant.shredder import Shredding, shred, shreddings
from tests.support.variant.strategies import LAYOUTS, NAMES, VALUES


def json_of(value: Any) -> str:
    """Return the JSON text of a value, from the texts of its scalars."""
    if isinstance(value, dict):
        fields = sorted(value.items(), key=lambda item: item[0].encode())
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{json_of(v)}" for k, v in fields) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_of, value)) + "]"
    text: str = value.json
    return text


@settings(max_examples=examples(75))
@given(VALUES, LAYOUTS, st.lists(NAMES, max_size=5), st.integers(1, 4), st.randoms())
def test_what_is_encoded_is_decoded(value: Any, layouts: list[Layout], more: list[str], size: int, chance: Any) -> None:
    names = [*names_in(value) | set(more)]
    chance.shuffle(names)
    data = encode(value, names, cycle(layouts))
    assert Variant(metadata(names, size), data).to_json() == json_of(value)


@settings(max_examples=examples(50))
@given(st.lists(st.none() | VALUES, max_size=6), shreddings(), LAYOUTS, st.integers(0, 3))
def test_what_is_shredded_is_put_together(
    rows: list[Any], shredding: Shredding, layouts: list[Layout], skipped: int
) -> None:
    widths: Iterator[Layout] = cycle(layouts)
    column = shred(rows, shredding, widths)
    expected = [None if row is None else json_of(row) for row in rows]
    assert json_texts(column) == expected
    assert json_texts(column.slice(skipped)) == expected[skipped:]
    plain = unshred(column.slice(skipped))
    assert plain.type == UNSHREDDED
    assert json_texts(plain) == expected[skipped:]
    unshredded = shred(rows, Shredding(), widths)
    for found, row in zip(plain.to_pylist(), unshredded.to_pylist()[skipped:], strict=True):
        assert (found is None) == (row is None)
        assert row is None or same(Variant(**found), Variant(row["metadata"], row["value"]))
    assert json_texts(pa.chunked_array([column.slice(0, skipped), column.slice(skipped)])) == expected


def same(one: Variant, other: Variant) -> bool:
    """Return whether two Variants have the same types and values."""
    python = one.to_python()
    if isinstance(python, dict):
        steps = [f"$['{name}']" for name in python if "'" not in name]
    elif isinstance(python, list):
        steps = [f"$[{index}]" for index in range(len(python))]
    else:
        return bool(one.type == other.type and python == other.to_python())
    pairs = [(one.get(step), other.get(step)) for step in steps]
    alike = all(a is not None and b is not None and same(a, b) for a, b in pairs)
    return alike and one.type == other.type and len(python) == len(other.to_python())


def test_small_metadata_is_decoded_once() -> None:
    names = metadata(["a", "b"])
    assert Metadata.parse(bytes(names)) is Metadata.parse(bytes(bytearray(names)))

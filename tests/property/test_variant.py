"""Random Variants: encoded and decoded again, shredded in every way, and damaged."""

import json
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.variant import UNSHREDDED, InvalidVariant, Metadata, Variant, json_texts, unshred
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


@settings(max_examples=examples(75))
@given(VALUES, LAYOUTS, st.data())
def test_damaged_values(value: Any, layouts: list[Layout], data: st.DataObject) -> None:
    names = sorted(names_in(value))
    parts = [bytearray(metadata(names)), bytearray(encode(value, names, cycle(layouts)))]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from(parts))
        match data.draw(st.sampled_from(["change", "cut", "grow"])):
            case "change" if part:
                part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
            case "cut" if part:
                del part[data.draw(st.integers(0, len(part) - 1)) :]
            case _:
                part += data.draw(st.binary(min_size=1, max_size=4))
    only_named_errors(bytes(parts[0]), bytes(parts[1]))


@settings(max_examples=examples(75))
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes(names: bytes, value: bytes) -> None:
    only_named_errors(names, value)
    only_named_errors(b"\x11\x02\x00\x01\x02ab", value)


def only_named_errors(names: bytes, value: bytes) -> None:
    """Decode a value in every way; nothing but `InvalidVariant` may be raised, and all ways agree."""
    texts = []
    for work in (lambda v: v.to_json(), lambda v: repr(v.to_python())):
        try:
            texts.append(work(Variant(names, value)))
        except InvalidVariant:
            texts.append(None)
    assert (texts[0] is None) == (texts[1] is None)
    if texts[0] is not None:
        msgspec.json.decode(texts[0])
        column = pa.array([{"metadata": names, "value": value}], UNSHREDDED)
        assert json_texts(column) == json_texts(unshred(column)) == [texts[0]]
    try:
        found = Variant(names, value)
        for path in ("$.a", "$[0]", "$[1].b"):
            child = found.get(path)
            assert child is None or child.type
    except InvalidVariant:
        pass


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

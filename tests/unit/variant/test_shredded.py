"""Shredded columns, literally; `tests/property/test_variant.py` has all combinations."""

import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.variant import UNSHREDDED, InvalidVariant, json_texts, unshred
from tests.support.cases import cases
from tests.support.variant.encoder import metadata, object_of

NAMES = metadata(["a", "b"])
NULL, SEVEN = b"\x00", b"\x0c\x07"
BINARY = pa.binary()


def texts(rows: list[Any], typed: pa.DataType, value: bool = True) -> list[str | None]:
    """Return the texts of a column whose rows are dicts, with the metadata left out."""
    fields = [("metadata", BINARY), *([("value", BINARY)] if value else []), ("typed_value", typed)]
    column = pa.array([None if row is None else {"metadata": NAMES, **row} for row in rows], pa.struct(fields))
    return json_texts(column)


def place(typed: pa.DataType) -> pa.DataType:
    """Return the type of a shredded field or item."""
    return pa.struct([("value", BINARY), ("typed_value", typed)])


def test_the_three_states_of_nothing() -> None:
    rows = [None, {"value": NULL}, {}, {"value": None, "typed_value": 5}]
    assert texts(rows, pa.int32()) == [None, "null", "null", "5"]


def test_fields() -> None:
    typed = pa.struct([("a", place(pa.int64())), ("b", place(pa.string()))])
    rows = [
        {"typed_value": {"a": {"typed_value": 1}, "b": {"typed_value": "x"}}},
        {"typed_value": {"a": {"value": NULL}, "b": {}}},
        {"typed_value": {"a": {}, "b": {}}},
        {"typed_value": {"a": {"value": SEVEN}, "b": {}}, "value": object_of([1], [SEVEN])},
        {"value": SEVEN},
    ]
    with pytest.raises(InvalidVariant, match="row 3: the field 'b' is in `value` and in `typed_value`"):
        texts(rows, typed)
    rows[3] = {"typed_value": {"a": {"value": SEVEN}, "b": {}}, "value": object_of([], [])}
    assert texts(rows, typed) == ['{"a":1,"b":"x"}', '{"a":null}', "{}", '{"a":7}', "7"]


def test_items() -> None:
    typed = pa.list_(place(pa.float32()))
    rows = [{"typed_value": [{"typed_value": 0.1}, {"value": SEVEN}, {}]}, {"typed_value": []}, {"value": NULL}]
    assert texts(rows, typed) == ["[0.1,7,null]", "[]", "null"]


@cases(
    ("typed", "content", "text"),
    [
        (pa.decimal128(5, 2), "1.50", '"1.50"'),
        (pa.date32(), -719_529, '"-0001-12-31"'),
        (pa.time64("us"), 1, '"00:00:00.000001"'),
        (pa.timestamp("us", "UTC"), 2**62, '"+148108-07-06T14:00:27.387904Z"'),
        (pa.timestamp("ns"), -1, '"1969-12-31T23:59:59.999999999"'),
        (pa.uuid(), bytes(16), '"00000000-0000-0000-0000-000000000000"'),
        (pa.binary(), b"\xff", '"/w=="'),
        (pa.float64(), float("nan"), '"NaN"'),
        (pa.large_string(), "é", '"é"'),
    ],
)
def test_types(typed: pa.DataType, content: Any, text: str) -> None:
    plain = {pa.date32(): pa.int32()}.get(typed, pa.int64() if pa.types.is_temporal(typed) else None)
    array = pa.array([content]).cast(typed) if plain is None else pa.array([content], plain).cast(typed)
    if isinstance(typed, pa.UuidType):
        array = pa.ExtensionArray.from_storage(typed, pa.array([content], pa.binary(16)))
    column = pa.StructArray.from_arrays([pa.array([NAMES]), array], ["metadata", "typed_value"])
    assert json_texts(column) == [text]


@cases(
    "typed",
    [
        pa.uint32(),
        pa.uint64(),
        pa.float16(),
        pa.decimal256(50, 0),
        pa.binary(16),
        pa.time32("ms"),
        pa.timestamp("ms"),
        pa.timestamp("us", "Europe/Oslo"),
        pa.date64(),
        pa.map_(pa.string(), pa.string()),
        pa.list_(pa.int32()),
        pa.struct([("a", pa.int32())]),
        pa.struct([("a", pa.struct([("other", pa.int32())]))]),
    ],
)
def test_types_that_are_not_for_shredding(typed: pa.DataType) -> None:
    for kind in (typed, pa.list_(place(typed)), pa.struct([("a", place(typed))])):
        with pytest.raises(InvalidVariant):
            texts([None], kind)  # the schema is checked although there is no value


@cases(
    "kind",
    [
        pa.int32(),
        pa.struct([("value", BINARY)]),
        pa.struct([("metadata", BINARY)]),
        pa.struct([("metadata", pa.string()), ("value", BINARY)]),
        pa.struct([("metadata", BINARY), ("value", pa.string())]),
        pa.struct([("metadata", BINARY), ("value", BINARY), ("other", BINARY)]),
        pa.struct([("metadata", BINARY), ("value", BINARY), ("value", BINARY)]),
    ],
)
def test_columns_that_are_no_variants(kind: pa.DataType) -> None:
    with pytest.raises(InvalidVariant):
        json_texts(pa.nulls(1, kind))


def test_what_lies_below_a_null_does_not_count() -> None:
    broken = pa.StructArray.from_arrays([pa.array([b"?"]), pa.array([b"?"])], ["value", "typed_value"])
    inner = pa.StructArray.from_arrays([broken], ["a"], mask=pa.array([True]))
    column = pa.StructArray.from_arrays(
        [pa.array([NAMES]), pa.array([SEVEN]), inner], ["metadata", "value", "typed_value"]
    )
    assert json_texts(column) == ["7"]
    hidden = pa.StructArray.from_arrays(
        [pa.array([b"?"]), pa.array([b"?"])], ["metadata", "value"], mask=pa.array([True])
    )
    assert json_texts(hidden) == [None]


def test_rows_without_metadata() -> None:
    with pytest.raises(InvalidVariant, match="row 1: the metadata is null"):
        json_texts(pa.array([{"metadata": NAMES, "value": NULL}, {"metadata": None, "value": NULL}]))


def run(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return its exit code, standard output and standard error."""
    command = [sys.executable, "-m", "tailer.variant", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{"metadata": NAMES, "value": SEVEN}, None, {"metadata": NAMES, "value": NULL}]
    column = pa.array(rows, pa.struct([("metadata", BINARY), ("value", BINARY)]))
    pq.write_table(pa.table({"id": [1, 2, 3], "v": column}), path)
    assert run(path) == (0, "7\n\nnull\n", "")
    assert run(path, "v") == (0, "7\n\nnull\n", "")
    assert run(path, "w") == (1, "", f"InvalidVariant: {path}: there is no column 'w', only id, v\n")
    assert run(path, "id") == (1, "", f"InvalidVariant: {path}: int64 is not the type of a Variant\n")
    assert run(tmp_path / "none") == (1, "", f"FileNotFoundError: {tmp_path / 'none'}: there is no such file\n")

    rows[2] = {"metadata": NAMES, "value": b"\x0c"}
    pq.write_table(pa.table({"v": pa.array([*rows, rows[0]], column.type), "w": pa.nulls(4, column.type)}), path)
    assert run(path) == (1, "", f"InvalidVariant: {path}: name a column: it has v, w that could be Variants\n")
    assert run(path, "v") == (1, "7\n\n", f"InvalidVariant: {path}: row 2: the value ends early\n")


def test_unshred_gives_one_binary_value_per_row() -> None:
    typed = pa.struct([("b", place(pa.decimal128(12, 2)))])
    rows = [
        {"metadata": NAMES, "value": object_of([0], [SEVEN]), "typed_value": {"b": {"typed_value": Decimal("1.50")}}},
        None,
        {"metadata": NAMES, "value": SEVEN},
    ]
    column = pa.array(rows, pa.struct([("typed_value", typed), ("value", BINARY), ("metadata", BINARY)]))
    plain = unshred(column)
    assert plain.type == UNSHREDDED
    decimal = bytes([9 << 2, 2]) + (150).to_bytes(8, "little")
    assert plain.to_pylist() == [
        {"metadata": NAMES, "value": object_of([0, 1], [SEVEN, decimal])},
        None,
        {"metadata": NAMES, "value": SEVEN},
    ]
    assert unshred(plain).equals(plain)


def test_names_of_columns_must_be_in_the_metadata() -> None:
    rows = [{"typed_value": {"c": {"typed_value": 1}}}]
    with pytest.raises(InvalidVariant, match="row 0: the name 'c' is not in the metadata"):
        texts(rows, pa.struct([("c", place(pa.int64()))]))


def test_unshred_refuses_values_that_cannot_be_copied() -> None:
    for value in (b"", b"\x0c", b"\x00\x00", bytes([21 << 2]), b"\x03\x01\x00", bytes([16 << 2]) + b"\xff" * 4):
        with pytest.raises(InvalidVariant, match="row 0"):
            unshred(pa.array([{"metadata": NAMES, "value": value}]))

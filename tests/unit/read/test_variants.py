"""Variants of data files, shredded in any way and on any level, as columns of change rows."""

from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import DataCorrupt
from tailer.events import METADATA_FIELDS, VARIANT
from tailer.plan import select_columns
from tailer.read.execute import execute
from tailer.schema.columns import FIELD_ID, PHYSICAL_NAME
from tailer.schema.variant_paths import with_paths
from tailer.variant import compare_keys, json_texts
from tests.support.seeds import repeats
from tests.support.tables.log_files import parquet, task
from tests.support.variant.encoder import Layout, Scalar, metadata
from tests.support.variant.shredder import Shredding, shred, shreddings
from tests.support.variant.strategies import VALUES

ONE, NULL = Scalar(3, 1, ""), Scalar(0, None, "")
PLAIN: Final = Shredding()
A: Final = Shredding(members={"a": Shredding(number=3)})


NAMES: Final = metadata(["a", "l"])


def stored(rows: list[Any], shredding: Shredding = PLAIN) -> pa.StructArray:
    """Return a column of a file with these values."""
    return shred(rows, shredding, cycle([Layout(2, 1), Layout(1, 4, True, True)]))


def read(tmp_path: Path, file: pa.Table, schema: Any, **options: Any) -> pa.Table:
    """Return a file's rows read with `schema`, without the metadata columns."""
    path = parquet(tmp_path / "f.parquet", file, **options)
    found = pa.Table.from_batches([batch.rows for batch in execute(task(path, pa.schema(schema)))])
    found.validate(full=True)
    return found.drop_columns([field.name for field in METADATA_FIELDS])


def keys(column: pa.ChunkedArray | pa.Array) -> list[str | None]:
    """Return the values of a column of Variants, to be compared."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return list(compare_keys(whole).to_pylist())


@settings(
    max_examples=repeats(30),
)
@given(st.lists(st.none() | VALUES, min_size=1, max_size=6), shreddings())
def test_shredded_in_any_way(tmp_path: Path, rows: list[Any], shredding: Shredding) -> None:
    found = read(tmp_path, pa.table({"v": stored(rows, shredding)}), [("v", VARIANT)])
    assert found.schema.field("v").type == VARIANT
    assert keys(found["v"]) == keys(stored(rows))


@pytest.mark.parametrize("shredding", [PLAIN, A], ids=["plain", "shredded"])
def test_nested_and_mapped(tmp_path: Path, shredding: Shredding) -> None:
    variants = stored([{"a": ONE}, None, NULL, {"a": ONE, "b": [ONE]}], shredding)
    entries = pa.array([0, 1, 3, 4], pa.int32())
    column = pa.StructArray.from_arrays(
        [
            variants.slice(0, 3),
            pa.ListArray.from_arrays(entries, variants),
            pa.MapArray.from_arrays(entries, pa.array(list("klmn")), variants),
        ],
        ["x", "y", "z"],
        mask=pa.array([False, False, True]),
    )
    physical = {PHYSICAL_NAME: b"x"}
    schema = pa.schema(
        [
            pa.field(
                "s",
                pa.struct(
                    [
                        pa.field("l", pa.list_(pa.field("element", VARIANT)), metadata={PHYSICAL_NAME: b"y"}),
                        pa.field("v", VARIANT, metadata=physical),
                        pa.field("m", pa.map_(pa.string(), VARIANT), metadata={PHYSICAL_NAME: b"z"}),
                        pa.field("added", VARIANT, metadata={PHYSICAL_NAME: b"none"}),
                    ]
                ),
                metadata={PHYSICAL_NAME: b"col"},
            )
        ]
    )
    found = read(tmp_path, pa.table({"col": column}), schema)["s"].combine_chunks()
    expected = keys(variants)
    assert found.is_valid().to_pylist() == [True, True, False]
    assert keys(found.field("v").slice(0, 2)) == expected[:2]
    assert [keys(row.values) for row in found.field("l").slice(0, 2)] == [expected[:1], expected[1:3]]
    assert keys(found.field("m").slice(1, 1).items[1:3]) == expected[1:3]
    assert found.field("added").null_count == 3


def test_found_by_field_id(tmp_path: Path) -> None:
    metadata = {PHYSICAL_NAME: b"col", FIELD_ID: b"7"}
    file = pa.Table.from_arrays(
        [stored([{"a": ONE}], A)],
        schema=pa.schema([pa.field("x", A.place(("metadata", pa.binary())), metadata=metadata)]),
    )
    assert keys(read(tmp_path, file, [pa.field("v", VARIANT, metadata=metadata)])["v"]) == keys(stored([{"a": ONE}]))


def test_a_column_that_the_file_lacks_is_null(tmp_path: Path) -> None:
    file = pa.table({"id": [1, 2]})
    found = read(tmp_path, file, [("id", pa.int64()), ("v", VARIANT), ("l", pa.list_(VARIANT))])
    assert (found["v"].null_count, found["l"].null_count) == (2, 2)


def test_a_struct_of_two_binary_fields_is_no_variant(tmp_path: Path) -> None:
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    file = pa.table({"v": pa.array([{"metadata": b"x", "value": b"y"}], kind)})
    assert read(tmp_path, file, [("v", kind)])["v"].to_pylist() == [{"metadata": b"x", "value": b"y"}]


BROKEN: Final = {
    "text": (pa.array(["x"]), "is not the type of a Variant"),
    "metadata": (pa.array([{"value": b"\0"}]), "is not the type of a Variant"),
    "unsigned": (
        pa.array(
            [None],
            pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.uint8())]),
        ),
        "uint8",
    ),
    "version": (pa.array([{"metadata": b"\2\0\0", "value": b"\0"}]), "in the rows from 0 on: row 0: "),
    "short": (pa.array([{"metadata": b"\1\0\0", "value": b"\x0c"}]), "in the rows from 0 on: row 0: "),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_columns_are_named(tmp_path: Path, name: str) -> None:
    column, reason = BROKEN[name]
    for file, kind in (({"v": column}, VARIANT), ({"v": pa.array([[]], pa.list_(column.type))}, pa.list_(VARIANT))):
        if name in ("version", "short") and kind != VARIANT:
            continue
        with pytest.raises(DataCorrupt, match="column v") as caught:
            read(tmp_path, pa.table(file), [("v", kind)])
        assert reason in caught.value.reason


def test_a_broken_value_is_found_in_its_own_file(tmp_path: Path) -> None:
    """Both files have one layout, which is worked out for the first of them."""
    schema = pa.schema([("v", VARIANT)])
    values = pa.array([{"metadata": b"\1\0\0", "value": value} for value in (b"\0", b"\x0c")])
    good, broken = (parquet(tmp_path / f"{row}.parquet", pa.table({"v": values.slice(row, 1)})) for row in range(2))
    assert len(list(execute(task(good, schema)))) == 1
    with pytest.raises(DataCorrupt) as caught:
        list(execute(task(broken, schema)))
    assert caught.value.path == str(broken)


def test_shredded_timestamps_of_96_bits_are_refused(tmp_path: Path) -> None:
    """Parquet forbids them: nothing says whether they have a time zone."""
    place = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.timestamp("ns"))])
    file = pa.table({"v": pa.array([{"metadata": b"\1\0\0", "value": None, "typed_value": 0}], place)})
    with pytest.raises(DataCorrupt, match="timestamps of 96 bits"):
        read(tmp_path, file, [("v", VARIANT)], use_deprecated_int96_timestamps=True)


def test_values_at_a_path(tmp_path: Path) -> None:
    """From files that are shredded in any way, beside the column itself, and under column mapping."""
    rows = [{"a": ONE, "b": [ONE, {"c": NULL}]}, {"a": NULL}, None, ONE, {"b": []}]
    for shredding in (PLAIN, A, Shredding(members={"b": Shredding(item=PLAIN)})):
        metadata = {PHYSICAL_NAME: b"col-1", FIELD_ID: b"7"}
        schema = pa.schema([pa.field("v", VARIANT, metadata=metadata)])
        found = stored(rows, shredding)
        file = pa.Table.from_arrays([found], schema=pa.schema([pa.field("col-1", found.type, metadata=metadata)]))
        wanted = with_paths(schema, ["v:$.a", "v:$.b[1].c", "v:$.x", "v:$"])
        table = read(tmp_path, file, select_columns(wanted, ["v:$.a", "v", "v:$.b[1].c", "v:$.x", "v:$"]))
        assert json_texts(table["v:$.a"]) == ["1", "null", None, None, None]
        assert json_texts(table["v:$.b[1].c"]) == ["null", None, None, None, None]
        assert json_texts(table["v:$.x"]) == [None] * 5
        assert keys(table["v:$"]) == keys(table["v"])


def test_a_broken_value_on_the_way_to_a_path(tmp_path: Path) -> None:
    broken = [{"metadata": b"\x01\x00\x00", "value": b"\x02\x01\x05\x00\x01\x00"}]
    file = pa.table({"v": pa.array(broken, pa.struct([("metadata", pa.binary()), ("value", pa.binary())]))})
    with pytest.raises(DataCorrupt, match=r"column v:\$\.a"):
        read(tmp_path, file, select_columns(with_paths(pa.schema([("v", VARIANT)]), ["v:$.a"]), ["v:$.a"]))


UUID: Final = bytes.fromhex("f24f9b6481fa49d1b74e8c09a6e31c56")


def shredded_to(kind: pa.DataType) -> pa.StructArray:
    """Return Variants that are shredded to bytes of this type: alone, in an array and in an object; one that is not."""
    bare = pa.binary(16)
    place = pa.struct([("value", pa.binary()), ("typed_value", bare)])
    members = pa.struct([("a", place), ("l", pa.struct([("value", pa.binary()), ("typed_value", pa.list_(place))]))])
    column = pa.array(
        [
            {"metadata": NAMES, "typed_value": {"a": {"typed_value": UUID}, "l": {"typed_value": []}}},
            None,
            {"metadata": NAMES, "typed_value": {"a": {}, "l": {"typed_value": [{"typed_value": UUID}, {}]}}},
            {"metadata": NAMES, "value": b"\x00"},
        ],
        pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", members)]),
    )
    place = pa.struct([("value", pa.binary()), ("typed_value", kind)])
    members = pa.struct([("a", place), ("l", pa.struct([("value", pa.binary()), ("typed_value", pa.list_(place))]))])
    return column.cast(pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", members)]))


@pytest.mark.parametrize("store_schema", [False, True], ids=["other writers", "pyarrow"])
def test_shredded_to_uuids(tmp_path: Path, store_schema: bool) -> None:
    """Only pyarrow stores a schema of its own; all say that the bytes are UUIDs."""
    variants = shredded_to(pa.uuid())
    ends = pa.array(range(5), pa.int32())
    file = pa.table(
        {
            "before": pa.array([UUID] * 4, pa.binary(16)),
            "v": variants,
            "m": pa.MapArray.from_arrays(ends, pa.array(list("klmn")), variants),
            "s": pa.StructArray.from_arrays([pa.ListArray.from_arrays(ends, variants)], ["l"]),
        }
    )
    schema = [
        ("s", pa.struct([("l", pa.list_(pa.field("element", VARIANT)))])),
        ("v", VARIANT),
        ("m", pa.map_(pa.string(), VARIANT)),
    ]
    found = read(tmp_path, file, schema, store_schema=store_schema)
    text = '"f24f9b64-81fa-49d1-b74e-8c09a6e31c56"'
    expected = [f'{{"a":{text},"l":[]}}', None, f'{{"l":[{text},null]}}', "null"]
    nested = pa.concat_arrays([chunk.field("l").flatten() for chunk in found["s"].chunks])
    items = pa.concat_arrays([chunk.items for chunk in found["m"].chunks])
    assert json_texts(found["v"]) == json_texts(nested) == json_texts(items) == expected


def test_bytes_that_are_no_uuids(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=r"column v: .*fixed_size_binary\[16\], which no Variant is shredded to"):
        read(tmp_path, pa.table({"v": shredded_to(pa.binary(16))}), [("v", VARIANT)], store_schema=False)

"""Values in the types in which they are compared; those of other types than Variants are in `test_row_index.py`."""

from itertools import cycle
from typing import Any

import pyarrow as pa
import pytest

from tailer.changelog.equal_rows.comparable_values import comparable
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.errors import DataCorrupt
from tailer.events import METADATA_FIELDS, VARIANT, ChangeBatch, ChangeType
from tailer.plan import output_schema
from tailer.variant import unshred
from tests.support.variant.encoder import Layout, Scalar
from tests.support.variant.shredder import Shredding, shred

NULL = Scalar(0, None, "")
# The same values in two encodings, then other values.
ROWS: tuple[list[Any], list[Any], list[Any]] = (
    [{"a": Scalar(3, 1, ""), "b": NULL}, [Scalar(16, "x", "")], None, NULL],
    [{"b": NULL, "a": Scalar(10, "1.000", "")}, [Scalar(16, "x", "", short=True)], None, NULL],
    [{"a": Scalar(7, 1.0, ""), "b": NULL}, [Scalar(16, "y", "")], NULL, None],
)


def variants(rows: list[Any], shift: int) -> pa.Array:
    return unshred(shred(rows, Shredding(), cycle([Layout(1 + shift, 4 - shift, bool(shift), bool(shift))]))).cast(
        VARIANT
    )


def nested(values: pa.Array) -> list[pa.Array]:
    """Return the values as they are, and within a struct, a list and a map."""
    offsets = pa.array(range(len(values) + 1), pa.int32())
    keys = pa.array(["k"] * len(values))
    return [
        values,
        pa.StructArray.from_arrays([values], ["x"]),
        pa.ListArray.from_arrays(offsets, values),
        pa.MapArray.from_arrays(offsets, keys, values),
    ]


@pytest.mark.parametrize("level", range(4))
def test_variants_are_compared_by_value(level: int) -> None:
    one, same, other = (comparable(nested(variants(rows, at))[level]) for at, rows in enumerate(ROWS))
    assert one.equals(same)
    assert all(a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True))


@pytest.mark.parametrize("key", [pa.list_(pa.int32(), 2), pa.struct([("a", pa.list_(pa.int32(), 2))])])
def test_entries_of_a_map_whose_keys_are_fixed_size_lists_have_no_order(key: pa.DataType) -> None:
    keys = [[1, 2], [3, 4]] if pa.types.is_fixed_size_list(key) else [{"a": [1, 2]}, {"a": [3, 4]}]
    first, second = zip(keys, ("x", "y"), strict=True)
    maps = pa.array([[first, second], [second, first], None, [first]], pa.map_(key, pa.string()))
    found = comparable(maps).to_pylist()
    assert found[0] == found[1]
    assert found[2] is None
    assert found[3] == found[0][:1]
    assert comparable(maps[1:]).to_pylist() == found[1:]
    in_order = comparable(maps, maps_in_order=True).to_pylist()
    assert in_order[0] == in_order[1][::-1]


def test_no_rows_of_a_slice() -> None:
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    for values in (
        maps.slice(2),
        maps.slice(0, 0),
        pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), maps).slice(1),
    ):
        assert len(comparable(values)) == 0


def batch(values: pa.Array, kind: ChangeType) -> ChangeBatch:
    schema = output_schema(pa.schema([("v", values.type)]))
    count = len(values)
    columns = [values, pa.array([kind.value] * count), *(pa.nulls(count, field.type) for field in METADATA_FIELDS[1:])]
    return ChangeBatch(
        "t", 3, 5, pa.RecordBatch.from_arrays(columns, schema=schema), pa.array(range(count), pa.int64())
    )


@pytest.mark.parametrize("level", range(4))
def test_rows_cancel_out_by_value(level: int) -> None:
    index = RowIndex()
    index.begin()
    index.clear()
    for source, (rows, kind) in enumerate(zip(ROWS[:2], (ChangeType.DELETE, ChangeType.INSERT), strict=True)):
        index.add([(source, iter([batch(nested(variants(rows, source))[level], kind)]))], (kind,))
    assert index.unmatched() == {}
    index.close()


def test_a_broken_value_is_named() -> None:
    broken = pa.array([{"metadata": b"\1\0\0", "value": b"\xfc"}], VARIANT)
    index = RowIndex()
    index.begin()
    with pytest.raises(DataCorrupt, match=r"version 3.*task 5.*not sound"):
        index.add([(0, iter([batch(broken, ChangeType.DELETE)]))], (ChangeType.DELETE,))
    index.close()

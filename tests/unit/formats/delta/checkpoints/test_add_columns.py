"""Files as columns: the same files, and the same refusals, as when each is converted to an action."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tailer.formats.delta.checkpoints import add_columns
from tailer.formats.delta.checkpoints.add_columns import ADD_COLUMNS, columns_of, json_values, read_columns, read_files
from tailer.formats.delta.log.actions import AddFile, DeletionVector, Line
from tests.support.seeds import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
INT = st.integers(0, 2**31 - 1)
LONG = st.integers(0, 2**63 - 1)
SIGNED = st.integers(-(2**63), 2**63 - 1)
VECTORS = st.builds(DeletionVector, st.sampled_from("uip"), TEXT, INT, LONG, st.none() | INT)
FILES = st.builds(
    AddFile,
    TEXT,
    st.dictionaries(TEXT, st.none() | TEXT, max_size=3),
    SIGNED,
    st.booleans(),
    SIGNED,
    st.none() | VECTORS,
    st.none() | LONG,
    st.none() | LONG,
)


def one_by_one(adds: pa.StructArray) -> list[AddFile | None]:
    """Convert a checkpoint's files as all other actions are converted."""
    return [line.add for line in msgspec.convert([{"add": value} for value in json_values(adds)], list[Line])]


def outcome(read: Any, adds: pa.StructArray) -> list[AddFile] | type[Exception]:
    try:
        found: list[AddFile] = read(adds)
    except (ValueError, pa.ArrowException) as error:
        return type(error)
    return found


def test_there_is_a_column_for_every_field() -> None:
    assert sorted(field.name for field in ADD_COLUMNS) == sorted(AddFile.__struct_encode_fields__)
    vector = ADD_COLUMNS.field("deletionVector").type
    assert sorted(field.name for field in vector) == sorted(DeletionVector.__struct_encode_fields__)


@given(st.lists(st.none() | FILES, max_size=5))
def test_files_become_columns_and_files_again(files: list[AddFile | None]) -> None:
    columns = columns_of(files)
    assert read_files(columns) == [file for file in files if file is not None]
    assert read_columns(columns.drop_null()) == columns.drop_null()


LARGE = pa.large_string()
FIELDS: dict[str, list[pa.DataType]] = {
    "path": [pa.string(), LARGE, pa.dictionary(pa.int32(), pa.string()), pa.binary(), pa.null()],
    "partitionValues": [
        pa.map_(pa.string(), pa.string()),
        pa.map_(LARGE, LARGE),
        pa.map_(pa.string(), pa.binary()),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.string()),
    ],
    "size": [pa.int64(), pa.int16(), pa.uint64(), pa.float64(), pa.string(), pa.null()],
    "dataChange": [pa.bool_(), pa.int8(), pa.null()],
    "modificationTime": [pa.int64(), pa.int32(), pa.float64(), pa.null()],
    "baseRowId": [pa.int64(), pa.int32(), pa.string(), pa.null()],
    "stats": [pa.string(), pa.null()],
}
VECTOR_FIELDS: dict[str, list[pa.DataType]] = {
    "storageType": [pa.string(), LARGE, pa.null()],
    "pathOrInlineDv": [pa.string(), pa.binary()],
    "sizeInBytes": [pa.int32(), pa.int64(), pa.uint64(), pa.null()],
    "cardinality": [pa.int64(), pa.int32(), pa.null()],
    "offset": [pa.int32(), pa.int64(), pa.float64(), pa.null()],
}
NUMBERS = st.sampled_from([0, 1, 300, None, None, -1, 2**31])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "path": st.sampled_from(["a", "b%20b", "", None]),
    "partitionValues": st.none() | st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from(["1", None])), max_size=3),
    "size": NUMBERS,
    "dataChange": st.sampled_from([True, False, None]),
    "modificationTime": NUMBERS,
    "baseRowId": NUMBERS,
    "stats": st.sampled_from(["{}", None]),
    "storageType": st.sampled_from(["u", None]),
    "pathOrInlineDv": st.sampled_from(["x", None]),
    "sizeInBytes": NUMBERS,
    "cardinality": NUMBERS,
    "offset": NUMBERS,
}
FILE = {
    "path": "a",
    "partitionValues": [("p", "1")],
    "size": 1,
    "dataChange": True,
    "modificationTime": 5,
    "baseRowId": 7,
}
VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 34, "cardinality": 2, "offset": 1}


def column(data: st.DataObject, fields: dict[str, list[pa.DataType]]) -> pa.DataType:
    """Draw the type of a column: the usual one, or with fields that are missing, in another order or of other types."""
    names = data.draw(st.just([*fields]) | st.permutations([*fields]))
    odd = data.draw(st.sets(st.sampled_from(names), max_size=2))
    kinds = {
        name: data.draw(st.sampled_from([*fields[name], None])) if name in odd else fields[name][0] for name in names
    }
    return pa.struct({name: kind for name, kind in kinds.items() if kind is not None})


def row(data: st.DataObject, usual: dict[str, Any]) -> dict[str, Any]:
    """Draw a file or a deletion vector: the usual one, with up to two other values."""
    return usual | {name: data.draw(VALUES[name]) for name in data.draw(st.sets(st.sampled_from([*usual]), max_size=2))}


@settings(max_examples=examples(125))
@given(st.data())
def test_columns_of_any_shape_are_read_as_actions_are(data: st.DataObject) -> None:
    kind, vector = column(data, FIELDS), column(data, VECTOR_FIELDS)
    kind = pa.struct([*kind, pa.field("deletionVector", data.draw(st.sampled_from([vector, vector, pa.null()])))])
    rows = [
        row(data, FILE) | {"deletionVector": row(data, VECTOR) if data.draw(st.booleans()) else None}
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    try:
        adds = pa.array(rows, kind)
    except (pa.ArrowException, TypeError, OverflowError):
        reject()
    expected = outcome(one_by_one, adds)
    assert outcome(lambda given: read_files(read_columns(given)), adds) == expected


def test_usual_columns_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that Spark writes nor those of a table with large texts."""
    rows = [FILE, FILE | {"deletionVector": VECTOR}, FILE | {"partitionValues": [("p", "1"), ("q", None)]}]
    usual = {name: kinds[0] for name, kinds in FIELDS.items()} | {
        "deletionVector": pa.struct({name: kinds[0] for name, kinds in VECTOR_FIELDS.items()})
    }
    large = usual | {"path": LARGE, "partitionValues": pa.map_(LARGE, LARGE)}
    expected = [one_by_one(pa.array(rows, pa.struct(usual)))] * 2
    monkeypatch.setattr(add_columns, "columns_of", None)
    assert [read_files(read_columns(pa.array(rows, pa.struct(kinds)))) for kinds in (usual, large)] == expected


def test_a_text_that_is_not_utf_8() -> None:
    path = pa.array([b"\xff"]).view(pa.string())
    others = {"partitionValues": pa.array([[]], FIELDS["partitionValues"][0]), "size": [1], "dataChange": [True]}
    adds = pa.StructArray.from_arrays([path, *map(pa.array, others.values())], ["path", *others])
    with pytest.raises(UnicodeDecodeError):
        read_columns(adds)

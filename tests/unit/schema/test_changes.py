"""Descriptions of schema changes: one sentence for each difference, and no other."""

from typing import Any

import pyarrow as pa
import pytest

from tailer.plan import add_row_ids
from tailer.schema.changes import describe_changes, former_names
from tailer.schema.columns import FIELD_ID, PHYSICAL_NAME
from tests.support.cases import cases

INT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()


def mapped(name: str, physical: str, kind: pa.DataType = LONG, number: int | None = None) -> pa.Field:
    known_by = {PHYSICAL_NAME: physical.encode()}
    return pa.field(name, kind, metadata=known_by if number is None else known_by | {FIELD_ID: str(number).encode()})


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def struct(*fields: Any) -> pa.DataType:
    return pa.struct(list(fields))


@cases(
    ("before", "after", "changes"),
    [
        ([("a", LONG)], [("a", LONG)], []),
        ([], [], []),
        ([], [("a", LONG)], ["column a int64 was added"]),
        ([("a", LONG)], [("x", TEXT), ("a", LONG)], ["column x string was added"]),
        ([("a", LONG), ("b", TEXT)], [("b", TEXT)], ["column a was dropped"]),
        ([("a", LONG)], [("b", LONG)], ["column a was dropped", "column b int64 was added"]),
        ([("n", INT)], [("n", LONG)], ["column n was widened from int32 to int64"]),
        ([("n", LONG)], [("n", INT)], ["column n changed its type from int64 to int32"]),
        (
            [("d", pa.date32())],
            [("d", pa.timestamp("us"))],
            ["column d was widened from date32[day] to timestamp[us]"],
        ),
        ([required("a", LONG)], [("a", LONG)], ["column a may be null now"]),
        ([("a", LONG)], [required("a", LONG)], ["column a may not be null any more"]),
        ([("a", LONG), ("b", LONG)], [("b", LONG), ("a", LONG)], ["column b moved"]),
        ([(name, LONG) for name in "abcd"], [(name, LONG) for name in "dabc"], ["column d moved"]),
        ([(name, LONG) for name in "abcd"], [(name, LONG) for name in "bcda"], ["column a moved"]),
        (
            [(name, LONG) for name in "abc"],
            [("x", LONG), ("c", LONG), ("b", LONG)],
            ["column a was dropped", "column x int64 was added", "column c moved"],
        ),
        ([("a", LONG)], [("a", struct(("x", LONG)))], ["column a changed its type from int64 to struct<x: int64>"]),
        ([("a", pa.null())], [("a", LONG)], ["column a changed its type from null to int64"]),
    ],
)
def test_columns(before: list[Any], after: list[Any], changes: list[str]) -> None:
    assert describe_changes(pa.schema(before), pa.schema(after)) == tuple(changes)


NESTINGS = {
    "a": lambda kind: kind,
    "a.element": pa.list_,
    "a.key": lambda kind: pa.map_(kind, TEXT),
    "a.value": lambda kind: pa.map_(TEXT, kind),
    "a.element.f.value": lambda kind: pa.list_(struct(("f", pa.map_(TEXT, kind)))),
}


@pytest.mark.parametrize("path", NESTINGS)
def test_fields_on_every_level(path: str) -> None:
    before = struct(("gone", LONG), ("n", INT), ("s", struct(("x", INT))), required("r", LONG), ("m", TEXT))
    after = struct(("n", LONG), ("s", struct(("x", INT), ("y", TEXT))), ("m", TEXT), ("r", LONG))
    schemas = [pa.schema([("a", NESTINGS[path](kind))]) for kind in (before, after)]
    assert describe_changes(*schemas) == (
        f"column {path}.gone was dropped",
        f"column {path}.n was widened from int32 to int64",
        f"column {path}.s.y string was added",
        f"column {path}.m moved",
        f"column {path}.r may be null now",
    )


@pytest.mark.parametrize("path", ["a.element", "a.key", "a.value"])
def test_elements_keys_and_values(path: str) -> None:
    schemas = [pa.schema([("a", NESTINGS[path](kind))]) for kind in (INT, LONG)]
    assert describe_changes(*schemas) == (f"column {path} was widened from int32 to int64",)


def test_nullability_of_elements() -> None:
    lists = [pa.schema([("a", pa.list_(pa.field("element", LONG, nullable)))]) for nullable in (True, False)]
    assert describe_changes(*lists) == ("column a.element may not be null any more",)
    maps = [pa.schema([("a", pa.map_(TEXT, pa.field("value", LONG, nullable)))]) for nullable in (False, True)]
    assert describe_changes(*maps) == ("column a.value may be null now",)


def test_columns_of_a_mapped_table() -> None:
    inner = struct(mapped("x", "p2"), mapped("y", "p3"))
    before = pa.schema([mapped("a", "p0"), mapped("s", "p1", inner), mapped("b", "p4")])
    inner = struct(mapped("z", "p2"), mapped("x", "p3"))
    after = pa.schema([mapped("b", "p0"), mapped("t", "p1", inner), mapped("a", "p4"), mapped("c", "p5")])
    assert describe_changes(before, after) == (
        "column a was renamed to b",
        "column s was renamed to t",
        "column t.x was renamed to t.z",
        "column t.y was renamed to t.x",
        "column b was renamed to a",
        "column c int64 was added",
    )


def test_a_column_dropped_and_another_of_its_name_added() -> None:
    before, after = pa.schema([mapped("a", "p0", number=1)]), pa.schema([mapped("a", "p1", number=2)])
    assert describe_changes(before, after) == ("column a was dropped", "column a int64 was added")


def test_a_table_that_begins_to_map_its_columns() -> None:
    before = pa.schema([("a", LONG), ("s", struct(("x", INT)))])
    after = pa.schema([mapped("a", "a"), mapped("s", "s", struct(mapped("x", "x", INT)))])
    assert describe_changes(before, after) == ()
    renamed = pa.schema([mapped("b", "a"), mapped("s", "s", struct(mapped("y", "x", INT)))])
    assert describe_changes(before, renamed) == ("column a was renamed to b", "column s.x was renamed to s.y")


def test_a_table_that_ends_to_map_its_columns() -> None:
    before = pa.schema([mapped("a", "p0"), mapped("b", "a"), mapped("s", "b", struct(mapped("x", "p1", INT)))])
    after = pa.schema([("a", LONG), ("b", LONG), ("s", struct(("x", INT)))])
    assert describe_changes(before, after) == ()
    assert describe_changes(add_row_ids(before), add_row_ids(after)) == ()
    # With any other change in the same version, only columns that were never renamed are recognised.
    wider = pa.schema([("a", LONG), ("b", LONG), ("s", struct(("x", LONG)))])
    dropped = [f"column {name} was dropped" for name in "abs"]
    assert describe_changes(before, wider)[:3] == tuple(dropped)
    kept = pa.schema([mapped("a", "a"), mapped("b", "p0")])
    assert describe_changes(kept, pa.schema([("a", LONG)])) == ("column b was dropped",)


def test_a_field_id_that_is_given_to_another_column() -> None:
    before, after = pa.schema([mapped("a", "p", number=1)]), pa.schema([mapped("a", "p", number=2)])
    assert describe_changes(before, after) == ("column a was dropped", "column a int64 was added")
    assert describe_changes(before, pa.schema([mapped("a", "p")])) == ()


def test_row_ids_stay_what_they_are() -> None:
    before, after = pa.schema([("a", LONG)]), pa.schema([("a", LONG), ("b", LONG)])
    assert describe_changes(add_row_ids(before), add_row_ids(after)) == ("column b int64 was added",)


def test_former_names_follow_columns_and_not_their_names() -> None:
    before = pa.schema([mapped("a", "1"), mapped("b", "2"), mapped("c", "3")])
    after = pa.schema([mapped("b", "1"), mapped("a", "2"), mapped("c", "4"), mapped("d", "5")])
    assert former_names(before, after) == {"b": "a", "a": "b"}
    plain = pa.schema([("a", LONG), ("b", TEXT)])
    assert former_names(plain, pa.schema([("b", TEXT), ("x", LONG)])) == {"b": "b"}

"""Delta schemas become Arrow's, or are refused by name."""

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.events import VARIANT
from tailer.formats.delta.schema import arrow_schema
from tailer.schema.columns import FIELD_ID, PHYSICAL_NAME, dropped_column, physical_name, restates, widens
from tests.support.cases import cases
from tests.support.tables.log_files import schema_string

UTC_MICROS = pa.timestamp("us", tz="UTC")
LIST = {"type": "array", "elementType": "long", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
STRUCT = {"type": "struct", "fields": [{"name": "x", "type": "date", "nullable": True, "metadata": {}}]}


def read(text: str, mode: str = "none") -> pa.Schema:
    return arrow_schema(text, mode, "t", 3)


@cases(
    ("delta", "arrow"),
    [
        ("string", pa.string()),
        ("long", pa.int64()),
        ("integer", pa.int32()),
        ("short", pa.int16()),
        ("byte", pa.int8()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", UTC_MICROS),
        ("timestamp_ntz", pa.timestamp("us")),
        ("void", pa.null()),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(38,18)", pa.decimal128(38, 18)),
        ("decimal( 5, 0 )", pa.decimal128(5, 0)),
        (LIST, pa.list_(pa.int64())),
        (MAP, pa.map_(pa.string(), pa.float64())),
        (STRUCT, pa.struct([("x", pa.date32())])),
        ("variant", VARIANT),
        ({"type": "array", "elementType": "variant", "containsNull": True}, pa.list_(VARIANT)),
    ],
)
def test_types(delta: Any, arrow: pa.DataType) -> None:
    assert read(schema_string(c=delta)).field("c").type == arrow


@cases("kind", ["variants", "interval day", "geometry", "varchar(3)", "", {"type": "udt"}])
def test_unknown_types(kind: Any) -> None:
    with pytest.raises(UnsupportedFeature, match="column type"):
        read(schema_string(c={"type": "array", "elementType": kind, "containsNull": True}))


@cases(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"fields":null}',
        '{"fields":["a"]}',
        '{"fields":[{"name":"a"}]}',
        '{"fields":[{"name":1,"type":"long"}]}',
        '{"fields":[{"name":"a","type":7}]}',
        '{"fields":[{"name":"a","type":{}}]}',
        '{"fields":[{"name":"\\ud800","type":"long"}]}',
        schema_string(a="decimal(39,0)"),
        schema_string(a="decimal(99999999999999999999,0)"),
        '{"fields":[{"name":"a","type":"long"},{"name":"a","type":"long"}]}',
        schema_string(s={"type": "struct", "fields": STRUCT["fields"] * 2}),  # type: ignore[operator]
        '{"fields":[{"name":"a","type":' + '{"type":"array","elementType":' * 3000 + '"long"' + "}" * 3000 + "}]}",
    ],
)
def test_invalid_schemas(text: str) -> None:
    with pytest.raises(LogCorrupt, match="not a schema"):
        read(text)


def mapped(name: str, kind: Any, physical: str, number: int) -> dict[str, Any]:
    keys = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number}
    return {"name": name, "type": kind, "nullable": True, "metadata": keys}


@pytest.mark.parametrize(("mode", "number"), [("name", None), ("id", b"2")])
def test_mapped_columns_on_every_level(mode: str, number: bytes | None) -> None:
    inner = {"type": "struct", "fields": [mapped("x", "long", "p2", 2)]}
    text = json.dumps({"fields": [mapped("s", {**LIST, "elementType": inner}, "p1", 1)]})
    outer = read(text, mode).field("s")
    field = outer.type.value_type.field("x")
    assert (physical_name(outer), physical_name(field)) == ("p1", "p2")
    assert field.metadata.get(FIELD_ID) == number
    assert (outer.name, field.metadata[PHYSICAL_NAME]) == ("s", b"p2")
    # Without the mode, the same metadata means nothing.
    assert physical_name(read(text).field("s")) == "s"


@pytest.mark.parametrize("metadata", [{}, {"delta.columnMapping.physicalName": 1}])
def test_mapping_without_its_metadata(metadata: dict[str, Any]) -> None:
    with pytest.raises(LogCorrupt):
        read(json.dumps({"fields": [{"name": "a", "type": "long", "metadata": metadata}]}), "name")


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("nest", [False, True])
@pytest.mark.parametrize(("second", "said"), [(("p1", 2), "physical name 'p1'"), (("p2", 1), "field id '1'")])
def test_two_columns_that_are_one_in_files(mode: str, nest: bool, second: tuple[str, int], said: str) -> None:
    """Both would read the same values. Names on other levels are other columns; ids count in id mode."""
    columns = [mapped("a", "long", "p1", 1), mapped("b", "long", *second)]
    struct = {"type": "struct", "fields": columns}
    text = json.dumps({"fields": [mapped("s", {**LIST, "elementType": struct}, "p1", 9)] if nest else columns})
    assert len(read(text)) == (1 if nest else 2)
    if mode == "name" and said.startswith("field id"):
        assert len(read(text, mode)) == (1 if nest else 2)
        return
    with pytest.raises(LogCorrupt, match=f"two columns have the {said}"):
        read(text, mode)


def test_physical_names_that_differ_in_case() -> None:
    columns = [mapped("a", "long", "p", 1), mapped("b", "long", "P", 2)]
    assert [physical_name(field) for field in read(json.dumps({"fields": columns}), "name")] == ["p", "P"]


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
DECIMALS = [pa.decimal128(precision, scale) for precision in range(1, 39) for scale in range(precision + 1)]
ALL = [*INTEGERS, *DECIMALS, pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us"), UTC_MICROS, pa.string()]


def allowed(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether PROTOCOL.md, "Type Widening", allows the change."""
    if narrow in INTEGERS and wide in INTEGERS:
        return INTEGERS.index(narrow) < INTEGERS.index(wide)
    if narrow in INTEGERS and pa.types.is_decimal(wide):
        k1, k2 = wide.precision - (20 if narrow == pa.int64() else 10), wide.scale
        return bool(k1 >= k2 >= 0)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        k1, k2 = wide.precision - narrow.precision, wide.scale - narrow.scale
        return bool(k1 >= k2 >= 0)
    if wide == pa.float64():
        return narrow in (pa.int8(), pa.int16(), pa.int32(), pa.float32())
    return bool(narrow == pa.date32() and wide == pa.timestamp("us"))


@given(st.sampled_from(ALL), st.sampled_from(ALL))
def test_allowed_type_changes(narrow: pa.DataType, wide: pa.DataType) -> None:
    assert widens(narrow, wide) is allowed(narrow, wide)


def changed(*changes: tuple[str, str]) -> str:
    """Make the schema of a table whose column, nested in a list, had type changes."""
    listed = [{"fromType": before, "toType": after, "fieldPath": "element"} for before, after in changes]
    field = {"name": "x", "type": LIST, "nullable": True, "metadata": {"delta.typeChanges": listed}}
    return json.dumps({"fields": [{"name": "s", "type": {"type": "struct", "fields": [field]}}]})


def test_changes_of_type_in_the_past() -> None:
    read(changed())
    read(changed(("byte", "short"), ("short", "integer"), ("integer", "long")))
    read(changed(("decimal(5,2)", "decimal( 7, 4 )"), ("date", "timestamp_ntz"), ("byte", "double")))
    for before, after in (("long", "double"), ("date", "timestamp"), ("string", "long"), ("integer", "byte")):
        with pytest.raises(UnsupportedFeature) as caught:
            read(changed(("byte", "long"), (before, after)))
        assert caught.value.feature == f"column x changed from {before} to {after}"


@pytest.mark.parametrize("changes", [[{}], [1], 7, [{"fromType": "long"}]])
def test_changes_of_type_that_say_nothing(changes: Any) -> None:
    field = {"name": "x", "type": "long", "metadata": {"delta.typeChanges": changes}}
    with pytest.raises(LogCorrupt, match="not a schema"):
        read(json.dumps({"fields": [field]}))


NESTED = {**LIST, "elementType": {**MAP, "valueType": STRUCT}}


@pytest.mark.parametrize(
    ("before", "after", "dropped"),
    [
        ({"a": "long"}, {"a": "long"}, None),
        ({"a": "long"}, {"b": "date", "a": "integer"}, None),
        ({"a": "long", "b": "long"}, {"b": "long"}, "a"),
        ({"a": STRUCT}, {"a": {"type": "struct", "fields": []}}, "a.x"),
        ({"a": NESTED}, {"a": NESTED}, None),
    ],
)
def test_dropped_columns(before: dict[str, Any], after: dict[str, Any], dropped: str | None) -> None:
    assert dropped_column(read(schema_string(**before)), read(schema_string(**after))) == dropped


def test_a_renamed_column_is_not_dropped_and_a_new_one_of_its_name_does_not_keep_it() -> None:
    before = read(json.dumps({"fields": [mapped("a", "long", "p1", 1)]}), "name")
    renamed = read(json.dumps({"fields": [mapped("b", "long", "p1", 1)]}), "name")
    another = read(json.dumps({"fields": [mapped("a", "long", "p2", 2)]}), "name")
    assert dropped_column(before, renamed) is None
    assert dropped_column(before, another) == "a"


@given(
    st.recursive(
        st.sampled_from(["long", "x", 1, None]), lambda t: st.dictionaries(st.text(max_size=4), t), max_leaves=4
    )
)
def test_any_type_is_read_or_refused(kind: Any) -> None:
    with suppress(LogCorrupt, UnsupportedFeature):
        read(schema_string(c=kind))


def stored_as(name: str, kind: pa.DataType, stored: str) -> pa.Field:
    return pa.field(name, kind, metadata={PHYSICAL_NAME: stored.encode()})


LONG, INT, TEXT = pa.int64(), pa.int32(), pa.string()


@cases(
    ("before", "after", "expected"),
    [
        (LONG, LONG, True),
        (INT, LONG, True),
        (LONG, INT, False),
        (INT, TEXT, False),
        (TEXT, pa.binary(), False),
        (pa.null(), TEXT, True),
        (pa.null(), pa.list_(LONG), True),
        (pa.null(), pa.struct([("x", LONG)]), True),
        (LONG, pa.null(), False),
        (pa.timestamp("us"), UTC_MICROS, False),
        (pa.date32(), pa.timestamp("us"), True),
        (pa.decimal128(5, 2), pa.decimal128(6, 3), True),
        (pa.decimal128(5, 2), pa.decimal128(5, 3), False),
        (LONG, pa.list_(LONG), False),
        (pa.list_(INT), pa.list_(LONG), True),
        (pa.list_(LONG), pa.list_(INT), False),
        (pa.list_(pa.null()), pa.list_(TEXT), True),
        (pa.list_(LONG), pa.map_(LONG, LONG), False),
        (pa.map_(INT, INT), pa.map_(LONG, LONG), True),
        (pa.map_(LONG, INT), pa.map_(INT, LONG), False),
        (pa.map_(INT, LONG), pa.map_(LONG, INT), False),
        (pa.struct([("a", INT)]), pa.struct([("b", TEXT), ("a", LONG)]), True),
        (pa.struct([("a", INT), ("b", TEXT)]), pa.struct([("b", TEXT)]), True),
        (pa.struct([("a", INT)]), pa.struct([("a", TEXT)]), False),
        (pa.struct([("a", INT)]), pa.struct([]), True),
        (pa.struct([stored_as("a", INT, "p")]), pa.struct([stored_as("b", LONG, "p")]), True),
        (pa.struct([stored_as("a", INT, "p")]), pa.struct([stored_as("b", TEXT, "p")]), False),
        (pa.struct([stored_as("a", INT, "p")]), pa.struct([stored_as("a", TEXT, "q")]), True),
        (pa.struct([("p", INT)]), pa.struct([stored_as("a", TEXT, "p")]), False),
        (pa.list_(pa.struct([("a", INT)])), pa.list_(pa.struct([("a", LONG), ("b", INT)])), True),
        (pa.list_(pa.struct([("a", LONG)])), pa.list_(pa.struct([("a", INT)])), False),
    ],
)
def test_values_readable_in_later_columns(before: pa.DataType, after: pa.DataType, expected: bool) -> None:
    assert restates(before, after) is expected


@pytest.mark.parametrize("kind", [LONG, pa.null(), pa.list_(pa.struct([("x", pa.map_(TEXT, pa.float32()))]))])
def test_values_mean_in_the_same_columns_what_they_are(kind: pa.DataType) -> None:
    assert restates(kind, kind)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            '{"type":"array","containsNull":true,"elementType":' * 3000 + '"long"' + "}" * 3000,
            "it is nested too deeply",
        ),
        ('{"type":"struct","fields":[{"name":"\\ud800","type":"long"}]}', "an unpaired surrogate"),
    ],
)
def test_json_that_no_schema_is_made_from(kind: str, reason: str) -> None:
    text = f'{{"type":"struct","fields":[{{"name":"a","type":{kind},"nullable":true,"metadata":{{}}}}]}}'
    with pytest.raises(LogCorrupt, match=reason) as caught:
        arrow_schema(text, "none", "t", 1)
    assert "Error(" not in str(caught.value)

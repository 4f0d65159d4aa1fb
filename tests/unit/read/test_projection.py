"""Columns of a file as columns of the table: found by any legal name, on every level, with their exact values."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.errors import ChangesUnavailable, DataCorrupt, UnsupportedFeature
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ROW_COMMIT_VERSION, ROW_ID
from tailer.plan import RowTracking, TaskKind, add_row_ids, output_schema
from tailer.read.execute import execute
from tailer.schema.columns import DEFAULT, FIELD_ID, FILE_NAMES, PHYSICAL_NAME
from tests.support.tables.log_files import marked, parquet, task

LONG, TEXT = pa.int64(), pa.string()
UTC, NO_ZONE = pa.timestamp("us", tz="UTC"), pa.timestamp("us")


def mapped(name: str, kind: pa.DataType, physical: str, number: int | None = None) -> pa.Field:
    """Make a column of a table with column mapping, by id if there is a number."""
    known_by = {PHYSICAL_NAME: physical.encode()}
    return pa.field(name, kind, metadata=known_by if number is None else known_by | {FIELD_ID: str(number).encode()})


def numbered(name: str, kind: pa.DataType, number: int) -> pa.Field:
    """Make a column of a file with a field id."""
    return pa.field(name, kind, metadata={FIELD_ID: str(number).encode()})


def read(tmp_path: Path, file: pa.Table, schema: Any, kind: TaskKind = TaskKind.INSERT, **options: Any) -> pa.Table:
    """Return a file's rows read with `schema`, without the metadata columns."""
    path = parquet(tmp_path / "f.parquet", file, **options)
    found = pa.Table.from_batches([batch.rows for batch in execute(task(path, pa.schema(schema), kind))])
    found.validate(full=True)
    return found.drop_columns([field.name for field in METADATA_FIELDS])


@pytest.mark.parametrize(
    ("names", "wanted", "found"),
    [
        (["a", "b"], "a", 0),
        (["A", "a"], "a", 1),
        (["a", "A"], "A", 1),
        (["b", "A"], "a", 1),
        (["a.b", "a"], "a", 1),
        (["a.b", "a"], "a.b", 0),
        (["a", "a.b.c"], "a.b.c", 1),
        (["`a`", "a"], "`a`", 0),
        (["", "a"], "", 0),
        (["b", "b", "a"], "a", 2),
        (["b", "B"], "a", None),
    ],
)
def test_which_column_it_is(tmp_path: Path, names: list[str], wanted: str, found: int | None) -> None:
    file = pa.table([pa.array([number]) for number in range(len(names))], names)
    assert read(tmp_path, file, [(wanted, LONG)]).to_pylist() == [{wanted: found}]


@pytest.mark.parametrize(("names", "wanted"), [(["a", "a"], "a"), (["Ab", "aB"], "ab")])
def test_a_column_that_may_be_either(tmp_path: Path, names: list[str], wanted: str) -> None:
    with pytest.raises(DataCorrupt, match="several columns may be"):
        read(tmp_path, pa.table([pa.array([1])] * 2, names), [(wanted, LONG)])


def test_a_mapped_column_is_found_by_its_name_in_the_file(tmp_path: Path) -> None:
    """An exact match comes first, then one that ignores case; an ambiguous name matches no column."""
    struct = pa.struct([mapped("x", LONG, "q"), mapped("y", LONG, "Q")])
    schema = pa.schema([mapped("a", LONG, "c"), mapped("b", LONG, "C"), mapped("s", struct, "S")])
    file = pa.table({"c": [1], "C": [2], "s": [{"q": 2, "Q": 3}]})
    assert read(tmp_path, file, schema).to_pylist() == [{"a": 1, "b": 2, "s": {"x": 2, "y": 3}}]
    for file in (pa.table({"C": [1]}), pa.table({"s": [{"q": 2}]})):
        with pytest.raises(DataCorrupt, match="is both"):
            read(tmp_path, file, schema)


@pytest.mark.parametrize("names", [["a", "A"], ["A", "a"], ["aB", "Ab"]])
@pytest.mark.parametrize("nested", [False, True])
def test_one_column_is_not_the_values_of_two(tmp_path: Path, names: list[str], nested: bool) -> None:
    fields: list[Any] = [(name, LONG) for name in names]
    file, schema = pa.table({names[0]: [1]}), pa.schema(fields)
    if nested:
        file, schema = pa.table({"s": file.to_struct_array()}), pa.schema([("s", pa.struct(fields))])
    with pytest.raises(DataCorrupt, match=f"{names[0]} is both {names[0]} and {names[1]}"):
        read(tmp_path, file, schema)


def test_a_field_id_of_a_column_with_a_repeated_name(tmp_path: Path) -> None:
    file = pa.table([pa.array([1]), pa.array([2])], schema=pa.schema([numbered("c", LONG, 1), numbered("c", LONG, 2)]))
    with pytest.raises(DataCorrupt, match="several columns may be a: c, c"):
        read(tmp_path, file, [mapped("a", LONG, "c", 1)])


def test_a_struct_that_is_null_while_its_fields_must_not_be(tmp_path: Path) -> None:
    """Spark adds such a struct to a table with rows; the result has a schema that every Parquet writer accepts."""
    inner = pa.struct([pa.field("x", LONG, nullable=False)])
    deep = {"in": pa.struct([pa.field("d", inner, nullable=False)]), "of": pa.list_(pa.field("element", inner, False))}
    wide = pa.schema([("a", LONG), ("new", inner), *deep.items(), ("by", pa.map_(TEXT, pa.field("v", inner, False)))])
    old = pa.table({"a": [1], "in": pa.array([None], deep["in"]), "of": pa.array([[{"x": 7}]], deep["of"])})
    path = parquet(tmp_path / "old.parquet", old)
    (batch,) = execute(task(path, wide))
    assert batch.rows.schema.equals(output_schema(wide), check_metadata=True)
    assert [array.type for array in batch.rows.columns] == output_schema(wide).types
    rows = pa.Table.from_batches([batch.rows])
    rows.validate(full=True)
    back = pq.read_table(parquet(tmp_path / "back.parquet", rows)).drop_columns([f.name for f in METADATA_FIELDS])
    assert back.to_pylist() == [{"a": 1, "new": None, "in": None, "of": [{"x": 7}], "by": None}]


def test_a_struct_beside_columns_called_like_its_fields(tmp_path: Path) -> None:
    file = pa.table({"a": [{"b": 1}], "a.b": [2], "l": [[3]], "l.list": [4], "l.list.element": [5]})
    types = {"a.b": LONG, "l.list.element": LONG, "a": pa.struct([("b", LONG)]), "l.list": LONG, "l": pa.list_(LONG)}
    expected = {"a.b": 2, "l.list.element": 5, "a": {"b": 1}, "l.list": 4, "l": [3]}
    assert read(tmp_path, file, types).to_pylist() == [expected]
    for name, kind in types.items():
        assert read(tmp_path, file, {name: kind}).to_pylist() == [{name: expected[name]}]


IN_FILE = pa.struct([("q1", LONG), ("q2", TEXT)])
VALUES = [{"q1": 1, "q2": "a"}, None, {"q1": None, "q2": "b"}, {"q1": 4, "q2": None}]
WANTED = pa.struct([mapped("y", TEXT, "q2"), mapped("new", pa.list_(LONG), "q9"), mapped("x", LONG, "q1")])


def renamed(value: Any) -> Any:
    return value and {"y": value["q2"], "new": None, "x": value["q1"]}


NESTED: Final[dict[str, tuple[pa.DataType, list[Any], pa.DataType, list[Any]]]] = {
    "struct": (IN_FILE, VALUES, WANTED, [renamed(value) for value in VALUES]),
    "struct of struct": (
        pa.struct([("s", IN_FILE)]),
        [{"s": value} for value in VALUES] + [None],
        pa.struct([mapped("deep", WANTED, "s")]),
        [{"deep": renamed(value)} for value in VALUES] + [None],
    ),
    "list of struct": (
        pa.list_(IN_FILE),
        [VALUES[:3], None, [], [None], VALUES[2:]],
        pa.list_(pa.field("element", WANTED)),
        [[renamed(value) for value in VALUES[:3]], None, [], [None], [renamed(value) for value in VALUES[2:]]],
    ),
    "map to struct": (
        pa.map_(TEXT, IN_FILE),
        [[("k", VALUES[0]), ("l", None)], None, [], [("m", VALUES[2])]],
        pa.map_(TEXT, WANTED),
        [[("k", renamed(VALUES[0])), ("l", None)], None, [], [("m", renamed(VALUES[2]))]],
    ),
    "map from struct": (
        pa.map_(IN_FILE, LONG),
        [[(VALUES[0], 1)], None],
        pa.map_(WANTED, LONG),
        [[(renamed(VALUES[0]), 1)], None],
    ),
    "a struct all of whose fields are new": (
        IN_FILE,
        VALUES,
        pa.struct([mapped("n", LONG, "q7")]),
        [value and {"n": None} for value in VALUES],
    ),
    "a new struct in a struct": (
        IN_FILE,
        VALUES,
        pa.struct([mapped("s", WANTED, "q7"), mapped("x", LONG, "q1")]),
        [value and {"s": None, "x": value["q1"]} for value in VALUES],
    ),
}


@pytest.mark.parametrize("rows", [2, 8192])
@pytest.mark.parametrize("name", NESTED)
def test_renamed_reordered_and_new_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rows: int
) -> None:
    """With nulls on every level, and in batches that begin anywhere in the rows."""
    monkeypatch.setattr("tailer.read.parquet.batch_sizes.MAX_ROWS", rows)
    in_file, values, wanted, expected = NESTED[name]
    file = pa.table({"id": range(3 * len(values)), "p1": pa.array(values * 3, in_file)})
    found = read(tmp_path, file, [mapped("c", wanted, "p1"), mapped("n", LONG, "id")])
    assert found.column("c").to_pylist() == expected * 3
    assert found.column("n").to_pylist() == list(range(3 * len(values)))


def test_names_that_changed_places(tmp_path: Path) -> None:
    file = pa.table({"a": [1], "b": [2], "s": [{"x": 3, "y": 4}]})
    inner = pa.struct([mapped("y", LONG, "x"), mapped("x", LONG, "y")])
    found = read(tmp_path, file, [mapped("b", LONG, "a"), mapped("a", LONG, "b"), mapped("s", inner, "s")])
    assert found.to_pylist() == [{"b": 1, "a": 2, "s": {"y": 3, "x": 4}}]


def test_by_field_id_names_mean_nothing(tmp_path: Path) -> None:
    inner = pa.struct([numbered("old", LONG, 2), numbered("c", TEXT, 3)])
    schema = pa.schema([numbered("z", inner, 1), numbered("y", LONG, 9)])
    file = pa.table([pa.array([{"old": 1, "c": "x"}, None], inner), pa.array([5, 6])], schema=schema)
    wanted = pa.struct([mapped("d", TEXT, "old", 3), mapped("new", LONG, "c", 77), mapped("o", LONG, "gone", 2)])
    found = read(tmp_path, file, [mapped("q", LONG, "z", 9), mapped("s", wanted, "y", 1), mapped("n", LONG, "y", 8)])
    assert found.to_pylist() == [
        {"q": 5, "s": {"d": "x", "new": None, "o": 1}, "n": None},
        {"q": 6, "s": None, "n": None},
    ]


def test_by_field_id_but_the_file_has_none(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match="no field ids"):
        read(tmp_path, pa.table({"a": [1]}), [mapped("a", LONG, "a", 1)])
    kind = pa.struct([("x", LONG)])
    file = pa.table([pa.array([{"x": 1}], kind)], pa.schema([numbered("s", kind, 1)]))
    with pytest.raises(DataCorrupt, match="no field ids"):
        read(tmp_path, file, [mapped("s", pa.struct([mapped("x", LONG, "x", 2)]), "s", 1)])


def with_metadata(field: pa.Field, **more: bytes) -> pa.Field:
    """Add to what is known of a column."""
    names = {"default": DEFAULT, "names": FILE_NAMES}
    return field.with_metadata(field.metadata | {names[name]: value for name, value in more.items()})


def test_a_file_without_field_ids_has_columns_by_their_names_in_files(tmp_path: Path) -> None:
    file = pa.table({"a": [1], "s": [{"x": 2}], "1": [3]})
    inner = pa.struct([with_metadata(mapped("y", LONG, "4", 4), names=b'["q", "x"]')])
    columns = [(mapped("b", LONG, "1", 1), b'["a"]'), (mapped("s", inner, "2", 2), b'["s"]')]
    columns.append((mapped("none", LONG, "3", 3), b"[]"))
    found = read(tmp_path, file, [with_metadata(column, names=names) for column, names in columns])
    assert found.to_pylist() == [{"b": 1, "s": {"y": 2}, "none": None}]
    twice = with_metadata(mapped("b", LONG, "1", 1), names=b'["a", "1"]')
    with pytest.raises(DataCorrupt, match="several columns may be b"):
        read(tmp_path, file, [twice])


def test_columns_that_a_file_lacks_have_their_defaults(tmp_path: Path) -> None:
    item = pa.struct([("x", LONG)])
    file = pa.table(
        {"s": pa.array([{"x": 1}, None], item), "l": pa.array([[{"x": 2}, None], None], pa.list_(item)), "v": [7, None]}
    )
    added = pa.struct([pa.field("x", LONG), pa.field("y", TEXT, metadata={DEFAULT: b"new"})])
    fields = [pa.field("s", added), pa.field("l", pa.list_(added)), pa.field("v", LONG, metadata={DEFAULT: b"5"})]
    fields += [pa.field("t", pa.time64("us"), metadata={DEFAULT: b"01:02:03.5"})]
    fields += [pa.field("f", pa.binary(2), metadata={DEFAULT: b"\xff\x00"}), pa.field("n", added)]
    t, f = time(1, 2, 3, 500_000), b"\xff\x00"
    assert read(tmp_path, file, fields).to_pylist() == [
        {"s": {"x": 1, "y": "new"}, "l": [{"x": 2, "y": "new"}, None], "v": 7, "t": t, "f": f, "n": None},
        {"s": None, "l": None, "v": None, "t": t, "f": f, "n": None},
    ]


def decimals(*texts: str | None) -> list[Decimal | None]:
    return [None if text is None else Decimal(text) for text in texts]


UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
EDGE = [-62_135_596_800_000_000, -1, 0, None, 253_402_300_799_999_999]


@pytest.mark.parametrize(
    ("in_file", "wanted", "expected"),
    [
        (pa.array(["a", None], pa.large_string()), TEXT, ["a", None]),
        (pa.array(["a", None], pa.string_view()), TEXT, ["a", None]),
        (pa.array([b"a", None], pa.binary_view()), pa.binary(), [b"a", None]),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary(), [b"ab", None]),
        # As a table that was converted from Parquet may have it: Spark does not look at the annotation.
        (pa.array(["ab", "", None]), pa.binary(), [b"ab", b"", None]),
        (pa.array([b"\xff\x00", None]).view(pa.string()), pa.binary(), [b"\xff\x00", None]),
        (pa.array(["{}", None], pa.json_()), TEXT, ["{}", None]),
        (pa.array(["{}", None], pa.json_()), pa.binary(), [b"{}", None]),
        (pa.array([UUID.bytes, None], pa.uuid()), pa.binary(), [UUID.bytes, None]),
        (pa.array(["ä", None]).dictionary_encode(), pa.binary(), ["ä".encode(), None]),
        (pa.array([b"ab", None]), TEXT, ["ab", None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), TEXT, ["a", None, "a"]),
        (pa.array([1, None, 1]).dictionary_encode(), LONG, [1, None, 1]),
        (pa.array([["a"], None], pa.large_list(TEXT)), pa.list_(TEXT), [["a"], None]),
        (pa.array([["a", "b"], None], pa.list_(TEXT, 2)), pa.list_(TEXT), [["a", "b"], None]),
        (pa.array([5], pa.int8()), LONG, [5]),
        (pa.array([2**32 - 1], pa.uint32()), LONG, [2**32 - 1]),
        (pa.array([5]), pa.int32(), [5]),
        (pa.array([1.5], pa.float32()), pa.float64(), [1.5]),
        (pa.array(decimals("1.23", None), pa.decimal128(9, 2)), pa.decimal128(12, 4), decimals("1.2300", None)),
        (pa.array(decimals("1.20"), pa.decimal128(9, 2)), pa.decimal128(9, 1), decimals("1.2")),
        (pa.array(decimals("9" * 38, "-" + "9" * 38), pa.decimal128(38, 0)), pa.decimal128(38, 0), None),
        (pa.array(decimals("1.20"), pa.decimal256(50, 2)), pa.decimal128(38, 2), decimals("1.20")),
        (pa.array([-86_400_000, 0], pa.date64()), pa.date32(), None),
        (pa.nulls(2), LONG, [None, None]),
        (pa.nulls(2), pa.struct([("x", LONG)]), [None, None]),
        (pa.array([1, 2]), pa.null(), [None, None]),
        (pa.array(EDGE, UTC), UTC, None),
        (pa.array(EDGE, NO_ZONE), UTC, None),
        (pa.array(EDGE, UTC), NO_ZONE, None),
        (pa.array([-1000, 0, None], pa.timestamp("ns")), UTC, None),
        (pa.array([-1, 0, None], pa.timestamp("ms", tz="Asia/Tokyo")), UTC, None),
    ],
)
def test_types_that_read_as_others(tmp_path: Path, in_file: pa.Array, wanted: pa.DataType, expected: Any) -> None:
    """Without an expectation the value is the same to Arrow, whatever Python makes of it."""
    found = read(tmp_path, pa.table({"a": in_file}), [("a", wanted)]).column("a").combine_chunks()
    assert found.type == wanted
    assert found.to_pylist() == expected if expected is not None else found.equals(in_file.cast(wanted))


@pytest.mark.parametrize("as_integer", [True, False])
def test_every_way_to_store_a_decimal(tmp_path: Path, as_integer: bool) -> None:
    for precision, value in ((9, "-9999999.99"), (18, "9999999999999999.99"), (38, "-" + "9" * 36 + ".99")):
        array = pa.array(decimals(value, None), pa.decimal128(precision, 2))
        found = read(tmp_path, pa.table({"a": array}), {"a": array.type}, store_decimal_as_integer=as_integer)
        assert found.column("a").to_pylist() == decimals(value, None)


def test_timestamps_of_96_bits(tmp_path: Path) -> None:
    file = pa.table({"a": pa.array(EDGE, NO_ZONE)})
    found = read(tmp_path, file, {"a": UTC}, use_deprecated_int96_timestamps=True)
    assert found.column("a").cast(LONG).to_pylist() == EDGE


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_unsigned_integers_of_a_converted_table(tmp_path: Path, bits: int) -> None:
    """Each becomes the next wider type, the widest one decimal(20,0); the table may widen the column later."""
    most, in_file = 2**bits - 1, {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[bits]
    file = pa.table({"a": pa.array([0, most, None], in_file)})
    wanted = {8: pa.int16(), 16: pa.int32(), 32: LONG, 64: pa.decimal128(20, 0)}[bits]
    for kind in (wanted, pa.decimal128(22, 2), *([pa.float64()] if bits < 64 else [])):
        assert read(tmp_path, file, {"a": kind}).column("a").to_pylist() == [0, most, None]


def test_annotations_that_delta_does_not_know(tmp_path: Path) -> None:
    file = pa.table({"j": pa.array(['{"a":1}'], pa.json_()), "u": pa.array([b"0" * 16], pa.uuid())})
    found = read(tmp_path, file, {"j": TEXT, "u": pa.binary()}, store_schema=False)
    assert found.to_pylist() == [{"j": '{"a":1}', "u": b"0" * 16}]


@pytest.mark.parametrize(
    ("in_file", "wanted"),
    [
        (pa.array([1]), TEXT),
        (pa.array(["1"]), LONG),
        (pa.array([1]), pa.float64()),
        (pa.array([[1]]), pa.list_(pa.float64())),
        (pa.array([1], pa.int32()), pa.float32()),
        (pa.array([1], pa.int8()), pa.decimal128(9, 0)),
        (pa.array([1], pa.uint64()), pa.decimal128(19, 0)),
        (pa.array([1], pa.uint64()), pa.float64()),
        (pa.array([0], pa.date32()), LONG),
        (pa.array([0], UTC), pa.date32()),
        (pa.array(decimals("1"), pa.decimal128(5, 0)), LONG),
        (pa.array(decimals("1"), pa.decimal128(5, 0)), pa.float64()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([True]), LONG),
        (pa.array([1]), pa.struct([("x", LONG)])),
        (pa.array([{"x": 1}]), LONG),
        (pa.array([{"x": "1"}]), pa.struct([("x", LONG)])),
        (pa.array([[{"x": "1"}]]), pa.list_(pa.struct([("x", LONG)]))),
        (pa.array([[("k", 1)]], pa.map_(TEXT, LONG)), pa.map_(TEXT, TEXT)),
        (pa.array([[("k", 1)]], pa.map_(TEXT, LONG)), pa.list_(LONG)),
        (pa.array([0], pa.date32()), UTC),
        # The types fit, but a value does not.
        (pa.array([2**31]), pa.int32()),
        (pa.array([2**64 - 1], pa.uint64()), LONG),
        (pa.array(decimals("1.23"), pa.decimal128(9, 2)), pa.decimal128(9, 1)),
        (pa.array(decimals("123"), pa.decimal128(9, 0)), pa.decimal128(2, 0)),
        (pa.array([b"\xff"]), TEXT),
        (pa.array([1], pa.timestamp("ns")), UTC),
        (pa.array([2**63 // 1000 + 1], pa.timestamp("ms")), UTC),
    ],
)
def test_types_and_values_that_do_not(tmp_path: Path, in_file: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(DataCorrupt) as caught:
        read(tmp_path, pa.table({"a": in_file}), [("a", wanted)])
    assert caught.value.path == str(tmp_path / "f.parquet")
    shown = str(caught.value).replace(caught.value.path, "")
    assert not [value for value in ("2147483648", "18446744073709551615", "9223372036854776", "1.23") if value in shown]


@pytest.mark.parametrize(
    ("in_file", "wanted"),
    [
        (pa.array([1], pa.int32()), pa.decimal128(10, 1)),
        (pa.array([1]), pa.decimal128(19, 0)),
        (pa.array([b"\1"]), pa.decimal128(19, 0)),
        (pa.array([b"\1"], pa.binary(1)), pa.decimal128(2, 0)),
        (pa.array([1], pa.int32()), pa.date32()),
        (pa.array([1]), UTC),
        (pa.array([1]), pa.timestamp("us")),
        (pa.array([[{"x": 1}]]), pa.list_(pa.struct([("x", UTC)]))),
    ],
)
def test_numbers_without_their_type_are_refused_by_name(tmp_path: Path, in_file: pa.Array, wanted: pa.DataType) -> None:
    """The file may be sound, so no copy of it helps."""
    with pytest.raises(
        UnsupportedFeature, match=r"needs the meaning of plain numbers: column a.* in the table"
    ) as caught:
        read(tmp_path, pa.table({"a": in_file}), [("a", wanted)])
    assert str(tmp_path / "f.parquet") in caught.value.reason
    assert caught.value.hint.startswith("It is not guessed. Write the rows again")


def narrow_and_wide() -> Iterator[tuple[pa.Array, pa.DataType, list[Any]]]:
    """Make every type change of the protocol, with the least and greatest value of the narrow type."""
    integers = [(pa.int8(), 2**7), (pa.int16(), 2**15), (pa.int32(), 2**31), (pa.int64(), 2**63)]
    for number, (kind, limit) in enumerate(integers):
        ends = [-limit, limit - 1, 0, None]
        narrow = pa.array(ends, kind)
        for wider, _ in integers[number + 1 :]:
            yield narrow, wider, ends
        if kind != LONG:
            yield narrow, pa.float64(), [None if end is None else float(end) for end in ends]
        digits = 20 if kind == LONG else 10
        for scale in (0, 1, 38 - digits):
            yield narrow, pa.decimal128(digits + scale, scale), decimals(*(None if e is None else str(e) for e in ends))
        yield narrow, pa.decimal128(38, 2), decimals(*(None if e is None else str(e) for e in ends))
    floats = [1.1, -0.0, 3.4028234663852886e38, 1.401298464324817e-45, float("inf"), float("-inf"), None]
    yield pa.array(floats, pa.float32()), pa.float64(), pa.array(floats, pa.float32()).to_pylist()
    for precision, scale, wider, finer in (
        (9, 2, 9, 2),
        (9, 2, 10, 3),
        (18, 0, 38, 20),
        (5, 5, 38, 38),
        (38, 1, 38, 1),
    ):
        text = "-" + "9" * (precision - scale) + "." + "9" * scale
        narrow = pa.array(decimals(text, None), pa.decimal128(precision, scale))
        yield narrow, pa.decimal128(wider, finer), decimals(text, None)
    days = [date(1, 1, 1), date(1582, 10, 10), date(1969, 12, 31), date(9999, 12, 31), None]
    midnights = [None if day is None else datetime.combine(day, time()) for day in days]
    yield pa.array(days), NO_ZONE, midnights


WIDENED = list(narrow_and_wide())
IN_PLACES: Final[dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any]]]] = {
    "column": (lambda kind: kind, lambda value: value),
    "field": (lambda kind: pa.struct([("x", kind)]), lambda value: {"x": value}),
    "element": (pa.list_, lambda value: [value, value]),
    "value": (lambda kind: pa.map_(TEXT, kind), lambda value: [("k", value)]),
    "key": (lambda kind: pa.map_(kind, TEXT), lambda value: [] if value is None else [(value, "v")]),
    "deep": (
        lambda kind: pa.map_(TEXT, pa.list_(pa.struct([("x", kind)]))),
        lambda value: [("k", [{"x": value}, None]), ("l", None)],
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("place", IN_PLACES)
@pytest.mark.parametrize(
    ("narrow", "wide", "expected"), WIDENED, ids=[f"{narrow.type} to {wide}" for narrow, wide, _ in WIDENED]
)
def test_narrow_types_of_old_files(
    tmp_path: Path, narrow: pa.Array, wide: pa.DataType, expected: list[Any], place: str
) -> None:
    kind_of, nest = IN_PLACES[place]
    in_file = pa.array([nest(value) for value in narrow.to_pylist()], kind_of(narrow.type))
    change_types = pa.array(["insert"] * len(in_file))
    file = pa.table({"a": in_file, CHANGE_TYPE: change_types})
    for kind in (TaskKind.INSERT, TaskKind.CDC_OTHERS):
        found = read(tmp_path, file, [("a", kind_of(wide))], kind).column("a")
        assert found.type == kind_of(wide)
        assert found.to_pylist() == [nest(value) for value in expected]


def test_partition_columns_come_from_the_log(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"p": ["from the file"] * 2, "a": [1, 2]}))
    schema = pa.schema([mapped("part", TEXT, "p"), mapped("n", LONG, "q"), mapped("a", LONG, "a")])
    (batch,) = execute(task(path, schema, partition_values=[("p", "from the log"), ("q", None)]))
    assert batch.rows.select(["part", "n", "a"]).to_pylist() == [
        {"part": "from the log", "n": None, "a": 1},
        {"part": "from the log", "n": None, "a": 2},
    ]


@pytest.mark.parametrize(
    ("schema", "first_column"), [([("p", LONG)], 7), ([("new", pa.map_(TEXT, LONG))], None), ([], "insert")]
)
def test_rows_without_a_column_in_the_file(tmp_path: Path, schema: list[Any], first_column: Any) -> None:
    """All columns are partition columns, newer than the file, or not requested: the number of rows is the same."""
    path = parquet(tmp_path / "f", pa.table({"a": range(10), "b": [{"x": 1}] * 10}), row_group_size=3)
    batches = list(execute(task(path, pa.schema(schema), partition_values=[("p", "7")])))
    assert [row for batch in batches for row in batch.row_index.to_pylist()] == list(range(10))
    assert [value for batch in batches for value in batch.rows.column(0).to_pylist()] == [first_column] * 10


def test_a_partition_value_of_another_type(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": [1]}))
    with pytest.raises(ChangesUnavailable, match="partition value"):
        list(execute(task(path, pa.schema([("p", LONG)]), partition_values=[("p", "x")])))


def row_ids(path: Path, tracking: RowTracking | None, kind: TaskKind = TaskKind.INSERT) -> list[tuple[Any, Any]]:
    """Return the row ids of a file and the commit versions."""
    job = replace(task(path, add_row_ids(pa.schema([("a", LONG)])), kind), tracking=tracking)
    found = pa.Table.from_batches([batch.rows for batch in execute(job)])
    assert found.schema.names == ["a", ROW_ID, ROW_COMMIT_VERSION, *(field.name for field in METADATA_FIELDS)]
    ids, versions = found.column(ROW_ID), found.column(ROW_COMMIT_VERSION)
    assert (ids.type, versions.type) == (LONG, LONG)
    return list(zip(ids.to_pylist(), versions.to_pylist(), strict=True))


@pytest.mark.parametrize("rows", [1, 3, 8192])
def test_row_ids_are_the_files_own_or_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("tailer.read.parquet.batch_sizes.MAX_ROWS", rows)
    ids, versions = [None, 7, None, 9, 5, None, None], [1, None, None, None, 2, None, 0]
    file = pa.table({"a": range(7), "_row-id": pa.array(ids, LONG), "_row-version": pa.array(versions, LONG)})
    path = parquet(tmp_path / "f", file, row_group_size=4)
    counted, constant = [100, 101, 102, 103, 104, 105, 106], [6] * 7
    stored = [count if number is None else number for number, count in zip(ids, counted, strict=True)]
    known = [6 if version is None else version for version in versions]
    for tracking, expected in (
        (RowTracking(100, 6), (counted, constant)),
        (RowTracking(100, 6, "_row-id", "_row-version"), (stored, known)),
        (RowTracking(100, 6, "_row-id", "gone"), (stored, constant)),
        (RowTracking(None, None, "_row-id", "_row-version"), (ids, versions)),
        (RowTracking(100, None), (counted, [None] * 7)),
        (RowTracking(), ([None] * 7, [None] * 7)),
        (None, ([None] * 7, [None] * 7)),
    ):
        assert row_ids(path, tracking) == list(zip(*expected, strict=True))
        assert row_ids(path, tracking, TaskKind.DELETE) == list(zip(*expected, strict=True))


def test_row_ids_of_selected_rows_and_after_resuming(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": range(20)}), row_group_size=6)
    job = replace(task(path, add_row_ids(pa.schema([("a", LONG)]))), tracking=RowTracking(1000, 1))
    job = replace(job, exclude=marked([0, 3, 9, 19]))
    for after_row in (-1, 4, 11, 18):
        batches = list(execute(job, after_row))
        rows = [row for batch in batches for row in batch.row_index.to_pylist()]
        assert rows == [row for row in range(20) if row > after_row and row not in (0, 3, 9, 19)]
        assert [row for batch in batches for row in batch.rows.column(ROW_ID).to_pylist()] == [
            1000 + row for row in rows
        ]


def test_rows_of_change_files_have_no_ids(tmp_path: Path) -> None:
    """Even if the file has such a column, or the task has row tracking."""
    path = parquet(tmp_path / "f", pa.table({"a": [1, 2], "id": [7, 8], CHANGE_TYPE: ["insert", "insert"]}))
    for tracking in (None, RowTracking(1, 1, "id", "id")):
        assert row_ids(path, tracking, TaskKind.CDC_OTHERS) == [(None, None)] * 2


def test_row_ids_that_cannot_be(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": [1, 2], "text": ["x", "y"]}))
    for tracking in (RowTracking(2**63 - 1, 1), RowTracking(1, 1, "text"), RowTracking(1, 1, None, "text")):
        with pytest.raises(DataCorrupt):
            row_ids(path, tracking)


def test_nothing_but_names_and_types_in_what_comes_out(tmp_path: Path) -> None:
    """Physical names and field ids do not reach sinks, on any level."""
    inner = pa.struct([numbered("x", LONG, 2), numbered("m", pa.map_(TEXT, pa.struct([numbered("y", LONG, 4)])), 3)])
    schema = pa.schema([numbered("a", inner, 1), numbered("l", pa.list_(inner), 5)])
    file = pa.table([pa.array([{"x": 1, "m": [("k", {"y": 2})]}], inner), pa.array([[None]], pa.list_(inner))], schema)
    deep = pa.struct([mapped("z", LONG, "y", 4)])
    wanted = pa.struct([mapped("x", LONG, "x", 2), mapped("m", pa.map_(TEXT, deep), "m", 3)])
    mapped_schema = pa.schema([mapped("a", wanted, "a", 1), mapped("l", pa.list_(wanted), "l", 5)])
    path = parquet(tmp_path / "f", file)
    for table in (mapped_schema, pa.schema([pa.field(field.name, field.type) for field in schema])):
        (batch,) = execute(task(path, table))
        assert batch.rows.schema.equals(output_schema(table), check_metadata=True)
        for kind in batch.rows.schema.types[:2]:
            assert "field_id" not in pa.schema([("a", kind)]).to_string(show_field_metadata=True)
            assert "physicalName" not in pa.schema([("a", kind)]).to_string(show_field_metadata=True)


def test_thousands_of_columns_are_found_at_once(tmp_path: Path) -> None:
    """A linear search for each of them took five seconds."""
    names = [f"c{number}" for number in range(3000)]
    file = pa.table([pa.array([number]) for number in range(3000)], names)
    found = read(tmp_path, file, dict.fromkeys(names[::-1], LONG))
    assert found.schema.names == names[::-1]
    assert found.column("c17").to_pylist() == [17]

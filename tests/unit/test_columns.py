"""A file's columns as the table's: found under any legal name, on every level, and never a value that is not there."""

from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.delta.schema import FIELD_ID, PHYSICAL_NAME
from tailer.errors import DataCorrupt
from tailer.events import METADATA_FIELDS
from tailer.execute import execute
from tailer.plan import TaskKind
from tests.logs import parquet, task

LONG, TEXT = pa.int64(), pa.string()
UTC, NO_ZONE = pa.timestamp("us", tz="UTC"), pa.timestamp("us")


def mapped(name: str, kind: pa.DataType, physical: str, number: int | None = None) -> pa.Field:
    """A column of a table that maps columns: by id where there is a number."""
    known_by = {PHYSICAL_NAME: physical.encode()}
    return pa.field(name, kind, metadata=known_by if number is None else known_by | {FIELD_ID: str(number).encode()})


def numbered(name: str, kind: pa.DataType, number: int) -> pa.Field:
    """A column of a file with a field id."""
    return pa.field(name, kind, metadata={FIELD_ID: str(number).encode()})


def read(tmp_path: Path, file: pa.Table, schema: Any, kind: TaskKind = TaskKind.INSERT, **options: Any) -> pa.Table:
    """What a file's rows are to a table with `schema`, without the metadata columns."""
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
    """With nulls on every level, and in batches that begin anywhere in what was read."""
    monkeypatch.setattr("tailer.execute._batch_rows", lambda _group: rows)
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


def decimals(*texts: str | None) -> list[Decimal | None]:
    return [None if text is None else Decimal(text) for text in texts]


EDGE = [-62_135_596_800_000_000, -1, 0, None, 253_402_300_799_999_999]


@pytest.mark.parametrize(
    ("in_file", "wanted", "expected"),
    [
        (pa.array(["a", None], pa.large_string()), TEXT, ["a", None]),
        (pa.array(["a", None], pa.string_view()), TEXT, ["a", None]),
        (pa.array([b"a", None], pa.binary_view()), pa.binary(), [b"a", None]),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary(), [b"ab", None]),
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
        (pa.array([1.5]), pa.float32()),
        (pa.array([True]), LONG),
        (pa.array([1]), pa.struct([("x", LONG)])),
        (pa.array([{"x": 1}]), LONG),
        (pa.array([{"x": "1"}]), pa.struct([("x", LONG)])),
        (pa.array([[{"x": "1"}]]), pa.list_(pa.struct([("x", LONG)]))),
        (pa.array([[("k", 1)]], pa.map_(TEXT, LONG)), pa.map_(TEXT, TEXT)),
        (pa.array([[("k", 1)]], pa.map_(TEXT, LONG)), pa.list_(LONG)),
        (pa.array([0], pa.date32()), UTC),
        (pa.array(["x"]), pa.binary()),
        # Types that could be, but a value that cannot.
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
    """All its columns are partition columns, or newer than the file, or not asked for: there are as many rows."""
    path = parquet(tmp_path / "f", pa.table({"a": range(10), "b": [{"x": 1}] * 10}), row_group_size=3)
    batches = list(execute(task(path, pa.schema(schema), partition_values=[("p", "7")])))
    assert [row for batch in batches for row in batch.row_index.to_pylist()] == list(range(10))
    assert [value for batch in batches for value in batch.rows.column(0).to_pylist()] == [first_column] * 10


def test_a_partition_value_of_another_type(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": [1]}))
    with pytest.raises(DataCorrupt, match="partition value"):
        list(execute(task(path, pa.schema([("p", LONG)]), partition_values=[("p", "x")])))


def test_thousands_of_columns_are_found_at_once(tmp_path: Path) -> None:
    """Looking each one up among all took five seconds."""
    names = [f"c{number}" for number in range(3000)]
    file = pa.table([pa.array([number]) for number in range(3000)], names)
    found = read(tmp_path, file, dict.fromkeys(names[::-1], LONG))
    assert found.schema.names == names[::-1]
    assert found.column("c17").to_pylist() == [17]

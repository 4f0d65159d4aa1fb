"""Rows in Spark's read schema: the versions that fit, the form of their rows, and the errors for the others."""

import json
import pickle
from dataclasses import replace
from datetime import datetime
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructField, StructType

import tailer.spark.source.envelope
from tailer.errors import ConfigError, SchemaChanged, UnsupportedFeature
from tailer.events import METADATA_FIELDS, ROW_COMMIT_VERSION, ROW_ID, ChangeBatch, SchemaChange
from tailer.plan import ChangePlan, Regime, TaskKind, add_row_ids, output_schema
from tailer.read.execute import execute
from tailer.schema.columns import PHYSICAL_NAME
from tailer.spark.source.envelope import ENVELOPE, EnvelopeRows, row_encoding
from tailer.spark.source.typed import ReadSchemaLeft, TypedRows, typed_schema
from tailer.spark.source.views import EnvelopeView, TypedView
from tailer_sinks.testing.rows import DELTA_TYPES, MOMENT_MS, change_batch, flat_rows
from tests.support.cases import cases
from tests.support.tables.log_files import parquet, task

LONG, INT, TEXT = pa.int64(), pa.int32(), pa.string()
METADATA: Final = [field.name for field in METADATA_FIELDS]


def mapped(name: str, kind: pa.DataType, physical: str = "") -> pa.Field:
    """Make a column with another physical name."""
    return pa.field(name, kind, metadata={PHYSICAL_NAME: (physical or name).encode()})


def planned(schema: Any, *changes: tuple[TaskKind, Any, pa.Table], folder: Path) -> ChangePlan:
    """Plan version 3 of a table with `schema`: a task for each kind, schema of its rows and content of its file."""
    tasks = []
    for index, (kind, then, rows) in enumerate(changes):
        path = parquet(folder / f"{index}.parquet", rows)
        found = replace(task(path, pa.schema(then), kind), index=index, size_bytes=path.stat().st_size)
        tasks.append(found)
    return ChangePlan("t", "id", 3, 1000, None, Regime.FILES, pa.schema(schema), tuple(tasks))


def read(plan: ChangePlan, columns: Any, chosen: bool = False) -> list[dict[str, Any]]:
    """Return the rows of a plan in a read schema, without the metadata columns, checked to be in Spark's schema."""
    rows = TypedRows(pa.schema(columns), chosen)
    expected = to_arrow_schema(typed_schema(pa.schema(columns)), timezone="UTC")
    found = []
    for each in rows.restate(plan).tasks:
        for batch in execute(each):
            given = pickle.loads(pickle.dumps(rows)).batches(batch)
            assert given.schema.equals(expected, check_metadata=True)
            given.validate(full=True)
            found += given.drop_columns(METADATA).to_pylist()
    return found


def test_the_typed_schema_has_every_type_and_may_be_null_on_every_level() -> None:
    element = pa.field("element", pa.struct([pa.field("x", INT, nullable=False)]), nullable=False)
    value = pa.field("value", LONG, nullable=False)
    columns = [pa.field("id", LONG, nullable=False), mapped("l", pa.list_(element)), mapped("m", pa.map_(TEXT, value))]
    found = typed_schema(pa.schema(columns))
    assert [field.simpleString() for field in found] == [
        "id:bigint",
        "l:array<struct<x:int>>",
        "m:map<string,bigint>",
        "_change_type:string",
        "_commit_version:bigint",
        "_commit_timestamp:timestamp",
    ]
    assert all(field.nullable and not field.metadata for field in found)
    element_type = StructType([StructField("x", IntegerType())])
    assert found["l"].dataType == ArrayType(element_type, containsNull=True)
    assert found["m"].dataType == MapType(StringType(), LongType(), valueContainsNull=True)


def test_the_columns_of_row_tracking_are_longs() -> None:
    found = typed_schema(add_row_ids(pa.schema([("a", TEXT)])))
    assert found.names == ["a", ROW_ID, ROW_COMMIT_VERSION, *METADATA]
    assert found[ROW_ID].dataType == found[ROW_COMMIT_VERSION].dataType == LongType()


def every_type() -> ChangeBatch:
    """Make rows with a column of every type, with nulls among the values."""
    height = max(len(values) for _, values in DELTA_TYPES.values()) + 1
    columns = {
        name: pa.array([*values, *[None] * (height - len(values))], kind)
        for name, (kind, values) in DELTA_TYPES.items()
    }
    return change_batch(7, columns, task=2, first_row=10)


def test_typed_rows_share_memory_with_the_batch() -> None:
    batch = every_type()
    columns = pa.schema([field for field in batch.rows.schema if field.name not in METADATA])
    found = TypedRows(columns).batches(batch)
    assert found.schema.equals(to_arrow_schema(typed_schema(columns), timezone="UTC"), check_metadata=True)
    for given, column in zip(found.columns, batch.rows.columns, strict=True):
        addresses = [[buffer and buffer.address for buffer in array.buffers()] for array in (given, column)]
        assert addresses[0] == addresses[1]


def test_typed_rows_are_cast_where_the_layout_is_another() -> None:
    rows = change_batch(
        1, {"a": pa.array(["x", None], pa.large_string()), "d": pa.array([b"y", b""], pa.large_binary())}
    )
    found = TypedRows(pa.schema([("a", TEXT), ("d", pa.binary())])).batches(rows)
    assert found.schema.types[:2] == [TEXT, pa.binary()]
    assert found.drop_columns(METADATA).to_pylist() == [{"a": "x", "d": b"y"}, {"a": None, "d": b""}]


def test_rows_of_an_older_version(tmp_path: Path) -> None:
    """Later columns are null, narrow ones are widened, renamed ones have their new names, on every level."""
    inner = pa.struct([mapped("x", pa.int16(), "p2"), mapped("y", TEXT, "p3")])
    old = [mapped("a", INT, "p1"), mapped("s", pa.list_(inner), "p4")]
    file = pa.table(
        {"p1": pa.array([1, None], INT), "p4": [[{"p2": 5, "p3": "t"}, None], None]},
        pa.schema([("p1", INT), ("p4", pa.list_(pa.struct([("p2", pa.int16()), ("p3", TEXT)])))]),
    )
    plan = planned(old, (TaskKind.INSERT, old, file), folder=tmp_path)
    wide = pa.struct([mapped("yy", TEXT, "p3"), mapped("z", pa.date32(), "p9"), mapped("x", pa.float64(), "p2")])
    columns = [mapped("new", TEXT, "p8"), mapped("s", pa.list_(wide), "p4"), mapped("b", LONG, "p1")]
    assert read(plan, columns) == [
        {"new": None, "s": [{"yy": "t", "z": None, "x": 5.0}, None], "b": 1},
        {"new": None, "s": None, "b": None},
    ]
    restated = TypedRows(pa.schema(columns)).restate(plan)
    assert restated.schema.equals(pa.schema(columns), check_metadata=True)
    assert output_schema(restated.tasks[0].schema).equals(output_schema(pa.schema(columns)))


def test_rows_of_a_newer_version_without_a_column_that_is_read(tmp_path: Path) -> None:
    """A file may still have its values, from an earlier time."""
    plan = planned([("a", LONG)], (TaskKind.INSERT, [("a", LONG)], pa.table({"a": [1], "b": ["x"]})), folder=tmp_path)
    assert read(plan, [("a", LONG), ("b", TEXT)]) == [{"a": 1, "b": None}]


def test_a_column_that_is_not_read_is_missed(tmp_path: Path) -> None:
    struct = pa.struct([("x", LONG), ("y", LONG)])
    schema = [("a", LONG), ("s", struct)]
    plan = planned(schema, (TaskKind.INSERT, schema, pa.table({"a": [1]})), folder=tmp_path)
    for columns, missed in (([("a", LONG)], "s"), ([("a", LONG), ("s", pa.struct([("y", LONG)]))], "s.x")):
        with pytest.raises(SchemaChanged, match=f"t: version 3 does not fit .* column {missed},") as caught:
            read(plan, columns)
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), ReadSchemaLeft)
        for way in ("envelope", "restart the query", "option columns"):
            assert way in caught.value.hint
    # A selection excludes all other columns, but requires all of its own.
    assert read(plan, [("a", LONG)], chosen=True) == [{"a": 1}]
    with pytest.raises(SchemaChanged, match=r"s\.x"):
        read(plan, [("s", pa.struct([("y", LONG)]))], chosen=True)
    # A version without rows fits every schema.
    assert read(replace(plan, tasks=()), [("b", LONG)]) == []


@pytest.mark.parametrize(("then", "now"), [(LONG, INT), (TEXT, LONG), (INT, pa.list_(INT)), (LONG, pa.null())])
def test_a_type_that_is_not_read_as_the_other(tmp_path: Path, then: pa.DataType, now: pa.DataType) -> None:
    plan = planned([("a", then)], (TaskKind.INSERT, [("a", then)], pa.table({"a": [None]})), folder=tmp_path)
    with pytest.raises(SchemaChanged, match=f"its column a is {then}, which does not read as {now}"):
        read(plan, [("a", now)])


def test_rows_deleted_by_the_version_that_drops_a_column(tmp_path: Path) -> None:
    before, after = [("a", INT), ("gone", TEXT)], [("a", LONG)]
    changes = (
        (TaskKind.DELETE, before, pa.table({"a": pa.array([1], INT), "gone": ["x"]})),
        (TaskKind.INSERT, after, pa.table({"a": [2]})),
    )
    plan = planned(after, *changes, folder=tmp_path)
    assert read(plan, after) == [{"a": 1}, {"a": 2}]
    # To older readers it is an ordinary column.
    assert read(plan, [("a", LONG), ("gone", TEXT)]) == [{"a": 1, "gone": "x"}, {"a": 2, "gone": None}]
    # It drops a column, but the remaining one is missing in the read schema.
    kept = [*after, ("kept", LONG)]
    deleted = (TaskKind.DELETE, [*before, ("kept", LONG)], pa.table({"a": [1]}))
    with pytest.raises(SchemaChanged, match="kept"):
        read(planned(kept, deleted, folder=tmp_path), after)


def test_rows_are_compared_in_a_column_that_the_version_drops(tmp_path: Path) -> None:
    before, after = [("a", LONG), ("gone", TEXT)], [("a", LONG)]
    changes = (
        (TaskKind.DELETE, before, pa.table({"a": [1], "gone": ["x"]})),
        (TaskKind.INSERT, after, pa.table({"a": [1]})),
    )
    plan = planned(after, *changes, folder=tmp_path)
    whole = TypedRows(pa.schema(after)).restate(plan).with_row_ids()
    assert [task.compared and task.compared.names[:2] for task in whole.tasks] == [["a", "gone"], None]
    again = type(whole).from_json(whole.to_json())
    assert [task.compared for task in again.tasks] == [task.compared for task in whole.tasks]
    chosen = TypedRows(pa.schema(after), chosen=True).restate(plan)
    assert [task.compared for task in chosen.tasks] == [None, None]
    # Written before row tracking existed.
    value = whole.tasks[1].to_dict()
    del value["compared"]
    assert type(whole.tasks[1]).from_dict(value).compared is None


def test_names_on_both_sides_of_a_removal_of_column_mapping(tmp_path: Path) -> None:
    """Names were exchanged before it: column a may be b now."""
    swapped, plain = [mapped("a", LONG, "b"), mapped("b", LONG, "a")], [("a", LONG), ("b", LONG)]
    file = pa.table({"a": [1], "b": [2]})
    old, new = (planned(each, (TaskKind.INSERT, each, file), folder=tmp_path) for each in (swapped, plain))
    with pytest.raises(ReadSchemaLeft, match="column mapping was removed"):
        TypedRows(pa.schema(plain)).restate(old)
    with pytest.raises(ReadSchemaLeft, match="column mapping was removed"):
        TypedRows(pa.schema(swapped), since=new.version - 1).restate(new)
    # Mapped later: columns keep their values under any name.
    kept = TypedRows(pa.schema(swapped), since=new.version).restate(new)
    assert [field.name for field in kept.tasks[0].schema] == ["a", "b"]
    chosen = EnvelopeView(pa.schema(swapped), ["a"], since=new.version - 1)
    with pytest.raises(ConfigError, match="column mapping was removed"):
        chosen.plan(new, None)
    later = replace(new, version=new.version + 1, tasks=())
    typed = TypedView(pa.schema(plain), [], since=later.version)
    assert typed.plan(later, pa.schema(swapped)).tasks == ()
    typed.plan(new, None)
    with pytest.raises(ReadSchemaLeft, match="removes column mapping"):
        typed.plan(later, pa.schema(swapped))


S = pa.struct([("x", INT)])


@cases(
    ("read_columns", "before", "after", "away"),
    [
        # No change, or an irrelevant one.
        ([("a", LONG)], [("a", LONG)], [("a", LONG)], []),
        ([("a", LONG)], None, [("a", LONG)], []),
        ([("a", LONG)], [("a", LONG)], [pa.field("a", LONG, nullable=False)], []),
        ([("a", LONG)], [("a", LONG)], [mapped("a", LONG)], []),
        # Towards the read schema, or no further away from it.
        ([("a", LONG), ("b", TEXT)], [("a", LONG)], [("a", LONG), ("b", TEXT)], []),
        ([("a", LONG)], [("a", pa.int16())], [("a", INT)], []),
        ([mapped("z", LONG, "p")], [mapped("x", LONG, "p")], [mapped("y", LONG, "p")], []),
        ([("a", LONG)], [("a", LONG), ("b", TEXT)], [("a", LONG)], []),
        ([("a", LONG)], [("a", LONG), ("b", INT)], [("a", LONG), ("b", LONG)], []),
        ([("a", LONG), ("b", TEXT)], [("a", LONG)], [("a", LONG)], []),
        # Away from the read schema.
        ([("a", LONG), ("b", TEXT)], [("a", LONG), ("b", TEXT)], [("b", TEXT)], ["column a was dropped"]),
        ([mapped("a", LONG, "p")], [mapped("a", LONG, "p")], [mapped("b", LONG, "p")], ["column a was renamed to b"]),
        ([("a", INT)], [("a", INT)], [("a", LONG)], ["column a was widened from int32 to int64"]),
        ([("a", INT)], [("a", INT)], [("a", TEXT)], ["column a changed its type from int32 to string"]),
        ([("a", INT)], [("a", INT)], [("a", S)], ["column a changed its type from int32 to struct<x: int32>"]),
        ([("a", LONG)], [("a", LONG)], [("a", LONG), ("b", INT)], ["column b int32 was added"]),
        ([("a", LONG)], None, [("a", LONG), ("b", INT)], ["column b int32 was added"]),
        ([("a", INT)], None, [("a", LONG)], ["column a was widened from int32 to int64"]),
        # On other levels.
        ([("a", S)], [("a", S)], [("a", pa.struct([("x", INT), ("y", INT)]))], ["column a.y int32 was added"]),
        (
            [("a", pa.list_(S))],
            [("a", pa.list_(S))],
            [("a", pa.list_(pa.struct([("x", LONG)])))],
            ["column a.element.x was widened from int32 to int64"],
        ),
        (
            [("a", pa.map_(INT, S))],
            [("a", pa.map_(INT, S))],
            [("a", pa.map_(LONG, pa.struct([("y", INT)])))],
            [
                "column a.key was widened from int32 to int64",
                "column a.value.x was dropped",
                "column a.value.y int32 was added",
            ],
        ),
        ([("a", pa.map_(LONG, S))], None, [("a", pa.map_(INT, S))], []),
    ],
)
def test_schema_changes_away_from_the_read_schema(read_columns: Any, before: Any, after: Any, away: list[str]) -> None:
    then = None if before is None else pa.schema(before)
    assert list(TypedRows(pa.schema(read_columns)).moves_away(then, pa.schema(after))) == away


def test_to_columns_that_were_chosen_others_are_nothing() -> None:
    rows = TypedRows(pa.schema([("a", S)]), chosen=True)
    before = pa.schema([("a", S), ("b", INT)])
    assert rows.moves_away(before, pa.schema([("a", S), ("c", INT)])) == ()
    wider = pa.struct([("x", INT), ("y", INT)])
    assert rows.moves_away(before, pa.schema([("a", wider), ("b", INT)])) == ("column a.y int32 was added",)


def test_the_columns_of_row_tracking_never_lead_away() -> None:
    plain = pa.schema([("a", LONG)])
    assert TypedRows(add_row_ids(plain)).moves_away(plain, plain) == ()


def test_the_envelope_of_every_type() -> None:
    batch = every_type()
    rows = pickle.loads(pickle.dumps(EnvelopeRows()))
    (found,) = rows.batches(batch)
    assert found.schema.equals(to_arrow_schema(ENVELOPE, timezone="UTC"), check_metadata=True)
    found.validate(full=True)
    for at, (row, values) in enumerate(zip(found.to_pylist(), flat_rows(batch.rows), strict=True), 10):
        assert json.loads(row.pop("value")) == {name: value for name, value in values.items() if name not in METADATA}
        moment = row.pop("_commit_timestamp")
        assert moment.timestamp() * 1_000_000 == MOMENT_MS * 1000 + 7
        assert row == {
            "_event_id": f"table/7/2/{at}/insert",
            "_change_type": "insert",
            "_commit_version": 7,
            "_table_id": "table",
            "_task": 2,
            "_row": at,
        }


def test_the_envelope_of_many_rows_comes_in_slices_of_a_batch() -> None:
    batch = change_batch(7, {"a": pa.array(range(20_000), LONG)}).slice(5, 19_000)
    found = list(EnvelopeRows().batches(batch))
    assert len(found) > 1
    table = pa.Table.from_batches(found)
    assert table["_row"].to_pylist() == list(range(5, 19_005))
    assert table["_event_id"][18_999].as_py() == "table/7/0/19004/insert"
    assert table["value"][18_999].as_py() == '{"a":19004}'
    assert list(EnvelopeRows().batches(batch.slice(0, 0))) == []


def test_both_images_of_an_update_have_their_own_ids() -> None:
    batch = change_batch(7, {"a": pa.array([1, 2], LONG)})
    types = pa.array(["update_preimage", "update_postimage"])
    rows = batch.rows.set_column(1, "_change_type", types)
    (found,) = EnvelopeRows().batches(replace(batch, rows=rows, row_index=pa.array([3, 3], LONG)))
    assert found["_event_id"].to_pylist() == ["table/7/0/3/update_preimage", "table/7/0/3/update_postimage"]


def test_a_schema_change_in_the_envelope() -> None:
    struct = pa.struct([("x", INT), ("é", pa.list_(pa.decimal128(5, 2)))])
    before, after = pa.schema([("a", LONG)]), pa.schema([("a", LONG), ("s", struct), ("n", pa.timestamp("us"))])
    changes = ("column é was added", 'column "n" was added')
    event = SchemaChange("table", 9, MOMENT_MS, output_schema(before), output_schema(after), changes)
    found = EnvelopeRows().change(event)
    assert found.schema.equals(to_arrow_schema(ENVELOPE, timezone="UTC"), check_metadata=True)
    (row,) = found.to_pylist()
    value = json.loads(row.pop("value"))
    assert isinstance(row.pop("_commit_timestamp"), datetime)
    assert row == {
        "_event_id": "table/9/schema_change",
        "_change_type": "schema_change",
        "_commit_version": 9,
        "_table_id": "table",
        "_task": None,
        "_row": None,
    }
    assert value["changes"] == list(changes)
    assert [column["name"] for column in value["columns"]] == ["a", "s", "n"]
    types = StructType.fromJson(
        {"fields": [{**column, "nullable": True, "metadata": {}} for column in value["columns"]]}
    )
    assert [field.simpleString() for field in types] == [
        "a:bigint",
        "s:struct<x:int,é:array<decimal(5,2)>>",
        "n:timestamp_ntz",
    ]


def test_text_that_is_none() -> None:
    """A string without JSON text stops the query, and the error names the column."""
    damaged = pa.array([b"\xff"]).view(TEXT)
    with pytest.raises(
        UnsupportedFeature, match=r"version 7 needs a JSON text: column s\.a holds .* not UTF-8"
    ) as caught:
        list(EnvelopeRows().batches(change_batch(7, {"s": pa.StructArray.from_arrays([damaged], ["a"])})))
    assert "option columns" in caught.value.hint


def test_an_encoding_that_is_not_there_or_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no encoding of rows is called 'yaml'") as caught:
        row_encoding("yaml")
    assert "Install lake-tailer" in caught.value.hint
    for target in ("tailer.nowhere:Json", "tailer.spark.source.envelope:Nothing"):
        entry = EntryPoint("broken", target, "tailer.encodings")
        entries = EntryPoints([entry])
        monkeypatch.setattr(tailer.spark.source.envelope, "entry_points", lambda entries=entries, **_: entries)
        with pytest.raises(ConfigError, match="'broken' cannot be loaded"):
            row_encoding("broken")

"""Layouts kept from file to file: the rows are those of each file read by itself, however much files are alike."""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import tailer.read.parquet.layout
from tailer.errors import DataCorrupt, UnsupportedFeature
from tailer.events import METADATA_FIELDS
from tailer.plan import ChangeTask, RowTracking, TaskKind, add_row_ids
from tailer.read.execute import execute
from tailer.read.projection import Projection
from tailer.schema.columns import FIELD_ID, PHYSICAL_NAME
from tailer.shape.parse.texts import parse_condition
from tests.support.tables.log_files import parquet, task

LONG, TEXT = pa.int64(), pa.string()
SPARK: Final = b"org.apache.spark.version"


def known_by(name: str, kind: pa.DataType, number: int, physical: str = "") -> pa.Field:
    """Make a column with a field id, as a file or, with a physical name, a table has it."""
    metadata = {FIELD_ID: str(number).encode()}
    return pa.field(name, kind, metadata=metadata | ({PHYSICAL_NAME: physical.encode()} if physical else {}))


def read(each: ChangeTask) -> list[dict[str, Any]]:
    """Return the rows of a task, without the metadata columns."""
    names = [field.name for field in METADATA_FIELDS]
    return [row for batch in execute(each) for row in batch.rows.drop_columns(names).to_pylist()]


def alone(each: ChangeTask) -> list[dict[str, Any]]:
    """Return the rows as a thread that has read nothing before returns them."""
    found: list[list[dict[str, Any]]] = []
    thread = threading.Thread(target=lambda: found.append(read(each)))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the columns for each layout that was worked out."""
    found: list[str] = []

    def noted(*given: Any) -> Projection:
        made = Projection(*given)
        found.append(",".join(made.columns))
        return made

    monkeypatch.setattr(tailer.read.parquet.layout, "Projection", noted)
    monkeypatch.setattr(tailer.read.parquet.layout, "_last", threading.local())
    return found


def file(
    tmp_path: Path, number: int, fields: pa.Schema | Sequence[pa.Field], *columns: list[Any], **options: Any
) -> Path:
    schema = fields if isinstance(fields, pa.Schema) else pa.schema(list(fields))
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return parquet(tmp_path / f"{number}.parquet", pa.Table.from_arrays(arrays, schema=schema), **options)


def test_files_of_one_schema_share_a_layout(tmp_path: Path, made: list[str]) -> None:
    schema = pa.schema([("a", LONG), ("b", TEXT)])
    tasks = [task(file(tmp_path, each, schema, [each], [str(each)]), schema) for each in range(20)]
    assert [read(each) for each in tasks] == [[{"a": number, "b": str(number)}] for number in range(20)]
    assert made == ["a,b"]


@pytest.mark.parametrize("text", [None, "a >= 0", "p <> 'p3' AND a >= 0"])
def test_files_of_other_partitions_share_a_layout(tmp_path: Path, made: list[str], text: str | None) -> None:
    """With the row ids of each file, and a condition that names the partition or not."""
    schema = pa.schema([("p", TEXT), ("a", LONG)])
    where = None if text is None else parse_condition(text, schema)
    tracked, tasks, expected = add_row_ids(schema), [], []
    for number in range(12):
        found = task(file(tmp_path, number, [pa.field("a", LONG)], [number, number + 1]), tracked)
        partition, tracking = f"p{number % 4}", RowTracking(number * 100, number)
        tasks.append(replace(found, partition_values=(("p", partition),), tracking=tracking, where=where))
        is_left = text is None or "p" not in text or partition != "p3"
        ids = (number * 100, number * 100 + 1) if is_left else ()
        expected.append([(partition, number + row_id % 100, row_id, number) for row_id in ids])
    assert [[tuple(row.values()) for row in read(each)] for each in tasks] == expected
    assert len(made) == (1 if text is None else 2)


def test_files_that_are_alike(tmp_path: Path, made: list[str]) -> None:
    """Names of groups, field ids and types without a leaf of their own are part of a schema."""
    moment, ids = pa.timestamp("us"), [1, 2]
    a, b = pa.field("a", LONG), pa.field("b", LONG)
    table = pa.schema(
        [("a", LONG), ("b", LONG), ("s", pa.struct([a])), ("t", pa.struct([a])), ("l", pa.list_(LONG)), ("m", moment)]
    )
    by_id = pa.schema([known_by("a", LONG, 1, "x"), known_by("b", LONG, 2, "y")])
    nested = pa.schema([pa.field("s", pa.struct([known_by("a", LONG, 1, "x"), known_by("b", LONG, 2, "y")]))])
    nested = pa.schema([nested.field(0).with_metadata({FIELD_ID: b"3", PHYSICAL_NAME: b"s"})])

    def inner(first: int, second: int) -> pa.Field:
        return known_by("s", pa.struct([known_by("x", LONG, first), known_by("y", LONG, second)]), 3)

    moments = [datetime(2026, 3, 1), None]  # noqa: DTZ001
    files: list[tuple[pa.Schema, Path]] = [
        (table, file(tmp_path, 0, [a, b], ids, ids)),
        (table, file(tmp_path, 1, [b, a], ids, [3, 4])),
        (table, file(tmp_path, 2, [pa.field("s", pa.struct([a]))], [{"a": 1}, None])),
        (table, file(tmp_path, 3, [pa.field("t", pa.struct([a]))], [{"a": 1}, None])),
        (table, file(tmp_path, 4, [pa.field("a", pa.int32()), b], ids, ids)),
        (table, file(tmp_path, 5, [pa.field("l", pa.list_(LONG))], [[1, 2, 3], []])),
        (table, file(tmp_path, 6, [pa.field("m", moment)], moments)),
        (table, file(tmp_path, 7, [pa.field("m", moment)], moments, use_deprecated_int96_timestamps=True)),
        (by_id, file(tmp_path, 8, [known_by("x", LONG, 1), known_by("y", LONG, 2)], ids, [3, 4])),
        (by_id, file(tmp_path, 9, [known_by("x", LONG, 2), known_by("y", LONG, 1)], ids, [3, 4])),
        (nested, file(tmp_path, 10, [inner(1, 2)], [{"x": 1, "y": 2}] * 2)),
        (nested, file(tmp_path, 11, [inner(2, 1)], [{"x": 1, "y": 2}] * 2)),
    ]
    tasks = [task(path, schema) for schema, path in files]
    expected = [alone(each) for each in tasks]
    assert expected[8] != expected[9]
    assert expected[10] != expected[11]
    chance = random.Random(7)
    for _ in range(200):
        number = chance.randrange(len(tasks))
        assert read(tasks[number]) == expected[number]
    before = len(made)
    for each in tasks[:2] * 3:
        read(each)
    assert len(made) >= before + 5


def test_tasks_that_are_alike(tmp_path: Path) -> None:
    """Nothing that a task says about its file is taken from the task before."""
    schema = pa.schema([("a", LONG), ("p", TEXT)])
    tracked, other = add_row_ids(schema), pa.schema([("p", TEXT), ("a", LONG)])
    path = file(tmp_path, 0, [pa.field("a", LONG)], [1, 2])
    changed = file(tmp_path, 1, [pa.field("a", LONG), pa.field("_change_type", TEXT)], [1, 2], ["insert", "delete"])
    first = task(path, schema)
    tasks = [
        first,
        replace(first, partition_values=(("p", "x"),)),
        replace(first, partition_values=(("p", None),)),
        replace(first, schema=tracked, tracking=RowTracking(100, 1)),
        replace(first, schema=tracked, tracking=RowTracking(200, 1)),
        replace(first, schema=other),
        replace(first, version=8, timestamp_ms=9),
        replace(first, kind=TaskKind.DELETE),
        task(changed, schema),
        task(changed, schema, TaskKind.CDC_DELETES),
        task(changed, schema, TaskKind.CDC_OTHERS),
    ]

    def all_columns(each: ChangeTask) -> list[dict[str, Any]]:
        return [row for batch in execute(each) for row in batch.rows.to_pylist()]

    expected = []
    for each in tasks:
        tailer.read.parquet.layout._last.__dict__.clear()
        expected.append(all_columns(each))
    chance = random.Random(7)
    for _ in range(200):
        number = chance.randrange(len(tasks))
        assert all_columns(tasks[number]) == expected[number]
    assert len({str(rows) for rows in expected}) > 7


def test_a_file_that_does_not_fit_stops_only_its_task(tmp_path: Path) -> None:
    schema = pa.schema([("a", LONG)])
    good, bad = file(tmp_path, 0, schema, [1]), file(tmp_path, 1, [pa.field("a", TEXT)], ["x"])
    for _ in range(3):
        assert read(task(good, schema)) == [{"a": 1}]
        with pytest.raises(DataCorrupt, match=r"1\.parquet.*column a is string"):
            read(task(bad, schema))


def test_the_calendar_of_each_file_counts(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32())])
    old, new = (schema.with_metadata({SPARK: version}) for version in (b"2.4.0", b"3.5.0"))
    paths = [file(tmp_path, number, kind, [date(1500, 1, 1)]) for number, kind in enumerate((new, old, new))]
    for path in paths:
        if path is paths[1]:
            with pytest.raises(UnsupportedFeature, match=r"1\.parquet"):
                read(task(path, schema))
        else:
            assert read(task(path, schema)) == [{"d": date(1500, 1, 1)}]

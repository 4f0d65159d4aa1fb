"""Rows of a file that fulfil a condition: the same ones from any resume point, in any parts, at any batch size."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tailer
from tailer.errors import ConfigError, DataCorrupt, ExpressionFailed
from tailer.events import CHANGE_TYPE, ChangeBatch
from tailer.formats import rows
from tailer.plan import ChangeTask, TaskKind
from tailer.read.execute import execute, row_groups
from tailer.shape.parse.texts import parse_condition, parse_select
from tests.support.tables.log_files import (
    add,
    marked,
    metadata,
    parquet,
    protocol,
    schema_string,
    task,
    write_commit,
)

COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.string())])
PRE, POST = "update_preimage", "update_postimage"

Found = list[tuple[int, str]]


@pytest.fixture(params=[1, 3, 8192], ids="batches of {}".format)
def any_batch_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailer.read.parquet.batch_sizes.MAX_ROWS", request.param)


def where(made: ChangeTask, text: str) -> ChangeTask:
    """Return the task with a condition over the columns of the file."""
    return replace(made, where=parse_condition(text, COLUMNS))


def found(batches: Iterable[ChangeBatch]) -> Found:
    """Return position and change type of every row."""
    return [
        pair
        for batch in batches
        for pair in zip(batch.row_index.to_pylist(), batch.rows.column(CHANGE_TYPE).to_pylist(), strict=True)
    ]


def data_file(path: Path, count: int, group_rows: int) -> Path:
    """Write a file whose column `a` counts from 0."""
    return parquet(path, pa.table({"a": range(count), "b": ["x"] * count}, COLUMNS), row_group_size=group_rows)


@pytest.mark.usefixtures("any_batch_size")
@pytest.mark.parametrize("columns", [["a", "b"], ["b"]])
@pytest.mark.parametrize("first", [0, 2**30])
def test_rows_of_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: list[str], first: int) -> None:
    """Also where columns of the condition are read first, and where these are not delivered."""
    monkeypatch.setattr("tailer.read.execute._FIRST_BYTES", first)
    path = data_file(tmp_path / "f", 20, 7)
    schema = pa.schema([COLUMNS.field(name) for name in columns])
    made = where(task(path, schema, TaskKind.INSERT), "a IN (2, 3, 18) OR a = 5")
    made = replace(made, exclude=marked([3]))
    batches = list(execute(made))
    assert found(batches) == [(row, "insert") for row in (2, 5, 18)]
    assert {tuple(batch.rows.schema.names[: len(columns)]) for batch in batches} == {tuple(columns)}
    assert found(execute(made, after_row=2, through_row=17)) == [(5, "insert")]


def test_groups_before_the_first_row_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second row group has a broken page of column b, which nothing asks for before a row is found."""
    monkeypatch.setattr("tailer.read.execute._FIRST_BYTES", 0)
    path = data_file(tmp_path / "f", 9, 3)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(1)
    content = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin : begin + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(content)
    made = task(path, COLUMNS, TaskKind.INSERT)
    # Statistics of the footer leave out no row group here.
    assert found(execute(where(made, "a % 10 = 8"))) == [(8, "insert")]
    for text in ("a % 10 = 4", "a % 10 = 1 OR a % 10 = 8"):
        with pytest.raises(DataCorrupt):
            found(execute(where(made, text)))


def test_a_deleted_row_cannot_make_a_condition_fail(tmp_path: Path) -> None:
    made = replace(task(data_file(tmp_path / "f", 4, 4), COLUMNS, TaskKind.INSERT), exclude=marked([0]))
    assert found(execute(where(made, "6 / a > 2"))) == [(1, "insert"), (2, "insert")]
    with pytest.raises(ExpressionFailed, match="6 / a > 2"):
        found(execute(where(replace(made, exclude=None), "6 / a > 2")))


def expected(kind: TaskKind, types: Sequence[str], fulfils: Sequence[bool]) -> Found:
    """Return the rows of a change file for a task, by the rules as a person would apply them."""
    rows: Found = []
    for row, (change, good) in enumerate(zip(types, fulfils, strict=True)):
        beside = row + 1 if change == PRE else row - 1
        other = {PRE: POST, POST: PRE}.get(change)
        paired = other is not None and 0 <= beside < len(types) and types[beside] == other and fulfils[beside]
        if other is not None and not paired:
            change = {PRE: "delete", POST: "insert"}[change]  # noqa: PLW2901
        if good and (change == "delete") is (kind is TaskKind.CDC_DELETES):
            rows.append((row, change))
    return rows


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("any_batch_size")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", [TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS])
def test_rows_of_a_change_file(tmp_path: Path, kind: TaskKind, seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 24)
    types: list[str] = []
    while len(types) < size:
        types += chance.choice([[PRE, POST], [PRE, POST], ["insert"], ["delete"], [PRE], [POST, PRE], ["strange"]])
    values = [chance.randint(0, 1) for _ in types]
    table = pa.table({"a": pa.array(values, pa.int64()), "b": ["x"] * len(types), CHANGE_TYPE: types})
    path = parquet(tmp_path / "f", table, row_group_size=chance.randint(1, 9))
    made = where(task(path, COLUMNS, kind), "a = 1")
    whole = found(execute(made))
    assert whole == expected(kind, types, [value == 1 for value in values])
    size_bytes, parts = path.stat().st_size, len(row_groups(made))
    made = replace(made, size_bytes=size_bytes)
    edges = [size_bytes * part // parts for part in range(parts + 1)]
    pieces = [
        found(execute(made, first_byte=a, end_byte=b)) for a, b in zip(edges, [*edges[1:-1], 2**62], strict=False)
    ]
    assert [row for piece in pieces for row in piece] == whole
    for row, _ in whole:
        assert found(execute(made, after_row=row)) == [each for each in whole if each[0] > row]


def test_a_change_type_that_is_null_stops(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1, 1], pa.int64()), "b": ["x", "y"], CHANGE_TYPE: [PRE, None]})
    made = where(task(parquet(tmp_path / "f", table), COLUMNS, TaskKind.CDC_OTHERS), "a = 1")
    with pytest.raises(DataCorrupt, match="is null in some row"):
        found(execute(made))


def test_a_task_with_a_condition_survives_json(tmp_path: Path) -> None:
    made = where(task(data_file(tmp_path / "f", 4, 4), COLUMNS, TaskKind.INSERT), "a > 1 AND b = 'x'")
    again = ChangeTask.from_dict(made.to_dict())
    assert again == made
    assert found(execute(again)) == found(execute(made)) == [(2, "insert"), (3, "insert")]


@pytest.mark.parametrize(
    ("option", "text", "stops"),
    [
        ("where", "CAST(m AS STRING) = '1.50'", True),
        ("where", "f > 0 AND f * 3 > 0.3D", True),
        ("where", "m = 1.5 AND f > 0.05D OR f IS NULL OR NOT f IN (1, 2)", False),
        ("where", "CAST(i AS STRING) = '1' AND i + 1 > 0", False),
        ("select", "CAST(m AS STRING) AS text, i", True),
        ("select", "f, i + 1 AS next", False),
    ],
)
def test_a_version_that_widens_a_column_may_change_what_an_expression_says(
    tmp_path: Path, option: str, text: str, stops: bool
) -> None:
    """The text of 1.5 is another one with four digits. Rows that stay are not read, so no change could report them."""
    kinds = {"f": pa.float32(), "i": pa.int32(), "m": pa.decimal128(5, 2)}
    rows = pa.table([[0.1], [1], [Decimal("1.5")]], pa.schema(kinds))
    added = add("f", size=parquet(tmp_path / "f", rows).stat().st_size)
    write_commit(
        tmp_path,
        0,
        protocol(3, ["typeWidening"]),
        metadata(schema_string(f="float", i="integer", m="decimal(5,2)")),
        added,
    )
    write_commit(tmp_path, 1, metadata(schema_string(f="double", i="long", m="decimal(9,4)")))
    options: dict[str, Any] = {option: text}
    (delivered,) = tailer.changes(tmp_path, end=0, **options)
    assert delivered.num_rows == 1
    if stops:
        with pytest.raises(ConfigError, match=r"version 1 of .* widens the column \w, so this has another") as caught:
            list(tailer.changes(tmp_path, start=1, **options))
        assert caught.value.where == option
    else:
        assert list(tailer.changes(tmp_path, start=1, **options)) == []


@pytest.mark.parametrize("text", ["TRUE", "1 = 1", "NULL IS NULL", "hmac_sha256('a', 'env:A_SECRET') <> 'x'", "1 = 2"])
def test_a_condition_without_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("A_SECRET", "of some length, to be safe, and more")
    table = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": ["x"] * 3, CHANGE_TYPE: ["delete", PRE, POST]})
    changed = parquet(tmp_path / "c", table)
    plain, every = data_file(tmp_path / "f", 3, 2), text != "1 = 2"
    inserted = found(execute(where(task(plain, COLUMNS, TaskKind.INSERT), text)))
    assert inserted == [(row, "insert") for row in range(3 * every)]
    assert found(execute(where(task(changed, COLUMNS, TaskKind.CDC_OTHERS), text))) == [(1, PRE), (2, POST)] * every
    assert found(execute(where(task(changed, COLUMNS, TaskKind.CDC_DELETES), text))) == [(0, "delete")] * every


def test_an_expression_that_fails_names_file_and_version(tmp_path: Path) -> None:
    path = data_file(tmp_path / "f", 3, 2)
    made, select = task(path, COLUMNS, TaskKind.INSERT), parse_select("1 / a AS x", COLUMNS)
    for bad in (where(made, "1 / a > 0"), replace(made, select=select, schema=select.schema)):
        with pytest.raises(ExpressionFailed, match=f"fails for a row of {path}, version {made.version} of .*by zero"):
            found(rows.execute(bad))


def test_a_select_of_constants(tmp_path: Path) -> None:
    select = parse_select("'O''Brien' AS name, 1 + 1 AS two", COLUMNS)
    made = task(data_file(tmp_path / "f", 3, 2), COLUMNS, TaskKind.INSERT)
    batches = list(rows.execute(replace(made, select=select, schema=select.schema)))
    expected = [{"name": "O'Brien", "two": 2}] * 3
    assert [row for batch in batches for row in batch.rows.select(["name", "two"]).to_pylist()] == expected

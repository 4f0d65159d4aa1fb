"""Filters: the rows that pass, the names a predicate may use, and the refusal of anything but a predicate."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import ConfigError
from tailer.events import METADATA_FIELDS, ChangeBatch
from tailer.spark.source.filters import RowFilter, _connection

NO_ROWS_OF_ITS_OWN = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(columns: dict[str, pa.Array], types: list[str] | None = None, version: int = 7) -> ChangeBatch:
    """Make change rows with these columns, at every other physical row."""
    count = len(next(iter(columns.values())))
    when = pa.array([datetime(2026, 3, 1, tzinfo=UTC)] * count, METADATA_FIELDS[2].type)
    arrays = [*columns.values(), pa.array(types or ["insert"] * count, pa.string())]
    arrays += [pa.array([version] * count, pa.int64()), when]
    rows = pa.RecordBatch.from_arrays(arrays, [*columns, *(field.name for field in METADATA_FIELDS)])
    return ChangeBatch("table-id", version, 3, rows, pa.array(range(0, 2 * count, 2), pa.int64()))


def kept(text: str, **columns: pa.Array) -> list[int]:
    """Return the numbers of the rows that pass."""
    return [row // 2 for row in RowFilter(text).apply(batch(columns)).row_index.to_pylist()]


def refusal(text: str, schema: pa.Schema = NO_ROWS_OF_ITS_OWN) -> ConfigError:
    """Return the error for the predicate on a table."""
    with pytest.raises(ConfigError) as caught:
        RowFilter(text).check(schema)
    assert caught.value.where == "filter"
    return caught.value


Row = tuple[int | None, str | None, str]
PREDICATES: dict[str, Callable[[Row], bool | None]] = {
    "number > 2": lambda row: None if row[0] is None else row[0] > 2,
    "number IN (1, 3)": lambda row: None if row[0] is None else row[0] in (1, 3),
    "number IS NULL": lambda row: row[0] is None,
    "NOT (number = 1)": lambda row: None if row[0] is None else row[0] != 1,
    "text = 'a'": lambda row: None if row[1] is None else row[1] == "a",
    "text LIKE 'a%'": lambda row: None if row[1] is None else row[1].startswith("a"),
    "_change_type <> 'delete'": lambda row: row[2] != "delete",
    "number IS NOT NULL AND text = 'b'": lambda row: row[0] is not None and row[1] == "b",
    "number = 1 OR _change_type = 'delete'": lambda row: row[0] == 1 or row[2] == "delete",
    "coalesce(number, -1) < 0": lambda row: (-1 if row[0] is None else row[0]) < 0,
    "true": lambda _: True,
    "false": lambda _: False,
}
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-3, 5), st.none() | st.text("ab", max_size=2), st.sampled_from(["insert", "delete"])
    ),
    min_size=1,
    max_size=60,
)


@given(rows=ROWS, text=st.sampled_from(sorted(PREDICATES)), chunk=st.integers(1, 60))
def test_the_rows_that_pass_are_those_of_which_it_is_true(rows: list[Row], text: str, chunk: int) -> None:
    numbers, texts, types = (list(column) for column in zip(*rows, strict=True))
    whole = batch({"number": pa.array(numbers, pa.int32()), "text": pa.array(texts, pa.string())}, types)
    expected = [index for index, row in enumerate(rows) if PREDICATES[text](row)]
    found = [
        RowFilter(text).apply(whole.slice(start, min(chunk, len(rows) - start))) for start in range(0, len(rows), chunk)
    ]
    assert [row for part in found for row in part.row_index.to_pylist()] == [2 * index for index in expected]
    passed = pa.Table.from_batches([part.rows for part in found])
    assert passed.equals(pa.Table.from_batches([whole.rows]).take(pa.array(expected, pa.int64())))


def test_a_filter_keeps_ids_and_row_positions() -> None:
    whole = batch({"id": pa.array([1, 2, 3])})
    found = RowFilter("id <> 2").apply(whole)
    assert (found.table_id, found.version, found.task) == ("table-id", 7, 3)
    assert (found.rows["id"].to_pylist(), found.row_index.to_pylist()) == ([1, 3], [0, 4])
    assert RowFilter("id > 0").apply(whole) is whole
    assert len(RowFilter("id > 3").apply(whole)) == 0
    assert len(RowFilter("id > 0").apply(whole.slice(1, 0))) == 0


def test_many_rows_keep_their_order() -> None:
    numbers = pa.array(range(300_000))
    assert kept("id % 7 = 0", id=numbers) == list(range(0, 300_000, 7))


NESTED: dict[str, tuple[pa.Array, str]] = {
    "list": (pa.array([[1, 2], None, [], [3]], pa.list_(pa.int64())), "len(v) > 0 AND v[1] = 3"),
    "struct": (pa.array([{"x": 1}, None, {"x": None}, {"x": 3}], pa.struct([("x", pa.int32())])), "v.x = 3"),
    "map": (pa.array([[("a", 1)], None, [], [("a", 3)]], pa.map_(pa.string(), pa.int32())), "v['a'] = 3"),
    "long": (pa.array([1, None, 2, 3], pa.int64()), "v = 3"),
    "byte": (pa.array([1, None, 2, 3], pa.int8()), "v = 3"),
    "float": (pa.array([1, None, float("nan"), 3], pa.float32()), "v = 3"),
    "double": (pa.array([1, None, float("inf"), 3], pa.float64()), "v < 4 AND v > 2"),
    "boolean": (pa.array([False, None, False, True]), "v"),
    "binary": (pa.array([b"\0", None, b"", b"\xff"], pa.binary()), r"v = '\xFF'::BLOB"),
    "date": (pa.array([date(2026, 3, day) for day in (1, 2, 2, 3)]), "v > DATE '2026-03-02'"),
    "timestamp": (
        pa.array([datetime(2026, 3, day, tzinfo=UTC) for day in (1, 2, 2, 3)], pa.timestamp("us", tz="UTC")),
        "v = '2026-03-03'",
    ),
    "timestamp_ntz": (
        pa.array([datetime(2026, 3, day) for day in (1, 2, 2, 3)], pa.timestamp("us")),  # noqa: DTZ001
        "day(v) = 3",
    ),
    "decimal": (pa.array([Decimal("1.5"), None, Decimal(0), Decimal("3.5")], pa.decimal128(38, 18)), "v = 3.5"),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("offset", [0, 2])
def test_columns_of_every_type_can_be_asked_about(kind: str, offset: int) -> None:
    values, text = NESTED[kind]
    found = RowFilter(text).apply(batch({"v": values}).slice(offset, 4 - offset))
    assert found.row_index.to_pylist() == [6]


def test_a_column_without_a_type_is_null() -> None:
    assert kept("v IS NULL AND id = 1", v=pa.nulls(2), id=pa.array([0, 1])) == [1]


def test_columns_of_types_that_duckdb_has_not_may_be_there_but_not_be_named() -> None:
    odd = pa.array([None, None], pa.decimal128(5, -2))
    assert kept("id = 1", odd=odd, id=pa.array([0, 1])) == [1]
    assert "odd > 1" in refusal("odd > 1", pa.schema([("odd", odd.type)])).reason


@pytest.mark.parametrize("text", ["ID > 1", "`Id` > 1", '"iD" > 1', "id > 1 -- a note", "id /* a note */ > 1"])
def test_names_are_found_without_regard_to_case_in_both_quotes(text: str) -> None:
    assert kept(text, id=pa.array([1, 2])) == [1]
    assert RowFilter(text).columns(["name", "Id"]) == ("Id",)


def test_columns_with_names_of_other_things_are_columns() -> None:
    """Likewise the names of functions, of the user, and of internal aliases."""
    for name in ("current_date", "user", "rows", "rows_", "a b", "select", "random"):
        assert kept(f"`{name}` = 2", **{name: pa.array([1, 2])}) == [1]
        assert kept(f"`{name}`.id = 2", **{name: pa.array([{"id": 1}, {"id": 2}]), "id": pa.array([2, 1])}) == [1]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a > 1", ("a",)),
        ("true", ()),
        ("_change_type = 'b'", ()),
        ("s.a > b", ("b", "s")),
        ("len(list_filter(l, lambda x: x > a)) > 0", ("a", "l")),
        ("len([a for a in l if a > 1]) > 0", ("a", "l")),
        ("(a -> '$.b') = 'c'", ("a",)),
        ("CASE WHEN a > 1 THEN b END", ("a", "b")),
        ("a BETWEEN b AND cast(l[1] AS INT)", ("a", "b", "l")),
        ("split_part(b, ',', 1) = 'x' AND if(a = 1, true, false)", ("a", "b")),
    ],
)
def test_the_columns_it_names(text: str, named: tuple[str, ...]) -> None:
    assert RowFilter(text).columns(["a", "b", "c", "l", "s"]) == named


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not one condition"),
        ("id >", "is not one condition"),
        ("id > 1;", "is not one condition"),
        ("id > 1; DROP TABLE t", "is not one condition"),
        ("id > 1, name", "is not one condition"),
        ("id > 1) OR (id < 1", "is not one condition"),
        ("id > 1 AS x", "is not one condition"),
        ("id > 1 /*", "is not one condition"),
        ("id > 1 FROM t", "is not one condition"),
        ("id > 1 WHERE true", "is not one condition"),
        ("id > 1 LIMIT 1", "is not one condition"),
        ("id > 1 UNION SELECT true", "is not one condition"),
        ("DISTINCT id > 1", "is not one condition"),
        ("id > 1 USING SAMPLE 1", "is not one condition"),
        ("(" * 2000 + "true" + ")" * 2000, "is not one condition"),
        ("(SELECT true)", "a query is not allowed"),
        ("EXISTS (FROM '/etc/passwd')", "a query is not allowed"),
        ("id IN (SELECT 1)", "a query is not allowed"),
        ("row_number() OVER () = 1", "a window function is not allowed"),
        ("COLUMNS(*) > 1", "a star is not allowed"),
        ("id > ?", "a parameter is not allowed"),
        ("id > $x", "a parameter is not allowed"),
        ("#1 > 1", "a column's number is not allowed"),
        ("DEFAULT", "value_default is not allowed"),
        ("count(*) > 1", "count is a function of several rows"),
        ("sum(id) > 1", "sum is a function of several rows"),
        ("geomean(id) > 1", "avg is a function of several rows"),
        ("unnest([id]) > 1", "there is no function unnest of a row"),
        ("read_text('/etc/passwd') IS NULL", "there is no function read_text of a row"),
        ("getenv('HOME') = 'x'", "there is no function getenv of a row"),
        ("nonsense(id)", "there is no function nonsense of a row"),
        ("random() < 0.5", "random depends on more than its arguments"),
        ("main.random() < 0.5", "random depends on more than its arguments"),
        ('"uuid"() IS NULL', "uuid depends on more than its arguments"),
        ("now() > '2026-03-01'", "now depends on more than its arguments"),
        ("version() = 'x'", "version depends on more than its arguments"),
        ("current_setting('TimeZone') = 'x'", "current_setting depends on more than its arguments"),
        ("getvariable('x') IS NULL", "getvariable depends on more than its arguments"),
        ("age('2026-03-01'::TIMESTAMP) > INTERVAL 1 DAY", "age with one argument depends on the clock"),
        ("list_aggregate([id], 'reservoir_quantile', 0.5) > 1", "reservoir_quantile depends on chance"),
        ("ago(INTERVAL 1 DAY) > '2026-03-01'", "current_timestamp depends on more than the row"),
        ("current_date > '2026-03-01'", "current_date depends on more than the row"),
        ("current_user = 'me'", "current_user depends on more than the row"),
        ("len(list_filter([id], lambda localtime: localtime > '1')) > 0", "localtime depends on more than the row"),
        ("'now'::TIMESTAMP > '2026-03-01' AND id > 0 AND name", "cannot be computed"),
        ("id", "'id' is BIGINT, not true or false"),
        ("NULL", "not true or false"),
        ("id = 'x'::NOSUCHTYPE", "cannot be computed"),
        ("name > 1", "cannot be computed"),
        ("amount > 1", "no column 'amount'"),
        ("len(list_filter([1], lambda x: x > y)) > 0", "no column 'y'"),
    ],
)
def test_other_sql_than_predicates_is_refused(text: str, reason: str) -> None:
    error = refusal(text)
    assert reason in error.reason
    assert error.remedy


def test_a_near_miss_gets_a_suggestion() -> None:
    assert refusal("nmae = 'x'").remedy.endswith("Did you mean 'name'?")
    assert refusal("_chnge_type = 'x'").remedy.endswith("Did you mean '_change_type'?")
    assert refusal('name = "delete"').remedy.endswith("Put text in single quotes.")


def test_one_name_for_two_columns_is_refused() -> None:
    assert (
        "several columns may be 'id'" in refusal("id > 1", pa.schema([("id", pa.int64()), ("ID", pa.int64())])).reason
    )


def test_metadata_columns_need_not_be_in_the_schema() -> None:
    filter_ = RowFilter("_commit_version > 3 AND _commit_timestamp > '2026-01-01' AND _change_type = 'insert'")
    filter_.check(NO_ROWS_OF_ITS_OWN)
    filter_.check(pa.schema([*NO_ROWS_OF_ITS_OWN, *METADATA_FIELDS]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CAST(name AS INT) > 1", "Could not convert string 'many'"),
        ("id * 9223372036854775807 > 1", "Overflow"),
    ],
)
def test_a_row_for_which_it_cannot_be_computed_stops(text: str, reason: str) -> None:
    rows = batch({"id": pa.array([1, 2]), "name": pa.array(["1", "many"])}, version=42)
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            RowFilter(text).apply(rows)
        assert f"{text!r} cannot be computed at version 42: " in caught.value.reason
        assert reason in caught.value.reason
    assert len(RowFilter(text).apply(rows.slice(0, 1))) == (0 if "CAST" in text else 1)


def test_rows_that_lack_a_column_stop_unless_the_table_has_it() -> None:
    rows = batch({"id": pa.array([1, 2])}, version=42)
    filter_ = RowFilter("id = 1 AND added IS NULL")
    with pytest.raises(ConfigError, match="no column 'added' at version 42"):
        filter_.apply(rows)
    found = filter_.apply(rows, pa.schema([("Added", pa.list_(pa.int8())), ("id", pa.int64()), ("c", pa.int8())]))
    assert found.rows.equals(rows.rows.slice(0, 1))


def test_a_filter_is_asked_of_tables_with_other_columns_in_turn() -> None:
    filter_ = RowFilter("v > 1")
    for _ in range(2):
        assert len(filter_.apply(batch({"v": pa.array([1, 2, 3])}))) == 2
        assert len(filter_.apply(batch({"a": pa.array(["x"] * 2), "v": pa.array([0.5, 1.5])}))) == 1


def test_text_becomes_a_time_in_utc_wherever_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    assert kept(
        "t = '2026-03-01 12:00:00' AND name = 'elsewhere' AND hour(t) = 12 AND t::TEXT = '2026-03-01 12:00:00+00'",
        t=pa.array([datetime(2026, 3, 1, 12, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
        name=pa.array(["elsewhere"]),
    ) == [0]


def test_variables_of_the_program_are_no_tables() -> None:
    table = pa.table({"id": [1]})
    assert table.num_rows == 1
    assert "no column 'table'" in refusal('"table".id = 1').reason


def test_files_cannot_be_reached_by_a_type_or_a_cast(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for text in (f"'{tmp_path}/secret'::BLOB = 'secret'::BLOB", f"name = '{tmp_path}/secret'"):
        assert kept(text, name=pa.array(["x"])) == []


def test_it_can_be_pickled_and_compared() -> None:
    filter_ = RowFilter("id > 1")
    filter_.apply(batch({"id": pa.array([1])}))
    copy: RowFilter = pickle.loads(pickle.dumps(filter_))
    assert (copy, hash(copy)) == (filter_, hash(filter_))
    assert copy != RowFilter("id > 2")
    assert len(copy.apply(batch({"id": pa.array([1, 2])}))) == 1


def test_several_threads_may_use_it_at_once() -> None:
    filter_ = RowFilter("id % 3 = 0")

    def ask(first: int) -> Any:
        return filter_.apply(batch({"id": pa.array(range(first, first + 5000))})).rows["id"].to_pylist()

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, range(40)))
    assert answers == [[value for value in range(first, first + 5000) if value % 3 == 0] for first in range(40)]


def test_slow_answers_show_no_progress_on_standard_output() -> None:
    assert _connection().execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]

"""Dates and timestamps in the Julian calendar stop the task with a named error, at any place in a row."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import UnsupportedFeature
from tailer.plan import TaskKind
from tailer.read.execute import execute
from tests.support.tables.log_files import parquet, task

VERSION: Final = "org.apache.spark.version"
LEGACY: Final = "org.apache.spark.legacyDateTime"
LEGACY_INT96: Final = "org.apache.spark.legacyINT96"
ZONED, NO_ZONE = pa.timestamp("us", tz="UTC"), pa.timestamp("us")

LAST_OLD_DAY, FIRST_DAY = date(1582, 10, 14), date(1582, 10, 15)
FIRST_MOMENT = datetime(1900, 1, 1, tzinfo=UTC)
LAST_OLD_MOMENT = datetime(1899, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def rows(path: Path, values: pa.Array, said: dict[str, str], kind: pa.DataType | None = None, **options: Any) -> Any:
    """Return the rows of a file with these values and the metadata `said`."""
    table = pa.table({"x": range(len(values)), "a": values}).replace_schema_metadata(said)
    file = parquet(path / "f", table, **options)
    batches = [batch.rows for batch in execute(task(file, pa.schema([("a", kind or values.type)])))]
    return pa.Table.from_batches(batches).column(0).to_pylist()


@pytest.mark.parametrize(
    ("said", "old"),
    [
        ({}, False),
        ({VERSION: ""}, False),
        ({VERSION: "4.2.0"}, False),
        ({VERSION: "3.0.0"}, False),
        ({VERSION: "10.0.0"}, False),
        ({VERSION: "3.5.1", LEGACY_INT96: ""}, False),
        ({VERSION: "2.4.8"}, True),
        ({VERSION: "3.5.1", LEGACY: ""}, True),
        ({LEGACY: ""}, True),
    ],
)
def test_which_files_have_old_days(tmp_path: Path, said: dict[str, str], old: bool) -> None:
    for values in (pa.array([FIRST_DAY, LAST_OLD_DAY, None]), pa.array([FIRST_MOMENT, LAST_OLD_MOMENT], ZONED)):
        if not old:
            assert rows(tmp_path, values, said) == values.to_pylist()
            continue
        with pytest.raises(UnsupportedFeature, match="Julian calendar") as caught:
            rows(tmp_path, values, said)
        assert (caught.value.table, caught.value.version) == ("t", 3)
        assert str(tmp_path / "f") in str(caught.value)
    # Later dates, and timestamps without a zone, are the same in both calendars.
    without_zone = pa.array([LAST_OLD_DAY]).cast(NO_ZONE)
    for values in (pa.array([FIRST_DAY, None]), pa.array([FIRST_MOMENT], ZONED), without_zone):
        assert rows(tmp_path, values, said) == values.to_pylist()


@pytest.mark.parametrize(
    ("said", "old"),
    [
        ({VERSION: "3.0.3"}, True),
        ({VERSION: "2.4.8"}, True),
        ({VERSION: "3.1.0", LEGACY_INT96: ""}, True),
        ({VERSION: "3.1.0"}, False),
        ({VERSION: "3.1.0", LEGACY: ""}, False),
        ({}, False),
    ],
)
def test_timestamps_of_96_bits(tmp_path: Path, said: dict[str, str], old: bool) -> None:
    options = {"use_deprecated_int96_timestamps": True}
    values = pa.array([FIRST_MOMENT, None], ZONED)
    assert rows(tmp_path, values, said, **options) == values.to_pylist()
    values = pa.array([FIRST_MOMENT, LAST_OLD_MOMENT], ZONED)
    if old:
        with pytest.raises(UnsupportedFeature, match="before 1900-01-01"):
            rows(tmp_path, values, said, **options)
    else:
        assert rows(tmp_path, values, said, **options) == values.to_pylist()


DAY, MOMENT = pa.date32(), pa.timestamp("ms", tz="UTC")
DEEP = pa.list_(pa.struct([("n", pa.int64()), ("m", pa.map_(pa.string(), pa.struct([("x", pa.int64()), ("d", DAY)])))]))
NESTED: Final[dict[str, tuple[pa.DataType, Any]]] = {
    "field": (pa.struct([("x", pa.int64()), ("d", DAY)]), lambda day: {"d": day}),
    "element": (pa.list_(DAY), lambda day: [FIRST_DAY, day]),
    "key": (pa.map_(DAY, pa.string()), lambda day: [(day, "x")]),
    "value": (pa.map_(pa.string(), DAY), lambda day: [("x", day), ("y", None)]),
    "moment": (pa.list_(MOMENT), lambda day: [datetime(day.year + 400, 1, 1, tzinfo=UTC)]),
    "deep": (DEEP, lambda day: [None, {"m": [("k", {"d": day}), ("l", None)]}]),
}


@pytest.mark.parametrize("place", NESTED)
def test_days_on_every_level(tmp_path: Path, place: str) -> None:
    kind, nest = NESTED[place]
    safe = pa.array([None, nest(FIRST_DAY)], kind)
    assert len(rows(tmp_path, safe, {VERSION: "2.4.0"})) == 2
    old = pa.array([None, nest(FIRST_DAY), nest(date(1400, 1, 1))], kind)
    assert len(rows(tmp_path, old, {VERSION: "3.4.0"})) == 3
    with pytest.raises(UnsupportedFeature, match="column a of"):
        rows(tmp_path, old, {VERSION: "2.4.0"})


def test_a_day_that_became_a_timestamp(tmp_path: Path) -> None:
    """The date is in the Julian calendar, although the table has widened the column."""
    with pytest.raises(UnsupportedFeature):
        rows(tmp_path, pa.array([LAST_OLD_DAY]), {VERSION: "2.4.0"}, NO_ZONE)
    assert len(rows(tmp_path, pa.array([FIRST_DAY]), {VERSION: "2.4.0"}, NO_ZONE)) == 1


@pytest.mark.parametrize("kind", [DAY, pa.int64()])
def test_a_struct_beside_a_column_called_like_its_field(tmp_path: Path, kind: pa.DataType) -> None:
    """Reading the column also reads the field, which was not requested."""
    days = pa.array([{"b": LAST_OLD_DAY, "c": LAST_OLD_DAY}, {"b": FIRST_DAY, "c": FIRST_DAY}])
    wanted = pa.array([-141_427, 0], pa.int32()).cast(kind) if kind == DAY else pa.array([1, 2])
    table = pa.table({"a": days, "a.b": wanted}).replace_schema_metadata({VERSION: "2.4.0"})
    path = parquet(tmp_path / "f", table)
    (batch,) = execute(task(path, pa.schema([("a.b", kind)])))
    assert batch.rows.column(0).to_pylist() == wanted.to_pylist()
    for name in ("a", "A"):
        with pytest.raises(UnsupportedFeature, match="column a of"):
            list(execute(task(path, pa.schema([("a.b", kind), (name, days.type)]))))
    nothing = task(path, pa.schema([("new", kind)]))
    assert [len(batch) for batch in execute(nothing)] == [2]


def test_only_columns_that_are_asked_for_and_rows_that_are_read(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "d": [LAST_OLD_DAY, FIRST_DAY]}).replace_schema_metadata({VERSION: "2.4.0"})
    path = parquet(tmp_path / "f", table, row_group_size=1)
    assert sum(len(batch) for batch in execute(task(path, pa.schema([("a", pa.int64())])))) == 2
    job = task(path, pa.schema([("d", DAY)]), TaskKind.DELETE)
    assert [len(batch) for batch in execute(job, after_row=0)] == [1]
    with pytest.raises(UnsupportedFeature):
        list(execute(job))

"""`tailer.spark.changes`: the rows that Spark's own reader gives are those of `execute`, and of Delta's feed.

Each test also says which files Spark's reader has: `Native.check` returns how many, and the log says why others go
through `execute`.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import anyio
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.errors import ConfigError, TailerError
from tailer.spark.native import comparing
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, read
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.spark.queries import read_batch
from tests.support.spark.table import Table, write_all_types
from tests.support.tables.log_files import (
    add,
    commit_info,
    inline_vector,
    metadata,
    parquet,
    protocol,
    remove,
    schema_string,
    write_commit,
)

HISTORY: Final = sorted(HISTORIES.glob("*.tar.xz"))
# Variants always go through `execute` (`test_spark_variants`), and PySpark cannot hand them over as Arrow's.
CASES: Final = [path for path in sorted(CASES_DATA.glob("*.tar.xz")) if not re.search("variant|shred", path.name)]
SAID: Final = re.compile(r"Spark's own reader has (\d+) files(?:, execute the rest: (.*))?")


@dataclass
class Native:
    """Reads tables with `tailer.spark.changes`, and compares."""

    spark: SparkSession
    log: pytest.LogCaptureFixture
    why: str = ""

    def rows(self, path: Path, **options: Any) -> DataFrame:
        """Return the changes from version 0 on."""
        return tailer.spark.changes(self.spark, path, **options)

    def check(self, path: Path, first: int = 0, last: int | None = None, **options: Any) -> int:
        """Compare with the data source, which `execute` serves; return how many files Spark's reader has."""
        until = {} if last is None else {"endingVersion": last}
        texts = {name: ",".join(value) if isinstance(value, list) else value for name, value in options.items()}
        expected = read_batch(path=path, startingVersion=first, **until, **texts)
        self.log.clear()
        end = "latest" if last is None else last
        found = self.rows(path, start=first, end=end, **options).toArrow()
        assert found.schema.equals(expected.schema)
        found.validate(full=True)
        assert_same(rows_of(found), rows_of(expected), f"{path} from {first} to {last} {options}")
        said = SAID.search(self.log.text)
        assert said is not None
        self.why = said[2] or ""
        return int(said[1])


@pytest.fixture
def native(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> Native:
    caplog.set_level(logging.INFO, "tailer.spark.native.changes")
    return Native(spark, caplog)


@contextmanager
def settings(spark: SparkSession, **values: Any) -> Iterator[None]:
    """Set settings of `spark.sql`, with `_` for dots, and set them back."""
    before = {f"spark.sql.{name.replace('_', '.')}": value for name, value in values.items()}
    kept = {name: spark.conf.get(name, None) for name in before}
    for name, value in before.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in kept.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def delta_feed(spark: SparkSession, path: Path) -> DataFrame:
    """Read Delta's own change feed."""
    return spark.read.format("delta").options(readChangeFeed="true", startingVersion=0).load(str(path))


def by_hand(path: Path, *files: pa.Table, columns: dict[str, Any] | None = None, **options: Any) -> list[Path]:
    """Write a table by hand: a version for each file."""
    schema = schema_string(**(columns or {"a": "long", "b": "string"}))
    write_commit(path, 0, commit_info(operation="WRITE"), protocol(3, ["deletionVectors"]), metadata(schema))
    found = [parquet(path / f"{at}.parquet", file, **options) for at, file in enumerate(files)]
    for at, file in enumerate(found):
        write_commit(path, at + 1, commit_info(operation="WRITE"), add(file.name, size=file.stat().st_size))
    return found


ROWS: Final = pa.table({"a": pa.array(range(1000), pa.int64()), "b": [f"row {n}" for n in range(1000)]})


def test_a_feed_is_read_by_sparks_own_reader(native: Native, tmp_path: Path) -> None:
    """Partitions, updates, deletes and inserts, and odd characters in folders; a file that two versions share."""
    table = Table(native.spark, tmp_path / "b 50%+é#c[d]{e}")
    texts = "element_at(array('a/b', 'x:y', '50%', 'é', NULL, 'q?#&=+'), CAST(id % 6 AS INT) + 1)"
    made = f"SELECT id, {texts} AS p, timestamp_micros(1700000000123456 + id) AS at, named_struct('x y', id) AS s"
    columns = "id BIGINT, p STRING, at TIMESTAMP, s STRUCT<`x y`: BIGINT>"
    mapped = "'delta.columnMapping.mode' = 'name'"
    table.create(columns, f"{made} FROM range(24)", vectors=True, partition="p", properties=mapped)
    table.sql("UPDATE {t} SET at = at + INTERVAL 1 HOUR WHERE id % 5 = 0")
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.sql("DELETE FROM {t} WHERE p = 'x:y'")
    files = native.check(table.path)
    assert (files > 12, native.why) == (True, "")
    found = native.rows(table.path)
    assert_same(rows_of(found.toArrow()), rows_of(delta_feed(native.spark, table.path).toArrow()), "feed")


@pytest.fixture
def partitioned(native: Native, tmp_path: Path) -> Path:
    """A table with partition values of many types, of which some are null; an update, and a deletion vector."""
    table = Table(native.spark, tmp_path / "t é%")
    columns = "id BIGINT, p STRING, i INT, b BOOLEAN, n DATE, m TIMESTAMP, d DECIMAL(20,3), x BINARY"
    text = "concat('it''s \\\\ \"50%\" ', id), id, id > 1"
    some = f"{text}, DATE'1500-01-02', TIMESTAMP'2024-01-02 03:04:05', id * -1.5, X'6162'"
    table.create(columns, f"SELECT id, {some} FROM range(3)", vectors=True, partition="p, i, b, n, m, d, x")
    table.sql("INSERT INTO {t} SELECT id, NULL, -2147483648, NULL, NULL, NULL, NULL, NULL FROM range(9)")
    table.sql("UPDATE {t} SET id = id + 100 WHERE id % 4 = 0")
    table.sql("DELETE FROM {t} WHERE id = 3")
    return table.path


def test_constants_are_those_of_the_plan(native: Native, partitioned: Path) -> None:
    """As the values of partition columns, of many versions in one scan."""
    for first, last in ((0, 4), (1, 2), (2, 3), (4, 4)):
        assert native.check(partitioned, first, last) > 0

    def plan(first: int, last: int) -> str:
        return str(native.rows(partitioned, start=first, end=last)._jdf.queryExecution().optimizedPlan())

    assert plan(0, 1).count(" parquet") == 1
    assert plan(0, 1).count("Join") == 0


# Conditions, and the versions whose files are opened.
CONDITIONS: Final = {
    "_commit_version = 2": {2},
    "_commit_version in (1, 4) and a < 20": {1, 4},
    "_commit_version = 2 or a = 1": {1, 2, 3, 4},
    "_commit_timestamp < timestamp'1960-01-01'": set(),
    "_change_type = 'insert'": {1, 2, 3, 4},
    "_change_type = 'delete'": set(),
    "p is null": {3},
    "p like 'it%' and _commit_version % 2 = 0": {4},
    "p = '50%' and n < date'1600-01-01'": {2},
    "p <=> null and a % 2 = 0 and odd(_commit_version)": {3},
    "_commit_version = (select max(id) - 5 from range(9))": {3},
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.sampled(3)
def test_conditions_on_constants_choose_files(native: Native, tmp_path: Path, condition: str) -> None:
    """Spark does not look at such conditions again. `odd` is Python; the last is known only when the query runs."""
    spark = native.spark
    spark.udf.register("odd", lambda number: number % 2 == 1, "boolean")
    write_commit(tmp_path, 0, protocol(), metadata(schema_string(a="long", p="string", n="date"), ["p", "n"]))
    for version, (p, n) in enumerate([("it's", None), ("50%", "1500-01-02"), (None, None), ("it's", "2024-01-02")], 1):
        file = parquet(tmp_path / f"{version}.parquet", ROWS.select(["a"]).slice(10 * version, 10))
        write_commit(tmp_path, version, add(file.name, size=file.stat().st_size, partitionValues={"p": p, "n": n}))
    expected = spark.createDataFrame(read_batch(path=tmp_path, startingVersion=0)).where(condition).toArrow()
    with settings(spark, adaptive_enabled="false"):
        found = native.rows(tmp_path).where(condition)
        assert_same(rows_of(found.toArrow()), rows_of(expected), condition)
    assert opened(found) == len(CONDITIONS[condition])


def opened(found: DataFrame) -> int:
    """Return how many files Spark's reader opened for a query that has run, without `adaptive`."""
    leaves = found._jdf.queryExecution().executedPlan().collectLeaves()
    parquets = [each for each in map(leaves.apply, range(leaves.length())) if "Scan parquet" in each.nodeName()]
    return sum(each.metrics().apply("numFiles").value() for each in parquets)


def test_a_file_with_several_vectors_is_read_once(native: Native, tmp_path: Path) -> None:
    (file,) = by_hand(tmp_path, ROWS)
    vectors = [inline_vector(list(range(at))) for at in (1, 3, 7)]
    size = file.stat().st_size
    for version, (before, after) in enumerate(zip([None, *vectors], vectors, strict=False), 2):
        actions = remove(file.name, before, size=size), add(file.name, after, size=size)
        write_commit(tmp_path, version, commit_info(operation="DELETE"), *actions)
    with settings(native.spark, adaptive_enabled="false"):
        assert native.check(tmp_path, 2, 4) == 3
        found = native.rows(tmp_path, start=2)
        assert found.toArrow().num_rows == 7
    assert opened(found) == 1


def test_odd_names_of_columns(native: Native, tmp_path: Path) -> None:
    """Spark would put the value of a setting in place of the first two; none is taken for a column of our own."""
    names = ["${env:HOME}", "${spark.master}", "a`b", "c\"d'e", "Constant_version", "Path", "stored_0", "x.y"]
    names += ["é\\u0041", "`", "constant__at", "constant__number", "number", "_metadata"]
    rows = pa.table({name: pa.array([at, None], pa.int64()) for at, name in enumerate(names)})
    by_hand(tmp_path, rows, rows, columns=dict.fromkeys(names, "long"))
    for first, last in ((1, 1), (1, 2)):
        assert native.check(tmp_path, first, last) == last - first + 1
    assert native.rows(tmp_path).columns[: len(names)] == names


@pytest.mark.parametrize("name", ["_tmp_metadata_row_index", "_TMP_metadata_Row_index"])
def test_a_name_that_spark_takes_for_its_own(native: Native, tmp_path: Path, name: str) -> None:
    """Spark would put the number of a row in place of the value, whether the file has the column or not."""
    rows = pa.table({"a": [7, 8], name: [70, 80]})
    by_hand(tmp_path, rows, rows.select(["a"]), columns={"a": "long", name: "long"})
    with settings(native.spark, parquet_enableVectorizedReader="false"):
        assert native.check(tmp_path) == 0
    assert native.why == "2 because Spark takes a column _tmp_metadata_row_index for one of its own"


MOMENTS: Final = [
    "2024-03-10 02:30:00",  # of no time in New York
    "2024-11-03 01:30:00",  # of two
    "1800-01-02 03:04:05.678901",
    "2050-07-01 00:00:00",
    "9999-12-31 23:59:59.999999",
    None,
]


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "GMT+8", "+05:30"])
@pytest.mark.sampled(3)
def test_times_without_a_zone_as_partition_values(native: Native, tmp_path: Path, zone: str) -> None:
    """The zone of the session does not matter, nor who has its rules."""
    columns = schema_string(a="long", n="timestamp_ntz", z="timestamp")
    write_commit(tmp_path, 0, protocol(3, ["timestampNtz", "deletionVectors"]), metadata(columns, ["n", "z"]))
    for version, moment in enumerate(MOMENTS, 1):
        file = parquet(tmp_path / f"{version}.parquet", ROWS.select(["a"]).slice(version, 3))
        given = {"n": moment, "z": moment}
        vector = inline_vector([1]) if version % 2 else None
        write_commit(tmp_path, version, add(file.name, vector, size=file.stat().st_size, partitionValues=given))
    with settings(native.spark, session_timeZone=zone):
        assert native.check(tmp_path) == len(MOMENTS)
        rows = native.rows(tmp_path)
        for version, moment in enumerate(MOMENTS, 1):
            where = (
                "n IS NULL AND z IS NULL"
                if moment is None
                else (f"n = timestamp_ntz'{moment}' AND z = timestamp'{moment} UTC'")
            )
            found = rows.where(where).select("_commit_version").collect()
            assert [row[0] for row in found] == [version] * (2 if version % 2 else 3)


def test_fields_that_a_file_lacks(native: Native, tmp_path: Path) -> None:
    """With this setting, Spark takes a struct for null where a file has none of the fields that are asked for."""

    def struct(*names: str) -> dict[str, Any]:
        fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in names]
        return {"type": "struct", "fields": fields}

    lists = {"type": "array", "elementType": struct("x", "z"), "containsNull": True}
    columns = {"s": struct("x", "z"), "l": lists}
    by_hand(tmp_path, pa.table({"s": [{"x": 1}, None], "l": [[{"x": 1}], [None]]}), columns=columns)
    assert native.check(tmp_path) == 0
    with settings(native.spark, legacy_parquet_returnNullStructIfAllFieldsMissing="true"):
        rows = native.rows(tmp_path)
        assert rows.where("s IS NOT NULL").select("s.z").count() == 1
        assert sorted(map(str, rows.select("l.z").collect())) == ["Row(z=[None])", "Row(z=[None])"]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_rows_beyond_a_vector_end_the_query(native: Native, tmp_path: Path, ansi: str) -> None:
    """A file was replaced after planning by one with more rows and fewer bytes."""
    texts = [f"{n} " * 5000 for n in range(10)]
    (written,) = by_hand(tmp_path, pa.table({"a": range(10), "b": texts}), compression="none")
    write_commit(tmp_path, 2, commit_info(operation="DELETE"), _added(written, inline_vector([1])))
    with settings(native.spark, ansi_enabled=ansi):
        found = native.rows(tmp_path, start=2)
        assert found.where("_commit_version = 2").count() == 9
        parquet(written, ROWS)
        for query in (found, found.where("_commit_version = 2"), found.select("_commit_version")):
            with pytest.raises(Exception, match="no change of this batch is in "):
                query.collect()


def test_files_without_rows_have_no_version(native: Native, tmp_path: Path) -> None:
    """With this setting, Spark takes the partition values of a file for those of a row."""
    by_hand(tmp_path, ROWS, ROWS.slice(0, 0), ROWS.slice(5, 5))
    with settings(native.spark, optimizer_metadataOnly="true"):
        versions = native.rows(tmp_path).select("_commit_version").distinct()
        assert {row[0] for row in versions.collect()} == {1, 3}
        assert native.rows(tmp_path, start=2, end=2).count() == 0


def test_a_scan_is_one_of_sparks(native: Native, tmp_path: Path) -> None:
    """It can be shown, kept, and joined with itself."""
    files = by_hand(tmp_path / "a b#%é", ROWS.slice(0, 5), ROWS.slice(5, 5))
    found = native.rows(tmp_path / "a b#%é")
    assert sorted(unquote(uri) for uri in found.inputFiles()) == [f"file://{file}" for file in files]
    assert set(found.inputFiles()) == set(native.spark.read.parquet(*map(str, files)).inputFiles())
    assert "Location: Files" in str(found._jdf.queryExecution().executedPlan())
    pairs = found.alias("one").join(found.alias("other"), "a").where("one._commit_version = other._commit_version")
    assert pairs.where("one._commit_version = 2").count() == pairs.where("other._commit_version = 2").count() == 5
    kept = found.persist()
    try:
        assert kept.where("_commit_version = 1").count() == 5
        native.spark.catalog.refreshByPath(str(tmp_path))
        assert kept.where("_commit_version = 2").count() == 5
    finally:
        kept.unpersist(blocking=True)


def test_every_type(native: Native, tmp_path: Path) -> None:
    path = write_all_types(native.spark, tmp_path / "all types")
    assert native.check(path) > 0
    assert native.why == ""


def test_columns_that_changed(native: Native, tmp_path: Path) -> None:
    """Every widening, on every level of nesting; renamed and added columns; older rows are read as the newest."""
    table = Table(native.spark, tmp_path / "t")
    wider = {
        "TINYINT": ("SMALLINT", "INT", "BIGINT", "DOUBLE", "DECIMAL(10,0)"),
        "SMALLINT": ("INT", "BIGINT", "DECIMAL(12,2)"),
        "INT": ("BIGINT", "DOUBLE", "DECIMAL(14,4)"),
        "BIGINT": ("DECIMAL(24,4)",),
        "FLOAT": ("DOUBLE",),
        "DECIMAL(6,2)": ("DECIMAL(9,2)", "DECIMAL(16,4)", "DECIMAL(38,10)"),
        "DATE": ("TIMESTAMP_NTZ",),
    }
    pairs = [(narrow, wide) for narrow, many in wider.items() for wide in many]
    nested = ["s STRUCT<x: INT, y: FLOAT>", "l ARRAY<SMALLINT>", "m MAP<STRING, DECIMAL(4,1)>"]
    columns = ", ".join(["id INT", *(f"c{n} {narrow}" for n, (narrow, _) in enumerate(pairs)), *nested])
    properties = "'delta.enableTypeWidening' = 'true', 'delta.columnMapping.mode' = 'name'"
    given = ", ".join(
        f"CAST({'DATE' + repr('1500-02-03') if narrow == 'DATE' else '-id * 1.5'} AS {narrow})" for narrow, _ in pairs
    )
    some = "named_struct('x', -id, 'y', id / 3), array(id, NULL, -7), map('k', id / 2, 'n', NULL)"
    table.create(columns, f"SELECT id, {given}, {some} FROM range(40)", properties=properties)
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
    table.sql("ALTER TABLE {t} ADD COLUMNS (later STRING)")
    for n, (_, wide) in enumerate(pairs):
        table.sql(f"ALTER TABLE {{t}} ALTER COLUMN c{n} TYPE {wide}")
    for name, wide in (("s.x", "BIGINT"), ("s.y", "DOUBLE"), ("l.element", "INT"), ("m.value", "DECIMAL(8,2)")):
        table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {name} TYPE {wide}")
    table.sql("ALTER TABLE {t} RENAME COLUMN c3 TO renamed")
    table.sql("INSERT INTO {t} SELECT * FROM {t} WHERE id = 3")
    assert native.check(table.path) == 2
    assert native.why == ""
    table.sql("ALTER TABLE {t} ADD COLUMNS (s.z STRING)")
    assert native.check(table.path) == 0
    assert native.why.startswith("2 because the file has no field z in ")


def test_vectors_over_many_row_groups(native: Native, tmp_path: Path) -> None:
    """Rows that vectors select, without a feed: sparse, dense, at the edges of words and of row groups."""
    (file,) = by_hand(tmp_path, ROWS, row_group_size=170)
    first, second = (0, 1, 63, 64, 127, 128, 169, 170, 340, 999), range(500, 900)
    size, marked = file.stat().st_size, inline_vector(first)
    both = inline_vector([*first, *second])
    write_commit(tmp_path, 2, commit_info(operation="DELETE"), remove(file.name, size=size), _added(file, marked))
    write_commit(tmp_path, 3, commit_info(operation="DELETE"), remove(file.name, marked, size=size), _added(file, both))
    write_commit(tmp_path, 4, commit_info(operation="DELETE"), remove(file.name, both, size=size))
    assert native.check(tmp_path) == 4  # that version 3 adds no row is known from the vectors alone
    assert native.check(tmp_path, carryovers="keep") == 5
    assert native.check(tmp_path, 2, 2) == 1
    assert native.check(tmp_path, 4, 4, columns=["b"]) == 1
    counts = native.rows(tmp_path).groupBy("_commit_version", "_change_type").count().collect()
    expected = {(1, "insert", 1000), (2, "delete", 10), (3, "delete", 400), (4, "delete", 590)}
    assert {tuple(row) for row in counts} == expected


def _added(file: Path, vector: Any) -> Any:
    return add(file.name, vector, size=file.stat().st_size)


def test_what_a_query_leaves_out(native: Native, tmp_path: Path) -> None:
    """Conditions and columns that Spark takes down to its reader change no row: not even where none is needed."""
    table = Table(native.spark, tmp_path / "t")
    table.create("id BIGINT, p STRING", "SELECT id, concat('p', id % 3) AS p FROM range(90)", partition="p")
    table.sql("UPDATE {t} SET id = id + 1000 WHERE id % 10 = 0")
    table.sql("DELETE FROM {t} WHERE p = 'p1'")
    found, feed = native.rows(table.path), delta_feed(native.spark, table.path)
    assert found.count() == feed.count()
    for condition in (
        "id = 30",
        "p = 'p1'",
        "_commit_version = 2",
        "_change_type = 'delete' AND id < 50",
        "id IS NULL",
    ):
        expected = feed.where(condition).toArrow()
        assert_same(rows_of(found.where(condition).toArrow()), rows_of(expected), condition)
    for names in (["p"], ["_commit_version"], ["_change_type", "id"]):
        assert_same(rows_of(found.select(*names).toArrow()), rows_of(feed.select(*names).toArrow()), str(names))


@pytest.mark.parametrize(
    ("columns", "file", "why"),
    [
        (
            {"a": "timestamp"},
            pa.table({"a": pa.array([datetime(2026, 1, 2, 3, 4, 5, 678, UTC)])}),
            "timestamps of 96 bits",
        ),
        ({"a": "long"}, pa.table({"A": [1, None]}), "another name"),
        ({"a": "integer"}, pa.table({"a": pa.array([1, 2**31 - 1], pa.int64())}), "a is int64, not int32"),
        ({"a": "string"}, pa.table({"a": pa.array([b"text"])}), "a is binary, not string"),
        ({"a": "long"}, pa.table({"a": [1], "B": [1], "b": [2]}), "differ only by case"),
        (
            {"a": {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}},
            pa.table({"a": [{"y": 1}]}),
            "no field x in a",
        ),
    ],
)
def test_a_file_that_spark_would_read_in_another_way(
    native: Native, tmp_path: Path, columns: dict[str, Any], file: pa.Table, why: str
) -> None:
    by_hand(tmp_path, file, columns=columns, use_deprecated_int96_timestamps="96 bits" in why)
    assert native.check(tmp_path) == 0
    assert why in native.why


def test_forms_of_arrow_in_a_footer(native: Native, tmp_path: Path) -> None:
    """Large and dictionary types are the same values in a file."""
    texts = pa.array(["x", None, "y"])
    file = pa.table({"a": texts.dictionary_encode(), "b": texts.cast(pa.large_string()), "c": [[1], None, []]})
    element = {"type": "array", "elementType": "long", "containsNull": True}
    by_hand(tmp_path, file, columns={"a": "string", "b": "string", "c": element})
    assert (native.check(tmp_path), native.why) == (1, "")


def test_a_file_that_seems_hidden(native: Native, tmp_path: Path) -> None:
    """Spark leaves out files whose names begin with `_` or a dot."""
    (file,) = by_hand(tmp_path, ROWS)
    file.rename(file.with_name("_0.parquet"))
    write_commit(
        tmp_path, 1, commit_info(operation="WRITE"), add("_0.parquet", size=file.with_name("_0.parquet").stat().st_size)
    )
    assert native.check(tmp_path) == 0
    assert "hidden" in native.why


@pytest.mark.parametrize(
    "values",
    [
        {"caseSensitive": "true"},
        {"parquet_datetimeRebaseModeInRead": "LEGACY"},
        {"parquet_mergeSchema": "true"},
        {"session_timeZone": "America/St_Johns"},
        {"files_maxPartitionBytes": "1000"},
        {"ansi_enabled": "false"},
        {"parquet_enableVectorizedReader": "false"},
        {"mapKeyDedupPolicy": "LAST_WIN"},
        {"ansi_enforceReservedKeywords": "true"},
        {"optimizer_excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConstantFolding"},
        {"sources_parallelPartitionDiscovery_threshold": "0"},
        {"codegen_wholeStage": "false"},
        {"files_openCostInBytes": "0"},
    ],
    ids=lambda values: next(iter(values)),
)
@pytest.mark.sampled(3)
def test_settings_of_the_session_change_nothing(native: Native, tmp_path: Path, values: dict[str, str]) -> None:
    file = pa.table(
        {"a": [1, 2, 3], "d": [date(1500, 1, 1), None, date(2026, 1, 1)], "t": [datetime(1850, 1, 1, tzinfo=UTC)] * 3}
    )
    written, _ = by_hand(tmp_path, file, file, columns={"a": "long", "d": "date", "t": "timestamp"})
    write_commit(tmp_path, 3, commit_info(operation="DELETE"), _added(written, inline_vector([1])))
    with settings(native.spark, **values):
        for first, last in ((1, 1), (1, 2), (0, 3)):
            assert native.check(tmp_path, first, last) > 0
            assert native.why == ""


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_damaged_file_is_an_error_whatever_the_settings(native: Native, tmp_path: Path, damage: str) -> None:
    """After planning: then a setting could leave out its rows, and a changed byte would be a wrong row."""
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    (file,) = by_hand(tmp_path, ROWS, **options)
    frame = native.rows(tmp_path)
    data = file.read_bytes()
    with settings(native.spark, files_ignoreMissingFiles="true", files_ignoreCorruptFiles="true"):
        assert frame.count() == 1000
        if damage == "gone":
            file.unlink()
        else:
            at = data.index(b"row 500")
            file.write_bytes(data[:at] + (b"" if damage == "cut" else b"RoW" + data[at + 3 :]))
        with pytest.raises((PySparkException, Py4JJavaError), match="FAILED_READ_FILE"):
            frame.collect()


def test_a_file_that_is_gone_before_planning(native: Native, tmp_path: Path) -> None:
    (file,) = by_hand(tmp_path, ROWS)
    file.unlink()
    with pytest.raises(PySparkException, match="VACUUM"):
        native.rows(tmp_path).collect()


def test_what_must_be_compared_goes_through_execute(native: Native, tmp_path: Path) -> None:
    """Rewritten files without a feed, pairs of updates, net changes and row ids; appends beside them do not."""
    table = Table(native.spark, tmp_path / "t")
    tracked = "'delta.enableRowTracking' = 'true'"
    table.create("id BIGINT, v BIGINT", "SELECT id, 0 FROM range(30)", feed=False, properties=tracked)
    table.sql("UPDATE {t} SET v = 1 WHERE id % 3 = 0")
    assert native.check(table.path) == 1
    for options in ({"computeUpdates": True}, {"netChanges": True, "key": ["id"]}, {"rowIds": True}):
        native.check(table.path, **options)
    assert native.check(table.path, carryovers="keep") == 3


def test_options(native: Native, tmp_path: Path) -> None:
    by_hand(tmp_path, ROWS, ROWS)
    spark = native.spark
    assert {
        row[0] for row in native.rows(tmp_path, start="snapshot").select("_commit_version").distinct().collect()
    } == {2}
    assert native.rows(tmp_path, start=2, end=2, columns=["B"]).columns[0] == "b"
    assert native.rows(tmp_path, start=datetime(2020, 1, 1, tzinfo=UTC)).count() == 2000
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"schema": "envelope"}, "spark.read.format"),
        ({"startingVersion": 0}, "start ="),
        ({"start": "latest"}, "would be empty"),
        ({"start": "soon"}, "not a version"),
        ({"startt": "1"}, "startt"),
    ]
    for options, said in wrong:
        with pytest.raises(ConfigError) as refused:
            tailer.spark.changes(spark, tmp_path, **options)
        assert said in f"{refused.value} {refused.value.hint}"


def test_in_a_notebook(native: Native, tmp_path: Path) -> None:
    """Notebooks run an event loop in the thread already."""
    by_hand(tmp_path, ROWS)

    async def cell() -> int:
        return native.rows(tmp_path).count()

    assert anyio.run(cell) == 1000


def test_reading_again_gives_the_same_rows(native: Native, tmp_path: Path) -> None:
    (file,) = by_hand(tmp_path, ROWS)
    frame = native.rows(tmp_path)
    write_commit(tmp_path, 2, commit_info(operation="DELETE"), remove(file.name, size=file.stat().st_size))
    assert frame.count() == frame.count() == 1000


# Why files of recorded histories go through `execute`.
LACKING: Final = r"(\d+ because (the file has no field \S+ in \S+|it has a CHAR, which must be padded)(; |$))*"


def _ranges(versions: Sequence[int]) -> list[tuple[int, int]]:
    middle = versions[len(versions) // 2]
    return [(versions[0], versions[-1]), (middle, versions[-1]), *((at, at) for at in versions[::6])]


@pytest.mark.parametrize(
    "archive",
    [*HISTORY, *CASES],
    ids=lambda archive: archive.name.split(".")[0],
)
@pytest.mark.sampled(10)
def test_recorded_histories(native: Native, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of table and change that was recorded; what is refused is refused with the same error."""
    recorded = read(archive, tmp_path)
    for first, last in _ranges(range(recorded.first, recorded.last + 1)):
        # As if files were small, or large: the comparisons of large ones are shared.
        for large, options in ((2**60, {}), (0, {}), (0, {"carryovers": "keep"})):
            monkeypatch.setattr(comparing, "SHARED_BYTES", large)
            try:
                read_batch(path=recorded.path, startingVersion=first, endingVersion=last, **options)
            except TailerError as error:
                with pytest.raises((type(error), PySparkException), match=re.escape(str(error).partition("\n")[0])):
                    native.rows(recorded.path, start=first, end=last, **options).collect()
            else:
                native.check(recorded.path, first, last, **options)
                assert re.fullmatch(LACKING, native.why)

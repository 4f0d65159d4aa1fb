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

import anyio
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.errors import ConfigError, TailerError
from tailer.spark.native import comparing, facts, scans
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, read
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.spark.all_types import write_all_types
from tests.support.spark.queries import read_batch
from tests.support.spark.table import Table
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
    caplog.set_level(logging.INFO, "tailer.spark.native.frames")
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


@pytest.mark.smoke
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


def test_facts_of_large_files_are_literals(native: Native, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A join is planned for what no literal can be: a timestamp, and rows that a vector selects."""
    table = Table(native.spark, tmp_path / "t")
    columns = "id BIGINT, p STRING, i INT, b BOOLEAN, n DATE, m TIMESTAMP"
    values = "'it''s \\\\ 50%', -2147483648, true, NULL"
    table.create(columns, f"SELECT id, {values}, NULL FROM range(9)", vectors=True, partition="p, i, b, n, m")
    table.sql("INSERT INTO {t} SELECT id, NULL, 1, false, NULL, TIMESTAMP'2024-01-02 03:04:05' FROM range(9)")
    table.sql("DELETE FROM {t} WHERE id = 3")

    def joins(first: int, last: int) -> int:
        assert native.check(table.path, first, last) > 0
        query = native.rows(table.path, start=first, end=last)._jdf.queryExecution()
        return str(query.optimizedPlan()).count("Join")

    assert [joins(at, at) for at in (1, 2, 3)] == [0, 1, 1]
    assert joins(1, 2) == 1
    monkeypatch.setattr(scans, "_LARGE", 0)
    assert [joins(1, 2), joins(1, 3)] == [1, 2]
    monkeypatch.setattr(scans, "_OWN", 0)
    assert joins(1, 1) == 1


def test_odd_names_of_columns(native: Native, tmp_path: Path) -> None:
    """Spark would put the value of a setting in place of the first two; none is taken for a column of our own."""
    names = ["${env:HOME}", "${spark.master}", "a`b", "c\"d'e", "facts", "Path", "stored_0", "x.y", "é\\u0041", "`"]
    rows = pa.table({name: pa.array([at, None], pa.int64()) for at, name in enumerate(names)})
    by_hand(tmp_path, rows, rows, columns=dict.fromkeys(names, "long"))
    for first, last in ((1, 1), (1, 2)):
        assert native.check(tmp_path, first, last) == last - first + 1
    assert native.rows(tmp_path).columns[: len(names)] == names


def test_facts_of_few_files_are_looked_up(native: Native, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several versions, in one scan without a join; of more files, or of other types, with one."""
    table = Table(native.spark, tmp_path / "t é%")
    columns = "id BIGINT, p STRING, i INT, b BOOLEAN"
    table.create(columns, "SELECT id, concat('it''s \\\\ \"50%\" ', id), 1, true FROM range(3)", partition="p, i, b")
    table.sql("INSERT INTO {t} SELECT id, NULL, -2147483648, NULL FROM range(9)")
    table.sql("UPDATE {t} SET id = id + 100 WHERE id % 4 = 0")
    listed = native.spark.conf.get(scans._LISTED_BY_JOBS)

    def plan(first: int, last: int) -> str:
        assert native.check(table.path, first, last) > 0
        return str(native.rows(table.path, start=first, end=last)._jdf.queryExecution().optimizedPlan())

    assert [plan(first, 3).count("Join") for first in (0, 1, 2)] == [0, 0, 0]
    assert plan(1, 2).count("Relation") == 1
    assert native.spark.conf.get(scans._LISTED_BY_JOBS) == listed
    for limit in ("_LOOKED_UP_LENGTH", "_LOOKED_UP_FILES"):
        with monkeypatch.context() as patch:
            patch.setattr(facts, limit, 0)
            assert plan(1, 2).count("Join") == 1


@pytest.mark.parametrize("few", [True, False])
def test_a_file_without_facts_ends_the_query(
    native: Native, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool
) -> None:
    """Spark spells its path otherwise than was expected; or another path has the same number, and is not taken."""
    by_hand(tmp_path, ROWS.slice(0, 5), ROWS.slice(5, 5))
    monkeypatch.setattr(facts, "_LOOKED_UP_FILES", 128 if few else 0)
    spelled, key = facts._spelled, facts._key
    monkeypatch.setattr(facts, "_spelled", lambda read: {uri: f"{path}/" for uri, path in spelled(read).items()})
    for number in (key, lambda path: key(path.removesuffix("/"))):
        monkeypatch.setattr(facts, "_key", number)
        with pytest.raises(Exception, match="no change of this batch is in file:"):
            native.rows(tmp_path, start=1).toArrow()


def test_a_deletion_vector_that_is_not_found_ends_the_query(
    native: Native, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vector selects the rows, whatever the query asks for."""
    (written,) = by_hand(tmp_path, ROWS)
    write_commit(tmp_path, 2, commit_info(operation="DELETE"), _added(written, inline_vector([1])))
    assert native.rows(tmp_path, start=2).count() == 999
    spelled = facts._spelled
    monkeypatch.setattr(facts, "_spelled", lambda read: {uri: f"{path}/" for uri, path in spelled(read).items()})
    with pytest.raises(Exception, match="no change of this batch is in file:"):
        native.rows(tmp_path, start=2).count()
    with pytest.raises(Exception, match="no change of this batch is in file:"):
        native.rows(tmp_path, start=2).select("a").toArrow()


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
    table.sql("ALTER TABLE {t} ADD COLUMNS (s.z STRING, later STRING)")
    for n, (_, wide) in enumerate(pairs):
        table.sql(f"ALTER TABLE {{t}} ALTER COLUMN c{n} TYPE {wide}")
    for name, wide in (("s.x", "BIGINT"), ("s.y", "DOUBLE"), ("l.element", "INT"), ("m.value", "DECIMAL(8,2)")):
        table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {name} TYPE {wide}")
    table.sql("ALTER TABLE {t} RENAME COLUMN c3 TO renamed")
    table.sql("INSERT INTO {t} SELECT * FROM {t} WHERE id = 3")
    assert native.check(table.path) == 2
    assert native.why == ""


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
            "no field of a",
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
        {"optimizer_mapLookupHashThreshold": "1"},
    ],
    ids=lambda values: next(iter(values)),
)
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
        ({"filter": "a = 1"}, "Use where"),
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


def _ranges(versions: Sequence[int]) -> list[tuple[int, int]]:
    middle = versions[len(versions) // 2]
    return [(versions[0], versions[-1]), (middle, versions[-1]), *((at, at) for at in versions[::6])]


@pytest.mark.parametrize(
    "archive",
    [*HISTORY, *CASES],
    ids=lambda archive: archive.name.split(".")[0],
)
def test_recorded_histories(native: Native, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of table and change that was recorded; what is refused is refused with the same error."""
    recorded = read(archive, tmp_path)
    for first, last in _ranges(range(recorded.first, recorded.last + 1)):
        # As if the files were small and few, small and many, and large: facts are looked up, joined and literals. The
        # comparisons of large ones are shared.
        for large, few, options in ((2**60, 128, {}), (2**60, 0, {}), (0, 0, {}), (0, 0, {"carryovers": "keep"})):
            monkeypatch.setattr(scans, "_LARGE", large)
            monkeypatch.setattr(facts, "_LOOKED_UP_FILES", few)
            monkeypatch.setattr(comparing, "SHARED_BYTES", large)
            try:
                read_batch(path=recorded.path, startingVersion=first, endingVersion=last, **options)
            except TailerError as error:
                with pytest.raises((type(error), PySparkException)):
                    native.rows(recorded.path, start=first, end=last, **options).collect()
            else:
                native.check(recorded.path, first, last, **options)

"""Every Delta type in every place of a value, as Spark writes it, judged by Spark's own reading.

Each table is judged version by version (`tests.support.spark.table`): by the fold over Spark's snapshots, by Spark's
feed, by the names and types of the columns, by the snapshot of every version. Least and greatest values of types are
judged by Spark alone: delta-rs overflows on some.

On every landing: the same values as fields and three levels deep, in this module, and as columns
(`integration/test_spark_native.py`); mapped columns in `property/test_written_histories.py`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tailer.errors import UnsupportedFeature
from tests.support.follow import follow, follow_until_error, snapshot
from tests.support.oracle.partition_texts import ask_spark, spark_answers
from tests.support.oracle.rows import spark_feed
from tests.support.spark.sql_types import quoted
from tests.support.spark.table import Table, kinds

WIDENING: Final = "'delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported'"

VERSION_2: Final = "SELECT * FROM delta.`{}` VERSION AS OF 2"

# Least, greatest and special values of each type.
VALUES: Final[dict[str, list[str]]] = {
    "TINYINT": ["-128Y", "127Y"],
    "SMALLINT": ["-32768S", "32767S"],
    "INT": ["-2147483648", "2147483647"],
    "BIGINT": ["-9223372036854775808L", "9223372036854775807L"],
    "FLOAT": ["float('NaN')", "float('-Infinity')", "CAST(1.1 AS FLOAT)", "float('1.4E-45')", "float('-0.0')"],
    "DOUBLE": ["double('NaN')", "double('Infinity')", "1.1D", "4.9E-324D", "-0.0D", "1.7976931348623157E308D"],
    "BOOLEAN": ["true", "false"],
    "STRING": ["'x'", "'日本 é 🙂'", "'a/b=c%2F\\\\'", "' '", "'null'"],
    "BINARY": ["X'41'", "X'c3a9'"],
    "DATE": ["DATE'0001-01-01'", "DATE'1582-10-04'", "DATE'1969-12-31'", "DATE'9999-12-31'"],
    "TIMESTAMP": [
        "TIMESTAMP'0001-01-01 00:00:00'",
        "TIMESTAMP'1899-12-31 23:59:59.999999'",
        "TIMESTAMP'1969-12-31 23:59:59.999999'",
        "TIMESTAMP'9999-12-31 23:59:59.999999'",
    ],
    "TIMESTAMP_NTZ": [
        "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
        "TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'",
        "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
    ],
    "DECIMAL(9,2)": ["-9999999.99BD", "0BD"],
    "DECIMAL(18,0)": ["999999999999999999BD"],
    "DECIMAL(38,0)": [f"-{'9' * 38}BD"],
    "DECIMAL(38,18)": [f"{'9' * 20}.{'9' * 18}BD"],
    "DECIMAL(38,38)": [f"0.{'9' * 38}BD"],
}
# Values without a meaning in a partition's folder, or lost there by Spark itself.
NOT_IN_PARTITIONS: Final = {"STRING": ["''", "'nul\\0'"], "BINARY": ["X''", "X'00ff80'"]}


def rows(*makers: Callable[[str, str], str], count: int = 6, more: bool = False) -> str:
    """Make a query of `count` rows and one of nulls: an id, then a column for each maker and type, made of a value."""
    lines = []
    for row in range(count):
        columns = [f"{row}L"]
        for make in makers:
            for kind, values in VALUES.items():
                every = values + (NOT_IN_PARTITIONS.get(kind, []) if more else [])
                columns.append(make(f"CAST({every[row % len(every)]} AS {kind})", kind))
        lines.append("SELECT " + ", ".join(columns))
    nulls = ["99L", *(make(f"CAST(NULL AS {kind})", kind) for make in makers for kind in VALUES)]
    return " UNION ALL ".join([*lines, "SELECT " + ", ".join(nulls)])


def named(prefix: str, kind: Callable[[str], str]) -> str:
    """Return the columns of one maker."""
    return ", ".join(f"{prefix}{number} {kind(each)}" for number, each in enumerate(VALUES))


def change_rows(table: Table) -> None:
    """Change some rows and delete others."""
    table.sql("UPDATE {t} SET id = id + 1000 WHERE id IN (1, 99)")
    table.sql("DELETE FROM {t} WHERE id IN (0, 2, 1099)")


def test_every_primitive_three_levels_deep(table: Table) -> None:
    structs = named("s", lambda kind: f"STRUCT<a: ARRAY<MAP<STRING, {kind}>>, n: {kind}>")
    maps = named("m", lambda kind: f"MAP<{kind}, ARRAY<STRUCT<x: {kind}, y: STRING>>>")
    table.create(
        f"id BIGINT, {structs}, {maps}",
        rows(
            lambda value, _: f"named_struct('a', array(map('k', {value}, 'l', NULL), NULL, map()), 'n', {value})",
            lambda value, _: (
                f"IF({value} IS NULL, NULL, map({value}, array(named_struct('x', {value}, 'y', 'z'), NULL)))"
            ),
            more=True,
        ),
    )
    table.sql("INSERT INTO {t} (id) VALUES (7)")
    change_rows(table)
    table.check(by_spark=True)


def test_a_day_that_spark_s_feed_moves(table: Table) -> None:
    """The feed converts rows through Java's dates, which skip from 1582-10-04 to 1582-10-15. Snapshots do not."""
    table.create("id BIGINT, d DATE", "SELECT 1L, DATE'1582-10-10'")
    (version,) = table.check(feed_from=None)[1:]
    assert version.table.column("d").to_pylist() == [date(1582, 10, 10)]
    assert spark_feed(table.spark, table.path)[1].column("d").to_pylist() == [date(1582, 10, 15)]


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Change settings of Spark for a block; `__` stands for a dot."""
    names = {name.replace("__", "."): value for name, value in values.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def test_partition_values_of_every_type(table: Table) -> None:
    """In the forms of protocol and writers: timestamps with a zone and without one."""
    columns = [f"p{number}" for number in range(len(VALUES))]
    table.create(
        f"id BIGINT, {named('p', lambda kind: kind)}", rows(lambda value, _: value), partition=", ".join(columns)
    )
    with settings(
        table.spark,
        spark__databricks__delta__write__utcTimestampPartitionValues="false",
        spark__sql__session__timeZone="UTC",
    ):
        table.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id + 10, {', '.join(columns)} FROM {{t}}")
    change_rows(table)
    table.sql("DELETE FROM {t} WHERE p4 = float('-Infinity') OR p6")
    table.check(by_spark=True)
    at = f"p{list(VALUES).index('TIMESTAMP')}"
    texts = [{add["partitionValues"][at] for add in table.actions(version, "add")} for version in (1, 2)]
    assert "1969-12-31T23:59:59.999999Z" in texts[0]
    assert "1969-12-31 23:59:59.999999" in texts[1]
    assert None in texts[0] & texts[1]


class Change(NamedTuple):
    """A change of type: values of the narrow type, and one of the wide type only."""

    narrow: str
    values: list[str]
    wide: str
    new: str

    def old(self, row: int) -> str:
        """Return a value of the narrow type."""
        return f"CAST({self.values[row % len(self.values)]} AS {self.narrow})"


WIDER: Final = [
    Change("TINYINT", ["-128Y", "127Y"], "SMALLINT", "32767S"),
    Change("TINYINT", ["-128Y", "127Y"], "INT", "2147483647"),
    Change("TINYINT", ["-128Y", "127Y"], "BIGINT", "9223372036854775807L"),
    Change("TINYINT", ["-128Y", "127Y"], "DOUBLE", "0.5D"),
    Change("TINYINT", ["-128Y", "127Y"], "DECIMAL(10,0)", "9999999999BD"),
    Change("TINYINT", ["-128Y", "127Y"], "DECIMAL(38,28)", "1234567890.5BD"),
    Change("SMALLINT", ["-32768S", "32767S"], "INT", "2147483647"),
    Change("SMALLINT", ["-32768S", "32767S"], "BIGINT", "9223372036854775807L"),
    Change("SMALLINT", ["-32768S", "32767S"], "DOUBLE", "0.5D"),
    Change("SMALLINT", ["-32768S", "32767S"], "DECIMAL(12,2)", "0.25BD"),
    Change("INT", ["-2147483648", "2147483647"], "BIGINT", "9223372036854775807L"),
    Change("INT", ["-2147483648", "2147483647"], "DOUBLE", "0.5D"),
    Change("INT", ["-2147483648", "2147483647"], "DECIMAL(10,0)", "9999999999BD"),
    Change("INT", ["-2147483648", "2147483647"], "DECIMAL(14,4)", "0.0625BD"),
    Change("BIGINT", ["-9223372036854775808L", "9223372036854775807L"], "DECIMAL(20,0)", f"{'9' * 20}BD"),
    Change("BIGINT", ["-9223372036854775808L", "9223372036854775807L"], "DECIMAL(38,18)", "0.5BD"),
    Change("FLOAT", ["CAST(1.5 AS FLOAT)", "float('NaN')", "float('-0.0')"], "DOUBLE", "1.1D"),
    Change("DECIMAL(5,2)", ["-999.99BD", "0.01BD"], "DECIMAL(7,2)", "99999.99BD"),
    Change("DECIMAL(5,2)", ["-999.99BD", "0.01BD"], "DECIMAL(9,4)", "0.0001BD"),
    Change("DECIMAL(5,2)", ["-999.99BD", "0.01BD"], "DECIMAL(38,35)", "0.5BD"),
    Change(
        "DATE", ["DATE'0001-01-01'", "DATE'9999-12-31'"], "TIMESTAMP_NTZ", "TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'"
    ),
]

# Places of a value: the type around it, the value around it, and the path to it.
PLACES: Final[dict[str, tuple[str, str, str]]] = {
    "column": ("{}", "{}", ""),
    "partition": ("{}", "{}", ""),
    "field": ("STRUCT<x: {}, y: INT>", "named_struct('x', {}, 'y', 1)", ".x"),
    "element": ("ARRAY<{}>", "array({}, NULL)", ".element"),
    "key": ("MAP<{}, STRING>", "map({}, 'v')", ".key"),
    "value": ("MAP<STRING, {}>", "map('k', {}, 'l', NULL)", ".value"),
    "deep": (
        "MAP<STRING, ARRAY<STRUCT<x: {}>>>",
        "map('k', array(named_struct('x', {}), NULL), 'l', NULL)",
        ".value.element.x",
    ),
}


@pytest.mark.parametrize("places", ["column field element", "key value deep", "partition"])
@pytest.mark.sampled(3)
def test_every_change_of_type(table: Table, places: str) -> None:
    """Old rows are changed and deleted afterwards, with change files and vectors; new ones have wide values."""
    columns = {
        f"{place}{number}": (change, *PLACES[place]) for place in places.split() for number, change in enumerate(WIDER)
    }

    def values(pick: Callable[[Change], str]) -> str:
        return ", ".join(value.format(pick(change)) for change, _, value, _ in columns.values())

    old = [values(lambda change, row=row: change.old(row)) for row in range(6)]  # type: ignore[misc]
    table.create(
        ", ".join(
            ["id BIGINT", *(f"{name} {kind.format(change.narrow)}" for name, (change, kind, _, _) in columns.items())]
        ),
        " UNION ALL ".join(f"SELECT {row}L, {made}" for row, made in enumerate(old)),
        partition=", ".join(columns) if places == "partition" else "",
        properties=WIDENING,
    )
    table.sql("INSERT INTO {t} (id) VALUES (6)")
    table.sql("UPDATE {t} SET id = id + 10 WHERE id IN (0, 6)")
    changes = ", ".join(f"{name}{path} TYPE {change.wide}" for name, (change, _, _, path) in columns.items())
    table.sql(f"ALTER TABLE {{t}} ALTER COLUMN {changes}")
    new = values(lambda change: f"CAST({change.new} AS {change.wide})")
    table.sql(f"INSERT INTO {{t}} SELECT 20L, {new} UNION ALL SELECT 21L, {new}")
    table.sql("UPDATE {t} SET id = id + 100 WHERE id IN (1, 16, 20)")
    properties = "'delta.enableChangeDataFeed' = 'false', 'delta.enableDeletionVectors' = 'true'"
    table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({properties})")
    table.sql("DELETE FROM {t} WHERE id IN (2, 10, 21)")
    versions = table.check(feed_from=None)
    assert [kinds(version).get("update_preimage", 0) for version in versions] == [0, 0, 0, 2, 0, 0, 3, 0, 0]
    assert kinds(versions[8]) == {"delete": 3}


def test_a_partition_value_is_read_as_the_type_the_table_has_now(table: Table) -> None:
    """A wider type may change the meaning of a text in the log: Spark parses it again, and so do we."""
    row = "SELECT 1L, CAST(1.1 AS FLOAT), CAST(1.1 AS FLOAT)"
    table.create("id BIGINT, f FLOAT, p FLOAT", row, partition="p", properties=WIDENING)
    table.sql("ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE, p TYPE DOUBLE")
    table.sql("DELETE FROM {t}")
    (deleted,) = follow(table.path, 3)
    for rows in (deleted.table, snapshot(table.path, 2).table, table.spark.sql(VERSION_2.format(table.path)).toArrow()):
        assert rows.column("f").to_pylist() == [1.100000023841858]
        assert rows.column("p").to_pylist() == [1.1]


def files(path: Path) -> list[Path]:
    """Return a table's data files, oldest first."""
    return sorted(path.glob("part-*.parquet"), key=lambda file: file.stat().st_mtime_ns)


def test_timestamps_as_old_files_have_them(table: Table) -> None:
    """96 bits, which Spark wrote for years, milliseconds and microseconds, in one table and nested."""
    texts = ("0001-01-01 00:00:00", "1969-12-31 23:59:59.999", "2020-02-29 12:00:00.5", "9999-12-31 23:59:59.999")
    columns = "id BIGINT, t TIMESTAMP, l ARRAY<STRUCT<t: TIMESTAMP, d: DATE>>, n TIMESTAMP_NTZ"
    table.create(columns, "SELECT 0L, NULL, NULL, NULL")
    found = set()
    for first, kind in ((10, "INT96"), (20, "TIMESTAMP_MILLIS"), (30, "TIMESTAMP_MICROS")):
        before = set(files(table.path))
        with settings(table.spark, spark__sql__parquet__outputTimestampType=kind):
            made = "t, array(named_struct('t', t, 'd', DATE(t)), NULL), CAST(t AS TIMESTAMP_NTZ)"
            texts_in_sql = ", ".join(f"({first + number}L, TIMESTAMP'{text}')" for number, text in enumerate(texts))
            table.sql(f"INSERT INTO {{t}} SELECT id, {made} FROM VALUES {texts_in_sql} AS v(id, t)")
            table.sql(f"UPDATE {{t}} SET id = id + 100 WHERE id = {first}")
        for file in set(files(table.path)) - before:
            schema = pq.ParquetFile(file).schema
            found |= {(kind, schema.column(index).physical_type) for index in (1, 2)}
    table.sql("DELETE FROM {t} WHERE t < TIMESTAMP'1970-01-01 00:00:00'")
    table.check(by_spark=True)
    assert found == {("INT96", "INT96"), ("TIMESTAMP_MILLIS", "INT64"), ("TIMESTAMP_MICROS", "INT64")}


def test_void(table: Table) -> None:
    """A column of nulls that no file has, until it gets a type."""
    table.create(
        "id BIGINT, v VOID, s STRUCT<x: INT, v: VOID>", "SELECT id, NULL, named_struct('x', 1, 'v', NULL) FROM range(4)"
    )
    change_rows(table)
    frame = table.spark.sql("SELECT 7L AS id, 'text' AS v, named_struct('x', 1, 'v', 5) AS s")
    frame.write.format("delta").mode("append").option("mergeSchema", "true").save(str(table.path))
    table.sql("DELETE FROM {t} WHERE id IN (3, 7)")
    table.check(feed_from=None)


# These names need no column mapping; the others are below.
NAMES: Final = (
    "a.b",
    "a.b.c",
    "a",
    "50%",
    "a%2Fb",
    "%20",
    'quo"te',
    "it's",
    "é",
    "日本",
    "🙂",
    "x:y",
    "a/b",
    "back\\slash",
    "#?&+",
    "[x]*",
    "$",
    "_",
    "-1",
    "element",
    "key",
)
NAMES_TO_MAP: Final = ("two words", " ", "a,b", "a;b", "{a}", "(a)", "tab\there", "new\nline", "a=b", ",;{}()\n\t=")


def escaped(name: str) -> str:
    """Return a name in SQL's backticks."""
    return quoted(name.replace("`", "``"))


@pytest.mark.parametrize("mode", ["none", "name", "id"])
@pytest.mark.sampled(3)
def test_names(table: Table, mode: str) -> None:
    """As columns, as fields in them, and as partition columns, whose names are keys in the log and parts of paths."""
    names = NAMES if mode == "none" else (*NAMES, *NAMES_TO_MAP)
    struct = ", ".join(f"{escaped(name)}: INT" for name in names)
    partition = [f"p{name}" for name in names if name not in ("new\nline", ",;{}()\n\t=")][::4]
    columns = ["id BIGINT", *(f"{escaped(name)} STRING" for name in names)]
    columns += [f"s STRUCT<{struct}>", f"`l.m` ARRAY<MAP<STRING, STRUCT<{struct}>>>"]
    columns += [f"{escaped(name)} STRING" for name in partition]
    values = ", ".join([f"'{number}'" for number in range(len(names))])
    inner = f"struct({', '.join(f'{number} AS {escaped(name)}' for number, name in enumerate(names))})"
    folders = ", ".join(f"'{number}/%{number}'" for number in range(len(partition)))
    table.create(
        ", ".join(columns),
        f"SELECT id, {values}, {inner}, array(map('k', {inner}), NULL), {folders} FROM range(5)",
        partition=", ".join(map(escaped, partition)),
        properties=f"'delta.columnMapping.mode' = '{mode}'",
    )
    change_rows(table)
    table.sql(f"UPDATE {{t}} SET {escaped('a.b')} = 'new', s.{escaped('a.b')} = -1 WHERE id = 3")
    versions = table.check()
    assert set(names) < set(versions[1].table.schema.names)


def test_names_with_backticks(table: Table) -> None:
    """Spark writes such tables, but fails to update them."""
    names = ("`", "`a`", "a`b.c")
    columns = ", ".join(f"{escaped(name)} INT" for name in names)
    inner = ", ".join(f"{escaped(name)}: INT" for name in names)
    values = f"id, 2, 3, struct({', '.join(f'{number} AS {escaped(name)}' for number, name in enumerate(names))}), 'p'"
    table.create(f"{columns}, s STRUCT<{inner}>, `p``` STRING", f"SELECT {values} FROM range(4)", False, True, "`p```")
    table.sql(f"DELETE FROM {{t}} WHERE {escaped('`')} = 2")
    versions = table.check(feed_from=None)
    assert versions[2].table.schema.names[:5] == [*names, "s", "p`"]


@pytest.mark.parametrize(("mode", "legacy"), [("name", True), ("id", False)])
@pytest.mark.nightly
def test_mapped_columns_renamed_dropped_and_added_on_every_level(table: Table, mode: str, legacy: bool) -> None:
    properties = f"'delta.columnMapping.mode' = '{mode}'"
    if legacy:
        properties += ", 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
    inner = "STRUCT<x: INT, y: STRING>"
    table.create(
        f"id BIGINT, s STRUCT<a: INT, b: {inner}>, l ARRAY<{inner}>, m MAP<STRING, ARRAY<{inner}>>, "
        f"k MAP<{inner}, INT>, p INT",
        "SELECT id, named_struct('a', 1, 'b', i), array(i, NULL), map('k', array(i), 'l', NULL), map(i, 1), 2 "
        "FROM (SELECT id, named_struct('x', CAST(id AS INT), 'y', 'y') AS i FROM range(6))",
        partition="p",
        properties=properties,
    )
    for path, name in (
        ("s.b.x", "y2"),
        ("s.b", "a2"),
        ("l.element.x", "z"),
        ("m.value.element.x", "x 2"),
        ("k.key.x", "q"),
    ):
        table.sql(f"ALTER TABLE {{t}} RENAME COLUMN {path} TO `{name}`")
    table.sql("UPDATE {t} SET s.a = 5 WHERE id = 0")
    table.sql("ALTER TABLE {t} DROP COLUMNS (s.a2.y, l.element.y)")
    table.sql("DELETE FROM {t} WHERE id = 1")
    # Other columns under former names.
    table.sql("ALTER TABLE {t} ADD COLUMNS (s.a2.x STRING, l.element.x BOOLEAN, m.value.element.x DATE)")
    table.sql("ALTER TABLE {t} RENAME COLUMN p TO `p.q`")
    table.sql("UPDATE {t} SET s.a2.x = 'new' WHERE id = 2")
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sql("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id > 3")
    table.check(feed_from=None)
    protocols = [action for version in range(table.latest + 1) for action in table.actions(version, "protocol")]
    assert {protocol["minReaderVersion"] for protocol in protocols} == {2}
    assert any("columnMapping" in protocol.get("writerFeatures", ()) for protocol in protocols) is not legacy


CALENDARS: Final = ("spark__sql__parquet__datetimeRebaseModeInWrite", "spark__sql__parquet__int96RebaseModeInWrite")


@pytest.mark.parametrize(
    ("kind", "old"),
    [
        ("INT96", "NULL, array(NULL, TIMESTAMP'1899-12-31 23:59:59'), NULL"),
        ("TIMESTAMP_MICROS", "DATE'1582-10-04', NULL, NULL"),
        ("TIMESTAMP_MILLIS", "NULL, array(NULL, TIMESTAMP'0001-01-01 00:00:00'), NULL"),
    ],
    ids=["int96", "micros", "millis"],
)
@pytest.mark.sampled(3)
def test_days_of_the_julian_calendar(table: Table, kind: str, old: str) -> None:
    """Spark converts them when it reads; we refuse them, and read everything else in such a file."""
    columns = "id BIGINT, d DATE, l ARRAY<TIMESTAMP>, n TIMESTAMP_NTZ"
    late = "DATE'1582-10-15', array(TIMESTAMP'1900-01-01 00:00:00', NULL), TIMESTAMP_NTZ'0001-01-01 00:00:00'"
    table.create(columns, f"SELECT 0L, {late}")
    legacy: dict[str, Any] = dict.fromkeys(CALENDARS, "LEGACY")
    legacy["spark__sql__parquet__outputTimestampType"] = kind
    with settings(table.spark, **legacy):
        table.sql("UPDATE {t} SET id = 10 WHERE id = 0")
    said = pq.ParquetFile(files(table.path)[-1]).metadata.metadata
    assert {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"} <= said.keys()
    table.sql("INSERT INTO {t} SELECT 2L, DATE'1500-01-01', array(TIMESTAMP'0001-01-01 00:00:00'), NULL")
    assert len(table.check(by_spark=True)) == 4
    with settings(table.spark, **legacy):
        table.sql(f"INSERT INTO {{t}} SELECT 3L, {old}")
    versions, error = follow_until_error(table.path)
    assert len(versions) == 4
    assert isinstance(error, UnsupportedFeature)
    assert (error.feature, error.version) == ("the calendar of old Spark", 4)


def test_partition_texts_are_what_was_recorded(spark: SparkSession, tmp_path: Path) -> None:
    answers = spark_answers()
    asked = ask_spark(spark, tmp_path / "texts", {kind: list(texts) for kind, texts in answers.items()})
    assert json.dumps(asked) == json.dumps(answers)  # NaN is not equal to itself

"""Paths into Variants as columns: printed, in a pipeline, in Python and in Spark, and refused by name."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tailer
import tailer.spark
from tailer.errors import ConfigError
from tailer.variant import json_texts
from tests.support.daemon.commands import background
from tests.support.daemon.commands import tailer as run
from tests.support.oracle.recorded import CASES_DATA, read

PATHS = ("v:$.a", "v:$.b.c[0]", "v:$[3].a", "v:$['no such']")


@pytest.fixture(params=["shredded-copies-files", "plain-vectors-feed"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table of Spark's with a VARIANT column."""
    return read(CASES_DATA / f"variants_{request.param}.1.tar.xz", tmp_path).path


def lines(table: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return the rows that `tailer tail` prints."""
    done = run("tail", table, "--from", "earliest", "--to", "latest", "--format", "jsonl", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def at(value: Any, steps: Sequence[str | int]) -> Any:
    """Return the value at a path, found without it."""
    for step in steps:
        is_there = isinstance(value, list) and step < len(value) if isinstance(step, int) else isinstance(value, dict)
        value = value[step] if is_there and (isinstance(step, int) or step in value) else None
    return value


def test_values_are_those_of_the_column(table: Path) -> None:
    rows = lines(table, "--carryovers", "keep", "--columns", ",".join(["id", "v", *PATHS]))
    assert len(rows) >= 20
    for row in rows:
        assert row["v:$.a"] == at(row["v"], ["a"])
        assert row["v:$.b.c[0]"] == at(row["v"], ["b", "c", 0])
        assert row["v:$[3].a"] == at(row["v"], [3, "a"])
        assert row["v:$['no such']"] is None
    assert {type(row["v:$.a"]) for row in rows} >= {int, str, type(None)}


def test_rows_are_compared_at_the_path(tmp_path: Path) -> None:
    """The rows of a rewritten file have no changes where their values at the path are the same."""
    table = read(CASES_DATA / "variants_shredded-copies-files.1.tar.xz", tmp_path).path

    def changed(*columns: str) -> Counter[int]:
        return Counter(row["_commit_version"] for row in lines(table, "--columns", ",".join(columns)))

    assert changed("id", "v")[2] == 4
    assert changed("id", "v:$['no such']")[2] == 0
    assert changed("id", "v:$.a")[2] == changed("id", "v:$.a", "v:$['no such']")[2] > 0


def test_python_gives_variants(table: Path) -> None:
    found = tailer.changes(table, start="earliest", end="latest", columns=["id", "v:$.a"]).to_arrow()
    expected = [row["v:$.a"] for row in lines(table, "--columns", "id,v:$.a")]
    assert Counter(json_texts(found["v:$.a"])) == Counter(
        None if text == "null" else text for text in map(json.dumps, expected)
    )


def test_a_pipeline_delivers_them(table: Path) -> None:
    config, target = table.parent / "tailer.toml", table.parent / "target"
    config.write_text(
        f'[pipelines.p]\ntable = "{table}"\ncolumns = ["id", "v:$.a"]\n'
        f'[pipelines.p.sink]\nkind = "files"\npath = "{target}"\n'
    )
    expected = lines(table, "--columns", "id,v:$.a")
    found: list[dict[str, Any]] = []
    with background("run", "--config", config) as daemon:
        for _ in range(300):
            files = sorted(target.glob("**/[!.]*.jsonl")) if target.exists() else []
            found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
            if len(found) >= len(expected):
                break
            time.sleep(0.1)
        daemon.terminate()
        daemon.wait(300)
    assert found == expected


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("v:$.a..b", "is no path"),
        ("v:$[-1]", "is no path"),
        ("v:$x", "is no path"),
        ("id:$.a", "column id is int64, not VARIANT"),
        ("w:$.a", "no column 'w:$.a'"),
    ],
)
def test_bad_paths_are_refused_by_name(table: Path, column: str, reason: str) -> None:
    done = run("tail", table, "--to", "latest", "--columns", f"id,{column}")
    assert done.returncode == 2
    assert reason in done.stderr
    assert column in done.stderr
    with pytest.raises(ConfigError, match="columns"):
        tailer.changes(table, start="earliest", end="latest", columns=["id", column]).to_arrow()
    if reason == "is no path":
        config = table.parent / "tailer.toml"
        config.write_text(
            f'[pipelines.p]\ntable = "{table}"\ncolumns = ["id", "{column}"]\n'
            f'[pipelines.p.sink]\nkind = "files"\npath = "{table.parent / "target"}"\n'
        )
        done = run("check", "--config", config)
        assert done.returncode != 0
        assert "pipelines.p.columns" in done.stdout + done.stderr


def test_sparks_source_has_them(table: Path, spark: SparkSession) -> None:
    tailer.spark.register(spark)
    source = spark.read.format("tailer").options(startingVersion=0, columns="ID,V:$.a,v,v:$.b.c[0]")
    frame = source.load(str(table))
    assert frame.schema.simpleString().startswith("struct<id:bigint,v:$.a:variant,v:variant,v:$.b.c[0]:variant")
    pairs = (("v:$.a", "$.a"), ("v:$.b.c[0]", "$.b.c[0]"))
    same = " AND ".join(f"to_json(`{name}`) <=> to_json(variant_get(v, '{path}', 'variant'))" for name, path in pairs)
    assert frame.count() > 10
    assert frame.where(f"NOT ({same})").count() == 0
    assert frame.where("`v:$.a` IS NOT NULL").count() > 0


def test_the_envelope_of_sparks_source_has_them(table: Path, spark: SparkSession) -> None:
    tailer.spark.register(spark)
    source = spark.read.format("tailer").options(startingVersion=0, columns="id,v:$.a", schema="envelope")
    found = [json.loads(row.value) for row in source.load(str(table)).select("value").collect() if row.value]
    expected = [{name: row[name] for name in ("id", "v:$.a")} for row in lines(table, "--columns", "id,v:$.a")]
    assert Counter(map(json.dumps, found)) == Counter(map(json.dumps, expected))


@pytest.mark.parametrize("schema", ["typed", "envelope"])
def test_sparks_source_follows_a_renamed_column(tmp_path: Path, spark: SparkSession, schema: str) -> None:
    """The column of a path is the same one, whatever its name was in an earlier version."""
    tailer.spark.register(spark)
    path = str(tmp_path / "table")
    properties = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT, v VARIANT) USING delta {properties}")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, parse_json('{{\"a\": 1}}'))")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN v TO w")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (2, parse_json('{{\"a\": 2}}'))")
    source = spark.read.format("tailer").options(startingVersion=0, columns="id,w:$.a", schema=schema)
    rows = source.load(path)
    if schema == "typed":
        assert sorted((row.id, row.a) for row in rows.selectExpr("id", "to_json(`w:$.a`) AS a").collect()) == [
            (1, "1"),
            (2, "2"),
        ]
    else:
        found = [json.loads(row.value) for row in rows.where("_change_type = 'insert'").select("value").collect()]
        assert sorted(found, key=lambda row: int(row["id"])) == [{"id": 1, "v:$.a": 1}, {"id": 2, "w:$.a": 2}]

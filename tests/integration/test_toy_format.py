"""A format that another package brings is followed like our own: by `tail`, into Kafka, and by Spark."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tailer
import tailer.spark
from tests.support.daemon.commands import background, complaints
from tests.support.daemon.commands import tailer as run
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import read_topic, unique_name
from tests.support.toy.table import ToyTable, installed
from tests.support.waiting import until

VERSIONS = 8


@pytest.fixture
def python_path(tmp_path: Path) -> Iterator[str]:
    """Install the package of the format; return the `PYTHONPATH` of processes that have it."""
    with installed(tmp_path / "packages") as path:
        yield path


@pytest.fixture
def table(tmp_path: Path) -> ToyTable:
    """A table that grows and shrinks."""
    return ToyTable(tmp_path / "table").write_history(VERSIONS)


def folded(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the ids that are left after all changes. Each must be inserted once, and deleted once at most."""
    left: Counter[int] = Counter()
    for row in rows:
        left[row["id"]] += 1 if row["_change_type"] == "insert" else -1
        assert left[row["id"]] in (0, 1)
    return sorted(left.elements())


def test_tail(table: ToyTable, python_path: str) -> None:
    for options in ((), ("--table-format", "toy")):
        done = run("tail", table.path, "--from", "earliest", "--to", "latest", *options, PYTHONPATH=python_path)
        assert (done.returncode, complaints(done.stderr)) == (0, [])
        assert folded(map(json.loads, done.stdout.splitlines())) == table.history[-1]


def test_it_is_looked_at_before_it_is_followed(table: ToyTable, python_path: str) -> None:
    done = run("doctor", table.path, PYTHONPATH=python_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"{table.path}: a toy table"), done.stderr
    done = run("history", table.path, "--limit", 3, PYTHONPATH=python_path)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), done.stderr


@pytest.mark.usefixtures("python_path")
def test_chosen_rows_and_columns(table: ToyTable) -> None:
    """They are what a filter in Python leaves of all rows."""
    every = [row for batch in tailer.changes(table.path) for row in batch.to_pylist()]
    where, select = "id % 3 = 1 AND name <> 'n1'", "id + 1 AS next, concat('*', right(name, 1)) AS name"
    found = [row for batch in tailer.changes(table.path, where=where, select=select) for row in batch.to_pylist()]
    assert found == [
        {"next": row.pop("id") + 1, **row, "name": "*" + row["name"][-1]}
        for row in every
        if row["id"] % 3 == 1 and row["name"] != "n1"
    ]
    assert {row["_change_type"] for row in found} == {"insert", "delete"}


def test_without_the_package_the_error_names_the_formats(table: ToyTable) -> None:
    done = run("tail", table.path, "--table-format", "toy")
    assert done.returncode != 0
    assert "'toy' is no format of a table" in done.stderr
    assert "Give delta, lance or iceberg." in done.stderr


# The client library forgets a Unix socket that nobody serves.
@pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")
def test_a_pipeline_into_kafka_across_a_kill(
    tmp_path: Path, table: ToyTable, python_path: str, kafka: KafkaCluster
) -> None:
    topic = unique_name("toy")
    config = tmp_path / "toy.toml"
    config.write_text(f"""
[pipelines.toy]
table = "table"
poll_interval_s = 0.1
[pipelines.toy.sink]
kind = "kafka"
bootstrap_servers = "{kafka.bootstrap_servers}"
topic = "{topic}"
progress_topic = "{unique_name("progress")}"
create_topics = true
key = ["id"]
""")

    def rows() -> list[Any]:
        return [json.loads(record.value or "{}") for record in read_topic(kafka.bootstrap_servers, topic)]

    def is_level() -> bool:
        try:
            return folded(rows()) == table.history[-1]
        except KeyError:
            return False

    with background("run", "--config", config, PYTHONPATH=python_path) as daemon:
        until(is_level)
        daemon.kill()
        daemon.communicate()
    table.commit({"more.parquet": range(1000, 1010)}, {"1.parquet": [0]})
    with background("run", "--config", config, PYTHONPATH=python_path):
        until(is_level)
        table.commit({}, {"more.parquet": [9]})
        until(is_level)
    found = rows()
    assert [row["_commit_version"] for row in found] == sorted(row["_commit_version"] for row in found)


@pytest.fixture
def spark_with_package(spark: SparkSession, python_path: str, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Give Spark's processes of Python the package."""
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", python_path)
    return spark


def test_the_spark_source(tmp_path: Path, table: ToyTable, spark_with_package: SparkSession) -> None:
    spark = spark_with_package
    tailer.spark.register(spark)
    found = spark.read.format("tailer").option("startingVersion", "earliest").load(str(table.path)).collect()
    assert folded(row.asDict() for row in found) == table.history[-1]
    frame = spark.readStream.format("tailer").option("startingVersion", "earliest").load(str(table.path))
    query = (
        frame.writeStream.format("memory")
        .queryName("toy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    streamed = spark.sql("SELECT * FROM toy ORDER BY _commit_version, _change_type").collect()
    assert folded(row.asDict() for row in streamed) == table.history[-1]

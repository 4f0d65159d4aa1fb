"""A condition (`where`) gives the same rows on every path to Spark as in Python, and what Spark's own `where` gives.

Spark writes the tables and judges: at every version the fold of the changes is the condition applied to its snapshot.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tailer
import tailer.spark
from tests.support.oracle.rows import Rows, assert_same, fold, rows_of
from tests.support.spark.table import Table
from tests.support.tables.log_files import add, metadata, parquet, protocol, schema_string, write_commit

CONDITIONS: Final = (
    "amount > 20 AND NOT p <=> 'p1'",
    "amount % 4 IN (1, 2) OR amount IS NULL",
    "coalesce(p, 'none') LIKE '%n%' OR id BETWEEN 3 AND 11",
    "CASE WHEN p = 'p0' THEN amount / 2 > 10 ELSE id % 3 = 0 END",
)
KINDS: Final[Mapping[str, dict[str, Any]]] = {
    "feed": {},
    "no feed": {"feed": False},
    "vectors": {"feed": False, "vectors": True},
    "partitioned": {"feed": False, "partition": "p"},
    "mapped": {"vectors": True, "properties": "'delta.columnMapping.mode' = 'name'"},
}


@dataclass
class Judged:
    """A table, and for each of its versions the rows of Spark's snapshot that fulfil each of `CONDITIONS`.

    `renamed`: the version that renames the column `label` to `note`; everywhere here rows have the present name.
    """

    path: Path
    fulfilling: list[list[Rows]]
    renamed: int | None

    def changes(self, where: str) -> pa.Table:
        """Return all changes of the rows that fulfil a condition, as `tailer.changes` gives them."""
        if self.renamed is None:
            return in_python(self.path, where)
        before = in_python(self.path, where, end=self.renamed - 1)
        after = in_python(self.path, where, start=self.renamed)
        return pa.concat_tables([before.rename_columns(after.column_names), after])


def in_python(path: Path, where: str, **options: Any) -> pa.Table:
    """Return what `tailer.changes` gives."""
    return pa.Table.from_batches(tailer.changes(path, where=where, **options))


@pytest.fixture(scope="module", params=KINDS)
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Judged:
    """A history of INSERT, UPDATE, DELETE and MERGE."""
    table, is_mapped = Table(spark, tmp_path_factory.mktemp("conditions") / "t é%"), request.param == "mapped"
    values = "if(id % 5 = 4, NULL, concat('p', id % 3)), int(if(id % 7 = 6, NULL, id * 3)), concat('note ', id % 4)"
    columns = f"id BIGINT, p STRING, amount INT, {'label' if is_mapped else 'note'} STRING"
    table.create(columns, f"SELECT id, {values} FROM range(24)", **KINDS[request.param])
    table.sql("UPDATE {t} SET amount = 60 - amount WHERE id % 4 < 2")
    table.sql("DELETE FROM {t} WHERE id % 6 = 5")
    if is_mapped:
        table.sql("ALTER TABLE {t} RENAME COLUMN label TO note")
    renamed = table.latest if is_mapped else None
    table.sql(
        "MERGE INTO {t} t USING (SELECT id * 2 AS id FROM range(16)) s ON t.id = s.id AND t.amount IS NOT NULL "
        "WHEN MATCHED AND s.id % 10 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET p = concat('pn', s.id % 2) "
        "WHEN NOT MATCHED THEN INSERT (id, p, amount, note) VALUES (s.id, 'p0', int(s.id), 'merged')"
    )
    table.sql("UPDATE {t} SET p = 'p1', amount = amount + 1 WHERE amount % 2 = 0")
    return Judged(table.path, [_fulfilling(table, version) for version in range(table.latest + 1)], renamed)


def _fulfilling(table: Table, version: int) -> list[Rows]:
    frame = table.spark.read.format("delta").option("versionAsOf", version).load(str(table.path))
    frame = frame.withColumnRenamed("label", "note")
    rows = frame.selectExpr("*", *(f"({text}) AS c{number}" for number, text in enumerate(CONDITIONS))).toArrow()
    own = rows.select(frame.columns)
    return [rows_of(own.filter(rows.column(f"c{number}"))) for number in range(len(CONDITIONS))]


@pytest.fixture
def followed(spark: SparkSession, tmp_path: Path) -> Callable[..., pa.Table]:
    """Run queries of `tailer.spark.follow` up to what is there, each with the same checkpoint."""

    def run(path: Path, fails_at: int = -1, **options: Any) -> pa.Table:
        found: list[pa.Table] = []

        def deliver(rows: DataFrame, number: int) -> None:
            if number == fails_at:
                raise RuntimeError("killed")
            found.append(rows.toArrow())

        query = tailer.spark.follow(spark, path, deliver, start=0, **options).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        return pa.concat_tables(found)

    return run


def opened(envelopes: pa.Table) -> Rows:
    """Return the rows in envelopes as typed rows, without the time of the commit."""
    found = Rows()
    for row in envelopes.to_pylist():
        if row["_change_type"] != "schema_change":
            values = {"note" if name == "label" else name: value for name, value in json.loads(row["value"]).items()}
            values |= {name: row[name] for name in ("_change_type", "_commit_version")}
            found[tuple(sorted((name, value) for name, value in values.items() if value is not None))] += 1
    return found


@pytest.mark.parametrize("number", range(len(CONDITIONS)))
@pytest.mark.sampled(20)
def test_every_path_gives_the_rows_that_fulfil_a_condition(
    spark: SparkSession, judged: Judged, followed: Callable[..., pa.Table], number: int
) -> None:
    tailer.spark.register(spark)
    where, path = CONDITIONS[number], judged.path
    expected = judged.changes(where)
    wanted = rows_of(expected)
    source = spark.read.format("tailer").options(startingVersion=0, where=where)
    assert_same(rows_of(source.load(str(path)).toArrow()), wanted, "typed")
    envelopes = source.option("schema", "envelope").load(str(path)).toArrow()
    assert_same(opened(envelopes), rows_of(expected, ["_commit_timestamp"]), "envelopes")
    assert_same(rows_of(tailer.spark.changes(spark, path, where=where).toArrow()), wanted, "tailer.spark.changes")
    assert_same(rows_of(followed(path, where=where, maxFilesPerTrigger=4)), wanted, "tailer.spark.follow")
    state = Rows()
    for version, answers in enumerate(judged.fulfilling):
        state = fold(state, expected.filter(pc.equal(expected["_commit_version"], version)), f"version {version}")
        assert_same(state, answers[number], f"version {version} by the snapshot of Spark")
    assert state.total() > 0


def test_another_condition_in_the_middle_of_a_version_is_refused(
    followed: Callable[..., pa.Table], tmp_path: Path
) -> None:
    """Between versions it may change."""
    path, some, others = tmp_path / "t", "a % 2 = 0", "a % 2 = 1"

    def commit(version: int, *firsts: int) -> None:
        rows = [pa.table({"a": pa.array(range(first, first + 10), pa.int64())}) for first in firsts]
        files = [parquet(path / f"{first}.parquet", each) for first, each in zip(firsts, rows, strict=True)]
        write_commit(path, version, *(add(file.name, size=file.stat().st_size) for file in files))

    write_commit(path, 0, protocol(), metadata(schema_string(a="long")))
    commit(1, 0, 10, 20)
    one = {"maxFilesPerTrigger": 1}
    with pytest.raises(StreamingQueryException, match="killed"):
        followed(path, fails_at=1, where=some, **one)
    for options in ({"where": others}, {}):
        with pytest.raises(StreamingQueryException, match="version 1 was delivered in part, with other choices"):
            followed(path, **one, **options)
    assert sorted(followed(path, where=some, **one)["a"].to_pylist()) == list(range(10, 30, 2))
    commit(2, 100)
    assert sorted(followed(path, where=others, **one)["a"].to_pylist()) == list(range(101, 110, 2))

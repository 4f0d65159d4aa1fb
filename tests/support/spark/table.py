"""A Delta table written by Spark's SQL, or by hand where Spark would not, and judged by Spark's own reading."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from tailer_sinks.testing.rows import DELTA_TYPES
from tests.support.follow import Followed
from tests.support.histories.random_history import latest_version
from tests.support.histories.schema_evolution import Answer
from tests.support.oracle.column_identity import Schema
from tests.support.oracle.recorded import RecordedTable, judge
from tests.support.oracle.rows import collected, spark_feed

__all__ = ["Table", "kinds", "schemas_in", "write_all_types"]


class Table:
    """The table at `path`, which does not exist before `create`."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path

    def sql(self, text: str) -> None:
        """Run a statement; `{t}` is the table."""
        self.spark.sql(text.replace("{t}", f"delta.`{self.path}`")).collect()

    def create(
        self,
        columns: str,
        rows: str,
        feed: bool = True,
        vectors: bool = False,
        partition: str = "",
        properties: str = "",
    ) -> None:
        """Make the table (version 0) and insert the rows of a SELECT, in one file per partition (version 1)."""
        self.sql(
            f"CREATE TABLE {{t}} ({columns}) USING delta {f'PARTITIONED BY ({partition})' if partition else ''} "
            f"TBLPROPERTIES ('delta.enableChangeDataFeed' = '{str(feed).lower()}',"
            f" 'delta.enableDeletionVectors' = '{str(vectors).lower()}'"
            f"{', ' if properties else ''}{properties})"
        )
        self.sql(f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ * FROM ({rows})")

    @property
    def latest(self) -> int:
        """The newest version."""
        return latest_version(self.path)

    def commit_file(self, version: int) -> Path:
        """Return the path of a version's commit."""
        return self.path / "_delta_log" / f"{version:020d}.json"

    def actions(self, version: int, kind: str) -> list[dict[str, Any]]:
        """Return the actions of one kind in a version's commit."""
        lines = self.commit_file(version).read_text().splitlines()
        return [action[kind] for action in map(json.loads, lines) if kind in action]

    def commit(self, *actions: dict[str, Any]) -> int:
        """Write the next commit by hand; return its version."""
        version = self.latest + 1
        self.rewrite(version, list(actions))
        return version

    def rewrite(self, version: int, actions: list[dict[str, Any]]) -> None:
        """Rewrite a version's commit by hand. Spark's cached state is dropped."""
        self.commit_file(version).write_text("".join(json.dumps(action) + "\n" for action in actions))
        self.commit_file(version).with_name(f".{version:020d}.json.crc").unlink(missing_ok=True)
        self.commit_file(version).with_suffix(".crc").unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Drop Spark's cached state of log files."""
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]

    def recorded(self, feed_from: int | None = 0, feed_to: int | None = None, by_spark: bool = False) -> RecordedTable:
        """Return Spark's answers: all rows of each version, and the feed from `feed_from` to `feed_to` (None: none).

        Where its feed leads from one version to the next, Spark is asked only for the rows of the newest one, unless
        `by_spark` demands all of them: for values that delta-rs does not support.
        """
        feed = {} if feed_from is None else spark_feed(self.spark, self.path, feed_from, feed_to)
        last = self.latest if feed_to is None else feed_to
        schemas, answers = schemas_in(self.path), {}
        read: dict[int, pa.Table] = {}
        for version in range(self.latest, -1, -1):
            asked = feed_from is not None and feed_from <= version <= last
            after = read.get(version + 1)
            if not by_spark and asked and after is not None and schemas[version] == schemas[version + 1]:
                read[version] = self._with_another_reader(version, after.schema)
            else:
                read[version] = self._rows(version)
            answers[version] = Answer.of(read[version], feed.get(version), asked)
        story = [str(info.get("operation")) for info in map(self._commit_info, range(self.latest + 1))]
        return RecordedTable(self.path, "a case", story, schemas, answers)

    def _rows(self, version: int) -> pa.Table:
        """Return all rows of a version as Spark reads them."""
        reader = self.spark.read.format("delta").option("versionAsOf", version)
        return collected(reader.load(str(self.path)))

    def _with_another_reader(self, version: int, schema: pa.Schema) -> pa.Table:
        """Return the same rows, read by delta-rs in a hundredth of the time, or by Spark if delta-rs cannot."""
        try:
            reader = QueryBuilder().register("snapshot", DeltaTable(self.path, version=version))
            return pa.table(reader.execute("SELECT * FROM snapshot").read_all()).select(schema.names).cast(schema)
        except Exception:  # noqa: BLE001 - it says in many ways that it does not know a feature or a type
            return self._rows(version)

    def _commit_info(self, version: int) -> dict[str, Any]:
        return next(iter(self.actions(version, "commitInfo")), {})

    def check(self, feed_from: int | None = 0, feed_to: int | None = None, by_spark: bool = False) -> list[Followed]:
        """Judge all versions by the fold over Spark's snapshots, and by its feed (see `recorded`)."""
        return judge(self.recorded(feed_from, feed_to, by_spark))


def schemas_in(path: Path) -> dict[int, Schema]:
    """Return the schema of every version of a table whose log begins at 0."""
    found: dict[int, Schema] = {}
    for version in range(latest_version(path) + 1):
        lines = (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        metadata = [action["metaData"] for action in map(json.loads, lines) if "metaData" in action]
        found[version] = json.loads(metadata[0]["schemaString"]) if metadata else found[version - 1]
    return found


def kinds(version: Followed) -> dict[str, int]:
    """Return the number of rows of a version by change type."""
    counted: dict[str, int] = {}
    for table in version.tables:
        for row in table.group_by("_change_type").aggregate([([], "count_all")]).to_pylist():
            counted[row["_change_type"]] = counted.get(row["_change_type"], 0) + row["count_all"]
    return counted


def write_all_types(spark: SparkSession, path: Path) -> Path:
    """Write a table with a column of every type: edge values, nulls on every level, deletes, updates and a feed."""
    types = {name: entry for name, entry in DELTA_TYPES.items() if name != "void"}
    height = max(len(values) for _, values in types.values()) + 1
    columns = {
        name: pa.array([*values, *[None] * (height - len(values))], kind) for name, (kind, values) in types.items()
    }
    source = spark.createDataFrame(pa.table({"id": pa.array(range(height), pa.int64()), **columns}))
    fields = ", ".join(f"`{name}` {kind}" for name, kind in source.dtypes[1:])
    properties = "'delta.enableChangeDataFeed' = 'true', 'delta.columnMapping.mode' = 'name'"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT NOT NULL, {fields}, deep ARRAY<MAP<INT, ARRAY<STRUCT<"
        f"`x y`: DECIMAL(3,3), n: STRUCT<t: TIMESTAMP, d: DATE>>>>>) USING delta TBLPROPERTIES ({properties})"
    )
    deep = (
        "CASE id WHEN 0 THEN array(map(1, array(named_struct('x y', 0.125, 'n', named_struct('t', TIMESTAMP"
        "'1582-10-15 00:00:00', 'd', DATE'1582-10-04')), NULL), 2, NULL), NULL, map()) WHEN 1 THEN array() END"
    )
    source.selectExpr("*", f"{deep} AS deep").write.format("delta").mode("append").save(str(path))
    spark.sql(f"UPDATE delta.`{path}` SET string = 'new' WHERE id < 2")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")
    return path

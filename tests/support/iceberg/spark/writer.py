"""A process of Spark that writes random histories of Iceberg tables, a step at a time, and says what is in them.

It runs in an environment of its own, with another Spark than ours (`make .venv/iceberg/.synced`), and imports nothing
but Spark. Each line of its input is an order in JSON, and each line of its output the answer: `new` makes a table, and
`step` changes it in a random way and tells all new snapshots, with a file of the rows of each.
"""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.iceberg.spark.operations import Operations
from tests.support.iceberg.spark.table import SparkTable

_SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.local.type": "hadoop",
    "spark.sql.catalog.local.cache-enabled": "false",
    # Executors keep delete files by path, with the type that a key had when it was read first.
    "spark.sql.iceberg.executor-cache.enabled": "false",
    # To compile code for each query takes longer than these queries.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.variant.allowReadingShredded": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
_LOG4J = "rootLogger.level = off\n"


def _build(scratch: Path, jars: str) -> SparkSession:
    quiet = scratch / "log4j2.properties"
    quiet.write_text(_LOG4J)
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch / "local")
    builder = SparkSession.builder.master("local[1]").appName("iceberg")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    java = f"{_JAVA} -Dlog4j2.configurationFile={quiet.as_uri()}"
    builder = builder.config("spark.driver.extraJavaOptions", java)
    warehouse = scratch / "tables"
    return builder.config("spark.jars", jars).config("spark.sql.catalog.local.warehouse", str(warehouse)).getOrCreate()


class _Server:
    def __init__(self, spark: SparkSession, scratch: Path) -> None:
        self._spark = spark
        self._scratch = scratch
        self._operations: Operations | None = None
        self._told: set[int] = set()

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do what an order says."""
        if order["do"] == "new":
            name = f"local.db.t{order['name']}"
            table = SparkTable(self._spark, name, order["seed"], order["plain"], order["keyed"])
            self._operations, self._told = Operations(table, self._scratch), set()
            return {"location": str(self._scratch / "tables" / "db" / f"t{order['name']}")}
        assert self._operations is not None
        name, error = self._operations.step(order["inserts"])
        return {"operation": name, "error": error, **self._state(self._operations.table)}

    def _state(self, table: SparkTable) -> dict[str, Any]:
        """Return the snapshots that are new, and where branches and tags are."""
        loaded = table.load()
        snapshots = []
        for snapshot in loaded.snapshots():
            snapshot_id = snapshot.snapshotId()
            kept = {"id": snapshot_id, "number": snapshot.sequenceNumber(), "parent": snapshot.parentId()}
            if snapshot_id not in self._told:
                self._told.add(snapshot_id)
                kept["rows"] = str(self._dump(table, snapshot_id))
            snapshots.append({**kept, "operation": snapshot.operation(), "time": snapshot.timestampMillis()})
        refs = loaded.refs()
        current = loaded.currentSnapshot()
        return {
            "format": loaded.operations().current().formatVersion(),
            "current": None if current is None else current.snapshotId(),
            "snapshots": snapshots,
            "refs": {name: [refs[name].snapshotId(), refs[name].isTag()] for name in refs},
        }

    def _dump(self, table: SparkTable, snapshot_id: int) -> Path:
        """Write the columns and the rows of a snapshot, each with its row id."""
        at = f"{table.name} VERSION AS OF {snapshot_id}"
        ids = table.load().snapshot(snapshot_id).firstRowId() is not None
        wanted = "*, _row_id, _last_updated_sequence_number" if ids else "*"
        frame = self._spark.sql(f"SELECT {wanted} FROM {at}")
        columns = frame.columns[:-2] if ids else frame.columns
        found = [tuple(map(_plain, row)) for row in frame.collect()]
        changes = None if table.plain else self._changes(table, snapshot_id)
        path = self._scratch / f"{snapshot_id}.pickle"
        path.write_bytes(pickle.dumps((columns, ids, found, changes)))
        return path

    def _changes(self, table: SparkTable, snapshot_id: int) -> tuple[list[str], list[tuple[Any, ...]]] | str:
        """Return the columns and the rows of the changelog view of a snapshot, or its error."""
        parent = table.load().snapshot(snapshot_id).parentId()
        start = "" if parent is None else f"'start-snapshot-id', '{parent}', "
        options = f"options => map({start}'end-snapshot-id', '{snapshot_id}')"
        try:
            table.call("create_changelog_view", f"changelog_view => 'changed', compute_updates => false, {options}")
            frame = self._spark.table("changed").drop("_change_ordinal", "_commit_snapshot_id")
            columns = [name for name in frame.columns if name != "_change_type"]
            return columns, [tuple(map(_plain, row)) for row in frame.select("_change_type", *columns).collect()]
        except Exception as error:  # noqa: BLE001 - it reads no delete files, and sorts by all columns
            return " | ".join(line.strip() for line in str(error).splitlines()[:2])[:300]


def _plain(value: Any) -> Any:
    """Return a value without Spark's classes."""
    if hasattr(value, "asDict"):
        return {name: _plain(value[name]) for name in value.__fields__}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return [(_plain(key), _plain(each)) for key, each in value.items()]
    if type(value).__name__ == "VariantVal":
        return ["variant", value.toPython()]
    return bytes(value) if isinstance(value, bytearray) else value


def _main() -> None:
    scratch, jars = Path(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Java prints is no answer
    server = _Server(_build(scratch, jars), scratch)
    for line in sys.stdin:
        answers.write(json.dumps(server.answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    _main()

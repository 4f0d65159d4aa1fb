"""Spark's changelog view of an Iceberg table, in a process and an environment of its own.

Arguments: the location of the metadata file, the jars, the first version, and how often to read. For each time it
prints what `tests.bench.change_readers` prints. Java and Spark run before the time begins; the first time compiles.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import Observation, SparkSession, functions

_SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.bench": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.bench.type": "hadoop",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def _session(jars: str, warehouse: Path) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("bench").config("spark.jars", jars)
    builder = builder.config("spark.sql.catalog.bench.warehouse", str(warehouse))
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _read(spark: SparkSession, first: int) -> int:
    """Read all columns of the changes from a version on, and give them to no one. Return their number."""
    query = "SELECT snapshot_id FROM bench.db.t.snapshots ORDER BY committed_at, parent_id IS NOT NULL"
    ids = [row.snapshot_id for row in spark.sql(query).collect()]
    options = f"map('start-snapshot-id', '{ids[first - 2]}', 'end-snapshot-id', '{ids[-1]}')"
    arguments = f"table => 'bench.db.t', changelog_view => 'changed', compute_updates => false, options => {options}"
    spark.sql(f"CALL bench.system.create_changelog_view({arguments})").collect()
    counted = Observation()
    changed = spark.table("changed").observe(counted, functions.count(functions.lit(1)).alias("rows"))
    changed.write.format("noop").mode("overwrite").save()
    rows: int = counted.get["rows"]
    return rows


def _main(metadata: str, jars: str, first: int, times: int) -> None:
    warehouse = Path(metadata.removeprefix("file://")).parents[2] / "warehouse"
    copied = warehouse / "db" / "t" / "metadata"  # a Hadoop catalog names the files in its own way
    copied.mkdir(parents=True)
    shutil.copy(metadata.removeprefix("file://"), copied / "v1.metadata.json")
    (copied / "version-hint.text").write_text("1")
    spark = _session(jars, warehouse)
    java: Any = spark._jvm
    process = int(java.java.lang.ProcessHandle.current().pid())
    for _ in range(times):
        start, cpu_s = time.perf_counter(), _cpu_s(process)
        rows = _read(spark, first)
        taken = {"rows": rows, "seconds": time.perf_counter() - start, "cpu_s": _cpu_s(process) - cpu_s}
        status = Path(f"/proc/{process}/status").read_text()
        peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        print(json.dumps({**taken, "peak_mb": peak_kb / 1024}))


def _cpu_s(process: int) -> float:
    """Return the CPU time of a process so far."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

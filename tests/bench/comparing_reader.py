"""A process that reads the rewritten version of a table once, with updates by key: arguments SCRATCH, MASTER, TABLE.

MASTER is Spark's, such as `local[2]`, or `LocalEngine`. All processes of Spark are held on as many cores as it says:
else Java's own threads would have the others. Prints the time, the processor time by kind of process, the peak memory
of each kind of process, what Spark shuffled, and a digest of the rows, as JSON. It is a separate process so that memory
and Java's compiler begin anew.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

import pyarrow as pa

import tailer
import tailer.spark
from tailer.config.shapes import SparkSettings
from tailer.spark.native import comparing
from tailer.spark.session import close_session, open_session
from tests.bench.process_costs import Peaks, cpu_s
from tests.support.spark.event_log import event_log_settings, stages

__all__ = ["LOCAL", "read_once"]

LOCAL: Final = "LocalEngine"
KEY: Final = ("id",)
HEAP: Final = "512m"


def read_once(scratch: Path, master: str, table: str) -> dict[str, object]:
    """Read the version and return what it took."""
    return _local(table) if master == LOCAL else _shared(scratch, master, table)


def _local(table: str) -> dict[str, object]:
    with Peaks() as peaks:
        started, before = time.perf_counter(), cpu_s()
        rows = tailer.changes(table, start=1, end=1, compute_updates=True, key=KEY).to_arrow()
        taken = _taken(started, before)
    return {**taken, **peaks.mb(), **_seen(rows)}


def _shared(scratch: Path, master: str, table: str) -> dict[str, object]:
    cores = int(master.removeprefix("local[").removesuffix("]"))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    quiet = scratch / "log4j2.properties"
    quiet.write_text("rootLogger.level = off\n")
    events = scratch / "events"
    conf = {
        **event_log_settings(events),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.memory": HEAP,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
    }
    session = open_session(SparkSettings(master, conf=conf))
    try:
        # Executors' Python, the planner and Java's classes are loaded by then, as in a session that goes on.
        tailer.spark.changes(session, table, start=0, end=0, columns=["id"]).limit(1).toArrow()
        with Peaks() as peaks:
            started, before = time.perf_counter(), cpu_s()
            comparing.SHARED_BYTES = 0  # type: ignore[misc]
            changed = tailer.spark.changes(session, table, start=1, end=1, computeUpdates=True, key=list(KEY))
            compared_s = time.perf_counter() - started
            rows = changed.toArrow()
            taken = _taken(started, before)
        taken["python_s"] = peaks.workers_s()
        return {**taken, "compared_s": compared_s, **peaks.mb(), **_seen(rows), **_stages(events)}
    finally:
        close_session(session)


def _taken(started: float, before: dict[str, float]) -> dict[str, float]:
    after = cpu_s()
    return {"seconds": time.perf_counter() - started} | {name: after[name] - before[name] for name in after}


def _seen(rows: pa.Table) -> dict[str, object]:
    """Return the number of rows and their digest, whatever their order, and whatever the forms of times."""
    names = sorted(rows.column_names)
    kinds = rows.schema
    columns = [
        (rows[name].cast(pa.int64()) if pa.types.is_timestamp(kinds.field(name).type) else rows[name]).to_pylist()
        for name in names
    ]
    lines = sorted(repr(row) for row in zip(*columns, strict=True))
    return {"rows": len(lines), "digest": hashlib.sha256("\n".join(lines).encode()).hexdigest()}


def _stages(events: Path) -> dict[str, object]:
    """Return what the stages that read rows or shuffle took together, and each of them."""
    found = stages(events)
    each = [
        {
            "stage": number,
            "tasks": sum(stage.ends.values()),
            "wall_ms": stage.wall_ms,
            "run_ms": stage.run_ms,
            "cpu_ms": round(stage.cpu_ms),
            "shuffled_rows": stage.shuffled_rows,
            "shuffled_bytes": stage.shuffled_bytes,
            "spilled_bytes": stage.spilled_bytes,
            "result_bytes": stage.result_bytes,
        }
        for number, stage in sorted(found.items())
    ]
    return {"shuffled_bytes": sum(stage.shuffled_bytes for stage in found.values()), "stages": each}


if __name__ == "__main__":
    print(json.dumps(read_once(Path(sys.argv[1]), sys.argv[2], sys.argv[3])))

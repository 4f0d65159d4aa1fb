"""A process that delivers one table into another through executors until it is stopped: for `test_spark_delta_kill`.

python -m tests.faults.executor_writer SOURCE TARGET SCRATCH RANGE_VERSIONS append|mirror
"""

import sys
from pathlib import Path

import anyio

from tailer.config.placement import SparkSettings
from tailer.daemon.logs import log_to_stderr
from tailer.daemon.runs import run_all
from tailer.spark.session import close_session, open_session
from tailer.spark.write.delta.spark_with_delta import with_delta
from tests.support.spark.executor_writes import Delivering
from tests.support.spark.session import delta_jars

__all__ = ["settings"]


def settings(scratch: Path) -> SparkSettings:
    """Settings of a small local Spark with Delta."""
    quiet = scratch / "log4j2.properties"
    quiet.write_text("rootLogger.level = off\n")
    conf = {
        "spark.jars": ",".join(map(str, delta_jars())),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": (
            f"-Dderby.system.home={scratch / 'derby'} -Dlog4j2.configurationFile={quiet.as_uri()} "
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        ),
    }
    return with_delta(SparkSettings("local[2]", conf=conf))


async def _main(source: Path, target: Path, scratch: Path, range_versions: int, mode: str) -> None:
    options = {"mode": "mirror", "key": ["id"]} if mode == "mirror" else None
    session = open_session(settings(scratch))
    try:
        pipeline = Delivering(source, target, options=options, range_versions=range_versions).executors(lambda: session)
        failures = await run_all({"orders": pipeline}, drain_s=60)
    finally:
        close_session(session)
    for error in failures.values():
        raise error


if __name__ == "__main__":
    log_to_stderr()
    anyio.run(_main, Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])

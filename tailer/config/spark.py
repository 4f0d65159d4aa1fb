"""Check the configuration of Spark before Spark is started.

Covers the names of Spark's settings, the extras that install its libraries, and the pipelines that executors can write.
PySpark is looked up, not imported.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Final

from tailer.config.file import Key, PipelineTable
from tailer.config.options import flattened
from tailer.config.placement import LOCAL_MASTER, EngineKind, SparkSettings, Writers
from tailer.config.shapes import SparkShape
from tailer.errors import how_to_install
from tailer.pipeline.policy import OnDataLoss
from tailer.sink import AtLeastOnceSink, Sink

__all__ = ["Report", "check_writers", "spark_settings", "writers_of"]

# Settings of Spark that `[spark.conf]` does not take, and why.
REFUSED: Final = {
    "spark.master": "has a key of its own",
    "spark.remote": "is for Spark Connect, but the daemon starts a driver",
}

Report = Callable[[Key, str, str], None]


def spark_settings(engine: EngineKind, shape: SparkShape, report: Report) -> SparkSettings:
    """Return the settings of Spark. Faults, and PySpark if it is missing, go to `report`."""
    if shape.master is not None and not shape.master.strip():
        report(("spark", "master"), "is empty", f'Leave it out for "{LOCAL_MASTER}", or name a cluster.')
    conf = dict(_conf(shape.conf, report))
    if engine is not EngineKind.LOCAL and find_spec("pyspark") is None:
        report(("engine",), "PySpark is not installed", how_to_install("spark"))
    return SparkSettings(shape.master or LOCAL_MASTER, conf)


def writers_of(engine: EngineKind, table: PipelineTable, sink: Sink | AtLeastOnceSink | None) -> Writers:
    """Return who writes to the sink of a pipeline: what its table says, or else executors wherever they can.

    `sink`: None if it could not be configured.
    """
    shape = table.shape
    if shape.write is not None:
        return shape.write
    wanted = engine is EngineKind.SPARK and shape.on_data_loss is OnDataLoss.FAIL
    return Writers.EXECUTORS if wanted and _distributes(sink) else Writers.DRIVER


def check_writers(
    engine: EngineKind,
    writers: Writers,
    key: Key,
    table: PipelineTable,
    sink: Sink | AtLeastOnceSink | None,
    report: Report,
) -> None:
    """Check whether the writers of a pipeline are possible. Faults go to `report`.

    `sink`: the sink of the pipeline; None if it could not be configured.
    """
    shape, names_shards = table.shape, "shards" in table.given
    if writers is Writers.DRIVER:
        if names_shards:
            remedy = "Leave it out." if engine is EngineKind.SPARK else 'Leave it out, or set engine = "spark".'
            report((*key, "shards"), "has no effect: executors do not write", remedy)
        return
    if sink is not None and not _distributes(sink):
        reason = f'is "executors", but a {shape.sink.kind} sink is written by one process'
        remedy = 'Leave it out; executors write to sinks of kind = "kafka".'
        if shape.sink.kind == "delta":
            remedy += " To append to Delta on a cluster, use `tailer.spark.follow` in a query: docs/spark.md."
        report((*key, "write"), reason, remedy)
        return
    if shape.on_data_loss is not OnDataLoss.FAIL:
        reason = f'is "{shape.on_data_loss}", but executors cannot report a gap between rows'
        report((*key, "on_data_loss"), reason, 'Leave it out, or set write = "driver".')
    if engine is not EngineKind.SPARK:
        report((*key, "write"), f'is "executors", but engine is "{engine}"', 'Set engine = "spark" at the top.')


def _distributes(sink: Sink | AtLeastOnceSink | None) -> bool:
    return isinstance(sink, Sink) and sink.distributes


def _conf(table: Mapping[str, Any], report: Report) -> Iterator[tuple[str, str]]:
    for name, value in flattened(table):
        key = ("spark", "conf", name)
        if not name.startswith("spark."):
            report(key, "is not a setting of Spark", "Spark's settings begin with 'spark.' and are case-sensitive.")
        elif name in REFUSED:
            report(key, REFUSED[name], "Set master in the table [spark].")
        elif not isinstance(value, str | int | float):
            report(key, "must be text, a number or a boolean", "Write it in quotes.")
        else:
            yield name, str(value).lower() if isinstance(value, bool) else str(value)

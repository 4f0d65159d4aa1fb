"""Check the keys of the file about the whole process: the daemon's servers, and Spark, before either is started.

The servers: where the daemon answers and takes commands, and who may ask and give them. Spark: the names of its
settings, the extras that install its libraries, and the pipelines that executors can write. PySpark is looked up, not
imported.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tailer.config.file import Key, PipelineTable
from tailer.config.options import flattened
from tailer.config.pipelines import ControlSettings, MetricsSettings
from tailer.config.shapes import LOCAL_MASTER, EngineKind, FileShape, SparkSettings, SparkShape, Writers
from tailer.errors import ConfigError, how_to_install
from tailer.pipeline.policy import OnDataLoss
from tailer.sink import AtLeastOnceSink, Sink
from tailer.stores.folders import local_folder
from tailer.stores.secrets import Secret

__all__ = ["check_writers", "control_settings", "metrics_settings", "missing_library", "spark_settings", "writers_of"]

Attempt = Callable[[Key, Callable[[], Any]], Any]
Report = Callable[[Key, str, str], None]

_NEEDED: Final = ("prometheus_client", "starlette", "uvicorn")
# Settings of Spark that `[spark.conf]` does not take, and why.
REFUSED: Final = {
    "spark.master": "has a key of its own",
    "spark.remote": "is for Spark Connect, but the daemon starts a driver",
}


def metrics_settings(path: Path, file: FileShape, attempt: Attempt) -> MetricsSettings | None:
    """Return the settings of `metrics` in `file`, which is at `path`. `attempt` reports what is wrong with a key."""
    if file.metrics is None:
        return None
    token = _token(path, "metrics_token", file.metrics_token, attempt)
    address: tuple[str, int] | None = attempt(("metrics",), partial(_address, file.metrics))
    return None if address is None else MetricsSettings(address[0], address[1], token)


def control_settings(path: Path, file: FileShape, attempt: Attempt) -> ControlSettings:
    """Return the settings of `file`, which is at `path`. `attempt` reports what is wrong with a key."""
    token = _token(path, "control_token", file.control_token, attempt)
    socket = path.absolute().with_suffix(".sock") if file.control is None else None
    if file.control:
        socket = attempt(("control",), partial(local_folder, file.control, path.parent, ""))
    backfills_file = (socket or path.absolute()).with_suffix(".backfills.json")
    if file.backfills_file is not None:
        given = attempt(("backfills_file",), partial(local_folder, file.backfills_file, path.parent, ""))
        backfills_file = given or backfills_file
    return ControlSettings(socket, socket is not None and file.control is not None, token, backfills_file)


def missing_library(file: FileShape) -> tuple[str, str, str] | None:
    """Return the key, the reason and the next step where a library to serve what `file` asks for is not installed."""
    key = "metrics" if file.metrics is not None else "control"
    missing = next((library for library in _NEEDED if find_spec(library) is None), None)
    if missing is None or not getattr(file, key):
        return None
    return key, f"cannot be served: No module named {missing!r}", how_to_install("daemon")


def _token(path: Path, key: str, token: Secret, attempt: Attempt) -> Secret:
    """Return the token with the absolute path of its file, if it has one. `attempt` reports what is wrong with it."""
    if token.file is None:
        return token
    place = attempt((key, "file"), partial(local_folder, token.file, path.parent, ""))
    return Secret(file=None if place is None else str(place))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError("", "is not an address", 'Give a host and a port, such as metrics = "127.0.0.1:9464".')
    return host.strip("[]"), int(port)


def spark_settings(engine: EngineKind, shape: SparkShape, report: Report) -> SparkSettings:
    """Return the settings of Spark. Faults, and PySpark if it is missing, go to `report`."""
    if shape.master is not None and not shape.master.strip():
        report(("spark", "master"), "is empty", f'Leave it out for "{LOCAL_MASTER}", or name a cluster.')
    conf: dict[str, str] = {}
    for name, value in flattened(shape.conf):
        key = ("spark", "conf", name)
        if not name.startswith("spark."):
            report(key, "is not a setting of Spark", "Spark's settings begin with 'spark.' and are case-sensitive.")
        elif name in REFUSED:
            report(key, REFUSED[name], "Set master in the table [spark].")
        elif not isinstance(value, str | int | float):
            report(key, "must be text, a number or a boolean", "Write it in quotes.")
        else:
            conf[name] = str(value).lower() if isinstance(value, bool) else str(value)
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

"""The changes of a table as a DataFrame that Spark reads by itself wherever it can.

The data source `tailer` hands rows from Python to Spark. Here the same plan becomes a DataFrame of scans by Spark's own
Parquet reader (`tailer.spark.native.scans`), which also prunes columns and row groups by what the query asks for. The
rows are the same: whatever that reader would not read exactly as `tailer.read.execute` does goes through `execute`
(`tailer.spark.native.native_eligibility`), and so do rows that must be compared, rows in other files than Parquet, and
tables in stores, for which Spark would need jars and keys of its own.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from tailer.errors import ConfigError
from tailer.spark.java import check_session
from tailer.spark.native.frames import frame
from tailer.spark.next_step import with_next_step
from tailer.spark.source.admission import Work
from tailer.spark.source.data_source import TailerSource
from tailer.spark.source.spark_types import quoted
from tailer.spark.source.views import TypedView
from tailer.start import Place, Start, StartKind
from tailer.stores.location import path_text

__all__ = ["Option", "changes", "source_options"]

_GIVEN: Final = ("path", "startingversion", "startingtimestamp", "endingversion", "endingtimestamp", "snapshot")

Option = str | bool | int | Sequence[str] | None  # None: not given


def source_options(
    table: str | os.PathLike[str], start: Place, end: Place, options: Mapping[str, Option]
) -> dict[str, str]:
    """Return the options of the data source. Raises `ConfigError` for those that have no place here."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name.lower() in _GIVEN:
            raise ConfigError(name, "is not an option here", "Give the table first, then start = and end =.")
        if name.lower() == "schema":
            remedy = "Read the envelope with spark.read.format('tailer') or spark.readStream.format('tailer')."
            raise ConfigError(name, "is not an option here", remedy)
    texts = {name: _text(value) for name, value in given.items()} | {"path": path_text(table, "table")}
    first, last = Start.at(start), Start.at(end, "end")
    if first.kind is StartKind.SNAPSHOT:
        texts["snapshot"] = "true"
    else:
        texts |= _placed("starting", first)
    return texts if last.kind is StartKind.LATEST else texts | _placed("ending", last)


def _placed(which: str, place: Start) -> dict[str, str]:
    match place.kind:
        case StartKind.TIMESTAMP:
            return {f"{which}Timestamp": place.moment.isoformat()}
        case StartKind.VERSION:
            return {f"{which}Version": str(place.value)}
        case StartKind.TAG:
            return {f"{which}Version": f"tag:{place.tag}"}
    return {f"{which}Version": place.kind.value}


def _text(value: str | bool | int | Sequence[str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int)):
        return str(value).lower()
    return ",".join(map(quoted, value))


def changes(
    spark: SparkSession,
    table: str | os.PathLike[str],
    *,
    start: Place = "earliest",
    end: Place = "latest",
    **options: Option,
) -> DataFrame:
    """Return the changes of a table from `start` to `end`, both included, as a DataFrame.

    `start`, `end`: as in `tailer.changes`. `options`: those of the data source (docs/spark.md) that say what the rows
    are and how to reach a store: `columns`, `carryovers`, `computeUpdates`, `netChanges`, `key`, `rowIds`,
    `allowedRoots` and the others; None is as if the option was not given. The columns are those of the table, then
    `_change_type`, `_commit_version` and `_commit_timestamp`. The versions are decided now: reading again gives the
    same rows. Rows have no order.

    Raises `ConfigError`, also for a session of Spark Connect, and what reading the log raises.
    """
    with with_next_step():
        check_session(spark)
        given = source_options(table, start, end, options)
        # A notebook has an event loop of its own in this thread.
        with ThreadPoolExecutor(1, "tailer-planning") as thread:
            view, work = thread.submit(_planned, given).result()
        return frame(spark, os.fspath(table), view, work)


def _planned(options: dict[str, str]) -> tuple[TypedView, Work]:
    source = TailerSource(options)
    reader = source.reader(source.schema())
    view = reader.view
    assert isinstance(view, TypedView), "the envelope is no option"
    return view, reader.work()

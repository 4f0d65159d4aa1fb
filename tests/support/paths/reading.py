"""The ways of two versions to a reader: `tailer tail`, `tailer verify`, and the driver of Spark's source.

The table is on disk and has no change feed: a file is appended, then rewritten with other rows. Everything happens
twice, each time with another table; counted is what runs the second time, when all modules are imported.

- `tail`: the verb from the command line to its end, from the first version to the newest one, as JSON Lines. Left out
  are `tailer.__main__`, and what a terminal shows.
- `verify`: the verb from the command line to its end, of a mirror in SQLite that is equal. Left out is the delivery
  into the mirror.
- `spark`: what the driver's Python does for a query that follows the table and one micro-batch of it, up to the splits
  for executors. Left out are Spark itself, which calls these methods, and `read`, which runs on executors.
"""

import io
import json
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any, Final

import anyio
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tailer.cli import tailer
from tailer.pipeline.policy import Policy
from tailer.spark.source.data_source import TailerSource
from tailer_sinks.sql.sink import SqlSink
from tests.support.mirrors.planted import configured, follow
from tests.support.paths.executed import Executed
from tests.support.tables.handwritten import HandwrittenTable

__all__ = ["READERS", "execute"]

_TABLE: Final = "orders"


def execute(kind: str, folder: Path) -> Executed:
    """Read two tables in `folder`, one after the other, and count the second time."""
    prepare, read = READERS[kind]
    executed = Executed()
    with executed.watching():
        for name in ("first", "second"):
            table = _table(folder / name / _TABLE)
            with chdir(folder / name):
                prepare(table)
                executed.counts = name == "second"
                executed.messages = read()
                executed.counts = False
    return executed


def _table(path: Path) -> HandwrittenTable:
    table = HandwrittenTable(path)
    table.metadata = {**table.metadata, "configuration": {}}
    table.commit({"metaData": table.metadata}, table.add(table.data("first.parquet", range(3))))
    table.commit(table.remove("first.parquet"), table.add(table.data("second.parquet", range(1, 4))))
    return table


def _mirror(table: HandwrittenTable) -> None:
    sink = {"url": "sqlite:///mirror.db", "key": ["id"]}
    configured(Path(), f'kind = "sql"\nurl = "{sink["url"]}"\nkey = ["id"]')

    async def deliver() -> None:
        opened = SqlSink.configure(_TABLE, sink)
        await follow(opened, table.path, table.version, Policy())
        await opened.aclose()

    anyio.run(deliver)


def _tailer(*arguments: str) -> list[dict[str, Any]]:
    """Run the command line, and return the documents in the lines of its output."""
    output = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with redirect_stdout(output):
        tailer.main(arguments, standalone_mode=False)
    output.seek(0)
    return [json.loads(line) for line in output]


def _query() -> list[dict[str, Any]]:
    """Do on the driver what a query does that follows the table and has one micro-batch."""
    source = TailerSource({"path": _TABLE, "startingVersion": "earliest"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    splits = reader.partitions(start, end)
    reader.stop()
    return [{"splits": len(splits)}]


READERS: Final[dict[str, tuple[Callable[[HandwrittenTable], None], Callable[[], list[dict[str, Any]]]]]] = {
    "tail": (lambda _: None, lambda: _tailer("tail", _TABLE, "--from", "earliest", "--to", "latest")),
    "verify": (_mirror, lambda: _tailer("verify", _TABLE, "--json")),
    "spark": (lambda _: None, _query),
}

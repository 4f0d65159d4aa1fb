"""A mirror whose pipeline gets other columns between two runs, the first of which ends inside a version, or a snapshot.

No change of the source announces them, so the second run stops and leaves the table as it is. With the former columns
it goes on to all rows.
"""

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailer.changelog.engine import ChangelogEngine
from tailer.config.shapes import ReadOptions
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import ChangeError, SinkRejected
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.sink import Sink
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tailer_sinks.sql.sink import SqlSink
from tests.support.mirrors.databases import SqliteDatabase, rows_in
from tests.support.mirrors.delta import make_mirror
from tests.support.tables.log_files import add, metadata, parquet, protocol, schema_string, write_commit

IDS: Final = "rowTracking", "domainMetadata"
NARROW: Final = ["id", "a"]
WIDE: Final = ["id", "a", "b"]


@dataclass
class Mirrored:
    """A table, and its mirror of a `kind`. `tracked`: whether row ids are the key. `start`: of the pipeline."""

    folder: Path
    kind: str
    tracked: bool
    start: str

    def __post_init__(self) -> None:
        properties = {"delta.enableRowTracking": "true"} if self.tracked else {}
        first = metadata(schema_string(id="long", a="string", b="string"), **properties)
        write_commit(self.table, 0, protocol(1, list(IDS) if self.tracked else None), first, *self.files(0))
        write_commit(self.table, 1, *self.files(1))

    @property
    def table(self) -> Path:
        return self.folder / "t"

    @property
    def last(self) -> Path:
        """The file that is read last."""
        return self.table / f"{0 if self.start == 'snapshot' else 1}-1.parquet"

    def files(self, version: int) -> Iterator[dict[str, Any]]:
        for number in range(2):
            at = 2 * version + number
            values: dict[str, Any] = {"baseRowId": at, "defaultRowCommitVersion": version} if self.tracked else {}
            rows = pa.table({"id": [at], "a": [f"a{at}"], "b": [f"b{at}"]})
            parquet(self.table / f"{version}-{number}.parquet", rows)
            yield add(f"{version}-{number}.parquet", **values)

    def sink(self) -> Sink:
        key = [] if self.tracked else ["id"]
        if self.kind == "delta":
            return make_mirror(self.folder / "m", key=key)
        return SqlSink.configure("m", {**SqliteDatabase(self.folder / "m.db").options, "table": "m", "key": key})

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "sqlite":
            found = rows_in(SqliteDatabase(self.folder / "m.db"), "m")
        elif (self.folder / "m").exists():
            found = DeltaTable(self.folder / "m").to_pyarrow_table().to_pylist()
        else:
            found = []
        return sorted(found, key=lambda row: int(row["id"]))

    async def run(self, columns: list[str]) -> None:
        async with aclosing(self.sink()) as sink:
            options = ReadOptions(columns=columns, row_ids=self.tracked)
            log = TableRef(str(self.table)).open(policy=options.policy())
            engine = ChangelogEngine(LocalEngine(), options.rules(sink.demands.key))
            start, end = Start.parse(self.start), Start.parse("1")
            limits = Limits(retry_for_s=0.0, max_rows=1)
            await row_pipeline("p", log, sink, engine, TimerWake(), start, end, options.policy(), limits).run()


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize("tracked", [False, True], ids=["key", "row ids"])
@pytest.mark.parametrize("kind", ["sqlite", "delta"])
@pytest.mark.parametrize(("before", "after"), [(NARROW, WIDE), (WIDE, NARROW)], ids=["more", "fewer"])
def test_other_columns_inside_a_version(
    tmp_path: Path, kind: str, tracked: bool, start: str, before: list[str], after: list[str]
) -> None:
    mirrored = Mirrored(tmp_path, kind, tracked, start)
    hidden = mirrored.last.rename(tmp_path / "hidden")
    with pytest.raises(ChangeError):
        anyio.run(mirrored.run, before)
    hidden.rename(mirrored.last)
    rows = mirrored.rows()
    if kind == "sqlite" or rows:
        with pytest.raises(SinkRejected, match=r"has other columns than are delivered: b|columns of .* do not fit"):
            anyio.run(mirrored.run, after)
        assert mirrored.rows() == rows
    anyio.run(mirrored.run, before)
    assert [{name: row[name] for name in before} for row in mirrored.rows()] == [
        {name: at if name == "id" else f"{name}{at}" for name in before} for at in range(4)
    ]

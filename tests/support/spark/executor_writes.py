"""Tables written by executors and by the driver, for comparisons."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
from anyio import to_thread
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.engine.local import LocalEngine
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.limits import Limits
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.sink import Append, Merge
from tailer.spark.write.delta.pipeline import delta_pipeline
from tailer.spark.write.version_ranges import RANGE_VERSIONS
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.mirror.sink import DeltaMirror
from tailer_sinks.delta.sink import DeltaSink
from tests.support.follow import follow
from tests.support.histories.long_history import LongHistory

__all__ = [
    "EARLIEST",
    "LIMITS",
    "OLD_FILES",
    "Delivering",
    "Interrupted",
    "InterruptedMirror",
    "check_delivered",
    "rows_of",
    "waits_to_die",
]

EARLIEST: Final = Start(StartKind.EARLIEST)
# What Spark is set to where its files must be read by Hive: another calendar, and timestamps of 96 bits.
OLD_FILES: Final = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
}
LIMITS: Final = Limits(poll_interval_s=0.05, retry_for_s=20.0)

PATIENCE_S: Final = 600

Row = tuple[tuple[str, str], ...]
Change = tuple[int, str, int, object]


@dataclass(frozen=True)
class Delivering:
    """A pipeline from one folder to another, with either writer."""

    source: Path
    target: Path
    start: Start = EARLIEST
    policy: Policy = field(default_factory=Policy)
    pairing: PairingRules = field(default_factory=PairingRules)
    options: Mapping[str, Any] | None = None
    name: str = "orders"
    range_versions: int = RANGE_VERSIONS

    @property
    def settings(self) -> PipelineSettings:
        """The settings, as from a configuration."""
        options = {"path": str(self.target), **(self.options or {})}
        return PipelineSettings(
            self.name, str(self.source), self.start, self.policy, self.pairing, 0.05, "delta", options
        )

    def into(self, target: Path) -> "Delivering":
        """Return the same pipeline into another table."""
        return replace(self, target=target)

    def sink(self) -> DeltaSink | DeltaMirror:
        """Make a new sink."""
        return DeltaSink.configure(self.name, self.settings.sink_options)

    def log(self) -> DeltaTableLog:
        """Make a log of the source."""
        return DeltaTableLog(LocalStore(self.source))

    @property
    def latest(self) -> int:
        """The newest version of the source."""
        return anyio.run(self.log().latest)

    def executors(
        self, session: Callable[[], SparkSession], until: int | None = None, sink: DeltaSink | DeltaMirror | None = None
    ) -> Pipeline:
        """Make the pipeline whose rows executors write."""
        engine = ChangelogEngine(LocalEngine(), self.pairing)
        sink = sink or self.sink()
        return delta_pipeline(
            self.settings,
            self.log(),
            sink,
            session,
            engine,
            TimerWake(),
            LIMITS,
            None if until is None else Start(StartKind.VERSION, until),
            self.range_versions,
        )

    def driver(
        self, until: int | None = None, limits: Limits = LIMITS, sink: DeltaSink | DeltaMirror | None = None
    ) -> Pipeline:
        """Make the pipeline whose rows the driver writes."""
        engine = ChangelogEngine(LocalEngine(), self.pairing)
        end = None if until is None else Start(StartKind.VERSION, until)
        sink = sink or self.sink()
        return row_pipeline(self.name, self.log(), sink, engine, TimerWake(), self.start, end, self.policy, limits)

    def by_executors(self, spark: SparkSession, until: int | None = None) -> None:
        """Deliver up to `until` (None: the newest version) with executors."""
        last = self.latest if until is None else until
        anyio.run(self.executors(lambda: spark, last).run)

    def by_driver(self, until: int | None = None, limits: Limits = LIMITS) -> None:
        """Deliver up to `until` (None: the newest version) with the driver."""
        last = self.latest if until is None else until
        anyio.run(self.driver(last, limits).run)

    def progress(self, table_id: str | None = None) -> int | None:
        """Return the delivered version according to the target."""
        app_id = f"{self.name}/{table_id or anyio.run(self.log().table_id)}"
        return DeltaTable(self.target).transaction_version(app_id)


def rows_of(target: Path, version: int | None = None) -> Counter[Row]:
    """Return all rows of a table, each with the columns that are not null, as text."""
    table = pa.table(DeltaTable(target, version=version).scan())
    return Counter(
        tuple(sorted((name, repr(v)) for name, v in row.items() if v is not None)) for row in table.to_pylist()
    )


def check_delivered(history: LongHistory, target: Path) -> None:
    """Check that the target has every change of the source, once."""
    expected: Counter[Change] = Counter()
    for version in follow(history.path):
        expected.update(_changes(version.table))
    assert Counter(change[:3] for change in expected.elements()) == history.changes
    found = _changes(pa.table(DeltaTable(target).scan()))
    assert not expected - found, f"missing: {list((expected - found).items())[:5]}"
    assert not found - expected, f"doubled or wrong: {list((found - expected).items())[:5]}"


def _changes(table: pa.Table) -> Counter[Change]:
    names = ("_commit_version", "_change_type", "id", "_commit_timestamp")
    return Counter(zip(*(table.column(name).to_pylist() for name in names), strict=True))


class Interrupted(DeltaSink):
    """A sink that calls `then` between its check of the target and the executors' work."""

    then: Callable[[Append], Append]

    async def appending(self, app_id: str, schemas: Sequence[pa.Schema]) -> Append:
        """Prepare an append, after calling `then`."""
        append = await super().appending(app_id, schemas)
        return await to_thread.run_sync(self.then, append)


class InterruptedMirror(DeltaMirror):
    """A mirror that calls `then` between its check of the target and the executors' work."""

    then: Callable[[Merge], Merge]

    async def merging(self, app_id: str, schema: pa.Schema) -> Merge | None:
        """Prepare a MERGE, after calling `then`."""
        merge = await super().merging(app_id, schema)
        return None if merge is None else await to_thread.run_sync(self.then, merge)


def die_first(due: Callable[[], None], folder: Path) -> None:
    """Check whether the append is due; the first time, create `running` and wait to be killed."""
    due()
    try:
        (folder / "running").touch(exist_ok=False)
    except FileExistsError:
        return
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.05)


def waits_to_die(folder: Path, append: Append) -> Append:
    """Make the append with a task whose executor is going to be killed."""
    return replace(append, check=partial(die_first, append.check, folder))

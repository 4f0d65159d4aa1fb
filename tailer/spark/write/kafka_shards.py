"""Kafka, exactly once, from the micro-batches of `tailer.spark.follow`.

Each micro-batch is a DataFrame that Spark reads by itself wherever it can. Spark exchanges its rows by shard, so each
file is read once, whatever the number of shards, and all executors share the comparison of a large version. A task for
each shard then writes them in the order of their positions (`tailer.spark.write.shard_rows`).

Shards, positions, keys and messages are those of the daemon's pipelines with `write = "executors"`
(`tailer.shards`): with the same name, sink and number of shards, either can continue where the other stopped. The
progress is in Kafka alone. The checkpoint of the query only says what to read: with a new one, and a start up to that
progress, rows are read again, and left out. A snapshot that was begun is only continued: another one has other rows.

After a micro-batch all shards are at its end. That may be inside a large version, so a sink whose transactions must end
where versions do is refused. It is never inside a change file, where the images of an update may be beside each other.
"""

import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from tenacity import Retrying, retry_if_exception, wait_random_exponential

from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.config.placement import DEFAULT_SHARDS, MOST_SHARDS, Writers
from tailer.errors import ConfigError, Retry, TailerError
from tailer.events import CHANGE_TYPE, COMMIT_VERSION, ChangeType, has_variant, type_text
from tailer.pipeline.policy import Policy
from tailer.plan import TASKS, Position
from tailer.schema.exact_types import exact_type
from tailer.shards.assignment import check_shard_key, shard_numbers
from tailer.shards.division import Division
from tailer.shards.resharding import Layout, stream_names
from tailer.shards.worker import make_sink
from tailer.sink import Sink
from tailer.spark.release import SameRelease
from tailer.spark.source.admission import Work
from tailer.spark.source.options import SourceOptions
from tailer.spark.source.views import POSITIONS, TypedView
from tailer.spark.write.arrow_map import map_in_arrow
from tailer.spark.write.patience import Patience
from tailer.spark.write.shard_rows import SHARD, ShardRows, check_place, report_of
from tailer.start import Start, StartKind

__all__ = ["KafkaShards"]

_POLL_S: Final = 1.0  # of no use here: there is no loop
_REPORT: Final = StructType([StructField("shard", IntegerType()), StructField("error", BinaryType())])
_TASK, _ROW = POSITIONS.names


@dataclass(frozen=True, slots=True)
class KafkaShards:
    """A destination for `tailer.spark.follow`: see `tailer.spark.into_kafka`. Its options may hold secrets."""

    name: str
    sink: Mapping[str, Any]
    shards: int

    def __post_init__(self) -> None:
        """Check the options. Raises `ConfigError`."""
        if not 1 <= self.shards <= MOST_SHARDS:
            reason = f"is {self.shards}, but must be from 1 to {MOST_SHARDS}"
            raise ConfigError("shards", reason, f"Leave it out for {DEFAULT_SHARDS}.")
        sink = make_sink(self._settings(SourceOptions("")))
        if not sink.splits_versions:
            reason = "asks for whole versions, but a micro-batch may end inside a large one"
            raise ConfigError(f"{self.name}.boundary", reason, 'Leave it out, or run the daemon: write = "executors".')

    def __repr__(self) -> str:
        """Show no option."""
        return f"KafkaShards({self.name!r}, shards={self.shards})"

    def wanted(self, chosen: SourceOptions) -> SourceOptions:
        """Return the options of the rows that the shards need. Raises `ConfigError` for those that do not go with it.

        These are rows with their positions; if messages have a key, updates are paired by it.
        """
        if chosen.net_changes:
            remedy = "Leave it out, or write to a table: see tailer.spark.recipes."
            raise ConfigError("netChanges", "has no place in a stream of all changes", remedy)
        key = make_sink(self._settings(chosen)).demands.key
        rules = chosen.rules
        if key:
            if rules.key not in ((), key):
                reason = f"differs from the key of the sink: {', '.join(key)}"
                raise ConfigError("key", reason, "Leave it out here: the key of the sink applies to both.")
            rules = PairingRules(rules.carryovers, compute_updates=True, key=key, null_keys=True)
        return replace(chosen, rules=rules, positions=True)

    def deliver(
        self, rows: DataFrame, chosen: SourceOptions, view: TypedView, work: Work, is_stopped: Callable[[], bool]
    ) -> None:
        """Deliver a micro-batch; blocks until all shards are at its end.

        Temporary errors are retried until no shard has advanced for ten minutes, or until `is_stopped`. Raises what the
        sink and the table raise, and `ConfigError` if another table has replaced this one.
        """
        span = work.span
        assert span is not None, "the driver plans"
        settings = self._settings(chosen.spelled_as(view.columns.names))
        key = make_sink(settings).demands.key
        if len(span.table_ids) > 1:
            reason = f"another table has replaced it, between {span.after} and {span.through}"
            remedy = (
                "Deliver what comes before with end = the version before that. Then give the new table another name in "
                "into_kafka, and its query a checkpoint folder of its own."
            )
            raise ConfigError(chosen.path, reason, remedy)
        _check_columns(view.columns)
        check_shard_key(key, view.columns, chosen.path, span.through.version)
        (table_id,) = span.table_ids
        task = ShardRows(settings, view.columns, table_id, span.after, span.through, SameRelease())
        patience = Patience(self.name, settings.limits.retry_for_s, is_stopped, partial(_places, task))
        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(multiplier=0.5, max=30.0),
            stop=patience.is_over,
            before_sleep=patience.say,
            sleep=patience.sleep,
            reraise=True,
        )
        ordered = self._sharded(rows, key).sortWithinPartitions(
            COMMIT_VERSION, _TASK, _ROW, sql.col(CHANGE_TYPE) == sql.lit(ChangeType.UPDATE_POSTIMAGE.value)
        )
        retrying(self._attempt, ordered, task, span.start, patience)

    def _attempt(self, ordered: DataFrame, task: ShardRows, start: Position, patience: Patience) -> None:
        """Run the job of a micro-batch. The sink knows which of its rows were delivered by an earlier attempt."""
        # Spark calls from a thread of its own, but a notebook has an event loop in it.
        with ThreadPoolExecutor(1, "tailer-shards") as thread:
            patience.note(thread.submit(anyio.run, partial(_settle, task, start)).result())
            found = [(row["shard"], row["error"]) for row in map_in_arrow(ordered, task, _REPORT).collect()]
            # Spark may leave out a partition without rows.
            for shard in set(range(self.shards)) - {shard for shard, _ in found}:
                report = thread.submit(report_of, task, shard, iter(())).result()
                found += zip(report.column("shard").to_pylist(), report.column("error").to_pylist(), strict=True)
        _raise_first([pickle.loads(error) for _, error in found])

    def _sharded(self, rows: DataFrame, key: Sequence[str]) -> DataFrame:
        """Return the rows with one partition for each shard."""
        if key:
            with_shard = StructType([*rows.schema, StructField(SHARD, IntegerType())])
            numbered = map_in_arrow(rows, _Numbered(tuple(key), self.shards, SameRelease()), with_shard)
        else:
            numbered = rows.withColumn(SHARD, sql.expr(f"CAST(_task % {TASKS} % {self.shards} AS INT)"))
        return numbered.repartitionById(self.shards, SHARD)

    def _settings(self, chosen: SourceOptions) -> PipelineSettings:
        return PipelineSettings(
            self.name,
            chosen.path,
            Start(StartKind.EARLIEST),
            Policy(columns=chosen.columns, row_ids=chosen.row_ids),
            chosen.rules,
            _POLL_S,
            "kafka",
            self.sink,
            write=Writers.EXECUTORS,
            shards=self.shards,
            stores=chosen.stores,
            allowed_roots=chosen.allowed_roots,
            table_format=chosen.table_format,
            branch=chosen.branch,
        )


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A function for `map_in_arrow` that adds the shard of each row."""

    key: tuple[str, ...]
    shards: int
    same: SameRelease

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with the shard of each row."""
        for batch in batches:
            numbers = shard_numbers([batch.column(name) for name in self.key], self.shards)
            yield batch.append_column(SHARD, numbers)


async def _settle(task: ShardRows, start: Position) -> list[Position]:
    """Put the division into shards in force. Return where they are, after that was checked: no row is written yet.

    If nothing was delivered yet, they are set to `start`, that of the stream. Raises as `check_place` does, for a shard
    in a snapshot or else for the one that is least advanced.
    """
    opening = Position.opening(start.version + 1) if start.closes_version else start
    async with _layout(task.settings) as (layout, sink):
        await layout.settle(Division.of(task.settings, sink), opening)
        places = await layout.places(task.settings.shards)
        streams = zip(stream_names(task.settings.name, task.settings.shards), places, strict=True)
        for name, place in sorted(streams, key=lambda stream: (not stream[1].in_snapshot, stream[1])):
            check_place(name, place, task.begin, sink)
        return places


def _places(task: ShardRows) -> list[Position]:
    """Return where the shards are."""

    async def look() -> list[Position]:
        async with _layout(task.settings) as (layout, _):
            return await layout.places(task.settings.shards)

    with ThreadPoolExecutor(1, "tailer-shards") as thread:
        return thread.submit(anyio.run, look).result()


@asynccontextmanager
async def _layout(settings: PipelineSettings) -> AsyncIterator[tuple[Layout, Sink]]:
    sink = make_sink(settings)
    try:
        yield Layout(settings.name, settings.open_table(), sink, lambda: make_sink(settings)), sink
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()


def _check_columns(columns: pa.Schema) -> None:
    """Raise `ConfigError` for a column whose values are other ones after they were Spark's, or whose name is ours."""
    for field in columns:
        if field.name.lower() in {*POSITIONS.names, SHARD}:
            remedy = 'Name the other columns in the option columns, or run the daemon: write = "executors".'
            raise ConfigError("columns", f"{field.name} is a name that into_kafka uses for a column of its own", remedy)
        if has_variant(field.type) or not exact_type(field.type).equals(field.type):
            reason = f"column {field.name} is {type_text(field.type)}, which is another type in Spark"
            remedy = 'Name the other columns in the option columns, or run the daemon: write = "executors".'
            raise ConfigError("columns", reason, remedy)


def _raise_first(errors: Sequence[TailerError | None]) -> None:
    """Raise an error of the shards, if there is one; a lasting one matters more to a person."""
    found = [error for error in errors if error is not None]
    if found:
        raise min(found, key=_may_pass)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, TailerError) and error.retry in (Retry.TIMED, Retry.ASK)

"""Kafka, exactly once, from the micro-batches of `tailer.spark.follow`.

Each micro-batch is a DataFrame that Spark reads by itself wherever it can. Spark exchanges its rows by shard, so each
file is read once, whatever the number of shards, and all executors share the comparison of a large version. A task for
each shard then writes them in the order of their positions (`tailer.spark.write.shard_rows`).

Shards, positions, keys and messages are those of the daemon's pipelines with `write = "executors"`
(`tailer.shards`): with the same name, sink and number of shards, either can continue where the other stopped. The
progress is in Kafka alone. The checkpoint of the query only says what to read: with a new one, and a start up to that
progress, rows are read again, and left out. A snapshot that was begun is only continued: another one has other rows.

After a micro-batch all shards are at its end, which may be inside a large version, but not between the two images of an
update. So a sink whose transactions must end where versions do is refused.
"""

import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

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
from tailer.spark.release import SameRelease
from tailer.spark.source.admission import Work
from tailer.spark.source.options import SourceOptions
from tailer.spark.source.views import POSITIONS, TypedView
from tailer.spark.write.arrow_map import map_in_arrow
from tailer.spark.write.shard_rows import SHARD, ShardRows, check_place, report_of
from tailer.start import Start, StartKind

__all__ = ["KafkaShards"]

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0  # of no use here: there is no loop
_LOOK_S: Final = 0.5  # until a query that was stopped is noticed
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
        if len(span.table_ids) > 1:
            reason = f"another table has replaced it, between {span.after} and {span.through}"
            remedy = (
                "Deliver what comes before with end = the version before that. Then give the new table another name in "
                "into_kafka, and its query a checkpoint folder of its own."
            )
            raise ConfigError(chosen.path, reason, remedy)
        _check_columns(view.columns)
        check_shard_key(make_sink(settings).demands.key, view.columns, chosen.path, span.through.version)
        (table_id,) = span.table_ids
        task = ShardRows(settings, view.columns, table_id, span.after, span.through, SameRelease())
        patience = _Patience(self.name, settings.limits.retry_for_s, is_stopped)
        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(multiplier=0.5, max=30.0),
            stop=patience.is_over,
            before_sleep=patience.say,
            sleep=patience.sleep,
            reraise=True,
        )
        retrying(self._attempt, rows, task, span.start, patience)

    def _attempt(self, rows: DataFrame, task: ShardRows, start: Position, patience: "_Patience") -> None:
        """Run the job of a micro-batch. The sink knows which of its rows were delivered by an earlier attempt."""
        settings = task.settings
        # Spark calls from a thread of its own, but a notebook has an event loop in it.
        with ThreadPoolExecutor(1, "tailer-shards") as thread:
            patience.note(thread.submit(anyio.run, partial(_settle, task, start)).result())
            ordered = self._sharded(rows, settings.pairing.key).sortWithinPartitions(
                COMMIT_VERSION, _TASK, _ROW, sql.col(CHANGE_TYPE) == sql.lit(ChangeType.UPDATE_POSTIMAGE.value)
            )
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
            Policy(columns=chosen.columns),
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
    """Put the division into shards in force, and return where they are.

    If nothing was delivered yet, they are set to `start`, that of the stream. Raises as `check_place` does, before any
    row is written.
    """
    settings = task.settings
    table, sink = settings.open_table(), make_sink(settings)
    try:
        opening = Position.opening(start.version + 1) if start.closes_version else start
        layout = Layout(settings.name, table, sink, lambda: make_sink(settings))
        await layout.settle(Division.of(settings, sink), opening)
        places = await layout.places(settings.shards)
        for name, place in zip(stream_names(settings.name, settings.shards), places, strict=True):
            check_place(name, place, task.begin, sink)
        return places
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


class _Patience:
    """Patience with failing attempts: `limit_s` from the first failure on since shards have advanced."""

    def __init__(self, name: str, limit_s: float, is_stopped: Callable[[], bool]) -> None:
        self._name = name
        self._limit_s = limit_s
        self._is_stopped = is_stopped
        self._places: Sequence[Position] = ()
        self._since_s: float | None = None
        self._error: BaseException | None = None

    def note(self, places: Sequence[Position]) -> None:
        """Note where the shards are at the beginning of an attempt."""
        if places != self._places:
            self._places, self._since_s = places, None

    def is_over(self, _: RetryCallState) -> bool:
        """Return whether the attempt that has failed was the last one."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s >= self._limit_s or self._is_stopped()

    def say(self, state: RetryCallState) -> None:
        """Log the error of an attempt."""
        self._error = state.outcome.exception() if state.outcome is not None else None
        _log.warning("%s: %s; retrying in %.1f s", self._name, self._error, state.upcoming_sleep)

    def sleep(self, seconds: float) -> None:
        """Sleep until the next attempt. Raises the error of the last one if there is to be none."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._is_stopped() and self._error is not None:
                raise self._error
            time.sleep(min(left, _LOOK_S))

"""A pipeline over a table into Kafka topics of its own, delivered by several shards."""

import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
from anyio import to_thread

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.config.placement import Writers
from tailer.config.tables import open_table
from tailer.engine.local import LocalEngine
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Position
from tailer.shards.division import Division
from tailer.shards.resharding import Layout, UndividedSink
from tailer.shards.shard_delivery import WholeVersions, sharded_pipeline
from tailer.shards.worker import ShardReport, ShardWork, deliver_shard, make_sink
from tailer.sink import Sink
from tailer.start import Start, StartKind
from tailer.stores.stores import Stores
from tailer.stores.wakeup import TimerWake
from tailer.table_log import TableLog
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.figures import Figures
from tests.support.kafka.history import History
from tests.support.kafka.lanes import Form, Lane
from tests.support.kafka.shards import ThreadRunner, by_key, together
from tests.support.kafka.topics import Follower, Record, read_topic
from tests.support.s3.tables import RemoteTable

__all__ = ["ShardedDelivery"]

T = TypeVar("T")

PATIENCE_S = 1.0


class ShardedDelivery:
    """A pipeline over the table at `table`, or over that of a history, into topics of its own.

    `remote`: the copy of the table to read.
    """

    def __init__(
        self,
        kafka: KafkaCluster,
        table: History | Path,
        form: Form = "keyed",
        remote: RemoteTable | None = None,
        **options: Any,
    ) -> None:
        self.table_path = table.path if isinstance(table, History) else table
        self.history = table
        self.location = str(self.table_path) if remote is None else remote.location
        self.stores = Stores() if remote is None else remote.stores
        self.servers = kafka.bootstrap_servers
        self.rules: PairingRules | None = None  # None: those that go with the key
        self.policy = Policy()
        self.whole: Callable[[PipelineSettings], WholeVersions | None] = lambda _: None
        self.lane = Lane("confluent-kafka", form, options=options)
        self.lane.create(self.servers)
        self.options = self.lane.sink_options(self.servers, f"{self.lane.topic}-progress") | {"create_topics": True}

    def settings(self, shards: int, start: str = "earliest") -> PipelineSettings:
        key = tuple(self.options.get("key", ()))
        return PipelineSettings(
            name=self.lane.name,
            table=self.location,
            start=Start.parse(start),
            policy=self.policy,
            pairing=self.rules or PairingRules(compute_updates=bool(key), key=key, null_keys=bool(key)),
            poll_interval_s=0.05,
            sink_kind="kafka",
            sink_options=self.options,
            write=Writers.EXECUTORS,
            shards=shards,
            stores=self.stores,
        )

    def table(self) -> TableLog:
        return open_table(self.location, self.stores)

    @property
    def last(self) -> int:
        """The newest version."""
        return len(list((self.table_path / "_delta_log").glob("*.json"))) - 1

    def pipeline(self, shards: int, until: int | None = None, start: str = "earliest") -> Pipeline:
        end = None if until is None else Start(StartKind.VERSION, until)
        settings = self.settings(shards, start)
        whole = self.whole(settings)
        return sharded_pipeline(settings, self.table(), ThreadRunner, TimerWake(), until=end, whole=whole)

    def deliver(self, shards: int, until: int | None = None, start: str = "earliest") -> None:
        """Deliver all shards up to the newest version, or up to that version."""
        anyio.run(self.pipeline(shards, self.last if until is None else until, start).run)

    def deliver_undivided(self) -> None:
        """Deliver up to the newest version in one process, as the daemon does."""
        settings = self.settings(1)

        async def deliver(sink: Sink) -> None:
            whole = UndividedSink(sink, settings.name, self.layout(sink), settings.start)
            engine = ChangelogEngine(LocalEngine(), settings.pairing)
            until = Start.parse(str(self.last))
            await row_pipeline(settings.name, self.table(), whole, engine, TimerWake(), settings.start, until).run()

        self.with_sink(deliver)

    def attempt(self, shard: int, shards: int, until: int) -> ShardReport:
        """Deliver one shard, as an executor does."""
        (data,) = deliver_shard(ShardWork(self.settings(shards), shard, until, PATIENCE_S))
        report: ShardReport = pickle.loads(data)
        return report

    def settle(self, shards: int, start: str = "earliest") -> None:
        """Apply that number of shards."""
        self.with_sink(
            lambda sink: self.layout(sink).settle(Division.of(self.settings(shards), sink), Start.parse(start))
        )

    def places(self, shards: int) -> list[Position]:
        """Return the position of each shard."""
        return self.with_sink(lambda sink: self.layout(sink).places(shards))

    async def until_ended(self, shards: int, version: int) -> None:
        """Return when all shards have ended that version, of a pipeline that began with version 0."""
        with Follower(self.servers, [f"{self.lane.topic}-ends"]) as follower:
            await to_thread.run_sync(follower.await_records, shards * (version + 1))

    def layout(self, sink: Sink) -> Layout:
        return Layout(self.lane.name, self.table(), sink, lambda: make_sink(self.settings(1)))

    def with_sink(self, work: Callable[[Sink], Awaitable[T]]) -> T:
        """Return the result of `work` with an instance of the sink."""

        async def run() -> T:
            sink = make_sink(self.settings(1))
            try:
                return await work(sink)
            finally:
                await sink.aclose()

        return anyio.run(run)

    def read(self, which: Literal["rows", "ends", "schema"]) -> list[Record]:
        topics = {
            "rows": self.lane.topic,
            "ends": f"{self.lane.topic}-ends",
            "schema": self.options.get("schema_topic"),
        }
        return read_topic(self.servers, str(topics[which]))

    def figures(self, shards: int) -> Figures:
        """Return the five figures, with the ENDs of all shards combined."""
        assert isinstance(self.history, History)
        return self.lane.figures(self.history, [*by_key(self.read("rows")), *together(self.read("ends"), shards)])

    def figures_without_ends(self) -> tuple[int, int, int, int]:
        """Return the figures without those of END records, for runs in which the number of shards changed."""
        assert isinstance(self.history, History)
        figures = self.lane.figures(self.history, by_key(self.read("rows")))
        return figures.missing, figures.doubled, figures.disordered, figures.unfolded

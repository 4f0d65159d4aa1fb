"""A pipeline over a table into Kafka topics of its own, delivered by several shards."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
from anyio import to_thread

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.config.shapes import Writers
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import TailerError
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Policy
from tailer.pipeline.polling import Polling
from tailer.pipeline.retry import Retries
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Position
from tailer.shards.resharding import Division, Layout, UndividedSink, progress_of
from tailer.shards.worker import ShardReport, make_sink
from tailer.sink import Sink, shard_name
from tailer.spark.write.exchange import ShardExchange
from tailer.spark.write.shard_delivery import ShardDelivery, ShardSession, sharded_pipeline
from tailer.start import Start, StartKind
from tailer.stores.stores import Stores
from tailer.stores.wakeup import TimerWake
from tailer.table_log import TableLog
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.figures import Figures
from tests.support.kafka.history import History
from tests.support.kafka.lanes import Form, Lane
from tests.support.kafka.shards import LocalExchange, by_key, together
from tests.support.kafka.topics import Follower, Record, read_topic
from tests.support.s3.tables import RemoteTable

__all__ = ["ShardedDelivery"]

T = TypeVar("T")


class ShardedDelivery:
    """A pipeline over the table at `table`, or over that of a history, into topics of its own.

    `remote`: the copy of the table to read. `routed`, `chosen`: see `Lane`.
    """

    def __init__(
        self,
        kafka: KafkaCluster,
        table: History | Path,
        form: Form = "keyed",
        remote: RemoteTable | None = None,
        routed: bool = False,
        chosen: bool = False,
        **options: Any,
    ) -> None:
        self.table_path = table.path if isinstance(table, History) else table
        self.history = table
        self.location = str(self.table_path) if remote is None else remote.location
        self.stores = Stores() if remote is None else remote.stores
        self.servers = kafka.bootstrap_servers
        self.rules: PairingRules | None = None  # None: those that go with the key
        self.exchange: ShardExchange = LocalExchange()
        self.lane = Lane("confluent-kafka", form, options=options, routed=routed, chosen=chosen)
        self.policy = Policy(where=self.lane.shape.get("where"), select=self.lane.shape.get("select"))
        self.lane.create(self.servers)
        self.options = self.lane.sink_options(self.servers, f"{self.lane.topic}-progress") | {"create_topics": True}

    def settings(self, shards: int, start: str = "earliest") -> PipelineSettings:
        key = tuple(self.options.get("key", ()))
        return PipelineSettings(
            name=self.lane.name,
            source=TableRef(self.location),
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
        return TableRef(self.location).open(self.stores, policy=self.policy)

    @property
    def last(self) -> int:
        """The newest version."""
        return len(list((self.table_path / "_delta_log").glob("*.json"))) - 1

    async def run(self, shards: int, until: int | None = None, start: str = "earliest") -> None:
        """Deliver all shards up to that version, or without an end, as one run of the daemon."""
        settings, end = self.settings(shards, start), None if until is None else Start(StartKind.VERSION, until)
        async with own_sink(settings) as sink:
            await sharded_pipeline(settings, self.table(), sink, self.exchange, TimerWake(), until=end).run()

    def deliver(self, shards: int, until: int | None = None, start: str = "earliest") -> None:
        """Deliver all shards up to the newest version, or up to that version."""
        anyio.run(self.run, shards, self.last if until is None else until, start)

    def deliver_undivided(self, last: int | None = None, start: str = "earliest") -> None:
        """Deliver up to the newest version, or up to `last`, in one process, as the daemon does."""
        settings = self.settings(1, start)

        async def deliver(sink: Sink) -> None:
            whole = UndividedSink(sink, settings.name, self.layout(sink), settings.start)
            engine = ChangelogEngine(LocalEngine(), settings.pairing)
            until = Start(StartKind.VERSION, self.last if last is None else last)
            wake, policy = TimerWake(), settings.policy
            await row_pipeline(settings.name, self.table(), whole, engine, wake, settings.start, until, policy).run()

        self.with_sink(deliver)

    def attempt(self, shard: int, shards: int, until: int) -> ShardReport:
        """Deliver one shard up to a version, whatever the others have."""
        settings, report = self.settings(shards), ShardReport(shard)
        table, retries = self.table(), Retries(settings.name, settings.limits.retry_for_s)
        end, wake = Start(StartKind.VERSION, until), TimerWake()
        polling = Polling.of(settings.limits, wake)

        async def run() -> None:
            async with own_sink(settings) as sink:
                delivery = _OneShard(settings, table, sink, LocalExchange(shard), retries)
                delivery.name = shard_name(settings.name, shard, shards)
                await Pipeline(
                    settings.name, table, delivery, wake, settings.start, end, settings.policy, polling, retries
                ).run()

        try:
            anyio.run(run)
        except TailerError as error:
            report.error = error
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
            async with own_sink(self.settings(1)) as sink:
                return await work(sink)

        return anyio.run(run)

    def read(self, which: Literal["rows", "ends", "schema"]) -> list[Record]:
        topics = {
            "rows": self.lane.row_topics,
            "ends": [f"{self.lane.topic}-ends"],
            "schema": [str(self.options.get("schema_topic"))],
        }
        return [record for topic in topics[which] for record in read_topic(self.servers, topic)]

    def figures(self, shards: int) -> Figures:
        """Return the five figures, with the ENDs of all shards combined."""
        assert isinstance(self.history, History)
        return self.lane.figures(self.history, [*by_key(self.read("rows")), *together(self.read("ends"), shards)])

    def figures_without_ends(self) -> tuple[int, int, int, int]:
        """Return the figures without those of END records, for runs in which the number of shards changed."""
        assert isinstance(self.history, History)
        figures = self.lane.figures(self.history, by_key(self.read("rows")))
        return figures.missing, figures.doubled, figures.disordered, figures.unfolded


class _OneShard(ShardDelivery):
    """A delivery of the shard with that `name` alone, into whatever division there is."""

    name = ""

    @asynccontextmanager
    async def session(self, table_id: str) -> AsyncIterator[ShardSession]:
        """See `ShardDelivery.session`."""
        layout = Layout(self.settings.name, self.table, self.sink, lambda: make_sink(self.settings))
        found = await progress_of(self.name, self.table, self.sink)
        yield ShardSession(self, layout, [found.position])


@asynccontextmanager
async def own_sink(settings: PipelineSettings) -> AsyncIterator[Sink]:
    """Make an instance of the sink, and close it at the end."""
    sink = make_sink(settings)
    try:
        yield sink
    finally:
        with anyio.CancelScope(shield=True):
            await sink.aclose()

"""A pipeline into topics of its own, over a table with one row in each version, and accidents of the topics."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import pyarrow as pa
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.config.shapes import Writers
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Limits, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineStatus
from tailer.shards.resharding import Layout, UndividedSink
from tailer.shards.worker import make_sink
from tailer.sink import Sink, app_id_of
from tailer.spark.write.shard_delivery import sharded_pipeline
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.kafka.progress import Entry, decode
from tailer_sinks.kafka.sink import KafkaSink
from tests.support.kafka.shards import LocalExchange
from tests.support.kafka.topics import admin, create_topic, read_topic, unique_name
from tests.support.tables.log_files import add, metadata, parquet, protocol, schema_string, write_commit
from tests.support.waiting import until

__all__ = ["TABLE_ID", "Pipe"]

T = TypeVar("T")

TABLE_ID: Final = "5e5f0f5c-0000-4000-8000-6b61666b6132"
_PATIENCE_S: Final = 300


class Pipe:
    """A pipeline, and its table at `table`. `options`: of its sink. Its topics exist, unless they are created."""

    def __init__(self, servers: str, table: Path, table_id: str = TABLE_ID, **options: Any) -> None:
        self.servers = servers
        self.table_path = table
        self.topic = str(options.get("topic", unique_name("rows")))
        self.table_id = table_id
        self.name = unique_name("pipe")
        self.versions = 0
        self.options: dict[str, Any] = {
            "bootstrap_servers": servers,
            "topic": self.topic,
            "end_topic": f"{self.topic}.ends",
            "progress_topic": f"{self.topic}.progress",
            "create_topics": True,
            **options,
        }

    @property
    def app_id(self) -> str:
        """The app id of the undivided pipeline."""
        return app_id_of(self.name, self.table_id)

    @property
    def progress_topic(self) -> str:
        """The progress topic."""
        return str(self.options["progress_topic"])

    def publish(self, count: int = 1) -> None:
        """Add versions with one row each, whose only column has the number of the version."""
        for version in range(self.versions, self.versions + count):
            name = f"{version}.parquet"
            written = parquet(self.table_path / name, pa.table({"v": pa.array([version], pa.int64())}))
            actions = [add(name, size=written.stat().st_size)]
            if version == 0:
                actions = [protocol(), metadata(schema_string(v="long"), table_id=self.table_id), *actions]
            write_commit(self.table_path, version, *actions)
        self.versions += count

    def replace_table(self) -> None:
        """Add a version that replaces the table, as REPLACE TABLE does."""
        self.publish()
        commit = self.table_path / "_delta_log" / f"{self.versions - 1:020d}.json"
        replaced = metadata(schema_string(v="long"), table_id=unique_name("table"))
        commit.write_text(commit.read_text() + json.dumps(replaced) + "\n")

    def deliver(self, shards: int = 0, start: str = "earliest", **options: Any) -> None:
        """Deliver up to the newest version with a new instance, as the daemon does. `shards` 0: undivided."""
        settings = self._settings(shards, start, options)
        if shards:
            end = Start(StartKind.VERSION, self.versions - 1)
            self.with_sink(
                lambda sink: sharded_pipeline(
                    settings, self._table(), sink, LocalExchange(), TimerWake(), until=end
                ).run(),
                **options,
            )
        else:
            self.with_sink(lambda sink: self.deliver_by(sink, start), **options)

    async def deliver_by(
        self, sink: Sink, start: str = "earliest", retry_for_s: float = 600.0, status: PipelineStatus | None = None
    ) -> None:
        """Deliver with the instance `sink`, undivided. `status`: has the operator's orders."""
        settings = self._settings(0, start, {})
        whole = UndividedSink(sink, self.name, self._layout(sink), settings.start)
        until, limits = Start.parse("latest"), Limits(retry_for_s=retry_for_s)
        engine = LocalEngine(1)
        await row_pipeline(
            self.name, self._table(), whole, engine, TimerWake(), settings.start, until, limits=limits, status=status
        ).run()

    def reset(self, version: int, shards: int = 0) -> None:
        """Reset the progress, as `tailer progress reset` does."""
        self.with_sink(lambda sink: self._layout(sink).force(shards, version))

    def with_sink(self, work: Callable[[KafkaSink], Awaitable[T]], **options: Any) -> T:
        """Return the result of `work` with a new instance of the sink."""

        async def run() -> T:
            sink = KafkaSink.configure("sink", self.options | options)
            try:
                return await work(sink)
            finally:
                await sink.aclose()

        return anyio.run(run)

    def exists(self) -> bool:
        """Return whether the topic for rows exists."""
        with admin(self.servers) as client:
            return self.topic in client.list_topics()

    def delivered(self) -> list[int]:
        """Return the versions whose rows readers see, in order; a duplicate appears twice."""
        return sorted(json.loads(record.value or b"")["v"] for record in read_topic(self.servers, self.topic))

    def entry(self) -> Entry | None:
        """Return the progress record of the undivided pipeline."""
        records = {record.key: record.value for record in read_topic(self.servers, self.progress_topic)}
        return decode("sink", self.progress_topic, records).get(self.app_id)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        with admin(self.servers) as client:
            client.delete_topics([topic])
            until(lambda: topic not in client.list_topics())

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again, as an operator would to empty it."""
        self.delete(topic)
        self.create(topic)

    def create(self, topic: str) -> None:
        """Create a topic."""
        progress = {"cleanup.policy": "compact"} if topic == self.progress_topic else {}
        create_topic(self.servers, topic, configs=progress)

    def expire(self, topic: str) -> None:
        """Delete all records of a topic, as by age."""
        with admin(self.servers) as client:
            client.delete_records({TopicPartition(topic, 0): -1})

    def expire_progress(self) -> None:
        """Delete all records of the progress topic, with a policy that is corrected then."""
        self._set_policy("delete")
        self.expire(self.progress_topic)
        self._set_policy("compact")

    def _set_policy(self, policy: str) -> None:
        with admin(self.servers) as client:
            configs = {"cleanup.policy": policy}
            client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.progress_topic, configs=configs)])

    def _settings(self, shards: int, start: str, options: dict[str, Any]) -> PipelineSettings:
        return PipelineSettings(
            name=self.name,
            source=TableRef(str(self.table_path)),
            start=Start.parse(start),
            policy=Policy(),
            pairing=PairingRules(),
            poll_interval_s=0.05,
            sink_kind="kafka",
            sink_options=self.options | options,
            write=Writers.EXECUTORS if shards else Writers.DRIVER,
            shards=shards or 1,
        )

    def _table(self) -> DeltaTableLog:
        return DeltaTableLog(LocalStore(self.table_path))

    def _layout(self, sink: Sink) -> Layout:
        return Layout(self.name, self._table(), sink, lambda: make_sink(self._settings(1, "earliest", {})))

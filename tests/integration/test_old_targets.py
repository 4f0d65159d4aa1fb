"""Unfinished work of former code is finished by the current code: complete, without duplicates.

The code of commit 81fbfc9 has written the archives of `old_data`; they never change, because they are the record. Each
has `facts.json`, the source `table`, and what was delivered. delta-rs judges the complete delivery: the rows of each
version must be the difference of its snapshot and the one before, so that a lost or repeated row shows.
"""

import json
import tarfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import configure_sink
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import TASKS, Position
from tailer.progress.recorded import Recorded
from tailer.progress.state_table import StateTable
from tailer.sink import Sink
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.kafka.progress import decode
from tailer_sinks.stdout import StdoutSink
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import create_topic, read_topic, unique_name
from tests.support.oracle.rows import COME, GONE, METADATA, Rows, delta_rs_snapshot, rows_of

OLD_DATA: Final = Path(__file__).parents[1] / "old_data"
LATEST: Final = 5
REWRITTEN: Final = 2
COLUMNS: Final = ("id", "amount", "part", *METADATA)

FOLDERS: Final = ("delta_history", "delta_snapshot", "files_history", "files_snapshot", "files_snapshot_parquet")
STATES: Final = ("state_history", "state_snapshot", "state_inside", "state_inside_updates")
KAFKA: Final = ("kafka_history", "kafka_snapshot", "kafka_inside", "kafka_inside_keyed")
QUERIES: Final = ("spark_typed", "spark_envelope")

Facts = dict[str, Any]
Event = dict[str, Any]


def unpacked(name: str, folder: Path) -> Facts:
    """Unpack an archive; return its facts."""
    with tarfile.open(OLD_DATA / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    facts: Facts = json.loads((folder / "facts.json").read_bytes())
    return facts


async def resume(facts: Facts, folder: Path, sink: Sink, rules: PairingRules | None = None) -> None:
    """Continue from the progress in the sink, where the old code stopped, up to the newest version."""
    keyed = bool(sink.demands.key)
    key = tuple(sink.demands.key or facts["key"])
    progress = facts["progress"]
    position = Position(progress["version"], progress["task"], progress["row"])
    engine = ChangelogEngine(LocalEngine(1), rules or PairingRules(compute_updates=bool(key), key=key, null_keys=keyed))
    table = DeltaTableLog(LocalStore(folder / "table"))
    try:
        found = await sink.progress(progress["app_id"])
        assert found is not None
        # With a key, the last image is held back for its update: progress is the row before it.
        assert found.position in (position, replace(position, row=position.row - keyed))
        # If the progress were unknown, a start at the end would lose the rest.
        start, until, limits = Start.parse("latest"), Start.parse("latest"), Limits(max_rows=1)
        await row_pipeline(facts["name"], table, sink, engine, TimerWake(), start, until, limits=limits).run()
        reached = await sink.progress(progress["app_id"])
        assert reached is not None
        assert reached.position == Position.end(LATEST)
    finally:
        await sink.aclose()


def judge(facts: Facts, folder: Path, events: Iterable[Event]) -> None:
    """Compare the rows of each version with the snapshots before and after it."""
    by_version: dict[int, list[Event]] = {}
    for event in events:
        by_version.setdefault(int(event["_commit_version"]), []).append(event)
    first = facts["version"] if facts.get("start") == "snapshot" else 0
    assert min(by_version) == first
    before = Rows()
    for version in range(first, LATEST + 1):
        after = delta_rs_snapshot(folder / "table", version)
        found = by_version.pop(version, [])
        assert rows_with(found, GONE) == before - after, f"deleted by version {version}"
        assert rows_with(found, COME) == after - before, f"inserted by version {version}"
        before = after
    assert not by_version


def rows_with(events: list[Event], kinds: tuple[str, ...]) -> Rows:
    """Return the rows of events of these kinds."""
    chosen = [{name: event[name] for name in COLUMNS[:3]} for event in events if event["_change_type"] in kinds]
    return rows_of(pa.Table.from_pylist(chosen)) if chosen else Rows()


def of_lines(text: str) -> list[Event]:
    """Return the change rows among lines of JSON."""
    events = [json.loads(line) for line in text.splitlines()]
    return [event for event in events if event["_change_type"] in (*GONE, *COME)]


def in_folder(facts: Facts, target: Path) -> list[Event]:
    """Return the change rows of a `delta` or `files` target."""
    if facts["kind"] == "delta":
        reader = QueryBuilder().register("target", DeltaTable(target))
        found: list[Event] = pa.table(reader.execute("SELECT * FROM target").read_all()).to_pylist()
        return found
    files = sorted(file for file in target.rglob("*") if file.suffix in (".jsonl", ".parquet"))
    events: list[Event] = []
    for file in files:
        events += of_lines(file.read_text()) if file.suffix == ".jsonl" else pq.ParquetFile(file).read().to_pylist()
    return events


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_finished(name: str, tmp_path: Path) -> None:
    facts = unpacked(name, tmp_path)
    sink = configure_sink("sink", facts["kind"], {"path": str(tmp_path / "target"), **dict(facts["options"])})
    assert isinstance(sink, Sink)
    anyio.run(resume, facts, tmp_path, sink)
    judge(facts, tmp_path, in_folder(facts, tmp_path / "target"))


def finish_stdout(facts: Facts, folder: Path, rules: PairingRules | None = None) -> None:
    """Append to the lines that the old code printed."""
    with (folder / "stdout.jsonl").open("a") as stream:
        sink = Recorded(StdoutSink("sink", "jsonl", stream), StateTable(LocalStore(folder / "state")))
        anyio.run(resume, facts, folder, sink, rules)


@pytest.mark.parametrize("name", STATES)
def test_work_recorded_in_a_state_table_is_finished(name: str, tmp_path: Path) -> None:
    facts = unpacked(name, tmp_path)
    finish_stdout(facts, tmp_path)
    judge(facts, tmp_path, of_lines((tmp_path / "stdout.jsonl").read_text()))


@pytest.mark.parametrize(
    "rules", [PairingRules(compute_updates=True, key=("id",)), PairingRules(skip_unchanged=True)], ids=["key", "skip"]
)
def test_inside_of_a_version_other_rules_are_refused(rules: PairingRules, tmp_path: Path) -> None:
    facts = unpacked("state_inside", tmp_path)
    before = (tmp_path / "stdout.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="version 2 was delivered in part"):
        finish_stdout(facts, tmp_path, rules)
    assert (tmp_path / "stdout.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", [name for name in (*STATES, *KAFKA) if "inside" in name])
def test_archives_are_inside_of_a_rewritten_version(name: str, tmp_path: Path) -> None:
    """Their task numbers must be of format 1, otherwise they would test nothing."""
    progress = unpacked(name, tmp_path)["progress"]
    assert progress["version"] == REWRITTEN
    assert 1 <= progress["task"] // TASKS <= 2**28


def put_back(kafka: KafkaCluster, topics: dict[str, list[Facts]], topic: str) -> None:
    """Write the old records into topics of this test."""
    names = {"old-rows": topic, "old-progress": f"{topic}.progress"}
    create_topic(kafka.bootstrap_servers, topic, partitions=2)
    create_topic(kafka.bootstrap_servers, names["old-progress"], configs={"cleanup.policy": "compact"})
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=5)
    for old, records in topics.items():
        for record in records:
            # Progress names the topic of the rows.
            key, value = (
                text and text.replace("old-rows", topic).encode() for text in (record["key"], record["value"])
            )
            headers = [(name, text.encode()) for name, text in record["headers"]]
            producer.send(names[old], value, key, headers, record["partition"], record["timestamp"])
    producer.flush()
    producer.close()


@pytest.mark.parametrize("name", KAFKA)
def test_a_kafka_topic_is_finished(name: str, kafka: KafkaCluster, tmp_path: Path) -> None:
    facts, topic = unpacked(name, tmp_path), unique_name("old")
    topics = json.loads((tmp_path / "topics.json").read_bytes())
    assert all('"format"' not in record["value"] for record in topics["old-progress"])
    put_back(kafka, topics, topic)
    options = {
        **dict(facts["options"]),
        "bootstrap_servers": kafka.bootstrap_servers,
        "topic": topic,
        "progress_topic": f"{topic}.progress",
    }
    sink = configure_sink("sink", "kafka", options)
    assert isinstance(sink, Sink)
    anyio.run(resume, facts, tmp_path, sink)
    values = [record.value.decode() for record in read_topic(kafka.bootstrap_servers, topic) if record.value]
    judge(facts, tmp_path, of_lines("\n".join(values)))
    last = {record.key: record.value for record in read_topic(kafka.bootstrap_servers, f"{topic}.progress")}
    entry = decode("sink", topic, last)[facts["progress"]["app_id"]]
    assert entry.topic_id is not None, "a record of format 2 replaces that of format 1"


class Query:
    """A query of the archive, which puts each micro-batch into a separate file, once."""

    def __init__(self, spark: SparkSession, facts: Facts, folder: Path) -> None:
        tailer.spark.register(spark)
        self._spark = spark
        self._options = facts["options"]
        self._folder = folder
        self.batches = folder / "batches"

    def _take(self, frame: DataFrame, number: int) -> None:
        file = self.batches / f"{number}.parquet"
        assert not file.exists(), f"batch {number} comes again"
        pq.write_table(frame.toArrow(), file)

    def run(self) -> None:
        """Continue to the end."""
        source = self._spark.readStream.format("tailer").options(**self._options).load(str(self._folder / "table"))
        writer = source.writeStream.foreachBatch(self._take)
        query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    def rows(self) -> list[Event]:
        """Return the rows of all batches, in order."""
        files = sorted(self.batches.iterdir(), key=lambda file: int(file.stem))
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.mark.spark
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_finished(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """The old code planned the failed batch, and the current code reads it."""
    facts = unpacked(name, tmp_path)
    query = Query(spark, facts, tmp_path)
    before = len(list(query.batches.iterdir()))
    planned = len(list((tmp_path / "checkpoint" / "offsets").iterdir()))
    assert planned == before + 1
    query.run()
    assert len(list(query.batches.iterdir())) > planned
    rows = query.rows()
    if name == "spark_envelope":
        assert Counter(row["_event_id"] for row in rows).most_common(1)[0][1] == 1
        rows = [row | json.loads(row["value"]) for row in rows]
    judge(facts, tmp_path, rows)

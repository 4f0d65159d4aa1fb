"""`tailer.spark.into_kafka`: micro-batches of `tailer.spark.follow` in Kafka, exactly once.

The five figures of `tests.support.kafka.figures` are 0, with the END records of all shards. Progress is in Kafka alone:
a query may lose its checkpoint, and the daemon's pipeline with the same shards may continue, or go before.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.errors import ConfigError
from tailer.plan import Position
from tailer.spark.native import comparing
from tailer.spark.source.admission import Span, Work
from tailer.spark.write import kafka_shards
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import TABLE_ID, History
from tests.support.kafka.lanes import FORMS, Form
from tests.support.kafka.sharded_delivery import ShardedDelivery
from tests.support.tables.log_files import commit_info, metadata, schema_string, write_commit

SHARDS = 3


class Delivery:
    """A query over a history into the topics of a `ShardedDelivery`, and that pipeline as the daemon has it."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, history: History, form: Form, folder: Path) -> None:
        self.daemon = ShardedDelivery(kafka, history, form)
        self.history = history
        self._spark = spark
        self._folder = folder
        self.checkpoints = 0

    def run(self, shards: int = SHARDS, **options: Any) -> None:
        """Run the query up to what is there."""
        into = tailer.spark.into_kafka(self.daemon.lane.name, self.daemon.options, shards=shards)
        given = {"start": 0, "maxFilesPerTrigger": 9, **options}
        query = tailer.spark.follow(self._spark, self.history.path, into, **given).trigger(availableNow=True)
        checkpoint = self._folder / f"checkpoint-{self.checkpoints}"
        query.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    def check(self) -> None:
        """Compare all that was delivered with the history."""
        figures = self.daemon.figures(SHARDS)
        if self.daemon.lane.form == "flat":  # without a key shards have no common order
            figures = replace(figures, disordered=0)
        assert figures.all_zero, figures
        assert self.daemon.places(SHARDS) == [Position.end(self.daemon.last)] * SHARDS


@pytest.fixture
def delivery(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Delivery:
    history = History(tmp_path / "table", seed=4, length=40, large=900, large_every=9)
    return Delivery(spark, kafka, history, getattr(request, "param", "keyed"), tmp_path)


def failing(monkeypatch: pytest.MonkeyPatch, behind: Callable[[Span], object]) -> None:
    """Make the driver fail behind micro-batches that are delivered: those for which `behind` is true."""
    made = kafka_shards.KafkaShards.deliver

    def deliver(into: Any, rows: DataFrame, chosen: Any, view: Any, work: Work) -> None:
        made(into, rows, chosen, view, work)
        assert work.span is not None
        if behind(work.span):
            raise RuntimeError("the driver fails")

    monkeypatch.setattr(kafka_shards.KafkaShards, "deliver", deliver)


@pytest.mark.parametrize("delivery", FORMS, indirect=True)
@pytest.mark.parametrize("shared_bytes", [comparing.SHARED_BYTES, 0], ids=["one compares", "all compare"])
def test_every_change_once_in_order(delivery: Delivery, shared_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key, and without one. Versions that must be compared, deletion vectors, and large ones that are cut."""
    for commits in (20, 19):
        delivery.history.publish(commits)
        delivery.run()
        monkeypatch.setattr(comparing, "SHARED_BYTES", shared_bytes)
    delivery.check()


@pytest.mark.parametrize("delivery", FORMS, indirect=True)
def test_the_daemon_and_a_query_take_turns(delivery: Delivery) -> None:
    for _ in range(2):
        delivery.history.publish(9)
        delivery.daemon.deliver(SHARDS)
        delivery.history.publish(9)
        delivery.run()
    delivery.check()


@pytest.mark.parametrize("delivery", ["flat"], indirect=True)
def test_the_daemon_goes_on_in_the_middle_of_a_version(delivery: Delivery, monkeypatch: pytest.MonkeyPatch) -> None:
    delivery.history.publish(30)
    failing(monkeypatch, lambda span: span.through.is_inside and span.through.version > 9)
    with pytest.raises(StreamingQueryException, match="the driver fails"):
        delivery.run(maxFilesPerTrigger=1)
    place, *others = delivery.daemon.places(SHARDS)
    assert (place.is_inside, others) == (True, [place] * (SHARDS - 1))
    delivery.daemon.deliver(SHARDS)
    delivery.check()


def test_without_its_checkpoint(delivery: Delivery) -> None:
    """Rows are read again from the start, and left out."""
    delivery.history.publish(25)
    delivery.run()
    delivery.checkpoints += 1
    delivery.history.publish(14)
    delivery.run(maxFilesPerTrigger=15)
    delivery.check()


def test_a_micro_batch_that_comes_again(delivery: Delivery, monkeypatch: pytest.MonkeyPatch) -> None:
    delivery.history.publish(39)
    numbers = count()
    failing(monkeypatch, lambda _: next(numbers) in (0, 3))
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="the driver fails"):
            delivery.run()
    delivery.run()
    delivery.check()


def test_a_checkpoint_that_is_ahead_of_kafka(delivery: Delivery, kafka: KafkaCluster) -> None:
    """As with other topics: rows between would be missing."""
    delivery.history.publish(10)
    delivery.run()
    delivery.daemon = ShardedDelivery(kafka, delivery.history)
    delivery.history.publish(10)
    with pytest.raises(StreamingQueryException, match=r"was delivered up to .* and this query continues after"):
        delivery.run()
    assert delivery.daemon.read("rows") == []


def test_another_number_of_shards(delivery: Delivery) -> None:
    """As in the daemon, it may change while all shards are level."""
    delivery.history.publish(20)
    delivery.run()
    delivery.history.publish(19)
    delivery.run(shards=2)
    assert delivery.daemon.figures_without_ends() == (0, 0, 0, 0)
    assert delivery.daemon.places(2) == [Position.end(delivery.daemon.last)] * 2


def test_from_a_snapshot_on(delivery: Delivery) -> None:
    """All rows as inserts, then the changes. A row is there once if all is folded by its key."""
    delivery.history.publish(20)
    delivery.run(start="snapshot")
    delivery.history.publish(19)
    delivery.run(start="snapshot")
    state: dict[int, Any] = {}
    for record in delivery.daemon.read("rows"):
        value = json.loads(record.value or b"null")
        key = json.loads(record.key or b"")["id"]
        state[key] = None if value is None else value["after"]
    there = {key: dict(zip(("id", "n", "note"), row, strict=True)) for key, row in delivery.history.rows().items()}
    assert {key: row for key, row in state.items() if row is not None} == there


def test_another_table_in_its_place(delivery: Delivery) -> None:
    """Rows of two tables would be under one name: the query ends before that."""
    delivery.history.publish(6)
    other = metadata(schema_string(id="long", n="long", note="string"), table_id="another")
    write_commit(delivery.history.path, delivery.daemon.last + 1, commit_info(operation="REPLACE TABLE"), other)
    with pytest.raises(StreamingQueryException, match="another table has replaced it"):
        delivery.run(maxFilesPerTrigger=1)
    assert max(delivery.daemon.places(SHARDS)) < Position.end(delivery.daemon.last)


def test_a_column_with_a_name_of_ours(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    history = History(tmp_path / "table", seed=1, length=2)
    renamed = metadata(schema_string(id="long", n="long", note="string", _Task="long"), table_id=TABLE_ID)
    write_commit(history.path, 1, commit_info(operation="ADD COLUMNS"), renamed)
    with pytest.raises(StreamingQueryException, match="_Task is a name that into_kafka uses"):
        Delivery(spark, kafka, history, "flat", tmp_path).run()


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("sink", "rows", "said"),
    [
        ({"boundary": "version"}, {}, "may end inside a large one"),
        ({"key": ["id"]}, {"netChanges": True, "key": ["id"]}, "netChanges"),
        ({"key": ["id"]}, {"computeUpdates": True, "key": ["n"]}, "differs from the key of the sink: id"),
        ({"topik": "t"}, {}, "topik"),
        ({"shards": 0}, {}, "must be 1 or more"),
    ],
)
def test_what_does_not_go_together(
    spark: SparkSession, tmp_path: Path, sink: dict[str, Any], rows: dict[str, Any], said: str
) -> None:
    History(tmp_path / "table", seed=1, length=2)
    sink = {"bootstrap_servers": "127.0.0.1:1", "topic": "t", **sink}

    def followed() -> None:
        into = tailer.spark.into_kafka("orders", sink, shards=sink.pop("shards", SHARDS))
        tailer.spark.follow(spark, tmp_path / "table", into, start=0, **rows)

    with pytest.raises((ConfigError, ExceptionGroup)) as refused:
        followed()
    assert said in "".join(map(str, getattr(refused.value, "exceptions", [refused.value])))

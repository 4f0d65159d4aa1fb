"""`tailer.spark.into_kafka`: micro-batches of `tailer.spark.follow` in Kafka, exactly once.

The five figures of `tests.support.kafka.figures` are 0, with the END records of all shards. Progress is in Kafka alone:
a query may lose its checkpoint, and the daemon's pipeline with the same shards may continue, or go before.

On every landing: one way to move rows to other shards, a snapshot that the query goes on with after a failure, and a
version in part that the daemon goes on with, in this module.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tailer.spark
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError
from tailer.plan import TASKS, Position
from tailer.shards.resharding import NO_COLUMNS
from tailer.sink import Progress, Sink, app_id_of, shard_name
from tailer.spark.native import comparing
from tailer.spark.source.admission import Span, Work
from tailer.spark.write import kafka_shards
from tests.support.follow import follow
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import TABLE_ID, History
from tests.support.kafka.lanes import FORMS, Form
from tests.support.kafka.sharded_delivery import ShardedDelivery
from tests.support.servers.ports import free_ports
from tests.support.tables.log_files import (
    add,
    cdc,
    commit_info,
    metadata,
    parquet,
    protocol,
    remove,
    schema_string,
    write_commit,
)

SHARDS = 3


class Delivery:
    """A query over a history into the topics of a `ShardedDelivery`, and that pipeline as the daemon has it."""

    def __init__(self, spark: SparkSession, kafka: KafkaCluster, history: History, form: Form, folder: Path) -> None:
        self.daemon = ShardedDelivery(kafka, history, form)
        self.history = history
        self.sink: dict[str, Any] = {}
        self._spark = spark
        self._folder = folder
        self.checkpoints = 0

    def run(self, shards: int = SHARDS, **options: Any) -> None:
        """Run the query up to what is there."""
        into = tailer.spark.into_kafka(self.daemon.lane.name, {**self.daemon.options, **self.sink}, shards=shards)
        given = {"start": 0, "maxFilesPerTrigger": 25, **options}
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

    def deliver(into: Any, rows: DataFrame, chosen: Any, view: Any, work: Work, *more: Any) -> None:
        made(into, rows, chosen, view, work, *more)
        assert work.span is not None
        if behind(work.span):
            raise RuntimeError("the driver fails")

    monkeypatch.setattr(kafka_shards.KafkaShards, "deliver", deliver)


@pytest.mark.parametrize("delivery", FORMS, indirect=True)
@pytest.mark.parametrize("shared_bytes", [comparing.SHARED_BYTES, 0], ids=["one compares", "all compare"])
@pytest.mark.sampled(4)
def test_every_change_once_in_order(delivery: Delivery, shared_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key, and without one. Versions that must be compared, deletion vectors, and large ones that are cut."""
    for commits in (20, 19):
        delivery.history.publish(commits)
        delivery.run()
        monkeypatch.setattr(comparing, "SHARED_BYTES", shared_bytes)
    delivery.check()


@pytest.mark.parametrize("delivery", FORMS, indirect=True)
@pytest.mark.sampled(2)
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
            delivery.run(maxFilesPerTrigger=9)
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


def reset(delivery: Delivery, shard: int, place: Position) -> None:
    """Set the progress of a shard."""
    app_id = app_id_of(shard_name(delivery.daemon.lane.name, shard, SHARDS), TABLE_ID)
    delivery.daemon.with_sink(lambda sink: sink.reset(Progress(app_id, place)))


def commit(delivery: Delivery, shard: int, place: Position) -> None:
    """Commit a place of a shard, as if its rows up to it were delivered."""
    app_id = app_id_of(shard_name(delivery.daemon.lane.name, shard, SHARDS), TABLE_ID)

    async def put(sink: Sink) -> None:
        await sink.progress(app_id)
        async with sink.begin(app_id, NO_COLUMNS) as transaction:
            await transaction.commit(Progress(app_id, place))

    delivery.daemon.with_sink(put)


def test_one_shard_that_is_behind(delivery: Delivery) -> None:
    """As after a reset: nothing is written by the others either."""
    delivery.history.publish(10)
    delivery.run()
    reset(delivery, 1, Position.end(5))
    reset(delivery, 2, Position.end(3))
    places = delivery.daemon.places(SHARDS)
    delivery.history.publish(10)
    with pytest.raises(StreamingQueryException, match="start = 4"):
        delivery.run()
    assert delivery.daemon.places(SHARDS) == places
    delivery.checkpoints += 1
    delivery.run(start=4)
    assert delivery.daemon.places(SHARDS) == [Position.end(delivery.daemon.last)] * SHARDS


@pytest.mark.parametrize(
    ("form", "sink", "rows"),
    [("keyed", {"key": ["n"]}, {}), ("flat", {}, {"carryovers": "keep"}), ("flat", {}, {"columns": ["id", "n"]})],
)
@pytest.mark.sampled(3)
def test_rows_stay_in_their_shards(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, form: Form, sink: dict[str, Any], rows: dict[str, Any]
) -> None:
    """By another key or other rules they would move, from a shard that is behind to one that is ahead, or back."""
    delivery = Delivery(spark, kafka, History(tmp_path / "table", seed=5, length=30), form, tmp_path)
    delivery.history.publish(20)
    delivery.daemon.settle(SHARDS)
    assert delivery.daemon.attempt(1, SHARDS, 12).error is None
    places = delivery.daemon.places(SHARDS)
    delivery.sink = sink
    with pytest.raises(StreamingQueryException, match="by another key, other columns or other rules"):
        delivery.run(**rows)
    assert delivery.daemon.places(SHARDS) == places
    delivery.sink = {}
    delivery.run()
    delivery.check()


def test_updates_by_a_key_that_messages_lack(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    """Rows belong to shards by their tasks, in the query as in the daemon, of which one shard is ahead."""
    history = History(tmp_path / "table", seed=5, length=30)
    history.publish(20)
    found = []
    for by_query in (True, False):
        delivery = Delivery(spark, kafka, history, "flat", tmp_path)
        delivery.daemon.rules = PairingRules(compute_updates=True, key=("id",))
        delivery.daemon.settle(SHARDS)
        assert delivery.daemon.attempt(1, SHARDS, 12).error is None
        if by_query:
            delivery.run(computeUpdates=True, key=["id"])
        else:
            delivery.daemon.deliver(SHARDS)
        values = [json.loads(record.value or b"") for record in delivery.daemon.read("rows")]
        found.append(Counter(str(value) for value in values))
    assert found[0] == found[1]


def test_a_column_is_added_where_a_query_ended_inside_a_version(delivery: Delivery) -> None:
    """Versions that were compared in other columns are refused. The error names a way that works."""
    delivery.history.publish(30)
    delivery.run()
    rules = delivery.daemon.settings(SHARDS).pairing
    compared = [
        batch
        for found in follow(delivery.history.path, engine=ChangelogEngine(LocalEngine(), rules))
        for batch in found.batches
        if batch.task >= TASKS
    ]
    last = max(batch.version for batch in compared)
    inside = next(Position(last, batch.task, batch.row_index[0].as_py()) for batch in compared if batch.version == last)
    for shard in range(SHARDS):
        reset(delivery, shard, Position.end(last - 1))
        commit(delivery, shard, inside)
    more = schema_string(id="long", n="long", note="string", more="long")
    write_commit(delivery.history.path, delivery.daemon.last + 1, commit_info(), metadata(more, table_id=TABLE_ID))
    delivery.checkpoints += 1
    with pytest.raises(StreamingQueryException, match=f"and end = {last}; or let the daemon"):
        delivery.run()
    delivery.checkpoints += 1
    delivery.run(end=last)
    delivery.checkpoints += 1
    delivery.run()
    assert delivery.daemon.places(SHARDS) == [Position.end(delivery.daemon.last)] * SHARDS


@pytest.mark.nightly
def test_other_rules_where_all_shards_are_level(delivery: Delivery) -> None:
    delivery.history.publish(10)
    delivery.run()
    delivery.history.publish(29)
    delivery.run(carryovers="keep")
    delivery.run()
    assert delivery.daemon.places(SHARDS) == [Position.end(delivery.daemon.last)] * SHARDS


@pytest.mark.parametrize("limit", [{"maxRowsPerTrigger": 5, "maxFilesPerTrigger": 100}, {"maxFilesPerTrigger": 1}])
@pytest.mark.sampled(2)
def test_images_of_an_update_stay_together(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, limit: dict[str, int]
) -> None:
    """Without a key, those that come together in a change file are one event. A limit of rows does not cut there."""
    path = tmp_path / "table"
    write_images(path)
    found = []
    for by_query in (True, False):
        daemon = ShardedDelivery(kafka, path, "flat", envelope="debezium")
        if by_query:
            into = tailer.spark.into_kafka(daemon.lane.name, daemon.options, shards=SHARDS)
            query = tailer.spark.follow(spark, path, into, start=0, **limit).trigger(availableNow=True)
            query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        else:
            daemon.deliver(SHARDS)
        assert daemon.places(SHARDS) == [Position.end(daemon.last)] * SHARDS
        events = [json.loads(record.value or b"") for record in daemon.read("rows")]
        found.append(Counter((each["op"], str(each["before"]), str(each["after"])) for each in events))
    assert found[0] == found[1]
    assert all(found[0]["u", str({"id": key, "n": 0}), str({"id": key, "n": 1})] for key in range(5))
    assert found[0]["u", str({"id": 7, "n": 0}), str({"id": 7, "n": 9})]


def write_images(path: Path) -> None:
    """Write a table whose change files have images of updates: beside each other, and alone at an end of a file."""
    feed = {"delta.enableChangeDataFeed": "true"}
    write_commit(path, 0, protocol(), metadata(schema_string(id="long", n="long"), **feed))

    def written(name: str, ids: Sequence[int], ns: Sequence[int], kinds: Sequence[str] = ()) -> int:
        columns = {"id": pa.array(ids, pa.int64()), "n": pa.array(ns, pa.int64())}
        rows = pa.table({**columns, **({"_change_type": pa.array(kinds)} if kinds else {})})
        return parquet(path / name, rows).stat().st_size

    size = written("a.parquet", range(10), [0] * 10)
    write_commit(path, 1, add("a.parquet", size=size))
    both = ["update_preimage", "update_postimage"]
    images = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [0, 1] * 5, both * 5
    changes = cdc("_change_data/b.parquet", size=written("_change_data/b.parquet", *images))
    new = add("b.parquet", size=written("b.parquet", range(10), [1] * 5 + [0] * 5))
    write_commit(path, 2, remove("a.parquet", size=size), new, changes)
    parts = [([5, 6], [0, 0], ["delete", both[0]]), ([6, 7, 7], [9, 0, 9], [both[1], *both])]
    names = [f"_change_data/{at}.parquet" for at in range(2)]
    files = [cdc(name, size=written(name, *part)) for name, part in zip(names, parts, strict=True)]
    left = add("c.parquet", size=written("c.parquet", [0], [0]))
    write_commit(path, 3, remove("b.parquet", size=1), left, *files)


@pytest.mark.nightly
def test_another_number_of_shards(delivery: Delivery) -> None:
    """As in the daemon, it may change while all shards are level."""
    delivery.history.publish(20)
    delivery.run()
    delivery.history.publish(19)
    delivery.run(shards=2)
    assert delivery.daemon.figures_without_ends() == (0, 0, 0, 0)
    assert delivery.daemon.places(2) == [Position.end(delivery.daemon.last)] * 2


@pytest.mark.nightly
def test_from_a_snapshot_on(delivery: Delivery) -> None:
    """All rows as inserts, then the changes. A row is there once if all is folded by its key."""
    delivery.history.publish(20)
    delivery.run(start="snapshot")
    delivery.history.publish(19)
    delivery.run(start="snapshot")
    check_copy(delivery)


@pytest.mark.parametrize("by_daemon", [False, True])
@pytest.mark.sampled(2)
def test_a_snapshot_that_was_begun_is_continued(
    delivery: Delivery, monkeypatch: pytest.MonkeyPatch, by_daemon: bool
) -> None:
    """With the same checkpoint, or by the daemon. A query from another start would leave the rest of it out."""
    delivery.history.publish(20)
    with monkeypatch.context() as patched:
        failing(patched, lambda span: span.through.in_snapshot)
        with pytest.raises(StreamingQueryException, match="the driver fails"):
            delivery.run(start="snapshot", maxFilesPerTrigger=2)
    places = delivery.daemon.places(SHARDS)
    assert all(place.in_snapshot for place in places)
    delivery.history.publish(19)
    delivery.checkpoints += 1
    for start in (0, "snapshot"):
        with pytest.raises(StreamingQueryException, match=r"does not read that snapshot|continues after"):
            delivery.run(start=start)
        delivery.checkpoints += 1
    assert delivery.daemon.places(SHARDS) == places
    delivery.checkpoints = 0
    if by_daemon:
        delivery.daemon.deliver(SHARDS, start="snapshot")
    else:
        delivery.run(start="snapshot")
    check_copy(delivery)


def check_copy(delivery: Delivery) -> None:
    """Fold all records by their key, and compare with the table."""
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


@pytest.mark.parametrize(
    ("key", "columns", "said"),
    [("ID", None, "no column 'ID'"), ("id", ["n"], "no column 'id'"), ("s", None, "which has type struct")],
)
@pytest.mark.sampled(3)
def test_a_key_that_assigns_no_row(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, key: str, columns: list[str] | None, said: str
) -> None:
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
    schema = schema_string(id="long", n="long", s=inner)
    write_commit(tmp_path / "table", 0, protocol(), metadata(schema))
    daemon = ShardedDelivery(kafka, tmp_path / "table", "keyed")
    into = tailer.spark.into_kafka(daemon.lane.name, {**daemon.options, "key": [key]}, shards=SHARDS)
    given: dict[str, Any] = {} if columns is None else {"columns": columns}
    query = tailer.spark.follow(spark, tmp_path / "table", into, start=0, **given).trigger(availableNow=True)
    running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match=said):
        running.awaitTermination()


def test_a_query_can_be_stopped_while_kafka_is_away(spark: SparkSession, tmp_path: Path) -> None:
    history = History(tmp_path / "table", seed=1, length=2)
    sink = {"bootstrap_servers": f"127.0.0.1:{free_ports(1)[0]}", "topic": "t"}
    query = tailer.spark.follow(spark, history.path, tailer.spark.into_kafka("orders", sink), start=0)
    running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    time.sleep(10)
    assert running.isActive
    began = time.monotonic()
    running.stop()
    assert time.monotonic() - began < 60
    assert not running.isActive


@pytest.mark.parametrize(
    ("sink", "rows", "said"),
    [
        ({"boundary": "version"}, {}, "may end inside a large one"),
        ({"key": ["id"]}, {"netChanges": True, "key": ["id"]}, "netChanges"),
        ({"key": ["id"]}, {"computeUpdates": True, "key": ["n"]}, "differs from the key of the sink: id"),
        ({"topik": "t"}, {}, "topik"),
        ({"shards": 0}, {}, "must be from 1 to 1024"),
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

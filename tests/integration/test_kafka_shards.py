"""A pipeline whose shards are delivered concurrently, on a real broker: figures, resharding, fencing."""

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio import create_task_group, to_thread
from pyspark.sql import SparkSession

from tailer.errors import ConfigError, SinkFenced, SinkUnavailable, TableReplaced
from tailer.pipeline.policy import ChangeSource
from tailer.plan import Position
from tailer.shards.resharding import NO_COLUMNS, UNDIVIDED, Division, LayoutSink, layout_id, stream_names
from tailer.shards.worker import ShardReport, ShardWork
from tailer.sink import Progress, Sink, app_id_of, shard_name
from tailer.spark.splits import Split
from tailer.spark.write.exchange import ShardExchange
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tests.support.daemon.commands import tailer
from tests.support.follow import plans
from tests.support.histories.lying_feeds import LIES
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import TABLE_ID, History
from tests.support.kafka.sharded_delivery import ShardedDelivery
from tests.support.kafka.shards import LocalExchange, together
from tests.support.kafka.topics import unique_name
from tests.support.oracle.rows import delta_rs_snapshot
from tests.support.s3.link import S3Link
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.tables.log_files import add, metadata, parquet, protocol, schema_string, write_commit


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Forty versions, some larger than a transaction; none but the first published."""
    return History(tmp_path / "table", seed=7, length=40, large=900, large_every=8)


def test_all_shards_together_deliver_the_table(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(20)
    place.deliver(3)
    history.publish(history.length)
    place.deliver(3)
    assert set(place.places(3)) == {Position.end(history.last)}
    assert place.figures(3).all_zero, place.figures(3)


@pytest.mark.parametrize("chosen", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_all_shards_send_rows_to_the_topics_that_a_column_names(
    kafka: KafkaCluster, history: History, chosen: bool
) -> None:
    """`chosen`: only some rows, with other values."""
    place = ShardedDelivery(kafka, history, routed=True, chosen=chosen)
    history.publish(20)
    place.deliver(3)
    history.publish(history.length)
    place.deliver(3)
    assert set(place.places(3)) == {Position.end(history.last)}
    assert place.figures(3).all_zero, place.figures(3)


def test_executors_read_each_file_once(
    spark: SparkSession, kafka: KafkaCluster, versitygw: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of shards does not matter. Their keys are in their environment, and in no work that they are given."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.setenv(name, versitygw.environment[name])
        monkeypatch.setitem(spark.sparkContext.environment, name, versitygw.environment[name])
    history = History(tmp_path / "table", seed=7, length=20, large=900, large_every=8)
    history.publish(history.length)
    with S3Link(versitygw) as link:
        copied = RemoteTable.copied(history.path, versitygw, bucket := versitygw.new_bucket())
        stores = Stores(((f"s3://{bucket}", S3Options(endpoint=link.endpoint)),))
        place = ShardedDelivery(kafka, history, remote=replace(copied, stores=stores))
        place.exchange = ShardExchange(lambda: spark)
        place.deliver(4)
        gets = [Path(each.path) for each in link.requests if each.method == "GET"]
        assert place.places(4) == [Position.end(history.last)] * 4
    assert place.figures(4).all_zero, place.figures(4)
    # Data files, each for every version that uses it: one process opens change files as often as executors do, but more
    # than once, to pair their images by key (`tests/unit/spark/write/test_shard_delivery.py`).
    read = Counter(path.name for path in gets if path.name.startswith("part-"))
    uses = Counter(Path(task.uri).name for plan in plans(history.path) for task in plan.tasks)
    assert len(read) > 5
    assert not read - uses
    nothing, end = Position.opening(0), Position.end(history.last)
    work = pickle.dumps(ShardWork(place.settings(3), TABLE_ID, pa.schema([]), nothing, end))
    assert link.endpoint.encode() in work
    assert versitygw.secret.encode() not in work
    assert versitygw.key.encode() not in work


def test_without_a_key_shards_have_tasks(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history, "flat")
    history.publish(history.length)
    place.deliver(4)
    figures = place.figures(4)
    # Between shards there is no order.
    assert (figures.missing, figures.doubled, figures.unfolded, figures.miscounted) == (0, 0, 0, 0), figures


def test_attempts_at_one_shard_at_the_same_time(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(history.length)
    place.settle(2)
    with ThreadPoolExecutor(6) as threads:
        runs = [threads.submit(place.attempt, shard, 2, history.last) for shard in (0, 1, 0, 1, 0, 1)]
        assert [run.result().error for run in runs] == [None] * 6
    assert place.figures(2).all_zero, place.figures(2)


def test_the_number_changes_only_between_versions(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(12)
    place.deliver(2)
    history.publish(5)
    assert place.attempt(0, 2, 15).error is None
    with pytest.raises(ConfigError) as raised:
        place.deliver(3)
    where = "the end of version 12 in one and the end of version 15 in another"
    assert f"in 2 shards, up to {where}, and cannot be delivered in 3" in str(raised.value)
    assert "shards = 2" in raised.value.hint
    assert "up to 12 no change is left out" in raised.value.hint
    place.deliver(2)
    history.publish(5)
    place.deliver(3)
    assert set(place.places(3)) == {Position.end(history.published - 1)}
    late = place.attempt(0, 2, history.published - 1).error
    assert isinstance(late, SinkFenced)
    assert "the pipeline is delivered in 3 shards" in str(late)
    assert place.figures_without_ends() == (0, 0, 0, 0)


def test_divided_and_put_together_again(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(9)
    place.deliver_undivided()
    history.publish(9)
    place.deliver(2)
    history.publish(9)
    place.deliver_undivided()
    history.publish(history.length)
    place.deliver(3)
    assert place.figures_without_ends() == (0, 0, 0, 0)


def test_a_process_killed_during_resharding(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(9)
    place.deliver(2)
    number = Progress(layout_id(place.lane.name), Position.opening(2))
    place.with_sink(lambda sink: sink.reset(number))
    history.publish(9)
    left = place.attempt(0, 2, 15).error
    assert isinstance(left, SinkFenced)
    assert "the number of its shards is being changed" in str(left)
    place.deliver(2)
    place.with_sink(lambda sink: sink.reset(number))
    history.publish(9)
    place.deliver(3)
    assert place.figures_without_ends() == (0, 0, 0, 0)


def test_rows_stay_in_their_shards(kafka: KafkaCluster, history: History) -> None:
    """By another key, rows would move from a shard that is behind to one that is ahead, or back."""
    place = ShardedDelivery(kafka, history)
    history.publish(20)
    place.settle(2)
    assert place.attempt(1, 2, 12).error is None
    key, places = place.options["key"], place.places(2)
    place.options["key"] = ["n"]
    for _ in range(2):
        with pytest.raises(ConfigError, match="by another key, other columns or other rules") as refused:
            place.deliver(2)
        assert "the key, where, select, columns, row_ids, changes" in refused.value.hint
        assert place.places(2) == places
    # The change of a process that was killed meanwhile does not matter.
    place.options["key"] = key
    place.with_sink(
        lambda sink: sink.reset(Progress(layout_id(place.lane.name), Division.of(place.settings(2), sink).opening))
    )
    place.deliver(2)
    assert place.figures_without_ends() == (0, 0, 0, 0)


@pytest.mark.parametrize("choice", [{"changes": ChangeSource.COMPARE}, {"select": "id"}, {"where": "id <> 7"}], ids=str)
def test_rows_without_a_key_stay_in_their_shards(kafka: KafkaCluster, tmp_path: Path, choice: dict[str, Any]) -> None:
    """They belong to tasks. A version has other tasks by other choices, or other rows in them."""
    two_files = next(lie for lie in LIES if len(lie.removes) == len(lie.adds) == 2)
    place = ShardedDelivery(kafka, two_files.write(tmp_path / "table"))
    place.options["key"] = []
    place.deliver(2, until=0)
    assert place.attempt(1, 2, 1).error is None
    before = place.policy
    place.policy = replace(before, **choice)
    with pytest.raises(ConfigError, match="by another key, other columns or other rules") as refused:
        place.deliver(2, until=1)
    assert all(option in refused.value.hint for option in ("changes", "select", "where"))
    place.policy = before
    place.deliver(2, until=1)
    place.policy = replace(before, **choice)
    place.deliver(2)


def test_a_division_that_does_not_say_by_what(kafka: KafkaCluster, history: History) -> None:
    """The number of shards alone, as former releases stored it and can read it."""
    place = ShardedDelivery(kafka, history)
    history.publish(9)
    place.deliver(2)
    place.with_sink(lambda sink: place.layout(sink).force(2, history.published - 1))  # as `tailer progress reset`
    stored = place.with_sink(lambda sink: sink.progress(layout_id(place.lane.name)))
    assert stored is not None
    assert stored.position == Position.end(2)
    history.publish(9)
    refused = place.attempt(0, 2, 15).error
    assert isinstance(refused, SinkFenced)
    place.deliver(2)
    assert place.figures_without_ends() == (0, 0, 0, 0)


def test_an_executor_of_an_old_layout_is_fenced(kafka: KafkaCluster, history: History) -> None:
    """An executor that still runs while the pipeline is delivered with another number of shards."""
    place = ShardedDelivery(kafka, history)
    history.publish(9)
    place.deliver(2)
    app_id = app_id_of(shard_name(place.lane.name, 0, 2), TABLE_ID)

    async def outlive(sink: Sink) -> None:
        left = LayoutSink(sink, place.lane.name, Division.of(place.settings(2), sink))
        assert await left.progress(app_id) is not None
        async with left.begin(app_id, NO_COLUMNS):
            pass
        await to_thread.run_sync(place.settle, 3)
        with pytest.raises(SinkFenced):
            async with left.begin(app_id, NO_COLUMNS) as transaction:
                await transaction.commit(Progress(app_id, Position.end(20)))
        with pytest.raises(SinkFenced):
            await left.progress(app_id)

    place.with_sink(outlive)
    assert set(place.places(3)) == {Position.end(history.published - 1)}


def test_all_shards_start_where_the_first_one_did(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(9)
    place.settle(2, "latest")
    history.publish(9)
    assert place.attempt(1, 2, 14).error is None
    history.publish(history.length)
    place.deliver(2, start="latest")
    ends = [json.loads(end.value or b"") for end in together(place.read("ends"), 2)]
    assert [end["commit_version"] for end in ends] == list(range(10, history.length))
    changes = Counter(version for version, *_ in history.net_changes().elements())
    assert [end["event_count"] for end in ends] == [changes[version] for version in range(10, history.length)]


def test_all_shards_have_one_snapshot(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(15)
    place.settle(2, "snapshot")
    assert place.attempt(1, 2, 15).error is None
    rows = {dict(row)["id"] for row in delta_rs_snapshot(history.path, 15)}
    history.publish(history.length)
    place.deliver(2, start="snapshot")
    events = [json.loads(record.value) for record in place.read("rows") if record.value]
    found = Counter(event["after"]["id"] for event in events if event["op"] == "r")
    assert found == Counter(rows)
    ends = [json.loads(end.value or b"") for end in together(place.read("ends"), 2)]
    assert [end["commit_version"] for end in ends] == list(range(15, history.length))
    assert ends[0]["event_count"] == len(rows)


def test_of_two_drivers_the_first_one_ends(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(5)

    async def both() -> None:
        async with create_task_group() as group:
            group.start_soon(ending)
            await place.until_ended(2, 5)
            history.publish(3)
            await place.run(2, until=8)
            history.publish(3)

    async def ending() -> None:
        with pytest.raises(SinkFenced, match="layout"):
            await place.run(2)

    anyio.run(both)
    place.deliver(2)
    assert place.figures(2).all_zero, place.figures(2)


def test_a_driver_that_was_replaced_during_a_temporary_error_ends(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(5)
    place.deliver(2)
    history.publish(3)

    class Cut(LocalExchange):
        async def deliver(self, splits: Sequence[Split], work: ShardWork, key: Sequence[str]) -> list[ShardReport]:
            place.exchange = LocalExchange()
            await place.run(2, history.published - 1)
            raise SinkUnavailable("sink", "the connection is cut")

    place.exchange = Cut()
    with pytest.raises(SinkFenced, match="layout"):
        anyio.run(place.run, 2, history.published - 1)
    assert place.figures(2).all_zero, place.figures(2)


def test_another_table_in_its_place_is_reported(kafka: KafkaCluster, history: History) -> None:
    place = ShardedDelivery(kafka, history)
    history.publish(5)
    place.deliver(2)
    replace_table(history)
    with pytest.raises(TableReplaced):
        place.deliver(2)
    with pytest.raises(TableReplaced):
        place.deliver(3)


def replace_table(history: History) -> None:
    """Give the table another id, as if it had been made anew with the same versions."""
    for commit in (history.path / "_delta_log").iterdir():
        commit.write_text(commit.read_text().replace(TABLE_ID, TABLE_ID[::-1]))


def deliver_other_table(place: ShardedDelivery, shards: int = 2) -> None:
    """Deliver version 6 of the table in the place of the first one, after an operator has begun with it.

    `shards`: 0: undivided.
    """
    place.with_sink(lambda sink: place.layout(sink).force(shards, 5))
    place.deliver(shards, until=6) if shards else place.deliver_undivided(6)


def test_a_driver_that_is_frozen_before_its_job_while_the_table_is_made_anew(
    kafka: KafkaCluster, history: History
) -> None:
    """Its tasks begin after those of its successor, which is in the midst of the same versions of the new table."""
    place = ShardedDelivery(kafka, history)
    history.publish(5)
    place.deliver(2)
    history.publish(3)

    class Frozen(LocalExchange):
        async def deliver(self, splits: Sequence[Split], work: ShardWork, key: Sequence[str]) -> list[ShardReport]:
            place.exchange = LocalExchange()
            await to_thread.run_sync(replace_table, history)
            await to_thread.run_sync(deliver_other_table, place)
            return await super().deliver(splits, work, key)

    place.exchange = Frozen()
    with pytest.raises(TableReplaced):
        anyio.run(place.run, 2, 7)
    assert versions_by_table(place) == {TABLE_ID: set(range(6)), TABLE_ID[::-1]: {6}}
    place.deliver(2)
    assert versions_by_table(place) == {TABLE_ID: set(range(6)), TABLE_ID[::-1]: {6, 7, 8}}


@pytest.mark.parametrize(
    ("before", "after"), [(2, 2), (0, 2), (2, 0)], ids=["shards", "driver-then-shards", "shards-then-driver"]
)
def test_a_writer_that_is_frozen_in_a_commit_while_the_table_is_made_anew(
    kafka: KafkaCluster, history: History, before: int, after: int
) -> None:
    """It is an executor, or the driver where the pipeline is undivided; so is its successor."""
    place = ShardedDelivery(kafka, history)
    history.publish(8)
    place.deliver(before, until=4) if before else place.deliver_undivided(4)
    app_ids = [app_id_of(stream, TABLE_ID) for stream in stream_names(place.lane.name, before)]

    async def outlive(sink: Sink) -> None:
        division = Division.of(place.settings(before), sink) if before else UNDIVIDED
        frozen = LayoutSink(sink, place.lane.name, division)
        assert await frozen.progress(app_ids[0]) == Progress(app_ids[0], Position.end(4))
        async with frozen.begin(app_ids[0], NO_COLUMNS) as transaction:
            await to_thread.run_sync(replace_table, history)
            await to_thread.run_sync(deliver_other_table, place, after)
            with pytest.raises((SinkFenced, SinkUnavailable)):
                await transaction.commit(Progress(app_ids[0], Position.end(7)))

    async def look(sink: Sink) -> list[Progress | None]:
        return [await sink.progress(app_id) for app_id in app_ids]

    place.with_sink(outlive)
    assert place.with_sink(look) == [Progress(app_id, Position.end(4)) for app_id in app_ids]


def versions_by_table(place: ShardedDelivery) -> dict[str, set[int]]:
    """Return the versions whose END was delivered, by the id of the table."""
    found: dict[str, set[int]] = {}
    for end in place.read("ends"):
        table_id, _, version = json.loads(end.value or b"")["id"].rpartition(":")
        found.setdefault(table_id, set()).add(int(version))
    return found


def test_a_commit_that_makes_it_another_table(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Shards without a row of that version have an END of it as well."""
    schema, table = schema_string(id="long"), tmp_path / "table"

    def rows(name: str, *ids: int) -> Any:
        written = parquet(table / name, pa.table({"id": pa.array(ids, pa.int64())}))
        return add(name, size=written.stat().st_size)

    write_commit(table, 0, protocol(), metadata(schema, table_id="one"), rows("0.parquet", 1, 2, 3, 4))
    write_commit(table, 1, rows("1.parquet", 5))
    write_commit(table, 2, metadata(schema, table_id="other"), rows("2.parquet", 6))
    write_commit(table, 3, rows("3.parquet", 7))
    place = ShardedDelivery(kafka, table)
    place.deliver(3, until=1)
    place.deliver(3, until=3)
    ends = [json.loads(end.value or b"") for end in together(place.read("ends"), 3)]
    counts = [(end["id"], end["event_count"]) for end in ends]
    assert counts == [("one:0", 4), ("one:1", 1), ("other:2", 1), ("other:3", 1)]


def test_each_shard_says_that_columns_change(kafka: KafkaCluster, tmp_path: Path) -> None:
    table = tmp_path / "table"

    def rows(name: str, **columns: list[int]) -> Any:
        return add(name, size=parquet(table / name, pa.table(columns)).stat().st_size)

    write_commit(table, 0, protocol(), metadata(schema_string(id="long")), rows("0.parquet", id=[1, 2, 3]))
    write_commit(table, 1, metadata(schema_string(id="long", n="long")), rows("1.parquet", id=[4], n=[4]))
    place = ShardedDelivery(kafka, table, schema_topic=unique_name("schema"))
    place.deliver(2)
    messages = [json.loads(record.value or b"") for record in place.read("schema")]
    assert sorted((each["_commit_version"], each["shard"], each["shards"]) for each in messages) == [
        (1, 0, 2),
        (1, 1, 2),
    ]
    assert {tuple(each["changes"]) for each in messages} == {("column n int64 was added",)}


def test_progress_is_that_of_the_slowest_shard(kafka: KafkaCluster, history: History, tmp_path: Path) -> None:
    place = ShardedDelivery(kafka, history)
    place.deliver(3)
    delivered = place.last
    history.publish(2)
    place.attempt(1, 3, place.last)
    assert shown(place, tmp_path) == [str(delivered), str(place.last), "2"]
    done = tailer(
        "progress", "reset", place.settings(3).name, "--config", configured(place, tmp_path), "--to", place.last
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"left out: versions {delivered + 1} to {place.last}" in done.stdout
    assert shown(place, tmp_path) == [str(place.last), str(place.last), "0"]
    assert place.places(3) == [Position.end(place.last)] * 3


def shown(place: ShardedDelivery, folder: Path) -> list[str]:
    """Return delivered, latest and lag, as `tailer progress` prints them."""
    done = tailer("progress", "show", "--config", configured(place, folder))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[-1].split("\t")[3:]


def configured(place: ShardedDelivery, folder: Path) -> Path:
    """Write a configuration for the daemon with three shards."""
    path, settings = folder / "tailer.toml", place.settings(3)
    options = {"kind": settings.sink_kind, **settings.sink_options}
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    head = f'engine = "spark"\n[pipelines.{settings.name}]\ntable = "{settings.table}"\nwrite = "executors"\nshards = 3'
    path.write_text("\n".join([head, f"[pipelines.{settings.name}.sink]", *lines]))
    return path

"""The shard of a row: the same everywhere and for ever, and every row in exactly one."""

import pickle
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.config.shapes import Writers
from tailer.config.tables import TableRef
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError
from tailer.events import ChangeBatch
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.plan import ChangePlan, Position
from tailer.shards.assignment import check_shard_key, shard_numbers
from tailer.shards.packed_rows import PARTS, parts_of, unpacked
from tailer.shards.worker import ShardWork, make_sink
from tailer.sink import shard_name, shard_of
from tailer.spark.write.shard_delivery import sharded_pipeline
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.memory import MemorySink
from tests.support.kafka.history import History
from tests.support.kafka.shards import LocalExchange

KEYED = PairingRules(compute_updates=True, key=("id",), null_keys=True)
Row = tuple[Any, ...]  # task, row, and the row's values


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([0, 7, -12, None], pa.int64()), [b"v0", b"v7", b"v-12", b"n"]),
        (pa.array([True, False, None]), [b"v1", b"v0", b"n"]),
        (pa.array(["", "ü", "n", None]), [b"v", b"v\xc3\xbc", b"vn", b"n"]),
        (pa.array([b"\xff", None]), [b"v\xff", b"n"]),
        (pa.array(["a", None]).dictionary_encode(), [b"va", b"n"]),
        (pa.array([date(1970, 1, 3)]), [b"v2"]),
        (pa.array([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")), [b"v1000000"]),
        (pa.array([1_000_000], pa.timestamp("us")), [b"v1000000"]),
        (pa.array([86_400_000, None], pa.date64()), [b"v86400000", b"n"]),
        (pa.array([61, None], pa.time32("s")), [b"v61", b"n"]),
        (pa.array([61], pa.time64("ns")), [b"v61"]),
        (pa.array([-61], pa.duration("us")), [b"v-61"]),
        (pa.array([1.0, float("nan"), -0.0]), [b"v4607182418800017408", b"v9221120237041090560", b"v-%d" % 2**63]),
        (pa.array([Decimal("2.56")], pa.decimal128(10, 2)), [b"v\x00\x01" + bytes(14)]),
    ],
)
def test_shards_are_what_they_always_were(values: pa.Array, texts: list[bytes]) -> None:
    for shards in (1, 2, 7, 1000):
        assert shard_numbers([values], shards).to_pylist() == [crc32(text) % shards for text in texts]


@pytest.mark.parametrize("wider", [pa.int16(), pa.int32(), pa.int64()])
def test_a_key_that_is_widened_stays_where_it_is(wider: pa.DataType) -> None:
    values = list(range(-128, 128))
    numbers = shard_numbers([pa.array(values, pa.int8())], 5)
    assert shard_numbers([pa.array(values, wider)], 5) == numbers
    assert set(numbers.to_pylist()) == set(range(5))
    floats = [0.5, -1.25, float("nan"), float("inf")]
    assert shard_numbers([pa.array(floats, pa.float32())], 97) == shard_numbers([pa.array(floats, pa.float64())], 97)


def test_slices_are_divided_as_the_whole() -> None:
    values = pa.array([None if number % 7 == 0 else number for number in range(100)])
    numbers = shard_numbers([values], 3)
    assert shard_numbers([values.slice(13, 50)], 3) == numbers.slice(13, 50)
    assert len(shard_numbers([values.slice(0, 0)], 3)) == 0


def test_shard_names_identify_the_shard() -> None:
    assert shard_of(f"{shard_name('orders', 2, 4)}/{'5e5f'}") == (2, 4)
    assert shard_of("orders/5e5f") is None
    assert shard_of("1-of-2/5e5f") is None


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Write thirty versions: with and without a change feed, updates, moved keys, vectors, rewritten files."""
    history = History(tmp_path_factory.mktemp("history") / "table", seed=11, length=30, large=300)
    history.publish(history.length)
    return history


async def plans(history: History) -> list[ChangePlan]:
    table = DeltaTableLog(LocalStore(history.path))
    pages = [page async for page in table.snapshot_plans(history.last // 2)]
    await table.seek(0)
    while (plan := await table.next_plan()) is not None:
        pages.append(plan)
    return pages


async def rows_of(engine: Engine, plan: ChangePlan) -> list[Row]:
    async with engine.run([plan]) as batches:
        return [row async for batch in batches for row in rows_in(batch)]


def rows_in(batch: ChangeBatch) -> list[Row]:
    rows = (tuple(row.values()) for row in batch.rows.to_pylist())
    return [(batch.task, index, *row) for index, row in zip(batch.row_index.to_pylist(), rows, strict=True)]


async def rows_in_shards(plan: ChangePlan, rules: PairingRules, key: Sequence[str], shards: int) -> list[list[Row]]:
    """Return the rows of each shard, as executors bring them there."""
    async with ChangelogEngine(LocalEngine(), rules).run([plan]) as batches:
        parts = [parts_of(batch, key, shards) async for batch in batches]
    places = [(name, "ascending") for name in ("_version", "_task", "_row")]
    ordered = pa.Table.from_batches(parts, PARTS).sort_by(places)
    found = []
    for shard in range(shards):
        own = ordered.filter(pc.equal(ordered["_shard"], shard)).to_batches()
        changes = unpacked(iter(own), shard, plan.table_id, {}, lambda *_: None)
        found.append([row for batch in changes for row in rows_in(batch)])
    return found


WAYS = [(("id",), KEYED), ((), PairingRules()), ((), KEYED)]


@pytest.mark.anyio
@pytest.mark.parametrize(("key", "rules"), WAYS)
async def test_every_row_is_in_one_shard_in_its_order(
    history: History, key: Sequence[str], rules: PairingRules
) -> None:
    used = set()
    for plan in await plans(history):
        wanted = await rows_of(ChangelogEngine(LocalEngine(), rules), plan)
        found = await rows_in_shards(plan, rules, key, 3)
        # Sorted means position order, except for the images of an update, which share a position.
        assert sorted(row for shard in found for row in shard) == sorted(wanted)
        for number, shard in enumerate(found):
            mine = set(shard)
            assert shard == [row for row in wanted if row in mine]
            used |= {number} if shard else set()
    assert used == {0, 1, 2}


@pytest.mark.anyio
async def test_a_key_has_one_shard_for_all_versions(history: History) -> None:
    shards: dict[int, set[int]] = defaultdict(set)
    for plan in await plans(history):
        for number, rows in enumerate(await rows_in_shards(plan, KEYED, ("id",), 2)):
            for row in rows:
                shards[row[2]].add(number)
    assert len(shards) > 300
    assert {len(numbers) for numbers in shards.values()} == {1}


def test_keys_that_rows_cannot_be_divided_by() -> None:
    columns = pa.schema([("a", pa.int64()), ("id", pa.list_(pa.int64()))])
    with pytest.raises(ConfigError, match="assigned to shards by 'id'"):
        check_shard_key(("a", "id"), columns, "t", 0)
    with pytest.raises(ConfigError, match="no column 'b' at version 0"):
        check_shard_key(("b",), columns, "t", 0)
    check_shard_key(("a",), columns, "t", 0)


def settings(tmp_path: Path, kind: str, options: dict[str, Any], policy: Policy) -> PipelineSettings:
    start = Start.parse("earliest")
    rules = PairingRules()
    table = TableRef(str(tmp_path))
    return PipelineSettings(
        name="p",
        source=table,
        start=start,
        policy=policy,
        pairing=rules,
        poll_interval_s=1.0,
        sink_kind=kind,
        sink_options=options,
        write=Writers.EXECUTORS,
    )


LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "hush"}
KAFKA = {"bootstrap_servers": "127.0.0.1:1", "client": LOGIN}


def test_work_for_executors_does_not_show_secrets(tmp_path: Path) -> None:
    nothing, end = Position.opening(0), Position.end(20)
    work = ShardWork(settings(tmp_path, "kafka", KAFKA, Policy()), "t", pa.schema([]), nothing, end)
    assert "hush" not in f"{work!r} {work}"
    assert pickle.loads(pickle.dumps(work)) == work


def test_pipelines_that_cannot_be_sharded_are_refused(tmp_path: Path) -> None:
    stdout = settings(tmp_path, "stdout", {}, Policy())
    with pytest.raises(ConfigError, match="stdout sink is written by one process") as raised:
        make_sink(stdout)
    assert "kafka" in raised.value.hint
    losing = settings(tmp_path, "kafka", KAFKA, Policy(on_data_loss=OnDataLoss.RESNAPSHOT))
    with pytest.raises(ConfigError, match="on_data_loss"):
        sharded_pipeline(losing, DeltaTableLog(LocalStore(tmp_path)), make_sink(losing), LocalExchange(), TimerWake())
    assert not MemorySink("memory").distributes

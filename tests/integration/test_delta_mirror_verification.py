"""`tailer verify` of a mirror in Delta: each planted difference is found, named and repaired, and no other one."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected, SinkUnavailable, TableReplaced
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import Rewritten, Verification, repair, verify
from tailer.plan import SNAPSHOT_TASKS
from tailer.sink import MirrorRows, app_id_of
from tailer_sinks.delta.folder import TargetFolder
from tailer_sinks.delta.mirror import table as mirror_table
from tailer_sinks.delta.mirror import verified_rows
from tailer_sinks.delta.mirror.sink import DeltaMirror
from tests.support.daemon.commands import Orders, tailer
from tests.support.mirrors.delta import batch, deliver, make_mirror, mirror_rows
from tests.support.mirrors.delta_planted import EQUAL, PLANTED, SUPERFLUOUS, plant
from tests.support.mirrors.planted import configured, follow, found, key_of, log_of, write

pytestmark = pytest.mark.long

LIMIT_MB: Final = 450
ROWS: Final = 200_000
SINK: Final = 'kind = "delta"\npath = "copy"\nmode = "mirror"\nkey = ["id"]'


def sorted_rows(path: Path) -> list[str]:
    return sorted(map(repr, mirror_rows(path).to_pylist()))


async def verified(
    sink: DeltaMirror, path: Path, policy: Policy | None = None, limit: int = 100, pipeline: str = "orders"
) -> Verification:
    async with sink.open_mirror(pipeline) as mirror:
        return await verify(mirror, log_of(path), LocalEngine(), policy or Policy(), limit)


async def repaired(sink: DeltaMirror, path: Path, policy: Policy | None = None) -> list[Verification]:
    open_mirror = partial(sink.open_mirror, "orders")
    return [each async for each in repair(open_mirror, log_of(path), LocalEngine(), policy or Policy(), 100)]


async def mirrored(folder: Path, last: int = 1, policy: Policy | None = None, **options: Any) -> DeltaMirror:
    """Write a table with columns of all types into a folder, and mirror it."""
    await anyio.to_thread.run_sync(write, folder / "orders")
    sink = make_mirror(folder / "copy", **options)
    await follow(sink, folder / "orders", last, policy or Policy())
    return sink


@pytest.fixture(params=["merge", "rewrite"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a repair into the table: a MERGE, or all rows written again."""
    if request.param == "rewrite":
        monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)


@pytest.mark.anyio
@pytest.mark.usefixtures("way")
async def test_each_planted_difference_is_found_named_and_repaired(tmp_path: Path) -> None:
    copy, source = tmp_path / "copy", tmp_path / "orders"
    sink = await mirrored(tmp_path)
    before = sorted_rows(copy)
    equal = await verified(sink, source)
    assert (equal.is_equal, equal.version, equal.source_rows, equal.mirror_rows) == (True, 1, 50, 50)
    await anyio.to_thread.run_sync(partial(plant, copy, PLANTED | EQUAL, SUPERFLUOUS))
    result = await verified(sink, source)
    wanted = {
        ("missing" if change is None else "different", one, " ".join(change or ())) for one, change in PLANTED.items()
    }
    assert found(result) == wanted | {("unexpected", 1000, "")}
    assert len(wanted) >= 35
    assert list(result.counts.values()) == [1, 1, len(wanted) - 1]
    few = await verified(sink, source, limit=2)
    assert (few.counts, [key_of(each) for each in few.differences]) == (result.counts, [3, 4])
    commits = DeltaTable(copy).version()
    differs, repaired_one = await repaired(sink, source)
    assert differs.rewritten == Rewritten(keys=len(wanted) + 1, rows=len(wanted))
    assert (repaired_one.is_equal, repaired_one.version, DeltaTable(copy).version()) == (True, 1, commits + 1)
    assert sorted_rows(copy) == before
    # The pipeline goes on after a repair.
    await anyio.to_thread.run_sync(partial(DeltaTable(source).delete, "id > 40"))
    await follow(sink, source, 2, Policy())
    assert (await verified(sink, source)).is_equal


@pytest.mark.anyio
@pytest.mark.parametrize("superfluous", [((3, "c3"), (4, "another")), ((None, "x"), (None, None))])
async def test_keys_that_are_there_twice_or_null_are_repaired(
    tmp_path: Path, superfluous: Sequence[tuple[int | None, str | None]]
) -> None:
    copy, source = tmp_path / "copy", tmp_path / "orders"
    sink = await mirrored(tmp_path)
    before = sorted_rows(copy)
    more = [{"id": one, "code": code} for one, code in superfluous]
    await anyio.to_thread.run_sync(partial(plant, copy, {5: {"code": "y"}}, *more))
    differs, equal = await repaired(sink, source)
    assert found(differs) == {*(("unexpected", one or 0, "") for one, _ in superfluous), ("different", 5, "code")}
    assert (differs.mirror_rows, equal.is_equal) == (52, True)
    assert sorted_rows(copy) == before


KEYS: Final = ["code", "data", "amount", "day id", "moment", "flag id", "local"]


@pytest.mark.anyio
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.sampled(3)
async def test_keys_of_any_type_are_repaired(tmp_path: Path, key: str) -> None:
    policy = Policy(where="id > 7")
    sink = await mirrored(tmp_path, policy=policy, key=key.split())
    before = sorted_rows(tmp_path / "copy")
    await anyio.to_thread.run_sync(partial(plant, tmp_path / "copy", {8: {"n": -1}, 9: None}))
    differs, equal = await repaired(sink, tmp_path / "orders", policy)
    assert (list(differs.counts.values()), equal.is_equal) == ([1, 0, 1], True)
    assert sorted_rows(tmp_path / "copy") == before


@pytest.mark.anyio
async def test_rows_and_columns_of_the_pipeline_are_compared(tmp_path: Path) -> None:
    policy = Policy(where="id > 30", select="id, upper(code) AS code")
    sink = await mirrored(tmp_path, policy=policy, partition_by=["code"])
    result = await verified(sink, tmp_path / "orders", policy)
    assert (result.is_equal, result.source_rows) == (True, 20)
    other = await verified(sink, tmp_path / "orders", Policy(columns=("id", "n")))
    assert (other.missing_columns, other.unexpected_columns, other.is_equal) == (("n",), ("code",), False)
    with pytest.raises(SinkRejected, match="code is string there, and int64 in the rows"):
        await verified(sink, tmp_path / "orders", Policy(select="id, id AS code"))


@pytest.mark.anyio
async def test_a_mirror_that_goes_on_is_compared_as_it_was_and_not_repaired(tmp_path: Path) -> None:
    copy, source = tmp_path / "copy", tmp_path / "orders"
    sink = await mirrored(tmp_path, last=0)
    await anyio.to_thread.run_sync(partial(plant, copy, {12: {"code": "x"}}, SUPERFLUOUS))
    async with sink.open_mirror("orders") as mirror:
        await follow(sink, source, 1, Policy())
        at_1 = sorted_rows(copy)
        result = await verify(mirror, log_of(source), LocalEngine(), Policy(), 100, repairs=True)
    assert (result.version, result.rewritten) == (0, None)
    assert found(result) == {("different", 12, "code"), ("unexpected", 1000, "")}
    assert sorted_rows(copy) == at_1
    async with sink.open_mirror("orders") as mirror:
        await anyio.to_thread.run_sync(partial(plant, copy, {13: {"code": "x"}}))
        result = await verify(mirror, log_of(source), LocalEngine(), Policy(), 100, repairs=True)
    assert (result.version, result.rewritten) == (1, None)
    differs, equal = await repaired(sink, source)
    assert (differs.rewritten, equal.is_equal) == (Rewritten(keys=2, rows=1), True)


@pytest.mark.anyio
async def test_a_pipeline_that_always_goes_on_ends_the_attempts(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    sink, other = make_mirror(tmp_path / "copy"), make_mirror(tmp_path / "copy")
    await follow(sink, orders.path, 0, Policy())
    await anyio.to_thread.run_sync(partial(plant, tmp_path / "copy", {1: {"amount": 0.0}}))

    @asynccontextmanager
    async def open_mirror() -> AsyncIterator[MirrorRows]:
        async with sink.open_mirror("orders") as mirror:
            await anyio.to_thread.run_sync(orders.insert, orders.version + 100)
            await follow(other, orders.path, orders.version, Policy())
            yield mirror

    verifications = [each async for each in repair(open_mirror, log_of(orders.path), LocalEngine(), Policy(), 100)]
    assert [(each.version, each.is_equal, each.rewritten) for each in verifications] == [
        (version, False, None) for version in range(3)
    ]
    assert [row["amount"] for row in mirror_rows(tmp_path / "copy").to_pylist() if row["id"] == 1] == [0.0]


@pytest.mark.anyio
async def test_the_stream_that_filled_the_table_last_counts(tmp_path: Path) -> None:
    """The table had another id before, and a snapshot was ordered since."""
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    sink, schema = make_mirror(tmp_path / "copy"), pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    await deliver(sink, batch(0, "insert", schema, [{"id": 5}]), app_id="orders/former")
    with pytest.raises(TableReplaced):
        await verified(sink, orders.path)
    app_id = app_id_of("orders", await log_of(orders.path).table_id())
    rows: Sequence[Mapping[str, Any]] = [{"id": 1, "amount": 1.5}, {"id": 2, "amount": 3.0}]
    await deliver(sink, batch(0, "insert", schema, rows, task=SNAPSHOT_TASKS), app_id=app_id)
    result = await verified(sink, orders.path)
    assert (result.is_equal, result.version) == (True, 0)
    backfill = app_id.replace("orders/", "orders/~backfill-1/")
    await deliver(sink, batch(0, "insert", schema, rows[:1], task=SNAPSHOT_TASKS), app_id=backfill)
    result = await verified(sink, orders.path)
    assert (found(result), result.version) == ({("missing", 2, "")}, 0)


@pytest.mark.anyio
async def test_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    sink = make_mirror(tmp_path / "copy")
    with pytest.raises(SinkRejected, match="copy has no version yet"):
        await verified(sink, orders.path)
    await follow(sink, orders.path, 0, Policy())
    with pytest.raises(SinkRejected, match="pipeline orders fills"):
        await verified(sink, orders.path, pipeline="others")


@pytest.mark.anyio
async def test_a_repair_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    """The source has a key twice, which the mirror cannot have."""
    orders = Orders(tmp_path / "orders")
    await anyio.to_thread.run_sync(orders.insert, 1, 2, 2)
    sink, schema = make_mirror(tmp_path / "copy"), pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    app_id = app_id_of("orders", await log_of(orders.path).table_id())
    await deliver(sink, batch(0, "insert", schema, [{"id": 1, "amount": 1.5}]), app_id=app_id)
    with pytest.raises(SinkRejected, match=r"the source has a key twice; the key of .*copy is id"):
        await repaired(sink, orders.path)
    assert mirror_rows(tmp_path / "copy").to_pylist() == [{"id": 1, "amount": 1.5}]


@pytest.mark.anyio
async def test_a_source_with_null_keys_repairs_nothing(tmp_path: Path) -> None:
    """All rows without a key would be taken for superfluous ones."""
    copy, source = tmp_path / "copy", tmp_path / "orders"
    schema = pa.schema([("id", pa.int64()), ("code", pa.string())])
    rows = pa.Table.from_pylist([{"id": 1, "code": "a"}, {"id": None, "code": "b"}], schema)
    await anyio.to_thread.run_sync(partial(write_deltalake, source, rows))
    app_id = app_id_of("orders", await log_of(source).table_id())
    await deliver(make_mirror(copy), batch(0, "insert", schema, rows.to_pylist()[:1]), app_id=app_id)
    await anyio.to_thread.run_sync(partial(write_deltalake, copy, pa.concat_tables([rows, rows]), mode="overwrite"))
    with pytest.raises(SinkRejected, match="the key column id is null in the source"):
        await repaired(make_mirror(copy), source)
    assert mirror_rows(copy).num_rows == 4


@pytest.mark.anyio
async def test_a_table_whose_state_is_gone_is_named(tmp_path: Path) -> None:
    orders, copy = Orders(tmp_path / "orders"), tmp_path / "copy"
    await anyio.to_thread.run_sync(orders.insert, 1, 2)
    schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    app_id = app_id_of("orders", await log_of(orders.path).table_id())
    rows = batch(0, "insert", schema, [{"id": 1, "amount": 1.5}], task=SNAPSHOT_TASKS)
    await deliver(make_mirror(tmp_path / "other"), rows, app_id=app_id.replace("orders/", "orders/~backfill-1/"))
    with pytest.raises(SinkRejected, match="other has no version yet"):  # only a snapshot beside has progress
        await verified(make_mirror(tmp_path / "other"), orders.path)
    await follow(make_mirror(copy), orders.path, 0, Policy())
    await anyio.to_thread.run_sync(partial(plant, copy, {}))
    async with make_mirror(copy).open_mirror("orders") as mirror:
        for file in copy.glob("*.parquet"):
            file.unlink()
        with pytest.raises(SinkRejected, match="were removed while it was read") as refused:
            list(mirror.rows())
    assert refused.value.hint == "Run `tailer verify` again."
    await anyio.to_thread.run_sync(DeltaTable(copy).create_checkpoint)
    for version in range(DeltaTable(copy).version()):
        (copy / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(SinkRejected, match="no longer has the last commit of the pipeline") as refused:
        await verified(make_mirror(copy), orders.path)
    assert refused.value.hint == "Let the pipeline deliver a later version first."


def write_int96(path: Path) -> None:
    """Write the file of a table again as Spark writes timestamps by default."""
    (file,) = path.glob("*.parquet")
    size = file.stat().st_size
    pq.write_table(pq.read_table(file), file, use_deprecated_int96_timestamps=True)
    (commit,) = (each for each in (path / "_delta_log").glob("*.json") if f'"size":{size}' in each.read_text())
    commit.write_text(commit.read_text().replace(f'"size":{size}', f'"size":{file.stat().st_size}'))


@pytest.mark.anyio
async def test_far_moments_of_spark_are_read(tmp_path: Path) -> None:
    """Spark's OPTIMIZE writes INT96 timestamps."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    sink = make_mirror(tmp_path)
    rows = [{"id": one, "at": moment} for one, moment in enumerate(moments)]
    await deliver(sink, batch(0, "insert", schema, rows))
    write_int96(tmp_path)
    async with sink.open_mirror("orders") as mirror:
        found = [text for each in mirror.rows() for text in each.column("at").to_pylist()]
    assert found == ["0001-01-01T00:00:00.000000Z", "9999-12-31T00:00:00.000000Z"]


@pytest.mark.anyio
@pytest.mark.parametrize("reads", ["rewrite", "verify"])
async def test_a_fault_while_keys_of_a_store_are_renewed_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    schema = pa.schema([("id", pa.int64())])
    sink = make_mirror(tmp_path)
    await deliver(sink, batch(0, "insert", schema, [{"id": 1}]))
    logins = iter([None, None, {"token": "2"}] if reads == "rewrite" else [None, {"token": "2"}])

    def fail(*_: object) -> None:
        raise DeltaError("connection reset")

    monkeypatch.setattr(TargetFolder, "login", lambda _: next(logins, {"token": "3"}))
    monkeypatch.setattr(TargetFolder, "at", fail)
    monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)
    if reads == "rewrite":
        with pytest.raises(SinkUnavailable, match="connection reset"):
            await deliver(sink, batch(1, "delete", schema, [{"id": 1}]))
        return
    async with sink.open_mirror("orders") as mirror:
        with pytest.raises(SinkUnavailable, match="connection reset"):
            list(mirror.rows())


@pytest.mark.anyio
async def test_a_repair_that_cannot_begin_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make_mirror(tmp_path / "copy")
    await deliver(sink, batch(0, "insert", pa.schema([("id", pa.int64())]), [{"id": 1}]))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(verified_rows, "scratch_folder", lambda: scratch)
    monkeypatch.setattr(verified_rows.DeltaRepair, "_query", refuse)
    async with sink.open_mirror("orders") as mirror:
        with pytest.raises(SinkUnavailable, match="disk is full"):
            mirror.begin_repair()
    assert not scratch.exists()


def refuse(*_: object) -> None:
    raise SinkUnavailable("orders", "the disk is full")


def test_the_command_says_what_differs_and_repairs_it(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2, 3)
    anyio.run(follow, make_mirror(tmp_path / "copy"), orders.path, 0, Policy())
    config, page = configured(tmp_path, SINK), tmp_path / "orders.prom"
    done = tailer("verify", "orders", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"orders: equals {orders.path} at version 0: 3 rows\n"
    plant(tmp_path / "copy", {1: {"amount": 9.5}, 2: None})
    done = tailer("verify", "orders", "--config", config, "--values", "--metrics-file", page)
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout.splitlines() == [
        f"orders: differs from {orders.path} at version 0: 1 missing, 0 unexpected, 1 different",
        "rows: 3 in the source, 2 in the mirror",
        "columns that differ: amount (1)",
        'different: id = "1": amount ("1.5" in the source, "9.5" in the mirror)',
        'missing: id = "2": amount = "3.0"',
    ]
    assert 'lake_tailer_verify_equal{pipeline="orders"} 0.0' in page.read_text()
    done = tailer("verify", "orders", "--config", config, "--repair", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert (document["equal"], document["repaired"]["keys"], document["repaired"]["rows"]) == (True, 2, 2)
    assert sorted_rows(tmp_path / "copy") == sorted(map(repr, DeltaTable(orders.path).to_pyarrow_table().to_pylist()))

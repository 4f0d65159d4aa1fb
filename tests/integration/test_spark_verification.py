"""`tailer verify` of a mirror in Delta on executors: the same result as in one process, of which few rows come back."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tailer.changelog.equal_rows.keyed_difference import KeyedDifference
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import FileVacuumed, SinkRejected
from tailer.pipeline.policy import Policy
from tailer.pipeline.verification.comparison import Verification, verify
from tailer.pipeline.verification.repair import repair
from tailer.spark.engine.executors import Executors
from tailer.spark.verification import SparkVerification
from tailer.table_log import TableLog
from tailer_sinks.delta.mirror.sink import DeltaMirror
from tailer_sinks.delta.mirror.verified_rows import DeltaMirrorRows
from tests.support.daemon.commands import tailer
from tests.support.mirrors.delta import make_mirror, mirror_rows
from tests.support.mirrors.delta_planted import EQUAL, PLANTED, SUPERFLUOUS, plant
from tests.support.mirrors.planted import configured, follow, key_of, log_of, write

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

ROWS: Final = 20_000


def log_at(location: str) -> TableLog:
    """Open the log of a mirror."""
    return TableRef(location).open()


class NoEngine(LocalEngine):
    """An engine that must not be asked for rows."""

    def run(self, *_: Any, **__: Any) -> Any:
        """Fail."""
        pytest.fail("rows were read by this process")


@pytest.fixture
def executors(spark: SparkSession) -> Iterator[Executors]:
    with closing(Executors(spark)) as opened:
        yield opened


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of the rows that came back to be paired, of each part."""
    counts: list[int] = []
    keep = KeyedDifference.keep

    def counted(self: KeyedDifference, rows: Sequence[pa.RecordBatch], *, is_source: bool) -> None:
        counts.append(sum(map(len, rows)))
        keep(self, rows, is_source=is_source)

    monkeypatch.setattr(KeyedDifference, "keep", counted)
    return counts


async def mirrored(folder: Path, policy: Policy | None = None, count: int = 50, **options: Any) -> DeltaMirror:
    """Write a table with columns of all types into a folder, and mirror it."""
    await to_thread.run_sync(write, folder / "orders", count)
    sink = make_mirror(folder / "copy", **options)
    await follow(sink, folder / "orders", 1, policy or Policy())
    return sink


async def by_both(
    executors: Executors, monkeypatch: pytest.MonkeyPatch, sink: DeltaMirror, path: Path, policy: Policy | None = None
) -> Verification:
    """Verify in this process, and on executors alone. Return what both have found."""
    policy, log = policy or Policy(), log_of(path)
    async with sink.open_mirror("orders") as mirror:
        here = await verify(mirror, log, LocalEngine(), policy, 100)
        with monkeypatch.context() as patched:
            patched.setattr(DeltaMirrorRows, "rows", lambda _: pytest.fail("the mirror was read by this process"))
            sides = SparkVerification(lambda: executors, log_at).sides
            there = await verify(mirror, log, NoEngine(), policy, 100, share=sides)
    assert there == here
    return there


async def test_each_planted_difference_is_found_and_named(
    tmp_path: Path, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, source = tmp_path / "copy", tmp_path / "orders"
    sink = await mirrored(tmp_path)
    equal = await by_both(executors, monkeypatch, sink, source)
    assert (equal.is_equal, equal.version, equal.source_rows, equal.mirror_rows) == (True, 1, 50, 50)
    await to_thread.run_sync(partial(plant, copy, PLANTED | EQUAL, SUPERFLUOUS))
    result = await by_both(executors, monkeypatch, sink, source)
    assert list(result.counts.values()) == [1, 1, len(PLANTED) - 1]
    assert {key_of(each) for each in result.differences} == {*PLANTED, 1000}


async def test_rows_that_have_a_key_twice_or_null(
    tmp_path: Path, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = await mirrored(tmp_path)
    more = [{"id": one, "code": code} for one, code in ((3, "c3"), (4, "another"), (None, "x"), (None, None))]
    await to_thread.run_sync(partial(plant, tmp_path / "copy", {5: {"code": "y"}}, *more))
    result = await by_both(executors, monkeypatch, sink, tmp_path / "orders")
    assert (list(result.counts.values()), result.mirror_rows) == ([0, 4, 1], 54)


async def test_rows_and_columns_of_the_pipeline_are_compared(
    tmp_path: Path, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(where="id > 30", select="id, upper(code) AS code, amount")
    sink = await mirrored(tmp_path, policy, partition_by=["code"])
    by = partial(by_both, executors, monkeypatch, sink, tmp_path / "orders")
    result = await by(policy)
    assert (result.is_equal, result.source_rows) == (True, 20)
    other = await by(Policy(where="id > 31", select="id, code, amount"))
    # Of the keys 31 to 50, one has no row in the source, and all others have another letter; key 42 has no letter.
    assert (list(other.counts.values()), other.columns) == ([0, 1, 19], {"code": 19})
    assert (await by(Policy(columns=("id", "n")))).missing_columns == ("n",)


async def test_variants_and_columns_of_partitions(
    tmp_path: Path, spark: SparkSession, executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, copy = tmp_path / "orders", tmp_path / "copy"
    rows = 'SELECT id, id % 3 AS part, parse_json(concat(\'{"n": \', id, \'.50, "a": [null, "x"]}\')) AS v'
    made = f"CREATE TABLE delta.`{source}` USING delta PARTITIONED BY (part) AS {rows} FROM range(60)"
    await to_thread.run_sync(spark.sql, made)
    sink = make_mirror(copy, partition_by=["part"])
    await follow(sink, source, 0, Policy())
    assert (await by_both(executors, monkeypatch, sink, source)).is_equal
    for change in (
        f"UPDATE delta.`{copy}` SET v = parse_json('[]') WHERE id = 7",
        f"UPDATE delta.`{copy}` SET part = NULL WHERE id = 8",
        f"OPTIMIZE delta.`{copy}`",
    ):
        await to_thread.run_sync(spark.sql, change)
    result = await by_both(executors, monkeypatch, sink, source)
    assert {(key_of(each), *each.columns) for each in result.differences} == {(7, "v"), (8, "part")}


async def test_only_rows_of_buckets_that_differ_come_back(
    tmp_path: Path, executors: Executors, kept: list[int]
) -> None:
    sink = await mirrored(tmp_path, count=ROWS)
    await to_thread.run_sync(partial(DeltaTable(tmp_path / "copy").update, {"n": "-1"}, predicate="id = 77"))
    sides = SparkVerification(lambda: executors, log_at).sides
    async with sink.open_mirror("orders") as mirror:
        result = await verify(mirror, log_of(tmp_path / "orders"), NoEngine(), Policy(), 9, share=sides)
    assert (result.source_rows, result.mirror_rows, list(result.counts.values())) == (ROWS, ROWS, [0, 0, 1])
    assert 2 <= sum(kept) <= 2 * 20  # of 65,536 buckets, that of the key, on both sides


@pytest.mark.parametrize("changes", [{8: {"n": -1}, 9: None}, {each: {"n": -1} for each in range(1, 51)}])
async def test_what_executors_find_is_repaired(
    tmp_path: Path, executors: Executors, changes: Mapping[int, dict[str, Any] | None]
) -> None:
    sink, copy = await mirrored(tmp_path), tmp_path / "copy"
    before = sorted(map(repr, mirror_rows(copy).to_pylist()))
    await to_thread.run_sync(partial(plant, copy, changes, SUPERFLUOUS))
    sides = SparkVerification(lambda: executors, log_at).sides
    opened = partial(sink.open_mirror, "orders")
    both = repair(opened, log_of(tmp_path / "orders"), NoEngine(), Policy(), 100, sides)
    differs, equal = [each async for each in both]
    assert differs.rewritten is not None
    assert (differs.rewritten.keys, differs.rewritten.rows) == (len(changes) + 1, len(changes))
    assert (equal.is_equal, equal.version) == (True, 1)
    assert sorted(map(repr, mirror_rows(copy).to_pylist())) == before


async def test_files_that_were_removed_are_named(tmp_path: Path, executors: Executors) -> None:
    sink, source, copy = await mirrored(tmp_path), tmp_path / "orders", tmp_path / "copy"
    sides = SparkVerification(lambda: executors, log_at).sides

    def remove(path: Path) -> None:
        for each in path.glob("*.parquet"):
            each.unlink()

    async with sink.open_mirror("orders") as mirror:
        await to_thread.run_sync(remove, copy)
        with pytest.raises(SinkRejected, match=f"files of {copy} were removed") as caught:
            await verify(mirror, log_of(source), NoEngine(), Policy(), 100, share=sides)
        await to_thread.run_sync(remove, source)
        with pytest.raises(FileVacuumed, match="version 1"):
            await verify(mirror, log_of(source), NoEngine(), Policy(), 100, share=sides)
    assert caught.value.hint == "Run `tailer verify` again."


async def test_a_source_that_is_small_is_read_here(tmp_path: Path) -> None:
    sink = await mirrored(tmp_path)

    def none() -> Executors:
        pytest.fail("Spark was started")

    size = sum(each.stat().st_size for each in (tmp_path / "orders").glob("*.parquet"))
    sides = SparkVerification(none, log_at, from_bytes=10 * size).sides
    async with sink.open_mirror("orders") as mirror:
        result = await verify(mirror, log_of(tmp_path / "orders"), LocalEngine(), Policy(), 100, share=sides)
    assert result.is_equal


def test_the_command_lets_executors_compare(tmp_path: Path) -> None:
    write(tmp_path / "orders")
    anyio.run(follow, make_mirror(tmp_path / "copy"), tmp_path / "orders", 1, Policy())
    DeltaTable(tmp_path / "copy").update({"n": "-1"}, predicate="id = 8")
    config = configured(tmp_path, 'kind = "delta"\npath = "copy"\nmode = "mirror"\nkey = ["id"]')
    config.write_text(f'engine = "spark"\n[spark]\nmaster = "local[2]"\n{config.read_text()}')
    log = tmp_path / "events"
    log.mkdir()
    events = {"enabled": "true", "dir": log.as_uri(), "compress": "false"}
    with config.open("a") as file:
        file.writelines(
            ["[spark.conf]\n", *(f'"spark.eventLog.{name}" = "{value}"\n' for name, value in events.items())]
        )
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"orders: differs from {tmp_path / 'orders'} at version 1: 0 missing, 0 unexpected, 1 different",
        "rows: 50 in the source, 50 in the mirror",
        "columns that differ: n (1)",
        'different: id = "8": n',
        "rewritten: 1 keys, which have 1 rows now",
        f"orders: equals {tmp_path / 'orders'} at version 1: 50 rows",
    ]
    said = "".join(each.read_text() for each in log.rglob("*") if each.is_file())
    assert "SparkListenerTaskEnd" in said

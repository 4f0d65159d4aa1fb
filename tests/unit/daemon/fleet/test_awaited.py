"""A table that does not exist yet: looks for it, what is never waited for, and what operators see meanwhile."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import anyio
import pytest

from tailer.config.pipelines import PipelineSettings
from tailer.config.settings import load
from tailer.daemon.fleet.awaited import AwaitedTable, is_missing
from tailer.daemon.runs import Stop
from tailer.errors import FileVacuumed, NotATable, StorageUnavailable, TableReplaced, UnsupportedFeature
from tailer.formats.delta.log.listing import LOG
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.stores.port import Objects, ObjectStore
from tailer.stores.stores import Stores
from tests.support.cloud.memory_store import MemoryStore
from tests.support.streams import become

pytestmark = pytest.mark.anyio

COMMIT = f"_delta_log/{0:020d}.json"
MANIFEST = "_versions/1.manifest"


class Recording(MemoryStore):
    """A store that counts listings, and fails while it is `down`."""

    def __init__(self) -> None:
        super().__init__()
        self.listings = 0
        self.down = False

    async def names_below(self, prefix: str, start_after: str = "") -> list[str]:
        """List the objects of a log."""
        self.listings += 1
        if self.down:
            raise StorageUnavailable(prefix, "down")
        return list(await super().names_below(prefix, start_after))


def configured(folder: Path, table: str, more: str = "") -> PipelineSettings:
    """Return the settings of a pipeline."""
    sink = 'sink = {kind = "files", path = "out"}'
    text = f'[pipelines.orders]\ntable = "{table}"\npoll_interval_s = 0.01\nidle_poll_interval_s = 0.01\n{sink}\n{more}'
    (folder / "tailer.toml").write_text(text)
    (found,) = load(folder / "tailer.toml").pipelines
    return found


def stored(folder: Path, store: MemoryStore, name: str = "t", more: str = "") -> PipelineSettings:
    """Return the settings of a pipeline whose table is `store`."""
    store.uri = f"s3://lake/{name}"

    class OneStore(Stores):
        def open(self, location: str) -> ObjectStore:
            return store

    return replace(configured(folder, f"s3://lake/{name}", more), stores=OneStore())


async def test_a_table_that_comes_is_waited_for(tmp_path: Path) -> None:
    """In a folder that does not exist, in one with files of others, and beside a log without a commit."""
    pipeline = configured(tmp_path, "lake/orders")
    status = pipeline.make_status()
    awaited, log = AwaitedTable(pipeline, status, Stop()), tmp_path / "lake" / "orders" / "_delta_log"
    async with anyio.create_task_group() as group:
        group.start_soon(awaited.wait)
        await become(lambda: status.state is PipelineState.WAITING)
        assert status.why == f"there is no table at {tmp_path}/lake/orders yet"
        assert "correct `table`" in status.hint
        assert (status.is_ready, status.has_seen_table, status.fault, status.hangs(0)) == (True, False, None, False)
        log.mkdir(parents=True)
        (log.parent / "part-0.parquet").touch()
        (log / "0.json.tmp").touch()
        (log / f"{0:020d}.json.tmp").touch()
        (log / f"{0:020d}.crc").touch()
        assert await is_missing(pipeline)
        (log / f"{0:020d}.json").touch()
    assert status.state is PipelineState.STARTING
    assert not await AwaitedTable(pipeline, status, Stop()).wait()


async def test_the_wait_ends_with_the_pipeline(tmp_path: Path) -> None:
    pipeline = configured(tmp_path, "lake/orders", "")
    status = pipeline.make_status()
    stop = Stop()
    awaited = AwaitedTable(replace(pipeline, poll_interval_s=3600.0, idle_poll_interval_s=3600.0), status, stop)
    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            group.start_soon(awaited.wait)
            await become(lambda: status.state is PipelineState.WAITING)
            status.note_drain("SIGTERM")
            stop.set()
    status.note_stop()
    assert status.why == "SIGTERM"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("file", "it is a file, not a folder"),
        ("file/orders", "/file is a file, not a folder"),
        ("orders/date=2026-01-01", "it is a folder in the table .*/orders$"),
        ("orders/_delta_log/x", "it is part of the log of a table$"),
        ("items/data", "it is a folder in the table .*/items$"),
    ],
)
async def test_a_wrong_place_is_named_at_once(tmp_path: Path, table: str, reason: str) -> None:
    (tmp_path / "file").touch()
    for name in (f"orders/{COMMIT}", f"items/{MANIFEST}"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    with pytest.raises(NotATable, match=reason):
        await is_missing(configured(tmp_path, table))


@pytest.mark.parametrize(
    ("name", "there", "more", "reason"),
    [
        ("t", MANIFEST, "", "it is a Lance dataset"),
        ("t", MANIFEST, 'table_format = "delta"', "it is a Lance dataset"),
        ("t", COMMIT, 'table_format = "lance"', "not a Lance dataset: it is a Delta table"),
        ("t", COMMIT, 'branch = "b"', "not a Lance dataset: it is a Delta table"),
    ],
)
async def test_a_table_of_another_format_is_named(
    tmp_path: Path, name: str, there: str, more: str, reason: str
) -> None:
    store = Recording()
    await store.put(there, b"")
    with pytest.raises(NotATable, match=reason) as raised:
        await is_missing(stored(tmp_path, store, name, more))
    assert "Set table_format = " in raised.value.hint


class Beginning(Recording):
    """A store in which a table begins after the first listing."""

    async def names_below(self, prefix: str, start_after: str = "") -> list[str]:
        """List the objects of a log."""
        found = await super().names_below(prefix, start_after)
        await self.put(COMMIT, b"")
        return found


async def test_a_table_that_comes_between_two_looks_is_waited_for(tmp_path: Path) -> None:
    """The first look is for a table of the format, the second one for any."""
    pipeline = stored(tmp_path, Beginning(), "t", "")
    assert await is_missing(pipeline)
    assert not await is_missing(pipeline)


@pytest.mark.parametrize(
    ("name", "there", "more"),
    [
        ("t", COMMIT, ""),
        ("t.lance", MANIFEST, ""),
        ("t", MANIFEST, 'table_format = "lance"'),
        ("t", COMMIT, 'table_format = "delta"'),
        ("t", MANIFEST, 'branch = "b"'),
    ],
)
async def test_a_look_is_two_listings_at_most(tmp_path: Path, name: str, there: str, more: str) -> None:
    store = Recording()
    pipeline = stored(tmp_path, store, name, more)
    status = pipeline.make_status()
    async with anyio.create_task_group() as group:
        group.start_soon(AwaitedTable(pipeline, status, Stop()).wait)
        await become(lambda: status.state is PipelineState.WAITING)
        store.listings = 0
        assert await is_missing(pipeline, is_first=False)
        assert store.listings <= 2 + 2  # of this look, and of one of the wait meanwhile
        await store.put(there, b"")
    assert not await is_missing(pipeline)


async def test_a_store_that_does_not_answer_is_left_to_the_pipeline(tmp_path: Path) -> None:
    store = Recording()
    pipeline = stored(tmp_path, store)
    awaited, store.down = AwaitedTable(pipeline, pipeline.make_status(), Stop()), True
    assert not await awaited.wait()


class Changing(MemoryStore):
    """A store in which each listing of the log finds what one more of `steps` puts there."""

    def __init__(self, steps: Iterable[tuple[str, bytes]]) -> None:
        super().__init__()
        self.steps = iter(steps)
        self.looks = 0

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        """List the log once more."""
        if prefix == LOG:
            self.looks += 1
            for step in islice(self.steps, 1):
                await self.put(*step)
        return await super().list(prefix, start_after)


def commit(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


async def test_a_table_that_is_copied_into_place_is_followed_once_it_is_whole(tmp_path: Path) -> None:
    """It comes in any order, and the file that is being copied grows."""
    steps = [(commit(7), b""), (f"_delta_log/{7:020d}.checkpoint.parquet", b""), (commit(8), b""), (commit(8), b"8")]
    steps += [(commit(version), b"0") for version in (6, 2, 0, 4, 5, 1, 3)]
    store = Changing(steps)
    awaited = AwaitedTable(stored(tmp_path, store), PipelineStatus("orders"), Stop(), is_new=True)
    await store.put(*steps[0])
    assert await awaited.wait()
    assert [*store.steps] == []
    assert store.looks == len(steps) + 1
    assert len(store.objects) == 10


async def test_a_table_that_is_written_without_a_pause_is_followed(tmp_path: Path) -> None:
    store = Changing((commit(version), b"0") for version in count())
    await store.put(commit(0), b"0")
    assert await AwaitedTable(stored(tmp_path, store), PipelineStatus("orders"), Stop(), is_new=True).wait()
    assert store.looks < 20


async def test_a_table_that_was_there_is_followed_at_once(tmp_path: Path) -> None:
    store = Changing([])
    await store.put(commit(0), b"0")
    assert not await AwaitedTable(stored(tmp_path, store), PipelineStatus("orders"), Stop()).wait()
    assert store.looks == 0


async def test_a_table_that_has_come_and_is_not_whole_is_waited_for_again(tmp_path: Path) -> None:
    """Until something was delivered, or it has stayed as it is for as long as errors are retried."""
    pipeline, error = configured(tmp_path, "t"), FileVacuumed("t", 1, "0.parquet")
    status = pipeline.make_status()
    awaited = AwaitedTable(pipeline, status, Stop(), is_new=True)
    assert awaited.may_grow(error)
    assert not awaited.may_grow(TableReplaced("t", 1, "a", "b"))
    assert not awaited.may_grow(UnsupportedFeature("t", "f", 1))
    assert not AwaitedTable(pipeline, status, Stop()).may_grow(error)
    seconds = iter((0.0, 3600.0))
    assert not AwaitedTable(pipeline, status, Stop(), is_new=True, clock=lambda: next(seconds)).may_grow(error)
    status.transactions = 1
    assert not awaited.may_grow(error)


async def test_a_catalog_knows_its_tables(tmp_path: Path) -> None:
    catalog = '[pipelines.orders.catalog]\nkind = "unity"\nuri = "http://localhost:1"\ntable = "a.b.c"'
    assert not await is_missing(configured(tmp_path, "orders", catalog))

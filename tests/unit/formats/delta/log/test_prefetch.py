"""Commits of a backlog fetched ahead: the same plans, the same errors at the same versions, and fewer round trips."""

import random
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import (
    LogCorrupt,
    LogRewritten,
    ObjectNotFound,
    StorageUnavailable,
    TableReplaced,
    TailerError,
    VersionGone,
)
from tailer.formats.delta.log.commit_reader import WINDOW_BYTES, WINDOW_FILES, read_together, window
from tailer.formats.delta.log.following import LIST_AFTER
from tailer.formats.delta.log.listing import LogFileKind, LogPath, commit_name
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan
from tailer.stores.port import ObjectMeta, StoredObject
from tests.support.cloud.memory_store import MemoryStore
from tests.support.seeds import repeats
from tests.support.tables.log_files import add, metadata, protocol, remove
from tests.support.tables.stored_log import HEAD, CountingStore, a_log, put_commit

pytestmark = pytest.mark.anyio


async def following(log: DeltaTableLog) -> tuple[list[ChangePlan], TailerError | None]:
    """Return all plans up to the end or an error, and that error."""
    found: list[ChangePlan] = []
    try:
        while (plan := await log.next_plan()) is not None:
            found.append(plan)
    except TailerError as error:
        return found, error
    return found, None


def one_by_one(store: MemoryStore) -> DeltaTableLog:
    """Make a log that reads every commit when it is due."""
    log = DeltaTableLog(store)
    log._commits._is_on = False
    return log


async def test_a_backlog_takes_one_request_for_each_version() -> None:
    """The listing replaces the look at the commit before."""
    store = CountingStore()
    a_log(store, 100)
    log = DeltaTableLog(store)
    await log.seek(0)
    store.taken()
    plans, error = await following(log)
    assert ([plan.version for plan in plans], error) == (list(range(100)), None)
    assert store.taken() == {"GET": 101}
    assert 1 < store.most_open <= WINDOW_FILES


async def test_the_start_reads_each_commit_once() -> None:
    store = CountingStore()
    a_log(store, 100)
    log = DeltaTableLog(store)
    await log.table_id()
    assert await log.ids(-1) == ("id",)
    await log.seek(60)
    hints = store.asked.count("_delta_log/_last_checkpoint")
    assert store.requests["GET"] - hints == 100
    assert sorted(set(store.asked)) == sorted(name for name in store.asked if "_last" not in name) + store.asked[:1]


async def test_a_commit_of_the_start_that_was_replaced_is_read_again() -> None:
    store = CountingStore()
    a_log(store, 10)
    log = DeltaTableLog(store)
    assert await log.ids(-1) == ("id",)
    put_commit(store, 5, metadata(table_id="new"), add("f5"), at_ms=9)
    assert await log.ids(-1) == ("new", "id")


async def test_nothing_is_fetched_beyond_the_listing() -> None:
    store = CountingStore()
    a_log(store, 5)
    log = DeltaTableLog(store)
    await log.seek(1)
    store.taken()
    a_log(store, 40, first=5)
    for _ in range(4):
        assert await log.next_plan() is not None
    assert sorted(store.asked) == [commit_name(version) for version in (1, 2, 3, 4)]


async def test_a_backlog_that_grows_is_listed_again() -> None:
    """After `LIST_AFTER` versions without a wait there is a backlog again."""
    store = CountingStore()
    a_log(store, 5)
    log = DeltaTableLog(store)
    await log.seek(5)
    a_log(store, 5 + LIST_AFTER + 50, first=5)
    store.taken()
    plans, error = await following(log)
    assert ([plan.version for plan in plans], error) == (list(range(5, 55 + LIST_AFTER)), None)
    assert store.taken() == {"GET": LIST_AFTER + 51, "HEAD": LIST_AFTER, "LIST": 1}


async def test_large_commits_are_not_held_ahead() -> None:
    def path(version: int, size_bytes: int) -> LogPath:
        return LogPath(version, LogFileKind.COMMIT, ObjectMeta(commit_name(version), size_bytes, 1))

    many = [path(version, 10) for version in range(100)]
    assert window(many) == many[:WINDOW_FILES]
    quarter = [path(version, WINDOW_BYTES // 4) for version in range(9)]
    assert window(quarter) == quarter[:4]
    large = [path(0, WINDOW_BYTES * 100), path(1, 10)]
    assert window(large) == large[:1]
    assert window([path(0, 10), *large]) == [path(0, 10)]
    assert window([path(0, 0), path(1, 0)]) == [path(0, 0)]
    assert window([]) == []


async def test_the_results_before_the_first_error() -> None:
    paths = [LogPath(version, LogFileKind.COMMIT, ObjectMeta(commit_name(version), 0, 1)) for version in range(6)]

    async def read(path: LogPath) -> int:
        await anyio.sleep(0.01 * (6 - path.version))
        if path.version in failing:
            raise StorageUnavailable(path.name, "503")
        return path.version

    failing: set[int] = set()
    assert await read_together(paths, read) == [0, 1, 2, 3, 4, 5]
    failing = {3, 5}
    assert await read_together(paths, read) == [0, 1, 2]
    failing = {0, 4}
    with pytest.raises(StorageUnavailable, match=r"00000\.json"):
        await read_together(paths, read)


def missing(store: CountingStore) -> None:
    del store.objects[commit_name(7)]


def refused(store: CountingStore) -> None:
    store.errors[commit_name(7)] = StorageUnavailable(commit_name(7), "503 SlowDown")


def damaged(store: CountingStore) -> None:
    put_commit(store, 7, {"add": {"path": 7}})


def hidden(store: CountingStore) -> None:
    store.errors[commit_name(7)] = ObjectNotFound(commit_name(7))


@pytest.mark.parametrize(
    ("change", "error"),
    [(missing, VersionGone), (refused, StorageUnavailable), (damaged, LogCorrupt), (hidden, None)],
)
async def test_an_error_comes_at_its_version(
    change: Callable[[CountingStore], object], error: type[TailerError] | None
) -> None:
    """A commit whose GET alone fails is "not yet", as one by one, until it can be read."""
    store = CountingStore()
    a_log(store, 20)
    whole = store.objects[commit_name(7)]
    log = DeltaTableLog(store)
    await log.seek(2)
    change(store)
    plans, found = await following(log)
    assert [plan.version for plan in plans] == [2, 3, 4, 5, 6]
    assert type(found) is (error or type(None))
    store.objects[commit_name(7)] = whole
    store.errors.clear()
    plans, found = await following(log)
    assert ([plan.version for plan in plans], found) == (list(range(7, 20)), None)


async def test_a_fault_of_one_request_is_no_error() -> None:
    """A commit that could not be fetched ahead is read again when it is due."""
    store = CountingStore()
    a_log(store, 20)
    log = DeltaTableLog(store)
    await log.seek(2)
    refused(store)
    for _ in range(4):
        assert await log.next_plan() is not None
    assert store.asked.count(commit_name(7)) == 1
    store.errors.clear()
    plans, found = await following(log)
    assert ([plan.version for plan in plans], found) == (list(range(6, 20)), None)


@pytest.mark.parametrize("after", range(1, 6))
async def test_another_table_in_its_place(after: int) -> None:
    """Commits fetched before are still of the log that was listed; the first of the other one is not accepted."""
    store = CountingStore()
    a_log(store, 5)
    log = DeltaTableLog(store)
    await log.seek(0)
    for _ in range(after):
        await log.next_plan()
    put_commit(store, 0, protocol(), metadata(table_id="other"), add("g0"), at_ms=99)
    for version in range(1, 9):
        put_commit(store, version, add(f"other{version}"), at_ms=99 + version)
    plans, error = await following(log)
    assert isinstance(error, TableReplaced)
    assert [plan.version for plan in plans] == list(range(after, min(after + len(plans), 5)))
    assert all("other" not in task.uri for plan in plans for task in plan.tasks)


async def test_a_log_rewritten_between_the_listing_and_the_reading() -> None:
    """The listing then vouches for none of its commits, and the commit before is another one."""
    store = CountingStore()
    a_log(store, 5)
    log = DeltaTableLog(store)
    await log.seek(2)
    assert await log.next_plan() is not None
    log._commits._held.clear()
    for version in (2, 3, 4):
        put_commit(store, version, add(f"again{version}"), at_ms=77 + version)
    plans, error = await following(log)
    assert (plans, type(error)) == ([], LogRewritten)


async def test_a_writer_beside_a_reader_that_catches_up() -> None:
    store = CountingStore()
    a_log(store, 200)
    plans: list[ChangePlan] = []
    log = DeltaTableLog(store)
    await log.seek(0)

    async def write() -> None:
        for version in range(200, 400):
            a_log(store, version + 1, first=version)
            await anyio.sleep(random.uniform(0, 0.004))

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        with anyio.fail_after(300):
            while len(plans) < 400:
                plan = await log.next_plan()
                if plan is None:
                    await anyio.sleep(0.001)
                else:
                    plans.append(plan)
    other = one_by_one(store)
    await other.seek(0)
    assert await following(other) == (plans, None)


@settings(max_examples=repeats(30))
@given(
    kinds=st.lists(st.sampled_from(["add", "remove", "meta", "large", "lost", "torn", "gone while read"]), max_size=60),
    first=st.integers(0, 30),
    seed=st.integers(0, 10),
)
def test_plans_and_errors_are_the_same_with_and_without(kinds: list[str], first: int, seed: int) -> None:
    store = CountingStore()
    put_commit(store, 0, *HEAD, add("f0"))
    for version, kind in enumerate(kinds, start=1):
        many = WINDOW_BYTES // 20_000 if kind == "large" else 1
        stats = "x" * 20_000 if kind == "large" else ""
        actions = [add(f"f{version}-{number}", stats=stats) for number in range(many)]
        if kind == "remove":
            actions.append(remove(f"f{version - 1}-0"))
        if kind == "meta":
            actions.append(metadata())
        put_commit(store, version, *actions)
        name = commit_name(version)
        if kind == "lost":
            del store.objects[name]
        if kind == "torn":
            data = store.objects[name].data[:-9]
            store.objects[name] = StoredObject(ObjectMeta(name, len(data), 1), data)
        if kind == "gone while read" and seed % 2:
            store.errors[name] = StorageUnavailable(name, "503")

    async def read(log: DeltaTableLog) -> tuple[list[ChangePlan], str]:
        try:
            await log.seek(min(first, len(kinds)))
        except TailerError as error:
            return [], repr(error)
        plans, found = await following(log)
        return plans, repr(found)

    assert anyio.run(read, DeltaTableLog(store)) == anyio.run(read, one_by_one(store))

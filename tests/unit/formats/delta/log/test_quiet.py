"""A log without a new version in a store whose requests cost: what is asked, and how soon a fault is found."""

from collections.abc import Callable
from functools import partial

import pytest

import tailer.formats.delta.table
from tailer.errors import NotATable, TableReplaced, TailerError, VersionAhead, VersionGone
from tailer.formats.delta.log.following import CHECK_S, QuietLog
from tailer.formats.delta.log.listing import commit_name
from tailer.formats.delta.table import DeltaTableLog
from tailer.stores.port import ObjectMeta, StoredObject
from tests.support.cloud.memory_store import MemoryStore
from tests.support.tables.log_files import add, metadata, protocol
from tests.support.tables.stored_log import HEAD, CountingStore, a_log, put_commit

pytestmark = pytest.mark.anyio

Change = Callable[[MemoryStore], object]


class Clock:
    """Seconds that pass only as the test says."""

    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tailer.formats.delta.table, "QuietLog", partial(QuietLog, clock=clock))
    return clock


async def followed(store: CountingStore, versions: int = 6) -> DeltaTableLog:
    """Follow a log of some versions to its end."""
    a_log(store, versions)
    log = DeltaTableLog(store)
    await log.seek(versions - 2)
    while await log.next_plan() is not None:
        pass
    store.taken()
    return log


async def test_a_look_is_one_request(clock: Clock) -> None:
    """There is one listing in `CHECK_S`, however often is looked."""
    store = CountingStore()
    log = await followed(store)
    for _ in range(1000):
        clock.now_s += CHECK_S / 1001
        assert await log.next_plan() is None
    assert store.taken() == {"GET": 1000}
    clock.now_s += CHECK_S / 1001
    assert await log.next_plan() is None
    assert store.taken() == {"GET": 1, "LIST": 1}
    for _ in range(1000):
        assert await log.next_plan() is None
    assert store.taken() == {"GET": 1000}


def skipped(store: MemoryStore) -> None:
    put_commit(store, 7, add("f7"))


def two_skipped(store: MemoryStore) -> None:
    put_commit(store, 8, add("f8"))


def only_a_checkpoint(store: MemoryStore) -> None:
    name = f"{commit_name(9)[:-5]}.checkpoint.parquet"
    store.objects[name] = StoredObject(ObjectMeta(name, 1, 1), b"x")


def went_back(store: MemoryStore) -> None:
    for version in (4, 5):
        del store.objects[commit_name(version)]


def replaced_by_a_shorter_one(store: MemoryStore) -> None:
    store.objects.clear()
    put_commit(store, 0, protocol(), metadata(table_id="other"), add("g"))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (skipped, VersionGone),
        (two_skipped, VersionGone),
        (only_a_checkpoint, VersionGone),
        (went_back, VersionAhead),
        (replaced_by_a_shorter_one, TableReplaced),
        (lambda store: store.objects.clear(), NotATable),
    ],
    ids=["next lost", "two lost", "only a checkpoint", "went back", "replaced", "deleted"],
)
async def test_a_fault_is_found_at_the_next_check(clock: Clock, change: Change, error: type[TailerError]) -> None:
    store = CountingStore()
    log = await followed(store)
    change(store)
    clock.now_s += CHECK_S - 1
    assert await log.next_plan() is None
    clock.now_s += 1
    with pytest.raises(error):
        await log.next_plan()


async def test_a_version_found_puts_the_check_off(clock: Clock) -> None:
    store = CountingStore()
    log = await followed(store)
    clock.now_s += CHECK_S - 1
    a_log(store, 7, first=6)
    assert await log.next_plan() is not None
    clock.now_s += CHECK_S - 1
    assert await log.next_plan() is None
    assert store.taken() == {"GET": 2, "HEAD": 1}


async def test_a_commit_that_comes_just_before_the_check_is_delivered(clock: Clock) -> None:
    """The listing shows it, though the look before did not."""

    class Growing(CountingStore):
        grows = False

        async def list(self, prefix: str, start_after: str = "") -> list[ObjectMeta]:
            if self.grows:
                a_log(self, 8, first=6)
            return await super().list(prefix, start_after)

    store = Growing()
    log = await followed(store)
    store.grows = True
    clock.now_s += CHECK_S
    assert await log.next_plan() is None
    plans = [await log.next_plan(), await log.next_plan()]
    assert [plan and plan.version for plan in plans] == [6, 7]


async def test_a_last_commit_that_was_cleaned_up_is_no_loss(clock: Clock) -> None:
    """Only the whole log shows that, so the check takes more requests."""
    store = CountingStore()
    log = await followed(store)
    put_commit(store, 4, *HEAD, add("f4"))
    for version in (0, 1, 2, 3):
        del store.objects[commit_name(version)]
    clock.now_s += CHECK_S
    assert await log.next_plan() is None
    assert store.taken() == {"GET": 1, "LIST": 1}

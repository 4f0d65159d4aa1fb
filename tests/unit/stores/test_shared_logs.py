"""Reads of one table's log that several pipelines share: one request for all, and each sees what the store has."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tailer.errors import ObjectNotFound, StorageUnavailable
from tailer.stores.local import LocalStore
from tailer.stores.memory import MemoryStore
from tailer.stores.port import ObjectStore, StoredObject
from tailer.stores.shared import SharedLogs
from tailer.stores.shared.logs import KEEP_S
from tailer.stores.wakeup import Wake
from tests.support.streams import become

pytestmark = pytest.mark.anyio

T = TypeVar("T")

COMMIT: Final = "_delta_log/00000000000000000007.json"
MANIFEST: Final = "_versions/18446744073709551608.manifest"


class SlowStore(MemoryStore):
    """Counts requests, each of which waits until `answer` is set; `errors` come first."""

    def __init__(self) -> None:
        super().__init__("s3://lake/orders")
        self.asked: Counter[str] = Counter()
        self.answer = anyio.Event()
        self.errors: list[Exception] = []

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        """See `ObjectStore.read`."""
        self.asked[name] += 1
        await self.answer.wait()
        if self.errors:
            raise self.errors.pop(0)
        return await super().read(name, decode)


class Clock:
    """A clock that stands still."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def content(stored: StoredObject) -> bytes:
    """Return what was read."""
    return stored.data


async def ask(store: ObjectStore, name: str, answers: list[bytes | type[Exception]]) -> None:
    """Note what a store answers."""
    try:
        answers.append(await store.read(name, content))
    except (ObjectNotFound, StorageUnavailable) as error:
        answers.append(type(error))


async def together(store: SlowStore, stores: list[ObjectStore], name: str) -> list[bytes | type[Exception]]:
    """Let several pipelines ask for an object at one time; return what they get."""
    answers: list[bytes | type[Exception]] = []
    async with anyio.create_task_group() as group:
        for each in stores:
            group.start_soon(ask, each, name, answers)
        await anyio.wait_all_tasks_blocked()
        store.answer.set()
    return answers


@pytest.mark.parametrize("name", [COMMIT, MANIFEST])
async def test_those_who_ask_together_share_a_request(name: str) -> None:
    store, logs = SlowStore(), SharedLogs()
    await store.put(name, b"seven")
    stores = [logs.share(store, "access") for _ in range(3)]
    assert await together(store, stores, name) == [b"seven"] * 3
    assert store.asked == {name: 1}


async def test_what_was_read_is_kept_for_a_moment() -> None:
    clock = Clock()
    store, logs = SlowStore(), SharedLogs(clock)
    first, second = logs.share(store, "access"), logs.share(store, "access")
    store.answer.set()
    await store.put(COMMIT, b"seven")
    assert await first.read(COMMIT, content) == b"seven"
    assert await second.scan(COMMIT, lambda opened: opened.file.read()) == b"seven"
    assert store.asked == {COMMIT: 1}
    await store.put(COMMIT, b"another table")
    clock.now_s = KEEP_S + 0.1
    assert await second.read(COMMIT, content) == b"another table"


async def test_a_missing_version_is_missing_for_all_who_ask_together_and_asked_for_again() -> None:
    store, logs = SlowStore(), SharedLogs()
    stores = [logs.share(store, "access") for _ in range(3)]
    assert await together(store, stores, COMMIT) == [ObjectNotFound] * 3
    assert store.asked == {COMMIT: 1}
    await store.put(COMMIT, b"seven")
    assert await together(store, stores, COMMIT) == [b"seven"] * 3


async def test_an_error_is_that_of_one() -> None:
    store, logs = SlowStore(), SharedLogs()
    await store.put(COMMIT, b"seven")
    store.errors = [StorageUnavailable("s3://lake", "503")]
    stores = [logs.share(store, "access") for _ in range(3)]
    assert await together(store, stores, COMMIT) == [StorageUnavailable, b"seven", b"seven"]
    assert store.asked == {COMMIT: 2}


async def test_one_that_is_stopped_leaves_the_others_their_answer() -> None:
    store, logs = SlowStore(), SharedLogs()
    await store.put(COMMIT, b"seven")
    first, second = logs.share(store, "access"), logs.share(store, "access")
    answers: list[bytes | type[Exception]] = []
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as stopped:
                stopped.start_soon(ask, first, COMMIT, answers)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(ask, second, COMMIT, answers)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        store.answer.set()
    assert answers == [b"seven"]


async def test_other_objects_are_read_by_each() -> None:
    """A hint about the last checkpoint changes; a large commit would fill the memory; a lone pipeline asks as ever."""
    store, logs = SlowStore(), SharedLogs()
    store.answer.set()
    hint = "_delta_log/_last_checkpoint"
    await store.put(hint, b"{}")
    await store.put(COMMIT, bytes(2**20 + 1))
    first = logs.share(store, "access")
    await first.read(COMMIT, content)
    assert store.asked == {COMMIT: 1}
    second = logs.share(store, "access")
    for each in (first, second):
        assert await each.read(hint, content) == b"{}"
        assert len(await each.read(COMMIT, content)) == 2**20 + 1
    assert store.asked[hint] == 2


async def test_pipelines_with_another_access_share_nothing() -> None:
    store, logs = SlowStore(), SharedLogs()
    store.answer.set()
    await store.put(COMMIT, b"seven")
    shared = [logs.share(store, access) for access in ("one", "another", "one", "another")]
    for each in shared:
        assert await each.read(COMMIT, content) == b"seven"
    assert store.asked == {COMMIT: 2}


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailer.stores.shared.logs._KEEP_BYTES", 10)
    store, logs = SlowStore(), SharedLogs()
    store.answer.set()
    first, second = logs.share(store, "access"), logs.share(store, "access")
    names = [f"_delta_log/{version:020d}.json" for version in range(3)]
    for name in names:
        await store.put(name, b"12345678")
        await first.read(name, content)
    for name in reversed(names):
        await second.read(name, content)
    assert store.asked == {names[0]: 2, names[1]: 2, names[2]: 1}


async def test_a_folder_of_this_machine_is_left_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert SharedLogs().share(store, None) is store


def wakes(count: int) -> list[Wake]:
    """Return the waits of several pipelines for one table."""
    store, logs = MemoryStore("s3://lake/orders"), SharedLogs()
    shared = [logs.share(store, "access") for _ in range(count)]
    return [each.make_wake("_delta_log", re.compile(".*")) for each in shared]


async def test_waits_end_together() -> None:
    first, second, third = wakes(3)
    ended: list[str] = []

    async def wait(wake: Wake, timeout_s: float, name: str) -> None:
        async with wake:
            await wake.wait(timeout_s)
            ended.append(name)

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            group.start_soon(wait, second, 3600, "second")
            group.start_soon(wait, third, 3600, "third")
            await anyio.wait_all_tasks_blocked()
            group.start_soon(wait, first, 0.01, "first")
    assert ended[0] == "first"
    assert sorted(ended) == ["first", "second", "third"]


async def test_pipelines_do_not_wake_each_other_for_ever() -> None:
    """After the waits ended together, each begins the next one, which lasts."""
    first, second = wakes(2)
    turns: Counter[str] = Counter()

    async def follow(wake: Wake, name: str, timeouts_s: Sequence[float]) -> None:
        for timeout_s in timeouts_s:
            await wake.wait(timeout_s)
            turns[name] += 1
            await checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(follow, first, "first", [0.02, 60, 60])
        group.start_soon(follow, second, "second", [60, 60, 60])
        await become(lambda: turns == {"first": 1, "second": 1})
        await anyio.sleep(0.1)
        assert turns == {"first": 1, "second": 1}
        first.ring()
        await become(lambda: turns == {"first": 2, "second": 2})
        group.cancel_scope.cancel()

"""Finding the tables of a pattern: what is listed, what is asked, and what a fault hides."""

from pathlib import Path

import pytest

from tailer.config.pipelines import TablePattern
from tailer.daemon.fleet import discovery
from tailer.daemon.fleet.discovery import FoundTables, find_tables
from tailer.errors import ConfigError, StorageUnavailable, TailerError
from tailer.stores.port import Folders, ObjectStore
from tailer.stores.stores import Stores
from tests.support.cloud.memory_store import MemoryStore

pytestmark = pytest.mark.anyio

COMMIT = f"_delta_log/{0:020d}.json"


class Recording(MemoryStore):
    """A store that records its requests, and refuses to list the folders in `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.broken: dict[str, TailerError] = {}

    async def list_folders(self, prefix: str) -> Folders:
        """List, unless it is broken."""
        self.asked.append(prefix)
        if prefix in self.broken:
            raise self.broken[prefix]
        return await super().list_folders(prefix)

    async def names_below(self, prefix: str, start_after: str = "") -> list[str]:
        """List the objects of a log."""
        self.asked.append(prefix)
        return list(await super().names_below(prefix, start_after))


class OneStore(Stores):
    """Stores that are all `store`."""

    store: ObjectStore

    def open(self, location: str) -> ObjectStore:
        """Return it."""
        return self.store


def stores(store: ObjectStore) -> Stores:
    """Return stores that are all `store`."""
    made: type[OneStore] = type("Made", (OneStore,), {"store": store})
    return made()


async def filled(*names: str) -> Recording:
    """Return a store with tables of these names, and things beside them."""
    store = Recording()
    for name in names:
        await store.put(f"{name}/{COMMIT}", b"")
        await store.put(f"{name}/part-0.parquet", b"")
    await store.put("eu/no table/file", b"")
    await store.put("eu/begun/_delta_log/.tmp", b"")
    await store.put("file", b"")
    return store


async def test_folders_that_fit_and_hold_a_log() -> None:
    store = await filled("eu/orders", "eu/items", "us/orders", "_hidden/orders", "top")
    found = await find_tables(TablePattern("memory:", ("*", "*")), stores(store))
    assert (found.tables, found.faults) == ({("eu", "orders"), ("eu", "items"), ("us", "orders")}, [])
    found = await find_tables(TablePattern("memory:", ("*", "orders")), stores(store))
    assert found.tables == {("eu", "orders"), ("us", "orders")}
    found = await find_tables(TablePattern("memory:", ("t*p",)), stores(store))
    assert found.tables == {("top",)}


async def test_a_table_that_is_followed_costs_no_request() -> None:
    store = await filled("orders", "items")
    pattern = TablePattern("memory:", ("*",))
    found = await find_tables(pattern, stores(store), {("orders",)})
    assert found.tables == {("orders",), ("items",)}
    assert sorted(store.asked) == ["", "eu/_delta_log", "items/_delta_log"]


async def test_a_table_that_is_followed_is_gone_without_its_folder() -> None:
    store = await filled("orders")
    found = await find_tables(TablePattern("memory:", ("*",)), stores(store), {("orders",), ("items",)})
    assert found.over({("orders",), ("items",)}) == {("orders",)}


@pytest.mark.parametrize("error", [StorageUnavailable("us", "down"), ConfigError("us", "no login")])
async def test_a_fault_keeps_what_is_known(error: TailerError) -> None:
    store = await filled("eu/orders", "us/orders")
    store.broken["us"] = error
    pattern = TablePattern("memory:", ("*", "*"))
    found = await find_tables(pattern, stores(store))
    assert (found.tables, len(found.faults)) == ({("eu", "orders")}, 1)
    assert found.over({("us", "items")}) == {("eu", "orders"), ("us", "items")}
    assert FoundTables({("a",)}).over({("b",)}) == {("a",)}


async def test_a_disk_that_is_not_mounted_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "eu/orders/_delta_log").mkdir(parents=True)
    (tmp_path / "eu/orders" / COMMIT).touch()
    (tmp_path / "us").mkdir()
    found = await find_tables(TablePattern(str(tmp_path), ("*", "orders")), Stores())
    assert (found.tables, found.faults) == ({("eu", "orders")}, [])
    found = await find_tables(TablePattern(f"{tmp_path}/missing", ("*",)), Stores())
    assert len(found.faults) == 1


async def test_a_listing_that_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_DEADLINE_S", 0.0)
    store = await filled("orders")
    found = await find_tables(TablePattern("memory:", ("*",)), stores(store))
    assert len(found.faults) == 1

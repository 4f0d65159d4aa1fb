"""The methods of a store, over every store."""

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest

from tailer.errors import ObjectAlreadyExists, ObjectNotFound
from tailer.stores.bucket.store import BucketStore
from tailer.stores.cloud.bucket import CloudBucket
from tailer.stores.local import LocalStore
from tailer.stores.port import ObjectStore, OpenObject, StoredObject
from tailer.stores.s3 import S3Options
from tailer.stores.s3.bucket import S3Bucket
from tests.support.cloud.memory_store import MemoryStore
from tests.support.cloud.servers import CloudServer
from tests.support.s3.link import S3Link
from tests.support.s3.server import S3Server, close_thread_clients

pytestmark = pytest.mark.anyio

SERVERS = ("s3proxy", "versitygw", "fake_gcs", "azurite")

STORES = ["local", "memory", *(pytest.param(name, marks=pytest.mark.stores) for name in SERVERS)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """An empty store of each kind. In front of S3Proxy is a link that makes its writes atomic."""
    if request.param == "local":
        yield LocalStore(tmp_path / "root")
    elif request.param == "memory":
        yield MemoryStore()
    elif request.param in ("fake_gcs", "azurite"):
        cloud: CloudServer = request.getfixturevalue(request.param)
        with cloud.logged_in(monkeypatch):
            yield BucketStore(CloudBucket(cloud.new_bucket(), cloud.options), "some/root")
    else:
        server: S3Server = request.getfixturevalue(request.param)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with S3Link(server, is_serial=request.param == "s3proxy") as link:
            yield BucketStore(S3Bucket(server.new_bucket(), S3Options(endpoint=link.endpoint)), "some/root")
        close_thread_clients()


def content(stored: StoredObject) -> bytes:
    """Return the bytes of an object."""
    return stored.data


async def names(store: ObjectStore, prefix: str = "log", start_after: str = "") -> list[str]:
    """Return the names in a listing."""
    return [meta.name for meta in await store.list(prefix, start_after)]


async def test_objects_are_read_back(store: ObjectStore) -> None:
    await store.put_if_absent("log/a b%20é", b"one")
    stored = await store.read("log/a b%20é", lambda stored: stored)
    assert (stored.data, stored.meta.name, stored.meta.size_bytes) == (b"one", "log/a b%20é", 3)
    assert [stored.meta] == await store.list("log")
    assert await store.scan("log/a b%20é", lambda opened: (opened.file.seek(1), opened.file.read())) == (1, b"ne")
    assert await store.scan("log/a b%20é", lambda opened: opened.meta) == stored.meta
    await store.put("log/a b%20é", b"")
    assert await store.read("log/a b%20é", content) == b""


async def test_put_if_absent_refuses_an_existing_object(store: ObjectStore) -> None:
    await store.put_if_absent("log/a", b"one")
    with pytest.raises(ObjectAlreadyExists) as caught:
        await store.put_if_absent("log/a", b"two")
    assert caught.value.path == f"{store.uri}/log/a"
    assert await store.read("log/a", content) == b"one"
    assert await names(store) == ["log/a"]


async def test_of_many_one_creates(store: ObjectStore) -> None:
    won: list[bytes] = []

    async def create(number: int) -> None:
        with suppress(ObjectAlreadyExists):
            await store.put_if_absent("log/a", b"%d" % number)
            won.append(b"%d" % number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(create, number)
    assert [await store.read("log/a", content)] == won


async def test_missing_objects(store: ObjectStore) -> None:
    names = ["nothing", "no/where"]
    if isinstance(store, LocalStore | MemoryStore):  # S3 servers over folders have no answer to this
        await store.put("log", b"a file, not a folder")
        names.append("log/a")
    for name in names:
        for ask in (partial(store.read, name, content), partial(store.scan, name, lambda opened: opened.file.read())):
            with pytest.raises(ObjectNotFound) as caught:
                await ask()
            assert caught.value.path == f"{store.uri}/{name}"
        assert await store.list(name) == []
        await store.delete(name)
    assert await store.list("log") == []


async def test_the_folders_below_a_folder(store: ObjectStore) -> None:
    for name in ("sales/b/_delta_log/0.json", "sales/a/x", "sales/a b%20é/deep/y", "sales/file", "sales2/c/x", "top"):
        await store.put(name, b"")
    assert await store.list_folders("sales") == ["a", "a b%20é", "b"]
    assert await store.list_folders("sales/a") == []
    assert await store.list_folders("") == ["sales", "sales2"]
    if isinstance(store, LocalStore):  # which may be a disk that is not mounted
        with pytest.raises(ObjectNotFound):
            await store.list_folders("nothing")
    else:
        assert await store.list_folders("nothing") == []


async def test_a_listing_is_one_folder_in_order(store: ObjectStore) -> None:
    for name in ("log/b", "log/a", "log/B", "log/10", "log/9", "log/sub/c", "logs/d", "e"):
        await store.put(name, b"")
    assert await names(store) == ["log/10", "log/9", "log/B", "log/a", "log/b"]
    assert await names(store, start_after="log/9") == ["log/B", "log/a", "log/b"]
    assert await names(store, start_after="log/b") == []


async def test_deleted_is_gone(store: ObjectStore) -> None:
    await store.put("log/a", b"")
    await store.delete("log/a")
    await store.delete("log/a")
    assert await store.list("log") == []
    await store.put_if_absent("log/a", b"")


async def test_errors_of_a_decoder_are_its_own(store: ObjectStore) -> None:
    await store.put("log/a", b"")
    with pytest.raises(ZeroDivisionError):
        await store.read("log/a", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await store.scan("log/a", lambda _: 1 // 0)


async def test_decoding_happens_beside_the_event_loop(store: ObjectStore) -> None:
    await store.put("log/a", b"")
    here = threading.get_ident()
    assert await store.read("log/a", lambda _: threading.get_ident()) != here
    assert await store.scan("log/a", lambda _: threading.get_ident()) != here


async def test_metadata_agree(store: ObjectStore) -> None:
    await store.put("log/a", b"one")
    meta = await store.stat("log/a")
    assert (meta.name, meta.size_bytes) == ("log/a", 3)
    assert await store.read("log/a", lambda stored: stored.meta) == meta
    assert await store.scan("log/a", lambda opened: opened.meta) == meta
    assert await store.list("log") == [meta]
    with pytest.raises(ObjectNotFound):
        await store.stat("log/b")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["a b", "a%20b", "a+b", "a&b=c", "ä\u0301\U0001f600", "a?b#c", "~a!(b)'*", "..a", "a=%"]
)
async def test_names_are_literal(store: ObjectStore, name: str) -> None:
    await store.put_if_absent(f"log/{name}", name.encode())
    assert await store.read(f"log/{name}", content) == name.encode()
    assert await names(store) == [f"log/{name}"]
    assert (await store.stat(f"log/{name}")).name == f"log/{name}"
    await store.delete(f"log/{name}")
    assert await names(store) == []


async def test_objects_at_the_root_are_listed(store: ObjectStore) -> None:
    await store.put("a", b"")
    await store.put("log/b", b"")
    if not isinstance(store, LocalStore | MemoryStore):
        assert await names(store, "") == ["a"]


async def test_an_object_is_replaced_whole(store: ObjectStore) -> None:
    await store.put("log/a", b"a long first content")
    await store.put("log/a", b"two")
    assert await store.read("log/a", content) == b"two"
    assert await names(store) == ["log/a"]


async def test_large_objects_are_seekable_files(store: ObjectStore) -> None:
    data = bytes(range(251)) * 40_000
    await store.put("log/large", data)

    def work(opened: OpenObject) -> None:
        assert opened.meta.size_bytes == len(data)
        assert opened.file.read(10) == data[:10]
        assert opened.file.seek(-10, 2) == len(data) - 10
        assert opened.file.read() == data[-10:]
        assert opened.file.seek(1) == 1
        assert opened.file.read() == data[1:]

    await store.scan("log/large", work)


async def test_a_wake_up_ends_when_it_is_rung(store: ObjectStore) -> None:
    await store.put("log/a", b"")
    async with store.make_wake("log", re.compile(".*")) as wake:
        wake.ring()
        with anyio.fail_after(300):
            await wake.wait(3600)

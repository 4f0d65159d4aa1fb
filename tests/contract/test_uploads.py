"""The methods of a store that sinks write to, over every such store."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from tailer.errors import ObjectAlreadyExists, ObjectNotFound, StorageAccessRefused
from tailer.stores.bucket.store import BucketStore
from tailer.stores.cloud.bucket import CloudBucket
from tailer.stores.s3 import S3Options
from tailer.stores.s3 import bucket as s3_bucket
from tailer.stores.s3.bucket import S3Bucket
from tailer.stores.uploads import UploadStore
from tests.support.cloud.memory_store import MemoryStore
from tests.support.cloud.servers import CloudServer
from tests.support.s3.link import S3Link
from tests.support.s3.server import S3Server, close_thread_clients

pytestmark = pytest.mark.anyio

SERVERS = ("s3proxy", "versitygw", "fake_gcs", "azurite")
STORES = ["memory", *(pytest.param(name, marks=pytest.mark.stores) for name in SERVERS)]
# The least size of a part, except the last one.
PART_BYTES = 5 * 2**20


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadStore]:
    """An empty store of each kind. In front of S3Proxy is a link that makes its writes atomic."""
    if request.param == "memory":
        yield MemoryStore()
        return
    if request.param in ("fake_gcs", "azurite"):
        cloud: CloudServer = request.getfixturevalue(request.param)
        with cloud.logged_in(monkeypatch):
            yield BucketStore(CloudBucket(cloud.new_bucket(), cloud.options), "some/root")
        return
    server: S3Server = request.getfixturevalue(request.param)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with S3Link(server, is_serial=request.param == "s3proxy") as link:
        yield BucketStore(S3Bucket(server.new_bucket(), S3Options(endpoint=link.endpoint)), "some/root")
    close_thread_clients()


def file_of(folder: Path, content: bytes) -> Path:
    """Write a file to upload."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}"
    path.write_bytes(content)
    return path


async def test_a_file_becomes_an_object_with_attributes(store: UploadStore, tmp_path: Path) -> None:
    for name, content in (("a b/1.jsonl", b"one"), ("2.jsonl", b"")):
        await store.upload_if_absent(name, file_of(tmp_path, content), {"tailer-next": "007.1"})
        assert await store.read(name, lambda stored: stored.data) == content
        assert (await store.attributes(name))["tailer-next"] == "007.1"
    await store.put("3", b"")
    assert "tailer-next" not in await store.attributes("3")
    with pytest.raises(ObjectNotFound):
        await store.attributes("4")


async def test_an_object_is_not_replaced(store: UploadStore, tmp_path: Path) -> None:
    await store.upload_if_absent("a", file_of(tmp_path, b"one"), {"by": "one"})
    with pytest.raises(ObjectAlreadyExists) as caught:
        await store.upload_if_absent("a", file_of(tmp_path, b"two"), {"by": "two"})
    assert caught.value.path == f"{store.uri}/a"
    assert await store.read("a", lambda stored: stored.data) == b"one"
    assert (await store.attributes("a"))["by"] == "one"


async def test_of_many_one_uploads(store: UploadStore, tmp_path: Path) -> None:
    won: list[bytes] = []

    async def upload(number: int) -> None:
        with suppress(ObjectAlreadyExists):
            await store.upload_if_absent("a", sources[number], {})
            won.append(b"%d" % number)

    sources = [file_of(tmp_path, b"%d" % number) for number in range(8)]
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(upload, number)
    assert [await store.read("a", lambda stored: stored.data)] == won


async def test_a_large_file_is_sent_in_parts(
    store: UploadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(s3_bucket, "_WHOLE_BYTES", 2 * PART_BYTES)
    monkeypatch.setattr(s3_bucket, "_PART_BYTES", PART_BYTES)
    content = bytes(range(251)) * 50_000
    source = file_of(tmp_path, content)
    if request.node.callspec.id == "s3proxy":  # it ignores the condition there
        with pytest.raises(StorageAccessRefused, match="ignores If-None-Match"):
            await store.upload_if_absent("large", source, {})
        return
    await store.upload_if_absent("large", source, {"by": "one"})
    assert await store.scan("large", lambda opened: opened.file.read()) == content
    assert (await store.attributes("large"))["by"] == "one"
    with pytest.raises(ObjectAlreadyExists):
        await store.upload_if_absent("large", source, {"by": "two"})
    assert (await store.attributes("large"))["by"] == "one"


async def test_names_in_all_folders_are_listed(store: UploadStore) -> None:
    names = ["a/b/1", "a/b/2", "a/c", "ab/1", "b"]
    for name in names:
        await store.put(name, b"")
    assert list(await store.names_below("")) == names
    assert list(await store.names_below("a")) == names[:3]
    assert list(await store.names_below("a", "a/b/1")) == names[1:3]
    assert list(await store.names_below("a", "a/c")) == []
    assert list(await store.names_below("c")) == []

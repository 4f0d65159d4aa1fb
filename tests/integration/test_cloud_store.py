"""Stores in Google Cloud Storage and Azure with faults on the way: commits, parts of objects, and named errors."""

import logging
import os
import traceback
from collections import Counter as Tally
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from anyio import to_thread

from tailer.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    StorageAccessRefused,
    StorageError,
    StorageUnavailable,
)
from tailer.metrics import Counter
from tailer.plan import Position
from tailer.progress.state_table import StateTable
from tailer.sink import Progress
from tailer.stores.bucket import requests
from tailer.stores.bucket.store import BucketRanges, BucketStore
from tailer.stores.cloud import AzureOptions, CloudOptions, GcsOptions, clients
from tailer.stores.cloud.bucket import CloudBucket
from tailer.stores.ranges import ObjectEnd, ObjectRanges
from tailer.stores.traffic import FAULTS, READ_BYTES
from tests.support.cloud.servers import CloudServer
from tests.support.s3.link import Fault, Request

pytestmark = [pytest.mark.anyio, pytest.mark.stores]

DATA: Final = os.urandom(300_000)
# Makes a request of an object of a bucket.
Read = Callable[[str, CloudOptions], Callable[[], Awaitable[object]]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry sooner than in production."""
    monkeypatch.setitem(clients._RETRY, "max_retries", 1)
    monkeypatch.setattr(requests, "PAUSE_S", 0.01)


@pytest.fixture
def bucket(cloud: CloudServer) -> str:
    """A new bucket with the objects `orders/a b%20+é` and `orders/empty`."""
    bucket = cloud.new_bucket()
    cloud.put(f"{bucket}/orders/a b%20+é", DATA)
    cloud.put(f"{bucket}/orders/empty", b"")
    return bucket


@pytest.fixture
def store(cloud: CloudServer, bucket: str) -> BucketStore:
    """The objects below `orders`."""
    return BucketStore(CloudBucket(bucket, cloud.options), "orders")


@pytest.fixture
def opened(cloud: CloudServer, bucket: str) -> ObjectRanges:
    """The object `orders/a b%20+é`."""
    return BucketRanges(CloudBucket(bucket, cloud.options), "orders/a b%20+é")


def counted(metric: Counter) -> Tally[tuple[str, ...]]:
    """Return the numbers of a metric by their labels without the store."""
    found: Tally[tuple[str, ...]] = Tally()
    for labels, sample in metric.samples().items():
        found[tuple(labels[1:])] += int(sample.value)
    return found


def is_commit(request: Request) -> bool:
    """Return whether a request is to create an object."""
    return request.is_conditional_put


async def content(store: BucketStore, name: str) -> bytes:
    """Return an object."""
    return await store.read(name, lambda stored: stored.data)


async def test_a_lost_answer_to_a_commit_is_resolved(store: BucketStore, cloud: CloudServer) -> None:
    before = counted(FAULTS)
    cloud.link.faults = [Fault(is_commit, is_lost=True)]
    await store.put_if_absent("log/1", b"ours")
    assert await content(store, "log/1") == b"ours"
    assert (counted(FAULTS) - before)["put", "lost_answer"] == 1
    cloud.link.faults = [Fault(is_commit, times=99, is_lost=True)]
    await store.put_if_absent("log/2", b"ours")
    assert await content(store, "log/2") == b"ours"


async def test_a_commit_answered_with_an_error_after_it_was_made_is_resolved(
    store: BucketStore, cloud: CloudServer
) -> None:
    for name, status in (("log/1", 503), ("log/2", 403)):
        cloud.link.faults = [Fault(is_commit, is_lost=True), Fault(is_commit, times=9, status=status, code="Busy")]
        await store.put_if_absent(name, b"ours")
        assert await content(store, name) == b"ours"


async def test_equal_bytes_of_another_writer_are_not_ours(store: BucketStore, cloud: CloudServer) -> None:
    cloud.put(f"{store.uri}/log/1", b"same")
    for faults in ([], [Fault(is_commit, times=9, status=503, code="Busy")]):
        cloud.link.faults = faults
        with pytest.raises(ObjectAlreadyExists) as caught:
            await store.put_if_absent("log/1", b"same")
        assert caught.value.path == f"{store.uri}/log/1"


async def test_a_commit_that_was_not_made_is_unavailable(store: BucketStore, cloud: CloudServer) -> None:
    cloud.link.faults = [Fault(is_commit, times=9, status=503, code="ServerBusy")]
    with pytest.raises(StorageUnavailable, match="ServerBusy"):
        await store.put_if_absent("log/1", b"ours")
    cloud.link.faults.clear()
    assert await store.list("log") == []


async def test_each_commit_of_a_state_table_is_made_once(store: BucketStore, cloud: CloudServer) -> None:
    commits = 0

    def every_third(request: Request) -> bool:
        nonlocal commits
        commits += request.is_conditional_put
        return request.is_conditional_put and commits % 3 == 0

    cloud.link.faults = [Fault(every_third, times=999, is_lost=True)]
    table = StateTable(store)
    for version in range(12):
        await table.record(Progress("one/t", Position.end(version)))
    names = [meta.name for meta in await store.list("_delta_log") if meta.name.endswith(".json")]
    assert names[-1] == f"_delta_log/{12:020}.json"
    assert await StateTable(store).progress("one/t") == Progress("one/t", Position.end(11))


async def test_a_wrong_404_for_a_listing_is_not_an_empty_folder(store: BucketStore, cloud: CloudServer) -> None:
    cloud.link.faults = [Fault(times=9, status=404)]
    with pytest.raises(StorageError) as caught:
        await store.list("log")
    assert not isinstance(caught.value, ObjectNotFound)


async def test_a_large_object_is_scanned_in_parts(store: BucketStore, cloud: CloudServer) -> None:
    data = DATA * 40
    cloud.put(f"{store.uri}/large", data)
    assert await store.scan("large", lambda opened: opened.file.read()) == data
    assert await store.scan("large", lambda opened: (opened.file.seek(-5, 2), opened.file.read())[1]) == data[-5:]


def test_parts_are_those_of_the_object(opened: ObjectRanges, bucket: str) -> None:
    assert opened.uri == f"{bucket}/orders/a b%20+é"
    assert opened.end(10) == ObjectEnd(len(DATA), DATA[-10:])
    assert opened.end(len(DATA) + 10) == ObjectEnd(len(DATA), DATA)
    assert opened.end(0) == ObjectEnd(len(DATA), b"")
    assert opened.read(0, 1) == DATA[:1]
    assert opened.read(1000, 5000) == DATA[1000:6000]
    assert opened.read(len(DATA) - 1, 10) == DATA[-1:]
    assert opened.read(len(DATA), 10) == opened.read(len(DATA) + 5, 1) == opened.read(5, 0) == b""


def test_an_empty_object_has_no_parts(cloud: CloudServer, bucket: str) -> None:
    empty = BucketRanges(CloudBucket(bucket, cloud.options), "orders/empty")
    assert empty.end(10) == ObjectEnd(0, b"")
    assert empty.read(0, 10) == b""


def test_a_missing_object_is_looked_for_twice(cloud: CloudServer, bucket: str, opened: ObjectRanges) -> None:
    with pytest.raises(ObjectNotFound) as caught:
        BucketRanges(CloudBucket(bucket, cloud.options), "missing").end(10)
    assert caught.value.path == f"{bucket}/missing"
    assert len(cloud.link.requests) == 2
    cloud.link.faults = [Fault(status=404, code="NoSuchKey")]
    before, read = counted(FAULTS), counted(READ_BYTES)
    assert opened.read(0, 5) == DATA[:5]
    assert (counted(FAULTS) - before)["get", "not_found_once"] == 1
    assert (counted(READ_BYTES) - read).total() == 5


def test_a_replaced_object_is_an_error(cloud: CloudServer, bucket: str, opened: ObjectRanges) -> None:
    opened.end(5)
    cloud.put(f"{bucket}/orders/a b%20+é", DATA[::-1])
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="replaced while it was read"):
            opened.read(0, 5)


def test_a_torn_body_is_no_content(cloud: CloudServer, opened: ObjectRanges) -> None:
    assert opened.read(0, 5) == DATA[:5]
    cloud.link.faults = [Fault(torn_at=1000)]
    assert opened.read(0, 200_000) == DATA[:200_000]
    cloud.link.faults = [Fault(times=99, torn_at=1000)]
    with pytest.raises(StorageUnavailable):
        opened.read(0, 200_000)


async def failure(ask: Callable[[], Awaitable[object]], caplog: pytest.LogCaptureFixture, secret: str) -> StorageError:
    """Return the error of a request; check that nothing about it has the secret."""
    caplog.set_level(logging.INFO)
    with pytest.raises(StorageError) as caught:
        await ask()
    error = caught.value
    shown = "".join(traceback.format_exception(error))
    for text in (shown, repr(error), error.hint, caplog.text, repr(error.fields)):
        assert secret not in text
    return error


@pytest.fixture(params=["store", "ranges"])
def read(request: pytest.FixtureRequest) -> Read:
    """Read an object through the log's store, or in a worker thread."""

    def by_store(bucket: str, options: CloudOptions) -> Callable[[], Awaitable[object]]:
        return lambda: BucketStore(CloudBucket(bucket, options), "orders").read("empty", lambda stored: stored.data)

    def by_ranges(bucket: str, options: CloudOptions) -> Callable[[], Awaitable[object]]:
        return lambda: to_thread.run_sync(lambda: BucketRanges(CloudBucket(bucket, options), "orders/empty").end(10))

    return by_store if request.param == "store" else by_ranges


@pytest.mark.parametrize(
    ("status", "code", "kind", "reason"),
    [
        (403, "AccessDenied", StorageAccessRefused, "is denied (AccessDenied), with"),
        (401, "InvalidAuthenticationInfo", StorageAccessRefused, "is denied (InvalidAuthenticationInfo), with"),
        (404, "NoSuchBucket", StorageAccessRefused, "does not exist"),
        (409, "BlobArchived", StorageAccessRefused, "archived (BlobArchived)"),
        (400, "InvalidUri", StorageAccessRefused, "refuses the request: InvalidUri"),
        (429, "SlowDown", StorageUnavailable, "SlowDown"),
        (503, "ServerBusy", StorageUnavailable, "ServerBusy"),
    ],
)
async def test_answers_are_named(
    read: Read,
    cloud: CloudServer,
    bucket: str,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: str,
    kind: type[StorageError],
    reason: str,
) -> None:
    cloud.link.faults = [Fault(times=99, status=status, code=code)]
    error = await failure(read(bucket, cloud.options), caplog, cloud.secret)
    assert type(error) is kind
    assert error.path == f"{bucket}/orders/empty"
    assert reason in error.reason
    assert error.hint


async def test_an_expired_login_is_looked_for_again(read: Read, cloud: CloudServer, bucket: str) -> None:
    cloud.link.faults = [Fault(status=401, code="InvalidAuthenticationInfo")]
    assert await read(bucket, cloud.options)() in (b"", ObjectEnd(0, b""))


async def test_a_closed_port_is_unavailable(
    read: Read, cloud: CloudServer, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = type(cloud.options)(endpoint="http://127.0.0.1:1", anonymous=True)
    error = await failure(read(bucket, options), caplog, cloud.secret)
    assert type(error) is StorageUnavailable
    assert error.reason == "127.0.0.1:1 cannot be reached"


async def test_a_stalled_server_is_unavailable_in_time(
    read: Read, cloud: CloudServer, bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_READ_TIMEOUT", clients._READ_TIMEOUT / 15)
    cloud.link.faults = [Fault(times=99, stall_s=3)]
    error = await failure(read(bucket, cloud.options), caplog, cloud.secret)
    assert type(error) is StorageUnavailable
    assert "no answer from 127.0.0.1" in error.reason


async def test_no_credentials_are_named(
    read: Read, cloud: CloudServer, bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY", raising=False)
    error = await failure(read(bucket, type(cloud.options)(endpoint=cloud.options.endpoint)), caplog, cloud.secret)
    assert isinstance(error, StorageAccessRefused)
    assert error.reason == "no credentials were found"
    assert ("az login" if cloud.is_azure else "gcloud auth application-default login") in error.hint


async def test_what_is_wrong_with_a_login_is_named(
    read: Read, azurite: CloudServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variables, options, reason in (
        ({"AZURE_STORAGE_ACCOUNT_KEY": "aHVzaCBodXNo"}, {}, "is denied (AuthorizationFailure), with the credentials"),
        ({"AZURE_STORAGE_ACCOUNT_KEY": "hush hush"}, {}, "the access key of the account is not one"),
        ({"AZURE_STORAGE_SAS_TOKEN": "sv=2024&sig=hush"}, {}, "is denied (AuthorizationFailure), with"),
        ({}, {"credential_type": "client_secret"}, "lacks its variables"),
        ({}, {"anonymous": True}, "without credentials (anonymous)"),
    ):
        with azurite.logged_in(monkeypatch):
            monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            bucket = azurite.new_bucket()
            given = AzureOptions(endpoint=azurite.options.endpoint, **options)
            error = await failure(read(bucket, given), caplog, "hush")
        assert isinstance(error, StorageAccessRefused)
        assert reason in error.reason
        assert error.hint


async def test_anonymous_requests_read_and_do_not_write(fake_gcs: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gcs.logged_in(monkeypatch):
        bucket = fake_gcs.new_bucket()
        fake_gcs.put(f"{bucket}/log/1", b"one")
        store = BucketStore(CloudBucket(bucket, GcsOptions(endpoint=fake_gcs.options.endpoint, anonymous=True)), "")
        assert await content(store, "log/1") == b"one"
        assert [meta.name for meta in await store.list("log")] == ["log/1"]
        assert all("Authorization" not in request.headers for request in fake_gcs.link.requests)
        with pytest.raises(StorageAccessRefused, match="cannot be written to anonymously"):
            await store.put_if_absent("log/2", b"two")


async def test_a_missing_key_file_is_named(read: Read, caplog: pytest.LogCaptureFixture) -> None:
    error = await failure(read("gs://lake", GcsOptions(service_account="/no/such.json")), caplog, "hush")
    assert isinstance(error, StorageAccessRefused)
    assert error.reason == "the key file of the service account cannot be read"


async def test_a_wrong_container_is_named_by_every_verb(azurite: CloudServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with azurite.logged_in(monkeypatch):
        store = BucketStore(CloudBucket(azurite.location("nothing"), azurite.options), "orders")
        for ask in (store.list("log"), store.put("a", b""), store.put_if_absent("b", b""), store.list("log", "log/1")):
            with pytest.raises(StorageAccessRefused, match="the container nothing of the account lakeaccount does not"):
                await ask

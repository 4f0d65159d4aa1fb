"""The log's store on S3 with faults on the way: nothing is lost, doubled or repeated without need."""

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from anyio import to_thread

from tailer.errors import ObjectAlreadyExists, ObjectNotFound, StorageAccessRefused, StorageError, StorageUnavailable
from tailer.stores.bucket import requests
from tailer.stores.bucket.store import BucketStore
from tailer.stores.port import StoredObject
from tailer.stores.s3 import S3Options, sessions, thread_clients
from tailer.stores.s3.bucket import S3Bucket
from tailer.stores.s3.clients import loop_client
from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import S3Server

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).resolve().parents[2]


@pytest.fixture
def bucket(versitygw: S3Server) -> str:
    """A new bucket."""
    return versitygw.new_bucket()


@pytest.fixture
def opened(link: S3Link, bucket: str) -> BucketStore:
    """A store below `orders` that is reached through the link."""
    return BucketStore(S3Bucket(bucket, S3Options(endpoint=link.endpoint)), "orders")


def content(stored: StoredObject) -> bytes:
    """Return the bytes of an object."""
    return stored.data


def is_get(request: Request) -> bool:
    """Return whether a request reads an object."""
    return request.method == "GET" and "list-type" not in request.query


def refused(status: int, code: str, times: int = 9, where: Callable[[Request], bool] = lambda _: True) -> Fault:
    """Make a fault that answers with an error."""
    return Fault(where, times, status, code)


async def test_a_lost_answer_to_a_commit_is_resolved(opened: BucketStore, link: S3Link) -> None:
    link.faults = [Fault(lambda request: request.is_conditional_put, is_lost=True)]
    await opened.put_if_absent("log/1", b"ours")
    assert await opened.read("log/1", content) == b"ours"
    assert link.methods().count("HEAD") == 1
    assert link.methods().count("PUT") >= 2


async def test_a_commit_whose_every_answer_is_lost_is_resolved(opened: BucketStore, link: S3Link) -> None:
    link.faults = [Fault(lambda request: request.is_conditional_put, times=99, is_lost=True)]
    await opened.put_if_absent("log/1", b"ours")
    assert await opened.read("log/1", content) == b"ours"


async def test_a_commit_answered_with_an_error_after_it_was_made_is_resolved(opened: BucketStore, link: S3Link) -> None:
    """A gateway may report an error although the server has done its work."""

    def lose(request: Request) -> bool:
        return request.is_conditional_put

    link.faults = [Fault(lose, is_lost=True), refused(503, "SlowDown", where=lose)]
    await opened.put_if_absent("log/1", b"ours")
    link.faults = [Fault(lose, is_lost=True), refused(403, "AccessDenied", where=lose)]
    await opened.put_if_absent("log/2", b"ours")
    assert [meta.name for meta in await opened.list("log")] == ["log/1", "log/2"]


async def test_equal_bytes_of_another_writer_are_not_ours(opened: BucketStore, link: S3Link, bucket: str) -> None:
    link.server.client.put_object(Bucket=bucket, Key="orders/log/1", Body=b"same")
    for faults in ([], [refused(503, "SlowDown", where=lambda request: request.is_conditional_put)]):
        link.faults = faults
        with pytest.raises(ObjectAlreadyExists) as caught:
            await opened.put_if_absent("log/1", b"same")
        assert caught.value.path == f"s3://{bucket}/orders/log/1"


async def test_a_commit_that_was_not_made_is_unavailable(opened: BucketStore, link: S3Link) -> None:
    link.faults = [refused(503, "SlowDown", where=lambda request: request.method == "PUT")]
    with pytest.raises(StorageUnavailable, match="SlowDown"):
        await opened.put_if_absent("log/1", b"ours")
    assert await opened.list("log") == []


async def test_a_commit_in_doubt_is_not_called_lost(opened: BucketStore, link: S3Link) -> None:
    link.faults = [
        Fault(lambda request: request.is_conditional_put, is_lost=True),
        refused(503, "SlowDown", where=lambda request: request.method == "HEAD"),
    ]
    with pytest.raises(StorageUnavailable, match="unknown who created"):
        await opened.put_if_absent("log/1", b"ours")
    assert await opened.read("log/1", content) == b"ours"


async def test_conflicts_between_writers_are_tried_again(
    opened: BucketStore, link: S3Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PAUSE_S", 0.01)
    link.faults = [refused(409, "ConditionalRequestConflict", 3)]
    link.faults[0].where = lambda request: request.is_conditional_put
    await opened.put_if_absent("log/1", b"ours")
    assert await opened.read("log/1", content) == b"ours"
    link.faults = [refused(409, "ConditionalRequestConflict", 99, lambda request: request.is_conditional_put)]
    with pytest.raises(StorageUnavailable, match="ConditionalRequestConflict"):
        await opened.put_if_absent("log/2", b"ours")


async def test_a_torn_body_is_read_again(opened: BucketStore, link: S3Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAUSE_S", 0.01)
    data = bytes(range(256)) * 4000
    await opened.put("a", data)
    for verb in (
        partial(opened.read, "a", content),
        partial(opened.scan, "a", lambda opened: opened.file.read()),
    ):
        link.faults = [Fault(is_get, times=2, torn_at=500_000)]
        assert await verb() == data
        link.faults = [Fault(is_get, times=9, torn_at=500_000)]
        with pytest.raises(StorageUnavailable, match="did not send the whole object"):
            await verb()


async def test_a_server_that_stalls_is_unavailable(
    opened: BucketStore, link: S3Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_READ_TIMEOUT_S", 0.3)
    link.faults = [Fault(is_get, times=9, stall_s=1)]
    with pytest.raises(StorageUnavailable, match=r"no answer from 127.0.0.1:\d+ in time"):
        await opened.read("a", content)
    assert len(link.requests) == 3


async def test_errors_that_pass_are_tried_a_few_times(opened: BucketStore, link: S3Link) -> None:
    await opened.put("a", b"one")
    link.requests.clear()
    link.faults = [refused(503, "SlowDown", 1)]
    assert await opened.read("a", content) == b"one"
    assert len(link.requests) == 2
    link.faults = [refused(500, "InternalError")]
    with pytest.raises(StorageUnavailable, match="InternalError: as told"):
        await opened.read("a", content)
    assert len(link.requests) == 5


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", StorageAccessRefused),
        (404, "NoSuchKey", ObjectNotFound),
        (501, "NotImplemented", StorageAccessRefused),
    ],
)
async def test_errors_that_last_are_not_tried_again(
    opened: BucketStore, link: S3Link, status: int, code: str, kind: type[StorageError]
) -> None:
    link.faults = [refused(status, code)]
    with pytest.raises(kind):
        await opened.read("a", content)
    assert len(link.requests) == 1


async def test_a_server_that_ignores_the_condition_is_refused(opened: BucketStore, link: S3Link) -> None:
    link.faults = [Fault(lambda _: len(link.requests) > 1, status=200)]
    with pytest.raises(StorageAccessRefused, match="ignores If-None-Match"):
        await opened.put_if_absent("log/1", b"ours")
    link.requests.clear()
    await opened.put_if_absent("log/2", b"ours")
    await opened.put_if_absent("log/3", b"ours")
    assert link.methods() == ["PUT", "PUT", "PUT"]


async def test_each_verb_takes_one_request(opened: BucketStore, link: S3Link) -> None:
    await opened.put_if_absent("log/0", b"one")
    link.requests.clear()
    await opened.put_if_absent("log/1", b"one")
    await opened.read("log/1", content)
    await opened.scan("log/1", lambda opened: opened.file.read())
    for probe in (opened.read("log/2", content), opened.scan("log/2", lambda _: None), opened.stat("log/2")):
        with pytest.raises(ObjectNotFound):
            await probe
    await opened.stat("log/1")
    await opened.list("log")
    await opened.delete("log/1")
    assert link.methods() == ["PUT", "GET", "GET", "GET", "GET", "HEAD", "HEAD", "LIST", "DELETE"]


async def test_a_long_folder_is_listed_in_pages(opened: BucketStore, link: S3Link, bucket: str) -> None:
    names = [f"log/{number:05}" for number in range(1001)]
    put = link.server.client.put_object

    def fill() -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: put(Bucket=bucket, Key=f"orders/{name}", Body=b"x"), [*names, "log/sub/a"]))

    await to_thread.run_sync(fill)
    assert [meta.name for meta in await opened.list("log")] == names
    assert link.methods() == ["LIST", "LIST"]
    assert [meta.name for meta in await opened.list("log", "log/00998")] == names[999:]
    assert link.methods() == ["LIST"] * 3


async def test_a_folder_s_own_mark_is_not_listed(opened: BucketStore, link: S3Link, bucket: str) -> None:
    link.server.client.put_object(Bucket=bucket, Key="orders/log/", Body=b"")
    await opened.put("log/a", b"")
    assert [meta.name for meta in await opened.list("log")] == ["log/a"]
    assert [meta.name for meta in await BucketStore(opened.bucket, "").list("orders/log")] == ["orders/log/a"]


async def test_requests_say_who_sends_and_who_pays(link: S3Link, bucket: str) -> None:
    paying = BucketStore(S3Bucket(bucket, S3Options(endpoint=link.endpoint, requester_pays=True)), "orders")
    await paying.put("a", b"")
    await paying.read("a", content)
    await paying.stat("a")
    await paying.list("")
    await paying.delete("a")
    for request in link.requests:
        assert request.headers["x-amz-request-payer"] == "requester"
        assert "lake-tailer" in request.headers["User-Agent"]


async def test_an_expired_token_is_replaced_once(
    opened: BucketStore, link: S3Link, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened.put("a", b"one")
    key = link.server.key

    def rotate() -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)

    asks: dict[str, Callable[[BucketStore], Awaitable[object]]] = {
        "ExpiredToken": lambda old: old.read("a", content),
        "": lambda old: old.stat("a"),  # HEAD has no more than the status
    }
    for region, (code, ask) in enumerate(asks.items()):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOLD")
        options = S3Options(endpoint=link.endpoint, external_id=f"client {region}")
        old = BucketStore(S3Bucket(bucket, options), "orders")
        link.faults = [
            Fault(lambda request: "AKIDOLD" in request.headers["Authorization"], 9, 400, code, before=rotate)
        ]
        await ask(old)
        assert f"Credential={key}/" in link.requests[-1].headers["Authorization"]
    link.requests.clear()
    link.faults = [refused(400, "ExpiredToken")]
    with pytest.raises(StorageUnavailable, match="ExpiredToken"):
        await opened.read("a", content)
    assert len(link.requests) == 2


async def test_stores_share_a_client_of_the_loop(link: S3Link) -> None:
    options = S3Options(endpoint=link.endpoint)
    async with loop_client(options) as one, loop_client(S3Options(endpoint=link.endpoint)) as two:
        assert one is two
        one.retire()
        async with loop_client(options) as three:
            assert three is not one
            await three.client.list_buckets()
        # A retired client stays open until its last request has ended.
        await one.client.list_buckets()


SCRIPT: Final = """
import anyio, sys
from tailer.stores.stores import Stores

async def main():
    store = Stores().open(f"s3://{sys.argv[1]}/orders")
    await store.put("a", b"1")
    assert await store.read("a", lambda stored: stored.data) == b"1"

anyio.run(main)
anyio.run(main)
"""


def test_no_connection_outlives_its_event_loop(versitygw: S3Server) -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, versitygw.new_bucket()]
    environment = {**os.environ, **versitygw.environment}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_client_of_threads_is_shared(link: S3Link) -> None:
    options = S3Options(endpoint=link.endpoint)
    with ThreadPoolExecutor(8) as pool:
        clients = {id(client): client for client in pool.map(lambda _: thread_clients.thread_client(options), range(8))}
    (client,) = clients.values()
    client.retire()
    assert thread_clients.thread_client(options) is not client


async def test_a_listing_with_a_bare_404_is_tried_again(
    opened: BucketStore, link: S3Link, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder has an empty listing, so a 404 is a gateway's mistake, or the bucket is missing."""
    monkeypatch.setattr(requests, "PAUSE_S", 0.01)
    await opened.put("log/a", b"")
    for code in ("", "NoSuchKey"):
        link.faults = [refused(404, code, times=1)]
        assert [meta.name for meta in await opened.list("log")] == ["log/a"]
        link.faults = [refused(404, code)]
        with pytest.raises(StorageUnavailable, match=f"404 for a listing, as if the bucket {bucket}"):
            await opened.list("log")


async def test_a_missing_bucket_is_a_lasting_error_of_a_listing(link: S3Link) -> None:
    missing = BucketStore(S3Bucket("tests-missing", S3Options(endpoint=link.endpoint)), "orders")
    with pytest.raises(StorageAccessRefused, match="the bucket tests-missing does not exist") as caught:
        await missing.list("log")
    assert caught.value.hint == "Check the bucket's name, the endpoint and the region."
    assert len(link.requests) == 1

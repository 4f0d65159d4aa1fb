"""Metrics of the requests to S3 and of every fault, also those that a client or a store hides by trying again."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest
from anyio import to_thread

from tailer.errors import StorageError
from tailer.metrics import Metric
from tailer.stores.bucket import requests
from tailer.stores.bucket.store import BucketRanges, BucketStore
from tailer.stores.s3 import S3Options, sessions
from tailer.stores.s3.bucket import S3Bucket
from tailer.stores.traffic import FAULTS, READ_BYTES, REQUESTS
from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import S3Server, close_thread_clients
from tests.support.servers.ports import free_ports

pytestmark = pytest.mark.anyio

DATA: Final = bytes(range(256)) * 40
Verb = Callable[[BucketStore], Awaitable[object]]


@pytest.fixture
def link(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Link]:
    """A link to versitygw, with its login in the environment; nothing waits for long."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sessions, "_READ_TIMEOUT_S", 0.4)
    monkeypatch.setattr(requests, "PAUSE_S", 0.01)
    with S3Link(versitygw) as link:
        yield link
    close_thread_clients()


@pytest.fixture
def bucket(link: S3Link) -> str:
    """A new bucket."""
    return link.server.new_bucket()


def counted(metric: Metric, store: str) -> Counter[tuple[str, ...]]:
    """Return the values of a metric for a store, by its other labels."""
    samples = metric.samples().items()
    return Counter({labels[1:]: int(one.value) for labels, one in samples if labels[0] == store})  # type: ignore[misc]


async def get(store: BucketStore) -> object:
    """Read an object in the event loop."""
    return await store.read("a", lambda stored: stored.data)


async def get_part(store: BucketStore) -> object:
    """Read a part of an object in a worker thread."""
    ranges = BucketRanges(store.bucket, "t/a")
    return await to_thread.run_sync(ranges.read, 0, 1000)


async def stat(store: BucketStore) -> object:
    """Ask for an object's metadata."""
    return await store.stat("a")


async def list_all(store: BucketStore) -> object:
    """List a folder."""
    return await store.list("")


async def commit(store: BucketStore) -> object:
    """Create an object."""
    await store.put_if_absent("b", DATA)
    return None


async def delete(store: BucketStore) -> object:
    """Delete an object."""
    await store.delete("a")
    return None


def to(method: str, **fault: object) -> Fault:
    """Make a fault of the next request with a method."""
    rule = Fault(**fault)  # type: ignore[arg-type]
    rule.where = lambda request: method == ("LIST" if "list-type=" in request.query else request.method)
    return rule


SLOW: Final = {"status": 503, "code": "SlowDown"}
FAILED: Final = {"status": 500, "code": "InternalError"}
EXPIRED: Final = {"status": 403, "code": "ExpiredToken"}
DENIED: Final = {"status": 403, "code": "AccessDenied"}
GONE: Final = {"status": 404, "code": "NoSuchKey"}
CHANGED: Final = {"status": 412, "code": "PreconditionFailed"}
BUSY: Final = {"status": 409, "code": "ConditionalRequestConflict"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("verb", "rule", "faults"),
    [
        (get, to("GET", **SLOW), {("get", "throttled"): 1}),
        (get, to("GET", times=2, **SLOW), {("get", "throttled"): 2}),
        (get, to("GET", status=429), {("get", "throttled"): 1}),
        (get, to("GET", **FAILED), {("get", "server_error"): 1}),
        (get, to("GET", status=502), {("get", "server_error"): 1}),
        (get, to("GET", is_lost=True), {("get", "connection"): 1}),
        (get, to("GET", stall_s=1, is_lost=True), {("get", "timeout"): 1}),
        (get, to("GET", torn_at=9), {("get", "torn_body"): 1}),
        (get, to("GET", **EXPIRED), {("get", "expired_token"): 1}),
        (get, to("GET", **DENIED), {("get", "refused"): 1}),
        (get, to("GET", **GONE), {}),
        (get_part, to("GET", **SLOW), {("get", "throttled"): 1}),
        (get_part, to("GET", is_lost=True), {("get", "connection"): 1}),
        (get_part, to("GET", stall_s=1, is_lost=True), {("get", "timeout"): 1}),
        (get_part, to("GET", torn_at=9), {("get", "torn_body"): 1}),
        (get_part, to("GET", **EXPIRED), {("get", "expired_token"): 1}),
        (get_part, to("GET", **GONE), {("get", "not_found_once"): 1}),
        (get_part, to("GET", **CHANGED), {("get", "conflict"): 1}),
        (stat, to("HEAD", status=503), {("head", "throttled"): 1}),
        (stat, to("HEAD", status=400), {("head", "expired_token"): 1}),
        (stat, to("HEAD", status=404), {}),
        (list_all, to("LIST", **SLOW), {("list", "throttled"): 1}),
        (list_all, to("LIST", torn_at=9), {("list", "torn_body"): 1}),
        (list_all, to("LIST", status=404), {("list", "not_found_once"): 1}),
        (commit, to("PUT", **SLOW), {("put", "throttled"): 1}),
        (commit, to("PUT", **BUSY), {("put", "conflict"): 1}),
        (commit, to("PUT", **CHANGED), {("put", "conflict"): 1}),
        (
            commit,
            to("PUT", is_lost=True),
            {("put", "connection"): 1, ("put", "conflict"): 1, ("put", "lost_answer"): 1},
        ),
        (delete, to("DELETE", **FAILED), {("delete", "server_error"): 1}),
    ],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
async def test_each_fault_is_counted(
    link: S3Link,
    bucket: str,
    request: pytest.FixtureRequest,
    verb: Verb,
    rule: Fault,
    faults: dict[tuple[str, str], int],
    is_first: bool,
) -> None:
    """The first request of its kind is the client's; a later one is made after its template."""
    name = request.node.name
    store = BucketStore(S3Bucket(bucket, S3Options(endpoint=link.endpoint, name=name)), "t")
    await to_thread.run_sync(lambda: link.server.client.put_object(Bucket=bucket, Key="t/a", Body=DATA))
    if not is_first:
        for before in (get, get_part, stat):
            await before(store)
    link.faults = [replace(rule)]
    with suppress(StorageError):
        await verb(store)
    assert link.faults[0].times == 0
    assert counted(FAULTS, name) == faults
    # After a bare 400 the client asks where the bucket is.
    requests = counted(REQUESTS, name)
    requests["head",] += requests.pop(("head_bucket",), 0)
    assert +requests == Counter((method.lower(),) for method in link.methods())


class StalledLink(S3Link):
    """A link that sends a part of its first answer, and then nothing."""

    def forward(self, request: Request, target: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """See `S3Link.forward`."""
        status, headers, data = super().forward(request, target, body)
        if len(self.requests) > 1:
            return status, headers, data
        kept = [each for each in headers if each[0] != "Content-Length"]
        return status, [*kept, ("Content-Length", str(len(data)))], data[:9]


@pytest.mark.parametrize("verb", [get, get_part])
async def test_a_stall_in_the_body_is_a_timeout(
    link: S3Link, bucket: str, request: pytest.FixtureRequest, verb: Verb
) -> None:
    name = request.node.name
    with StalledLink(link.server) as stalled:
        store = BucketStore(S3Bucket(bucket, S3Options(endpoint=stalled.endpoint, name=name)), "t")
        await to_thread.run_sync(lambda: link.server.client.put_object(Bucket=bucket, Key="t/a", Body=DATA))
        await verb(store)
    assert counted(FAULTS, name) == {("get", "timeout"): 1}


async def test_bytes_are_counted_by_bucket_without_a_name(link: S3Link, bucket: str) -> None:
    store = BucketStore(S3Bucket(bucket, S3Options(endpoint=link.endpoint)), "t")
    await store.put("a", DATA)
    await get(store)
    await get_part(store)
    assert counted(READ_BYTES, bucket) == {(): len(DATA) + 1000}
    assert counted(REQUESTS, bucket) == {("put",): 1, ("get",): 2}
    assert not counted(FAULTS, bucket)


async def test_trying_the_condition_is_no_fault(link: S3Link, bucket: str) -> None:
    """The first commit in a bucket is repeated, to see that the server refuses that."""
    store = BucketStore(S3Bucket(bucket, S3Options(endpoint=link.endpoint)), "t")
    await store.put_if_absent("a", DATA)
    assert counted(REQUESTS, bucket) == {("put",): 2}
    assert not counted(FAULTS, bucket)


@pytest.mark.usefixtures("link")
async def test_attempts_at_a_closed_port_are_counted_once() -> None:
    for verb in (get, get_part):
        options = S3Options(endpoint=f"http://127.0.0.1:{free_ports(1)[0]}", name=f"closed to {verb.__name__}")
        with pytest.raises(StorageError, match="cannot be reached"):
            await verb(BucketStore(S3Bucket("some-bucket", options), "t"))
        assert counted(FAULTS, options.name or "") == {("get", "connection"): 3}
        assert counted(REQUESTS, options.name or "") == {("get",): 3}


async def test_an_attempt_without_credentials_is_counted(link: S3Link, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    store = BucketStore(S3Bucket("some-bucket", S3Options(endpoint=link.endpoint, name="keyless")), "t")
    for verb in (get, get_part):
        with pytest.raises(StorageError, match="no credentials"):
            await verb(store)
    assert counted(FAULTS, "keyless") == {("get", "refused"): 2}
    assert not counted(REQUESTS, "keyless")
    assert not link.requests

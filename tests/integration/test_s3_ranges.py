"""Parts of an object on S3, read by threads, with faults on the way."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pytest

from tailer.errors import ObjectNotFound, StorageAccessRefused, StorageUnavailable
from tailer.stores.bucket import requests
from tailer.stores.bucket.store import BucketRanges
from tailer.stores.ranges import ObjectEnd, ObjectRanges
from tailer.stores.s3 import S3Options, sessions
from tailer.stores.s3.bucket import S3Bucket
from tests.support.s3.link import Fault, S3Link
from tests.support.s3.server import S3Server, close_thread_clients

pytestmark = pytest.mark.stores

DATA: Final = os.urandom(300_000)


@pytest.fixture(params=["s3proxy", "versitygw"])
def link(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Link]:
    """A link to each server, with its login in the environment."""
    server: S3Server = request.getfixturevalue(request.param)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(requests, "PAUSE_S", 0.01)
    with S3Link(server) as link:
        yield link
    close_thread_clients()


@pytest.fixture
def bucket(link: S3Link) -> str:
    """A new bucket with the objects `a b%20+é` and `empty`."""
    bucket = link.server.new_bucket()
    link.server.client.put_object(Bucket=bucket, Key="a b%20+é", Body=DATA)
    link.server.client.put_object(Bucket=bucket, Key="empty", Body=b"")
    return bucket


@pytest.fixture
def make(link: S3Link, bucket: str) -> Callable[[str], ObjectRanges]:
    """Open an object of the bucket."""
    return lambda key: BucketRanges(S3Bucket(bucket, S3Options(endpoint=link.endpoint)), key)


@pytest.fixture
def opened(make: Callable[[str], ObjectRanges]) -> ObjectRanges:
    """The object `a b%20+é`."""
    return make("a b%20+é")


def test_parts_are_those_of_the_object(opened: ObjectRanges, bucket: str, link: S3Link) -> None:
    assert opened.uri == f"s3://{bucket}/a b%20+é"
    assert opened.end(10) == ObjectEnd(len(DATA), DATA[-10:])
    assert opened.end(len(DATA) + 10) == ObjectEnd(len(DATA), DATA)
    assert opened.end(0) == ObjectEnd(len(DATA), b"")
    assert opened.read(0, 1) == DATA[:1]
    assert opened.read(1000, 5000) == DATA[1000:6000]
    assert opened.read(len(DATA) - 1, 10) == DATA[-1:]
    assert opened.read(len(DATA), 10) == opened.read(len(DATA) + 5, 1) == opened.read(5, 0) == b""
    assert len(link.requests) == 8


def test_an_empty_object_has_no_parts(make: Callable[[str], ObjectRanges]) -> None:
    empty = make("empty")
    assert empty.end(10) == ObjectEnd(0, b"")
    assert empty.read(0, 10) == b""


def test_a_missing_object_is_looked_for_twice(make: Callable[[str], ObjectRanges], link: S3Link, bucket: str) -> None:
    with pytest.raises(ObjectNotFound) as caught:
        make("missing").end(10)
    assert caught.value.path == f"s3://{bucket}/missing"
    assert len(link.requests) == 2


def test_a_single_wrong_404_is_not_believed(opened: ObjectRanges, link: S3Link) -> None:
    link.faults = [Fault(status=404, code="NoSuchKey")]
    assert opened.end(5).data == DATA[-5:]
    link.faults = [Fault(status=404, code="NoSuchKey")]
    assert opened.read(0, 5) == DATA[:5]


def test_a_replaced_object_is_an_error(opened: ObjectRanges, link: S3Link, bucket: str) -> None:
    opened.end(5)
    link.server.client.put_object(Bucket=bucket, Key="a b%20+é", Body=DATA[::-1])
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="replaced while it was read"):
            opened.read(0, 5)


def test_a_server_that_ignores_the_condition_is_not_trusted(opened: ObjectRanges, link: S3Link, bucket: str) -> None:
    assert opened.read(0, 5) == DATA[:5]
    opened._etag = '"of another content"'  # type: ignore[attr-defined]
    link.server.client.put_object(Bucket=bucket, Key="a b%20+é", Body=DATA)
    with pytest.raises(StorageUnavailable, match="replaced while it was read"):
        opened.read(0, 5)


def test_a_torn_body_is_read_again(opened: ObjectRanges, link: S3Link) -> None:
    link.faults = [Fault(times=2, torn_at=1000)]
    assert opened.read(0, 200_000) == DATA[:200_000]
    link.faults = [Fault(times=9, torn_at=1000)]
    with pytest.raises(StorageUnavailable, match="did not send the whole object"):
        opened.read(0, 200_000)


def test_errors_that_pass_are_tried_a_few_times(opened: ObjectRanges, link: S3Link) -> None:
    link.faults = [Fault(status=503, code="SlowDown"), Fault(is_lost=True)]
    assert opened.read(0, 5) == DATA[:5]
    link.faults = [Fault(times=9, status=503, code="SlowDown")]
    with pytest.raises(StorageUnavailable, match="SlowDown"):
        opened.read(0, 5)


def test_a_server_that_stalls_is_unavailable(
    make: Callable[[str], ObjectRanges], link: S3Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_READ_TIMEOUT_S", 0.3)
    link.faults = [Fault(times=9, stall_s=1)]
    with pytest.raises(StorageUnavailable, match=r"no answer from 127.0.0.1:\d+ in time"):
        make("a b%20+é").read(0, 5)


def test_an_expired_token_is_replaced_once(opened: ObjectRanges, link: S3Link, monkeypatch: pytest.MonkeyPatch) -> None:
    key = os.environ["AWS_ACCESS_KEY_ID"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOLD")
    link.faults = [Fault(status=400, code="ExpiredToken", before=lambda: monkeypatch.setenv("AWS_ACCESS_KEY_ID", key))]
    assert opened.read(0, 5) == DATA[:5]
    assert f"Credential={key}/" in link.requests[1].headers["Authorization"]
    link.faults = [Fault(times=9, status=400, code="ExpiredToken")]
    with pytest.raises(StorageUnavailable, match="ExpiredToken"):
        opened.read(0, 5)
    assert len(link.requests) == 4


def test_the_requester_pays(link: S3Link, bucket: str) -> None:
    with suppress(StorageAccessRefused):  # S3Proxy does not know of it
        BucketRanges(S3Bucket(bucket, S3Options(endpoint=link.endpoint, requester_pays=True)), "empty").end(1)
    assert [request.headers["x-amz-request-payer"] for request in link.requests] == ["requester"]


def test_many_threads_read_one_object(opened: ObjectRanges, link: S3Link) -> None:
    link.faults = [Fault(lambda _: len(link.requests) % 7 == 0, times=5, status=500, code="InternalError")]
    starts = range(0, len(DATA), 3000)
    with ThreadPoolExecutor(16) as pool:
        parts = list(pool.map(lambda start: opened.read(start, 3000), starts))
    assert b"".join(parts) == DATA

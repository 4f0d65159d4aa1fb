"""Uploads to S3 with faults on the way: an object is created once, and no parts are left."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailer.errors import ObjectAlreadyExists, StorageUnavailable
from tailer.stores.bucket import requests
from tailer.stores.bucket.store import BucketStore
from tailer.stores.s3 import S3Options
from tailer.stores.s3 import bucket as s3_bucket
from tailer.stores.s3.bucket import S3Bucket
from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import S3Server, close_thread_clients

pytestmark = pytest.mark.anyio

PART_BYTES = 5 * 2**20


@pytest.fixture
def link(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Link]:
    """A link to versitygw, with its login in the environment. Files larger than a part are sent in parts."""
    monkeypatch.setattr(s3_bucket, "_WHOLE_BYTES", PART_BYTES)
    monkeypatch.setattr(s3_bucket, "_PART_BYTES", PART_BYTES)
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    with S3Link(versitygw) as link:
        yield link
    close_thread_clients()


@pytest.fixture
def bucket(link: S3Link) -> str:
    """A new bucket."""
    return link.server.new_bucket()


@pytest.fixture
def store(link: S3Link, bucket: str) -> BucketStore:
    """A store that is reached through the link."""
    return BucketStore(S3Bucket(bucket, S3Options(endpoint=link.endpoint)), "out")


@pytest.fixture(params=["one PUT", "parts"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file to upload."""
    path = tmp_path / "source"
    path.write_bytes(b"x" * (10 if request.param == "one PUT" else 2 * PART_BYTES + 1))
    return path


def appears(request: Request) -> bool:
    """Return whether the request makes the object appear."""
    return request.is_conditional_put or request.is_completion


def content(source: Path) -> bytes:
    """Return the content of a file."""
    return source.read_bytes()


def open_uploads(bucket: str, link: S3Link) -> list[Any]:
    """Return the multipart uploads that were neither completed nor aborted."""
    return list(link.server.client.list_multipart_uploads(Bucket=bucket).get("Uploads", []))


@pytest.mark.parametrize("times", [1, 99])
async def test_a_lost_answer_is_resolved(
    store: BucketStore, bucket: str, link: S3Link, source: Path, times: int
) -> None:
    link.faults = [Fault(appears, times, is_lost=True)]
    await store.upload_if_absent("1", source, {"next": "2"})
    assert await store.read("1", lambda stored: stored.data) == content(source)
    assert (await store.attributes("1"))["next"] == "2"
    assert open_uploads(bucket, link) == []


async def test_an_object_of_another_writer_is_not_ours(
    store: BucketStore, bucket: str, link: S3Link, source: Path
) -> None:
    link.server.client.put_object(Bucket=bucket, Key="out/1", Body=content(source))
    for faults in ([], [Fault(appears, 9, status=503, code="SlowDown")], [Fault(appears, 1, is_lost=True)]):
        link.faults = faults
        with pytest.raises(ObjectAlreadyExists):
            await store.upload_if_absent("1", source, {"next": "2"})
    assert "next" not in await store.attributes("1")
    assert open_uploads(bucket, link) == []


async def test_an_upload_that_fails_leaves_nothing(store: BucketStore, bucket: str, link: S3Link, source: Path) -> None:
    for where in (appears, lambda request: bool(request.method == "PUT")):
        link.faults = [Fault(where, 99, status=503, code="SlowDown")]
        with pytest.raises(StorageUnavailable, match="SlowDown"):
            await store.upload_if_absent("1", source, {})
        assert await store.names_below("") == []
        assert open_uploads(bucket, link) == []


async def test_an_expired_token_is_renewed_once(
    store: BucketStore, link: S3Link, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PAUSE_S", 0.01)
    link.faults = [Fault(appears, 1, status=403, code="ExpiredToken")]
    await store.upload_if_absent("1", source, {})
    assert await store.read("1", lambda stored: stored.data) == content(source)

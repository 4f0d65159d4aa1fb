"""Requests made after a template are those that the client itself would send, and the client has the last word."""

from typing import Final

import pytest
from anyio import to_thread

from tailer.errors import ObjectNotFound, StorageAccessRefused, StorageError
from tailer.stores.bucket.store import BucketRanges, BucketStore
from tailer.stores.s3 import S3Options
from tailer.stores.s3.bucket import S3Bucket
from tests.support.s3.link import Fault, Request, S3Link

pytestmark = [pytest.mark.anyio, pytest.mark.stores]

# Those of one attempt, and what is derived from them.
OWN: Final = {"amz-sdk-invocation-id", "amz-sdk-request", "authorization", "x-amz-date"}
NAMES: Final = ["plain", "a b+c", "ü/é~", "per%20cent", "what?&=#", "it's (a)*!", "p=1/x:y@z,$;"]


@pytest.fixture
def store(link: S3Link) -> BucketStore:
    """A store with an object of each name, whose content is the name."""
    bucket = link.server.new_bucket()
    for name in NAMES:
        link.server.client.put_object(Bucket=bucket, Key=f"t/{name}", Body=name.encode(), Metadata={"of": "Me"})
    options = S3Options(endpoint=link.endpoint, requester_pays=True)
    return BucketStore(S3Bucket(bucket, options), "t")


async def read(store: BucketStore, name: str) -> bytes:
    """Read an object in the event loop."""
    return await store.read(name, lambda stored: stored.data)


async def read_part(store: BucketStore, name: str) -> bytes:
    """Read an object in a worker thread."""
    return await to_thread.run_sync(BucketRanges(store.bucket, f"t/{name}").read, 0, 100)


def headers(request: Request) -> dict[str, str]:
    """Return the headers that do not differ between two attempts."""
    return {name.lower(): value for name, value in request.headers.items() if name.lower() not in OWN}


def signed(request: Request) -> str:
    """Return the credentials' scope and the names of the headers that are signed."""
    return request.headers["Authorization"].rpartition(", ")[0].replace("amz-sdk-invocation-id;amz-sdk-request;", "")


async def test_a_request_after_a_template_is_that_of_the_client(link: S3Link, store: BucketStore) -> None:
    """The first of each kind is the client's own; the server checks the signatures of all."""
    for name in NAMES:
        assert await read(store, name) == name.encode()
        assert await read_part(store, name) == name.encode()
        assert (await store.stat(name)).size_bytes == len(name.encode())
        assert await store.attributes(name) == {"of": "Me"}
    for kind in range(3):
        by_client, *others = link.requests[kind::4]
        assert "amz-sdk-request" in by_client.headers
        for other in others:
            assert "amz-sdk-request" not in other.headers
            assert other.method == by_client.method
            assert headers(other) == headers(by_client)
            assert headers(other)["x-amz-request-payer"] == "requester"
            assert signed(other) == signed(by_client)
    assert [each.path.partition("/t/")[2] for each in link.requests[::4]] == NAMES


async def test_a_missing_object_leaves_the_template(link: S3Link, store: BucketStore) -> None:
    for _ in range(3):
        with pytest.raises(ObjectNotFound):
            await read(store, "absent")
        with pytest.raises(ObjectNotFound):
            await store.stat("absent")
    assert ["amz-sdk-request" in each.headers for each in link.requests] == [True] * 2 + [False] * 4


async def test_after_another_answer_the_next_request_is_the_clients(link: S3Link, store: BucketStore) -> None:
    for reads in (read, read_part):
        assert [await reads(store, "plain") for _ in range(2)] == [b"plain"] * 2
        link.requests.clear()
        link.faults = [Fault(status=503, code="SlowDown")]
        assert [await reads(store, "plain") for _ in range(23)] == [b"plain"] * 23
        by_client = ["amz-sdk-request" in each.headers for each in link.requests]
        # The second attempt is the client's, and so are the next requests: they fill its budget of retries again.
        assert by_client == [False, True, *[True] * 20, False, False]


async def test_a_missing_bucket_is_named_after_a_template(link: S3Link, store: BucketStore) -> None:
    await read(store, "plain")
    link.faults = [Fault(status=404, code="NoSuchBucket")]
    with pytest.raises(StorageAccessRefused, match="does not exist"):
        await read(store, "plain")


async def test_another_region_is_found_after_a_template(link: S3Link, store: BucketStore) -> None:
    """The client asks there again, and so do the requests after the new template."""
    assert await read(store, "plain") == b"plain"
    elsewhere = {"x-amz-bucket-region": "eu-west-3"}
    link.faults = [Fault(times=9, status=301, code="PermanentRedirect", headers=elsewhere)]
    with pytest.raises(StorageError) as caught:
        await read(store, "plain")
    assert caught.value.hint == "Set region to eu-west-3."


async def test_a_replaced_object_is_found_after_a_template(link: S3Link, store: BucketStore) -> None:
    ranges = BucketRanges(store.bucket, "t/plain")
    assert [await to_thread.run_sync(ranges.read, 0, 3) for _ in range(2)] == [b"pla"] * 2
    bucket = store.uri.removeprefix("s3://").partition("/")[0]
    await to_thread.run_sync(lambda: link.server.client.put_object(Bucket=bucket, Key="t/plain", Body=b"other"))
    with pytest.raises(StorageError, match="was replaced"):
        await to_thread.run_sync(ranges.read, 0, 3)


async def test_credentials_that_are_gone_are_named_after_a_template(link: S3Link, store: BucketStore) -> None:
    """Both a request after a template and the client's own look at the credentials before they send anything."""
    assert [await read(store, "plain") for _ in range(2)] == [b"plain"] * 2
    async with store.bucket.lend() as client:
        signer = client._lent.client._request_signer  # type: ignore[attr-defined]
        signer._credentials = None
    link.requests.clear()
    with pytest.raises(StorageAccessRefused, match="no credentials"):
        await read(store, "plain")
    assert not link.requests


async def test_an_answer_that_nobody_reads_is_closed(link: S3Link, store: BucketStore) -> None:
    """The client cannot sign the request to which it is handed the answer."""
    assert [await read(store, "plain") for _ in range(2)] == [b"plain"] * 2
    async with store.bucket.lend() as client:
        signer = client._lent.client._request_signer  # type: ignore[attr-defined]

        def forget() -> None:
            signer._credentials = None

        link.faults = [Fault(status=503, code="SlowDown", before=forget)]
    with pytest.raises(StorageAccessRefused, match="no credentials"):
        await read(store, "plain")

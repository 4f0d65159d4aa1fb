"""Access to S3 by the log's store and by ranges: where credentials come from, and clear errors without secrets."""

import io
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from anyio import to_thread

from tailer.errors import ConfigError, Retry, StorageAccessRefused, StorageError, StorageUnavailable
from tailer.stores.bucket.store import BucketRanges, BucketStore
from tailer.stores.s3 import S3Options
from tailer.stores.s3.bucket import S3Bucket
from tests.support.s3.link import Fault, S3Link
from tests.support.s3.server import S3Server, close_thread_clients
from tests.support.s3.sts import TokenService, serving_sts
from tests.support.servers.ports import free_ports

pytestmark = [pytest.mark.anyio, pytest.mark.stores]

ROLE: Final = "arn:aws:iam::123456789012:role/reader"
DATA: Final = b"one"
Read = Callable[..., Awaitable[bytes]]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An environment without credentials; the folder of AWS's shared files. Clients do not outlive the test."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL", "REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    yield tmp_path
    close_thread_clients()


@pytest.fixture(scope="module")
def bucket(versitygw: S3Server) -> str:
    """A bucket with the object `orders/a`."""
    name = versitygw.new_bucket()
    versitygw.client.put_object(Bucket=name, Key="orders/a", Body=DATA)
    return name


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch, versitygw: S3Server) -> Callable[..., None]:
    """Set the login in the environment."""

    def login(key: str = versitygw.key, secret: str = versitygw.secret) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)

    return login


@pytest.fixture(params=["store", "ranges"])
def read(request: pytest.FixtureRequest) -> Read:
    """Read an object through the log's store, or in a worker thread."""

    async def by_store(bucket: str, options: S3Options) -> bytes:
        return await BucketStore(S3Bucket(bucket, options), "orders").read("a", lambda stored: stored.data)

    async def by_ranges(bucket: str, options: S3Options) -> bytes:
        return await to_thread.run_sync(lambda: BucketRanges(S3Bucket(bucket, options), "orders/a").end(10).data)

    return by_store if request.param == "store" else by_ranges


async def failure(read: Read, bucket: str, options: S3Options, *secrets: str) -> StorageError:
    """Return the error of a read; check that nothing about it has a secret."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.INFO)
    logging.getLogger().addHandler(handler)
    try:
        with pytest.raises(StorageError) as caught:
            await read(bucket, options)
    finally:
        logging.getLogger().removeHandler(handler)
    error = caught.value
    texts = [str(error), repr(error), error.hint, stream.getvalue(), repr(options), repr(error.fields)]
    causes = "".join(traceback.format_exception_only(error.__cause__)) if error.__cause__ else ""
    for secret in secrets:
        assert secret not in "\n".join([*texts, causes])
    return error


async def test_the_environment_has_endpoint_and_login(
    read: Read, bucket: str, versitygw: S3Server, login: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    login()
    monkeypatch.setenv("AWS_ENDPOINT_URL", versitygw.endpoint)
    assert await read(bucket, S3Options()) == DATA
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", versitygw.endpoint)
    assert await read(bucket, S3Options(region="eu-west-3")) == DATA


async def test_a_profile_has_endpoint_and_login(read: Read, bucket: str, versitygw: S3Server, bare: Path) -> None:
    (bare / "config").write_text(f"[profile shop]\nendpoint_url = {versitygw.endpoint}\nregion = eu-west-3\n")
    (bare / "credentials").write_text(
        f"[shop]\naws_access_key_id = {versitygw.key}\naws_secret_access_key = {versitygw.secret}\n"
    )
    assert await read(bucket, S3Options(profile="shop")) == DATA
    error = await failure(read, bucket, S3Options(profile="other"))
    assert isinstance(error, StorageAccessRefused)
    assert "the profile other does not exist" in str(error)


async def test_a_wrong_key_is_refused(read: Read, bucket: str, versitygw: S3Server, login: Callable[..., None]) -> None:
    login(key="AKIDWRONG", secret="a secret of nobody")
    error = await failure(read, bucket, S3Options(endpoint=versitygw.endpoint), "AKIDWRONG", "a secret of nobody")
    assert isinstance(error, StorageAccessRefused)
    assert error.retry is Retry.BRIEF
    assert error.path == f"s3://{bucket}/orders/a"
    assert "with credentials from env" in error.reason
    assert "credentials" in error.hint or "AWS_ACCESS_KEY_ID" in error.hint


async def test_a_wrong_secret_is_refused(
    read: Read, bucket: str, versitygw: S3Server, login: Callable[..., None]
) -> None:
    login(secret="a secret of nobody")
    error = await failure(read, bucket, S3Options(endpoint=versitygw.endpoint), versitygw.key, "a secret of nobody")
    assert isinstance(error, StorageAccessRefused)
    assert "SignatureDoesNotMatch" in error.reason
    assert "AWS_SECRET_ACCESS_KEY" in error.hint


async def test_a_missing_bucket_is_named(read: Read, versitygw: S3Server, login: Callable[..., None]) -> None:
    login()
    error = await failure(read, "tests-missing", S3Options(endpoint=versitygw.endpoint), versitygw.secret)
    assert isinstance(error, StorageAccessRefused)
    assert "the bucket tests-missing does not exist" in str(error)


async def test_no_credentials_are_named(read: Read, bucket: str, versitygw: S3Server, bare: Path) -> None:
    error = await failure(read, bucket, S3Options(endpoint=versitygw.endpoint))
    assert isinstance(error, StorageAccessRefused)
    assert "no credentials were found" in str(error)
    assert "AWS_ACCESS_KEY_ID" in error.hint
    (bare / "credentials").write_text("[default]\naws_access_key_id = AKIDHALF\n")
    error = await failure(read, bucket, S3Options(endpoint=versitygw.endpoint), "AKIDHALF")
    assert "lack aws_secret_access_key" in str(error)


async def test_anonymous_requests_are_not_signed(read: Read, bucket: str, versitygw: S3Server) -> None:
    versitygw.client.put_object(Bucket=bucket, Key="orders/public", Body=DATA)
    with S3Link(versitygw) as link:
        error = await failure(read, bucket, S3Options(endpoint=link.endpoint, anonymous=True))
        assert isinstance(error, StorageAccessRefused)
        assert "without credentials (anonymous)" in error.reason
        assert all("Authorization" not in request.headers for request in link.requests)


async def test_a_closed_port_is_unavailable(
    read: Read, bucket: str, versitygw: S3Server, login: Callable[..., None]
) -> None:
    login()
    (port,) = free_ports(1)
    error = await failure(read, bucket, S3Options(endpoint=f"http://127.0.0.1:{port}"), versitygw.secret)
    assert type(error) is StorageUnavailable
    assert f"127.0.0.1:{port} cannot be reached" in str(error)


async def test_an_endpoint_with_a_password_is_refused(
    read: Read, bucket: str, login: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    login()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:pass@127.0.0.1:1")
    error = await failure(read, bucket, S3Options(), "user:pass")
    assert isinstance(error, StorageAccessRefused)
    with pytest.raises(ConfigError, match="holds a user name or a password") as caught:
        S3Options(endpoint="http://user:pass@127.0.0.1:1")
    assert "user:pass" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("endpoint", ["no url", "http://", "ftp:/x"])
async def test_a_wrong_endpoint_is_refused(read: Read, bucket: str, login: Callable[..., None], endpoint: str) -> None:
    login()
    error = await failure(read, bucket, S3Options(endpoint=endpoint))
    assert isinstance(error, StorageAccessRefused)
    assert "options of the store" in error.hint


async def test_a_bucket_elsewhere_names_its_region(
    read: Read, bucket: str, versitygw: S3Server, login: Callable[..., None]
) -> None:
    login()
    with S3Link(versitygw) as link:
        link.faults = [
            Fault(times=9, status=301, code="PermanentRedirect", headers={"x-amz-bucket-region": "eu-west-3"})
        ]
        error = await failure(read, bucket, S3Options(endpoint=link.endpoint))
    assert isinstance(error, StorageAccessRefused)
    assert error.hint == "Set region to eu-west-3."


@pytest.fixture
def sts(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenService]:
    """The token service, where clients look for it."""
    with serving_sts(versitygw) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.endpoint)
        yield service


async def test_a_role_is_assumed_with_the_credentials_found(
    read: Read, bucket: str, versitygw: S3Server, login: Callable[..., None], sts: TokenService
) -> None:
    login(key="AKIDWITHOUTRIGHTS")
    with S3Link(versitygw) as link:
        options = S3Options(endpoint=link.endpoint, role_arn=ROLE, external_id="shop 1")
        assert [await read(bucket, options) for _ in range(3)] == [DATA] * 3
        assert all(f"={versitygw.key}/" in request.headers["Authorization"] for request in link.requests)
    (asked,) = sts.asked
    assert (asked["RoleArn"], asked["ExternalId"], asked["RoleSessionName"]) == (ROLE, "shop 1", "lake-tailer")


async def test_a_role_is_assumed_again_before_it_expires(
    read: Read, bucket: str, versitygw: S3Server, login: Callable[..., None], sts: TokenService
) -> None:
    login()
    sts.lifetime_s = 60  # too short a rest for any request
    options = S3Options(endpoint=versitygw.endpoint, role_arn=ROLE)
    assert [await read(bucket, options) for _ in range(3)] == [DATA] * 3
    assert len(sts.asked) >= 3


async def test_a_role_that_may_not_be_assumed_is_refused(
    read: Read, bucket: str, versitygw: S3Server, login: Callable[..., None], sts: TokenService
) -> None:
    login()
    sts.is_refusing = True
    error = await failure(read, bucket, S3Options(endpoint=versitygw.endpoint, role_arn=ROLE), versitygw.secret)
    assert isinstance(error, StorageAccessRefused)
    assert f"AssumeRole was refused as the role {ROLE}: AccessDenied" in str(error)
    assert "trust policy" in error.hint


async def test_a_web_identity_is_a_login(
    read: Read, bucket: str, versitygw: S3Server, bare: Path, sts: TokenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "token").write_text("a token of the cluster")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(bare / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    options = S3Options(endpoint=versitygw.endpoint)
    assert await read(bucket, options) == DATA
    (asked,) = sts.asked
    assert (asked["RoleArn"], asked["WebIdentityToken"]) == (ROLE, "a token of the cluster")
    sts.is_refusing = True
    error = await failure(read, bucket, S3Options(endpoint=versitygw.endpoint, region="eu-west-3"), "of the cluster")
    assert isinstance(error, StorageAccessRefused)
    assert "AssumeRoleWithWebIdentity was refused" in str(error)


async def test_a_role_needs_credentials(read: Read, bucket: str, versitygw: S3Server, sts: TokenService) -> None:
    error = await failure(read, bucket, S3Options(endpoint=versitygw.endpoint, role_arn=ROLE))
    assert "no credentials were found" in str(error)
    assert sts.asked == []


async def test_errors_of_every_verb_name_what_was_asked(
    bucket: str, versitygw: S3Server, login: Callable[..., None]
) -> None:
    login(secret="a secret of nobody")
    store = BucketStore(S3Bucket(bucket, S3Options(endpoint=versitygw.endpoint)), "orders")
    asks: dict[str, Callable[[], Awaitable[object]]] = {
        "a": partial(store.stat, "a"),
        "b": partial(store.put, "b", b""),
        "c": partial(store.put_if_absent, "c", b""),
        "d": partial(store.delete, "d"),
        "log": partial(store.list, "log"),
        "e": partial(store.scan, "e", lambda _: None),
    }
    for name, ask in asks.items():
        with pytest.raises(StorageAccessRefused) as caught:
            await ask()
        assert caught.value.path == f"s3://{bucket}/orders/{name}"

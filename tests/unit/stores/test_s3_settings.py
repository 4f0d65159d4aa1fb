"""Settings of S3 clients from options and the environment; no server."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ProfileNotFound

from tailer.errors import ConfigError
from tailer.stores.s3 import S3Options
from tailer.stores.s3.sessions import client_arguments, credentials_name, parse_time, sync_session
from tests.support.cases import cases


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No settings but those of the test; the folder of AWS's shared files."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def style(config: Config) -> Any:
    """Return how buckets are named; None: as botocore chooses."""
    return (config.s3 or {}).get("addressing_style")


@pytest.mark.parametrize(
    ("endpoint", "chosen", "wanted"),
    [
        (None, None, None),
        ("https://s3.eu-west-1.amazonaws.com", None, None),
        ("https://bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com", None, None),
        ("https://minio.example:9000", None, "path"),
        ("https://amazonaws.com.example", None, "path"),
        ("https://minio.example:9000", False, "virtual"),
        (None, True, "path"),
    ],
)
def test_buckets_are_in_the_path_at_endpoints_of_others(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, chosen: bool | None, wanted: str | None
) -> None:
    assert style(client_arguments(S3Options(endpoint=endpoint, path_style=chosen), Config)["config"]) == wanted
    if endpoint is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert style(client_arguments(S3Options(path_style=chosen), Config)["config"]) == wanted
        monkeypatch.setenv("AWS_ENDPOINT_URL", "https://other.example")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        assert style(client_arguments(S3Options(path_style=chosen), Config)["config"]) == wanted


def test_the_region_is_looked_for_in_this_order(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    def region(profile: str | None = None, region: str | None = None) -> str:
        return str(client_arguments(S3Options(profile=profile, region=region), Config)["region_name"])

    assert region() == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert region() == "eu-north-1"
    (bare / "config").write_text("[default]\nregion = eu-west-3\n[profile other]\nregion = eu-central-1\n")
    assert region() == "eu-west-3"
    assert region(profile="other") == "eu-central-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
    assert region() == "eu-west-2"
    assert region(region="eu-south-1") == "eu-south-1"


def test_an_endpoint_of_a_profile_is_found(bare: Path) -> None:
    (bare / "config").write_text("[profile minio]\nendpoint_url = https://minio.example\n")
    assert style(client_arguments(S3Options(profile="minio"), Config)["config"]) == "path"


def test_requests_are_bounded_and_named() -> None:
    config = client_arguments(S3Options(), Config)["config"]
    assert (config.retries["total_max_attempts"], config.retries["mode"]) == (3, "standard")
    assert config.connect_timeout <= config.read_timeout <= 60
    assert config.max_pool_connections == 64
    assert "lake-tailer" in config.user_agent
    assert config.signature_version is None
    assert client_arguments(S3Options(anonymous=True), Config)["config"].signature_version is UNSIGNED


def test_a_profile_that_is_missing_is_an_error() -> None:
    with pytest.raises(ProfileNotFound):
        client_arguments(S3Options(profile="missing"), Config)


@pytest.mark.parametrize(
    ("options", "method", "text"),
    [
        (S3Options(), "env", "with credentials from env"),
        (S3Options(), None, "with the credentials found"),
        (S3Options(profile="p"), "sso", "with credentials from sso, profile p"),
        (S3Options(role_arn="arn:r", profile="p"), "assume-role", "as the role arn:r"),
        (S3Options(anonymous=True), None, "without credentials (anonymous)"),
    ],
)
def test_a_login_has_a_name_without_a_secret(options: S3Options, method: str | None, text: str) -> None:
    assert credentials_name(options, method) == text


def test_a_session_reads_nothing_when_it_is_made() -> None:
    assert sync_session(S3Options(profile="missing", role_arn=None)) is not None


@pytest.mark.parametrize(
    ("endpoint", "reason"), [("https://me:hush@minio.example", "holds a user name"), ("http://[::1", "is not a URL")]
)
def test_an_endpoint_is_an_address_alone(endpoint: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        S3Options(endpoint=endpoint)
    assert "hush" not in f"{caught.value} {caught.value.hint}"


@cases(
    ("text", "second"),
    [
        ("2026-11-23T06:33:12.000Z", 12),  # in a listing
        ("2026-11-23T06:33:12Z", 12),
        ("Mon, 23 Nov 2026 06:33:13 GMT", 13),  # in a header
        ("Monday, 23-Nov-26 06:33:14 GMT", 14),
        ("1795415595", 15),  # seconds since 1970
        (1795415596, 16),
    ],
)
def test_times_of_answers(text: str | int, second: int) -> None:
    assert parse_time(text) == datetime(2026, 11, 23, 6, 33, second, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-99-23T06:33:12Z"])
def test_a_text_that_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid timestamp"):
        parse_time(text)

"""Sessions and settings of S3 clients, the same for log reading and for worker threads.

Credentials, region and endpoint come from where AWS's own tools look for them; `S3Options` overrides them. A role is
assumed with the credentials found, and assumed again before they expire.

Botocore parses any time in any form, and puts its description of the machine together for each request. That takes
a quarter of the processor's time for a request, and most of it for a listing. Stores use two forms of times only.
"""

import os
from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, CredentialProvider, DeferredRefreshableCredentials
from botocore.exceptions import InvalidConfigError, NoCredentialsError
from botocore.utils import parse_timestamp

from tailer.stores.s3 import S3Options
from tailer.stores.s3.traffic import count_traffic

__all__ = [
    "client_arguments",
    "credentials_name",
    "parse_time",
    "prepare",
    "role_request",
    "sync_session",
]

C = TypeVar("C", bound=Config)

ROLE_SESSION: Final = "lake-tailer"
_USER_AGENT: Final = f"lake-tailer Botocore/{botocore.__version__}"

_DEFAULT_REGION: Final = "us-east-1"
_AMAZON: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_POOL: Final = 64
# The pipeline retries, with one budget for all errors; these few attempts hide a hiccup of one connection.
_ATTEMPTS: Final = 3
_CONNECT_TIMEOUT_S: Final = 5
_READ_TIMEOUT_S: Final = 20


def sync_session(options: S3Options) -> Any:
    """Make botocore's session; reads AWS's shared files when it is used."""
    session = botocore.session.Session(profile=options.profile)
    prepare(session, options)
    if options.role_arn is not None:
        resolver = session.get_component("credential_provider")
        region = _region(session, options)
        create_client = partial(session.create_client, region_name=region)
        resolver.providers.insert(0, _AssumedRole(create_client, resolver.providers, options))
    return session


def prepare(session: Any, options: S3Options) -> None:
    """Let a session of either kind count its requests, and parse times fast."""
    count_traffic(session, options)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parse_time)


def parse_time(text: Any) -> datetime:
    """Parse a time of an answer: of a listing (ISO 8601), of a header (RFC 9110), or any that botocore knows."""
    try:
        moment = datetime.fromisoformat(text) if text[:1].isdigit() else parsedate_to_datetime(text)
        if moment.tzinfo is not None:
            return moment
    except (TypeError, ValueError):
        pass
    parsed: datetime = parse_timestamp(text)
    return parsed


def client_arguments(options: S3Options, kind: Callable[..., C], **more: object) -> dict[str, Any]:
    """Return the arguments of `create_client`. `kind`: the class of its config, which takes `more`. Reads files.

    Raises botocore's errors and `ValueError` for wrong settings.
    """
    session = botocore.session.Session(profile=options.profile)
    region = _region(session, options)
    address = urlsplit(options.endpoint or _configured_endpoint(session, region))
    if "@" in address.netloc:
        raise InvalidConfigError(error_msg="the endpoint holds a user name or a password")
    host = address.hostname or ""
    if options.anonymous:
        more["signature_version"] = UNSIGNED
    is_path_style = not host.endswith(_AMAZON) if options.path_style is None else options.path_style
    if is_path_style or options.path_style is not None:
        more["s3"] = {"addressing_style": "path" if is_path_style else "virtual"}
    config = kind(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        max_pool_connections=_POOL,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        tcp_keepalive=True,
        # Many stores with the protocol of S3 do not know the newer checksums. Logs and data files have their own.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent=_USER_AGENT,
        **more,
    )
    return {"region_name": region, "endpoint_url": options.endpoint, "config": config}


def credentials_name(options: S3Options, method: str | None) -> str:
    """Describe the credentials of a client, without their values. `method`: botocore's name of their source."""
    if options.anonymous:
        return "without credentials (anonymous)"
    if options.role_arn is not None:
        return f"as the role {options.role_arn}"
    source = f"with credentials from {method}" if method else "with the credentials found"
    return source if options.profile is None else f"{source}, profile {options.profile}"


def role_request(options: S3Options) -> dict[str, str]:
    """Return the arguments of AssumeRole besides the role."""
    request = {"RoleSessionName": ROLE_SESSION}
    return request if options.external_id is None else request | {"ExternalId": options.external_id}


def _configured_endpoint(session: Any, region: str) -> str:
    """Return the endpoint set in the environment or in AWS's shared files, else Amazon's: a client finds it."""
    client = session.create_client("s3", region_name=region, config=Config(signature_version=UNSIGNED))
    try:
        return str(client.meta.endpoint_url)
    finally:
        client.close()


def _region(session: Any, options: S3Options) -> str:
    region = options.region or session.get_config_variable("region") or os.environ.get("AWS_REGION")
    return region or _DEFAULT_REGION


class _AssumedRole(CredentialProvider):  # type: ignore[misc]
    """The first source of credentials where a role is configured."""

    METHOD = "assume-role"

    def __init__(self, create_client: Callable[..., Any], others: list[Any], options: S3Options) -> None:
        super().__init__()
        self._create_client = create_client
        self._others = list(others)
        self._options = options

    def load(self) -> Any:
        """Return credentials that assume the role when they are first used. Raises `NoCredentialsError`."""
        credentials = next(filter(None, (provider.load() for provider in self._others)), None)
        if credentials is None:
            raise NoCredentialsError
        fetcher = AssumeRoleCredentialFetcher(
            self._create_client, credentials, self._options.role_arn, extra_args=role_request(self._options)
        )
        return DeferredRefreshableCredentials(method=self.METHOD, refresh_using=fetcher.fetch_credentials)

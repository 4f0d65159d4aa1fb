"""S3, and stores with its protocol: the log with aiobotocore, ranges of data files with botocore on worker threads.

The clients come with the extra `s3`, and take a second to import; the functions here import them when they are called.
Keys, tokens and everything else that is secret come from where AWS's own tools look for them: AWS_ACCESS_KEY_ID and its
siblings, shared profiles, a web identity, the instance or the container. So options may be sent to executors and shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tailer.errors import ConfigError, missing_client

if TYPE_CHECKING:
    from tailer.stores.s3.bucket import S3Bucket

__all__ = ["S3Options", "delta_rs_settings", "open_bucket"]


@dataclass(frozen=True, slots=True)
class S3Options:
    """Address and login of the buckets below a prefix. None: as AWS's own tools would.

    `endpoint`: a URL. `path_style`: whether buckets are named in the path of a request, not in its host.
    `profile`: a name in AWS's shared configuration. `role_arn`: a role to assume with the credentials found.
    `anonymous`: send requests unsigned. `requester_pays`: agree to pay for requests. `notifications`: URL of a queue
    with notifications of new objects. `name`: the store's in the configuration, for metrics. Raises `ConfigError` for
    an endpoint that is no URL, or has a password in it, which would be shown.
    """

    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    notifications: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        try:
            has_login = "@" in urlsplit(self.endpoint or "").netloc
        except ValueError:
            raise ConfigError("endpoint", "is not a URL", "Give one such as https://minio.example:9000.") from None
        if has_login:
            remedy = "Remove them, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile."
            raise ConfigError("endpoint", "holds a user name or a password", remedy)

    def store_name(self, bucket: str) -> str:
        """Return the name in metrics of the store that has `bucket`."""
        return self.name or bucket


_SCHEME: Final = "s3://"


def open_bucket(root: str, options: S3Options) -> "S3Bucket":
    """Make the client of a bucket, given by its location; no I/O.

    Raises `ConfigError` where the extra `s3` is not installed.
    """
    try:
        from tailer.stores.s3.bucket import S3Bucket  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", root, error) from error
    return S3Bucket(root.removeprefix(_SCHEME), options)


def delta_rs_settings(root: str, options: S3Options) -> Mapping[str, str]:
    """Return `storage_options` for delta-rs at a bucket, given by its location, with keys in them. Blocking.

    Raises `StorageError` where there is no valid login, and `ConfigError` where the extra `s3` is not installed.
    """
    try:
        from tailer.stores.s3 import thread_clients  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("s3", root, error) from error
    return thread_clients.delta_rs_settings(root.removeprefix(_SCHEME), options)

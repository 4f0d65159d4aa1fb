"""The options of a store with the S3 protocol: where it is and how to log in, without any secret.

Keys, tokens and everything else that is secret come from where AWS's own tools look for them: AWS_ACCESS_KEY_ID and its
siblings, shared profiles, a web identity, the instance or the container. So options may be sent to executors and shown.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from tailer.errors import ConfigError

__all__ = ["S3Options"]


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

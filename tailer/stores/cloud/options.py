"""The options of stores in Google Cloud Storage and in Azure: where they are and how to log in, without any secret.

Keys and tokens come from where each cloud's own tools look for them. So options may be sent to executors and shown.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tailer.errors import ConfigError

__all__ = ["CREDENTIAL_TYPES", "AzureOptions", "CloudOptions", "GcsOptions"]

# Ways to log in to Azure, as its client names them.
CREDENTIAL_TYPES: Final = (
    "access_key",
    "azure_cli",
    "client_secret",
    "managed_identity",
    "sas_token",
    "workload_identity",
)


@dataclass(frozen=True, slots=True)
class GcsOptions:
    """Address and login of the buckets below a prefix. None: as Google's own tools would.

    `endpoint`: a URL. `service_account`: the path of a key file. `anonymous`: send requests without a login, to public
    buckets. `name`: the store's in the configuration, for metrics. Raises `ConfigError` for an endpoint that is no
    URL, which obstore would not survive, or has a password in it, which would be shown.
    """

    endpoint: str | None = None
    service_account: str | None = None
    anonymous: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        _check_endpoint(self.endpoint)

    @property
    def login(self) -> str:
        """Describe the credentials, without their values."""
        if self.anonymous:
            return "without credentials (anonymous)"
        if self.service_account is not None:
            return f"with the service account in {self.service_account}"
        return "with the credentials found"


@dataclass(frozen=True, slots=True)
class AzureOptions:
    """Address and login of the containers below a prefix. None: the first login found.

    `endpoint`: a URL. `credential_type`: one of `CREDENTIAL_TYPES`. `anonymous`: send requests without a login, to
    public containers. `name`: the store's, for metrics. Raises `ConfigError` as `GcsOptions`.
    """

    endpoint: str | None = None
    credential_type: str | None = None
    anonymous: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        _check_endpoint(self.endpoint)

    @property
    def login(self) -> str:
        """Describe the credentials, without their values."""
        if self.anonymous:
            return "without credentials (anonymous)"
        return f"with {self.credential_type}" if self.credential_type is not None else "with the credentials found"


CloudOptions = GcsOptions | AzureOptions


def _check_endpoint(endpoint: str | None) -> None:
    remedy = "Give one such as https://storage.example.com or http://127.0.0.1:10000/account."
    try:
        parts = urlsplit(endpoint or "https://default")
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigError("endpoint", "is not a URL", remedy) from None
    if "@" in parts.netloc:
        raise ConfigError("endpoint", "holds a user name or a password", "Remove them: keys come from the environment.")
    if not is_address or parts.query or parts.fragment or " " in (endpoint or ""):
        raise ConfigError("endpoint", "is not a URL", remedy)

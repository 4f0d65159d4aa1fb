"""Google Cloud Storage and Azure: the log and ranges of data files with obstore, whose clients all threads share.

obstore comes with the extras `gcs` and `azure`; the functions here import it when they are called.
Keys and tokens come from where each cloud's own tools look for them. So options may be sent to executors and shown.

delta-rs takes addresses, files with keys, keys and the names of identities from the environment as obstore does, and
renews tokens by itself. Of several logins to Azure in the environment it would take another one, so the one that is
meant is handed over, and where that cannot decide, the login is refused. Settings hold keys: they are made anew for
each use, and are in no text.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tailer.errors import ConfigError, StorageAccessRefused, missing_client

if TYPE_CHECKING:
    from tailer.stores.cloud.bucket import CloudBucket

__all__ = [
    "CREDENTIAL_TYPES",
    "AzureOptions",
    "CloudOptions",
    "GcsOptions",
    "check_account",
    "delta_rs_settings",
    "open_bucket",
]

# Ways to log in to Azure, as its client names them.
CREDENTIAL_TYPES: Final = (
    "access_key",
    "azure_cli",
    "client_secret",
    "managed_identity",
    "sas_token",
    "workload_identity",
)
_PUBLIC: Final = ".dfs.core.windows.net"
_KEY: Final = "access_key"
_MANAGED: Final = "managed_identity"
_CLI: Final = "azure_cli"
_TENANT: Final = ("azure_tenant_id", "azure_storage_tenant_id", "azure_authority_id", "azure_storage_authority_id")
_CLIENT: Final = ("azure_client_id", "azure_storage_client_id")
# The settings of each login, under all names that delta-rs and obstore know, also as variables in capitals.
_LOGINS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    _KEY: (("azure_storage_account_key", "azure_storage_access_key", "azure_storage_master_key"),),
    "sas_token": (("azure_storage_sas_token", "azure_storage_sas_key"),),
    "token": (("azure_storage_token",),),
    "client_secret": (_CLIENT, ("azure_client_secret", "azure_storage_client_secret"), _TENANT),
    "workload_identity": (_CLIENT, ("azure_federated_token_file",), _TENANT),
}


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


def open_bucket(root: str, options: CloudOptions) -> "CloudBucket":
    """Make the client of a bucket, given by its location; no I/O.

    Raises `ConfigError` where its extra is not installed.
    """
    try:
        from tailer.stores.cloud.bucket import CloudBucket  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise missing_client("gcs" if isinstance(options, GcsOptions) else "azure", root, error) from error
    return CloudBucket(root, options)


def check_account(location: str) -> None:
    """Raise `ConfigError` for an account of Azure that delta-rs does not find by its location."""
    host = location.partition("://")[2].partition("/")[0].partition("@")[2]
    if host and not host.endswith(_PUBLIC):
        reason = f"is in a cloud that the delta sink cannot write to: {host.partition('.')[2]}"
        raise ConfigError(location, reason, f"Give an account in {_PUBLIC[1:]}, or a folder of this machine.")


def delta_rs_settings(bucket: str, options: CloudOptions) -> Mapping[str, str]:
    """Return `storage_options` for delta-rs. Raises `StorageAccessRefused` where it would take another login."""
    # The endpoint says whether it is HTTP; by default it is not.
    settings = {"allow_http": "true"}
    if isinstance(options, AzureOptions):
        if options.endpoint is not None:
            settings["azure_storage_endpoint"] = options.endpoint
        if options.anonymous:
            return settings | {"azure_skip_signature": "true"}
        return settings | _azure_login(bucket, options)
    if options.endpoint is not None:
        settings["google_base_url"] = options.endpoint
    if options.anonymous:
        return settings | {"google_skip_signature": "true"}
    if options.service_account is not None:
        settings["google_service_account"] = options.service_account
    return settings


def _azure_login(bucket: str, options: AzureOptions) -> dict[str, str]:
    """Return the settings of the login that is meant, of those in the environment."""
    logins = {name: _values(wanted) for name, wanted in _LOGINS.items()}
    there = {name: values for name, values in logins.items() if values is not None}
    chosen = options.credential_type or (next(iter(there)) if len(there) == 1 else _MANAGED)
    others = [name for name in there if name != chosen]
    if options.credential_type is None and others:
        reason = f"the environment has several logins to Azure: {', '.join(there)}"
        raise StorageAccessRefused(bucket, reason, "Name one of them in credential_type of the store, or unset others.")
    if others and (chosen == _MANAGED or _KEY in others):
        reason = f"the environment has {' and '.join(others)}, which the delta sink would use in place of {chosen}"
        raise StorageAccessRefused(bucket, reason, "Unset its variables, or name it in credential_type of the store.")
    if chosen == _CLI:
        return {"azure_use_azure_cli": "true"}
    if chosen == _MANAGED:
        return {}
    if chosen not in there:
        names = ", ".join(names[0].upper() for names in _LOGINS[chosen])
        raise StorageAccessRefused(bucket, f"the login {chosen} lacks its variables", f"Set {names}.")
    return there[chosen]


def _values(wanted: tuple[tuple[str, ...], ...]) -> dict[str, str] | None:
    """Return the values in the environment under their first names; None where one of them is missing."""
    values = {names[0]: next(filter(None, (os.environ.get(name.upper()) for name in names)), "") for names in wanted}
    return values if all(values.values()) else None

"""The settings with which delta-rs reaches a bucket of Google or a container of Azure: with the login of our clients.

delta-rs takes addresses, files with keys, keys and the names of identities from the environment as obstore does, and
renews tokens by itself. Of several logins to Azure in the environment it would take another one, so the one that is
meant is handed over, and where that cannot decide, the login is refused. Settings hold keys: they are made anew for
each use, and are in no text.
"""

import os
from collections.abc import Mapping
from typing import Final

from tailer.errors import ConfigError, StorageAccessRefused
from tailer.stores.cloud.options import AzureOptions, CloudOptions

__all__ = ["check_account", "delta_rs_settings"]

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

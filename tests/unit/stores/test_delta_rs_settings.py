"""Settings for delta-rs in Google's and Azure's stores, from options and the environment; no server."""

import os
from collections.abc import Mapping

import pytest

from tailer.errors import StorageAccessRefused
from tailer.stores.cloud import AzureOptions, CloudOptions, GcsOptions, delta_rs_settings

KEY = {"AZURE_STORAGE_ACCOUNT_KEY": "k1"}
PRINCIPAL = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_SECRET": "k2"}
IDENTITY = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": "/f"}
SIGNATURE = {"AZURE_STORAGE_SAS_TOKEN": "k3"}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No login but that of the test."""
    for name in os.environ:
        if name.startswith(("AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


def settings(options: CloudOptions) -> dict[str, str]:
    """Return the settings but for that of HTTP."""
    found = dict(delta_rs_settings("abfss://lake@shop.dfs.core.windows.net", options))
    assert found.pop("allow_http") == "true"
    return found


@pytest.mark.parametrize(
    ("environment", "chosen", "expected"),
    [
        (KEY, None, {"azure_storage_account_key": "k1"}),
        ({"AZURE_STORAGE_ACCESS_KEY": "k1"}, None, {"azure_storage_account_key": "k1"}),
        (SIGNATURE, None, {"azure_storage_sas_token": "k3"}),
        (
            PRINCIPAL,
            None,
            {"azure_client_id": "c", "azure_client_secret": "k2", "azure_tenant_id": "t"},
        ),
        (
            PRINCIPAL | IDENTITY | SIGNATURE,
            "workload_identity",
            {"azure_client_id": "c", "azure_federated_token_file": "/f", "azure_tenant_id": "t"},
        ),
        (KEY | PRINCIPAL, "access_key", {"azure_storage_account_key": "k1"}),
        (PRINCIPAL, "azure_cli", {"azure_use_azure_cli": "true"}),
        ({}, None, {}),
        ({"AZURE_CLIENT_ID": "c"}, "managed_identity", {}),
    ],
)
def test_the_login_that_is_meant_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], chosen: str | None, expected: Mapping[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert settings(AzureOptions(credential_type=chosen)) == expected


@pytest.mark.parametrize(
    ("environment", "chosen", "reason"),
    [
        (KEY | SIGNATURE, None, "several logins to Azure: access_key, sas_token"),
        (KEY | PRINCIPAL, "client_secret", "has access_key, which the delta sink would use in place of client_secret"),
        (KEY, "azure_cli", "has access_key"),
        (SIGNATURE, "managed_identity", "has sas_token, which the delta sink would use in place of managed_identity"),
        (PRINCIPAL, "sas_token", "the login sas_token lacks its variables"),
    ],
)
def test_a_login_that_delta_rs_would_not_use_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], chosen: str | None, reason: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageAccessRefused, match=reason) as refused:
        settings(AzureOptions(credential_type=chosen))
    assert not any(value in f"{refused.value}" for value in ("k1", "k2", "k3"))


def test_addresses_and_files_of_keys_are_handed_over() -> None:
    assert settings(AzureOptions("http://127.0.0.1:1/shop", anonymous=True)) == {
        "azure_storage_endpoint": "http://127.0.0.1:1/shop",
        "azure_skip_signature": "true",
    }
    assert settings(GcsOptions("http://127.0.0.1:1", "/key.json")) == {
        "google_base_url": "http://127.0.0.1:1",
        "google_service_account": "/key.json",
    }
    assert settings(GcsOptions(anonymous=True)) == {"google_skip_signature": "true"}

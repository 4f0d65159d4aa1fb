"""The delta sink in Google Cloud Storage and Azure, with faults on the way: nothing is lost, doubled or shown."""

import base64
import hashlib
import hmac
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import anyio
import pytest

from tailer.errors import SinkError, SinkRejected
from tailer.stores.cloud import AzureOptions
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, deliver
from tests.support.cloud.servers import CloudServer, forget_clients
from tests.support.cloud.targets import Target, delivered_until, in_cloud, whole
from tests.support.s3.link import Fault, Request

pytestmark = [pytest.mark.anyio, pytest.mark.stores]


@pytest.fixture
def target(cloud: CloudServer, tmp_path: Path) -> Target:
    """A new target in each cloud."""
    return in_cloud(cloud, tmp_path / "copies")


async def test_missing_rights_are_named(target: Target, cloud: CloudServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tailer")
    await deliver(target.sink(), numbered(1))
    code = "AuthorizationPermissionMismatch" if cloud.is_azure else "AccessDenied"
    cloud.link.faults = [Fault(target.commits, 99, status=403, code=code)]
    with pytest.raises(SinkRejected, match="access is denied") as refused:
        await deliver(target.sink(), numbered(2))
    role = "Storage Blob Data Contributor" if cloud.is_azure else "Storage Object User"
    assert role in refused.value.hint
    assert cloud.secret not in f"{refused.value}{refused.value.hint}{caplog.text}"


async def test_folders_that_are_not_ours_are_refused(target: Target, cloud: CloudServer) -> None:
    await anyio.to_thread.run_sync(cloud.put, f"{target.location}/theirs/data.csv", b"")
    with pytest.raises(SinkRejected, match=r"is not empty \(it holds '?theirs"):
        await target.sink().progress(APP)
    await anyio.to_thread.run_sync(cloud.put, f"{target.bucket}/out/_delta_log/{0:020d}.json", b"{}")
    with pytest.raises(SinkRejected, match=f"is inside the Delta table {target.bucket}/out"):
        await target.sink().progress(APP)


def signature(secret: str) -> str:
    """Return a shared access signature of the account, which ends in an hour."""
    ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    kind = {"sp": "rwdlac", "ss": "b", "srt": "sco", "se": ends, "spr": "https,http", "sv": "2021-12-02"}
    signed = ["lakeaccount", kind["sp"], kind["ss"], kind["srt"], "", kind["se"], "", kind["spr"], kind["sv"], "", ""]
    digest = hmac.new(base64.b64decode(secret), "\n".join(signed).encode(), hashlib.sha256).digest()
    return urlencode({**kind, "sig": base64.b64encode(digest).decode()})


async def test_a_signature_in_place_of_the_key_is_handed_over_and_not_shown(
    azurite: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tailer")

    def is_hint(request: Request) -> bool:
        return request.path.endswith("_last_checkpoint")

    with azurite.logged_in(monkeypatch):
        target = in_cloud(azurite, tmp_path / "copies")
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        secret = signature(azurite.secret)
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", secret)
        forget_clients()
        await delivered_until(target, 2)
        azurite.link.faults = [Fault(is_hint, 99, status=400, code="InvalidInput")]
        with pytest.raises(SinkError) as failed:
            await deliver(target.sink(), numbered(3))
        azurite.link.faults = []
        assert await target.versions() == whole(2)
    assert "InvalidInput" in str(failed.value)
    shown = f"{failed.value}{failed.value.hint}{caplog.text}"
    assert "sig=" not in shown
    assert azurite.secret not in shown


async def test_a_login_that_delta_rs_would_replace_is_refused(
    azurite: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with azurite.logged_in(monkeypatch):
        target = in_cloud(azurite, tmp_path / "copies")
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", signature(azurite.secret))
        forget_clients()
        with pytest.raises(SinkRejected, match="several logins to Azure: access_key, sas_token") as refused:
            await target.sink().progress(APP)
        assert "credential_type" in refused.value.hint
        assert not await anyio.to_thread.run_sync(lambda: azurite.link.methods().count("PUT"))
        target.options = AzureOptions(azurite.options.endpoint, "access_key")
        await delivered_until(target, 1)
        assert await target.versions() == whole(1)

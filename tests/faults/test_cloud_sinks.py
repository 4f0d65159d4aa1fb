"""The delta sink in Google Cloud Storage and Azure, with faults on the way: nothing is lost, doubled or shown."""

import base64
import hashlib
import hmac
import logging
import uuid
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest
from deltalake import DeltaTable

from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.stores.cloud import AzureOptions
from tailer.stores.stores import Stores
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, deliver
from tests.support.cloud.servers import CloudServer, forget_clients
from tests.support.cloud.tables import download
from tests.support.s3.link import Fault, Request

pytestmark = [pytest.mark.anyio, pytest.mark.stores]


class Target:
    """A target table in a cloud, reached through the server's link."""

    def __init__(self, server: CloudServer, copies: Path) -> None:
        self.bucket = server.new_bucket()
        self.location = f"{self.bucket}/out/target"
        self.options = server.options
        self._server = server
        self._copies = copies

    def sink(self) -> DeltaSink:
        """Make a sink."""
        sink = DeltaSink("sink", self.location)
        sink.use_stores(Stores(((self.bucket, self.options),)))
        return sink

    async def versions(self) -> Counter[int]:
        """Return how many rows of each version there are, read from a copy and without faults."""
        self._server.link.faults.clear()
        copy = self._copies / uuid.uuid4().hex
        await anyio.to_thread.run_sync(download, self._server, self.location, copy)
        rows = await anyio.to_thread.run_sync(lambda: DeltaTable(copy).to_pyarrow_table())
        return Counter(rows["_commit_version"].to_pylist())


@pytest.fixture
def target(cloud: CloudServer, tmp_path: Path) -> Target:
    """A new target in each cloud."""
    return Target(cloud, tmp_path / "copies")


def is_commit(request: Request) -> bool:
    """Return whether a request is a commit to the table."""
    return request.is_conditional_put and "/_delta_log/" in request.path


async def delivered_until(target: Target, last: int) -> None:
    """Deliver a version after the other as a pipeline does: after an error progress is read, and decides."""
    sink = target.sink()
    progress = await sink.progress(APP)
    while (version := 1 if progress is None else progress.position.version + 1) <= last:
        with suppress(CommitUnknown, SinkUnavailable):
            await deliver(sink, numbered(version))
        progress = await sink.progress(APP)
    await sink.aclose()


def whole(last: int) -> Counter[int]:
    """Return the rows of each version once."""
    return Counter({version: len(numbered(version).rows) for version in range(1, last + 1)})


async def test_lost_answers_to_commits_are_resolved(target: Target, cloud: CloudServer) -> None:
    commits = 0

    def every_second(request: Request) -> bool:
        nonlocal commits
        commits += is_commit(request)
        return is_commit(request) and commits % 2 == 0

    cloud.link.faults = [Fault(every_second, times=99, is_lost=True)]
    await delivered_until(target, 6)
    assert commits > 6
    assert await target.versions() == whole(6)


async def test_an_error_after_the_commit_was_made_is_resolved(target: Target, cloud: CloudServer) -> None:
    await delivered_until(target, 1)
    cloud.link.faults = [Fault(is_commit, 1, is_lost=True), Fault(is_commit, 1, status=403, code="AccountIsDisabled")]
    await delivered_until(target, 3)
    assert await target.versions() == whole(3)


@pytest.mark.parametrize(
    "fault",
    [{"status": 503, "code": "ServerBusy"}, {"status": 500, "code": "InternalError"}, {"is_lost": True}],
    ids=["503", "500", "reset"],
)
@pytest.mark.sampled(3)
async def test_faults_of_all_requests(target: Target, cloud: CloudServer, fault: dict[str, Any]) -> None:
    requests = 0

    def every_fifth(_request: Request) -> bool:
        nonlocal requests
        requests += 1
        return requests % 5 == 0

    cloud.link.faults = [Fault(every_fifth, times=9999, **fault)]
    await delivered_until(target, 4)
    assert await target.versions() == whole(4)


async def test_of_two_instances_one_commits(target: Target) -> None:
    for version in range(1, 4):
        won: list[int] = []

        async def attempt(sink: DeltaSink, version: int, won: list[int]) -> None:
            try:
                await deliver(sink, numbered(version))
                won.append(version)
            except (SinkFenced, SinkUnavailable):
                pass

        sinks = [target.sink() for _ in range(3)]
        for sink in sinks:
            await sink.progress(APP)
        async with anyio.create_task_group() as tasks:
            for sink in sinks:
                tasks.start_soon(attempt, sink, version, won)
        assert won == [version]
    assert await target.versions() == whole(3)


async def test_missing_rights_are_named(target: Target, cloud: CloudServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tailer")
    await deliver(target.sink(), numbered(1))
    code = "AuthorizationPermissionMismatch" if cloud.is_azure else "AccessDenied"
    cloud.link.faults = [Fault(is_commit, 99, status=403, code=code)]
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
        target = Target(azurite, tmp_path / "copies")
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
        target = Target(azurite, tmp_path / "copies")
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", signature(azurite.secret))
        forget_clients()
        with pytest.raises(SinkRejected, match="several logins to Azure: access_key, sas_token") as refused:
            await target.sink().progress(APP)
        assert "credential_type" in refused.value.hint
        assert not await anyio.to_thread.run_sync(lambda: azurite.link.methods().count("PUT"))
        target.options = AzureOptions(azurite.options.endpoint, "access_key")
        await delivered_until(target, 1)
        assert await target.versions() == whole(1)

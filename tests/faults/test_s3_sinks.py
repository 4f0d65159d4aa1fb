"""Sinks whose target is in a store, with faults on the way: nothing is lost or doubled, and no key is shown."""

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.stores.s3 import bucket as s3_bucket
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, SCHEMA, deliver, up_to
from tests.support.cloud.servers import CloudServer
from tests.support.cloud.targets import Target, delivered_until, in_cloud, in_s3, whole
from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import close_thread_clients

pytestmark = [pytest.mark.anyio, pytest.mark.stores]

PART_BYTES: Final = 5 * 2**20


@pytest.fixture(params=["delta", "files", "fake_gcs", "azurite"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A new target of each kind in S3, and a Delta table in each other store."""
    if request.param in ("delta", "files"):
        yield in_s3(request.param, request.getfixturevalue("link"), tmp_path / "copies")
        return
    server: CloudServer = request.getfixturevalue(request.param)
    with server.logged_in(monkeypatch):
        yield in_cloud(server, tmp_path / "copies")


@pytest.fixture(params=["delta", "files"])
def s3_target(request: pytest.FixtureRequest, link: S3Link, tmp_path: Path) -> Target:
    """A new target of each kind in S3."""
    return in_s3(request.param, link, tmp_path / "copies")


async def test_lost_answers_to_commits_are_resolved(target: Target) -> None:
    commits = 0

    def every_second(request: Request) -> bool:
        nonlocal commits
        commits += target.commits(request)
        return target.commits(request) and commits % 2 == 0

    target.link.faults = [Fault(every_second, times=99, is_lost=True)]
    await delivered_until(target, 6)
    assert commits > 6
    assert await target.versions() == whole(6)


async def test_an_error_after_the_commit_was_made_is_resolved(target: Target) -> None:
    await delivered_until(target, 1)
    target.link.faults = [
        Fault(target.commits, 1, is_lost=True),
        Fault(target.commits, 1, status=403, code="AccessDenied"),
    ]
    await delivered_until(target, 3)
    assert await target.versions() == whole(3)


@pytest.mark.parametrize(
    "fault",
    [{"status": 503, "code": "SlowDown"}, {"status": 500, "code": "InternalError"}, {"is_lost": True}],
    ids=["503", "500", "reset"],
)
@pytest.mark.sampled(3)
async def test_faults_of_all_requests(target: Target, fault: dict[str, Any]) -> None:
    requests = 0

    def every_fifth(_request: Request) -> bool:
        nonlocal requests
        requests += 1
        return requests % 5 == 0

    target.link.faults = [Fault(every_fifth, times=9999, **fault)]
    await delivered_until(target, 4)
    assert await target.versions() == whole(4)


async def test_a_large_file_whose_completion_is_lost(
    link: S3Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(s3_bucket, "_PART_BYTES", PART_BYTES)
    target = in_s3("files", link, tmp_path / "copies")
    link.faults = [Fault(lambda request: request.is_completion, times=2, is_lost=True)]
    sink = target.sink()
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(1, rows=500))
        await transaction.commit(up_to(APP, 1))
    assert await sink.progress(APP) == up_to(APP, 1)
    assert any(request.is_completion for request in link.requests)
    assert await target.versions() == Counter({1: 500})


async def test_a_commit_that_arrives_late_is_asked_about(link: S3Link, tmp_path: Path) -> None:
    """The answer to our commit is an error, and so is the question whose file it is: the file exists all the same."""
    target = in_s3("files", link, tmp_path / "copies")
    sink = target.sink()
    await deliver(sink, numbered(1))
    link.faults = [
        Fault(target.commits, 1, is_lost=True),
        Fault(lambda request: request.method == "HEAD", 9, status=503, code="SlowDown"),
    ]
    with pytest.raises(CommitUnknown):
        await deliver(sink, numbered(2))
    link.faults = []
    assert await sink.progress(APP) == up_to(APP, 2)
    await deliver(sink, numbered(3))
    assert await target.versions() == whole(3)


async def test_of_two_instances_one_commits(target: Target) -> None:
    for version in range(1, 4):
        won: list[int] = []

        async def attempt(sink: DeltaSink | FilesSink, version: int, won: list[int]) -> None:
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


async def test_two_instances_that_begin_with_other_versions(link: S3Link, tmp_path: Path) -> None:
    """Instances that start with `latest` may begin anywhere: the first file is for one of them alone."""
    target = in_s3("files", link, tmp_path / "copies")
    one, two = target.sink(), target.sink()
    async with one.begin(APP, SCHEMA) as first, two.begin(APP, SCHEMA) as second:
        await first.write(numbered(5))
        await second.write(numbered(7))
        await first.commit(up_to(APP, 8))
        with pytest.raises(SinkFenced):
            await second.commit(up_to(APP, 7))
    assert await target.versions() == Counter({5: len(numbered(5).rows)})


async def test_a_key_that_is_refused_is_named_and_not_shown(
    s3_target: Target, link: S3Link, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tailer")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong/secret+for/tests")
    close_thread_clients()
    sink = s3_target.sink()
    with pytest.raises(SinkRejected) as caught:
        await sink.progress(APP)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", link.server.secret)
    close_thread_clients()
    await deliver(s3_target.sink(), numbered(1))
    link.faults = [Fault(s3_target.commits, 99, status=403, code="AccessDenied")]
    with pytest.raises(SinkError) as refused:
        await deliver(s3_target.sink(), numbered(2))
    said = f"{caught.value}{caught.value.hint}{refused.value}{refused.value.hint}{sink!r}{caplog.text}"
    assert "secret key does not fit" in str(caught.value)
    assert "denied" in str(refused.value)
    assert "s3:PutObject" in refused.value.hint
    for secret in ("wrong/secret", link.server.secret, "Signature="):
        assert secret not in said


async def test_an_expired_token_is_renewed(s3_target: Target, link: S3Link) -> None:
    sink = s3_target.sink()
    await deliver(sink, numbered(1))
    link.faults = [Fault(lambda request: request.method in ("PUT", "POST"), 1, status=403, code="ExpiredToken")]
    await delivered_until(s3_target, 3)
    assert await s3_target.versions() == whole(3)


@pytest.mark.parametrize("kind", ["delta", "files"])
async def test_folders_that_are_not_ours_are_refused(kind: str, link: S3Link, tmp_path: Path) -> None:
    target, put = in_s3(kind, link, tmp_path), link.server.client.put_object
    bucket = target.bucket.removeprefix("s3://")
    put(Bucket=bucket, Key="out/target/theirs/data.csv", Body=b"")
    with pytest.raises(SinkRejected, match=r"is not empty \(it holds '?theirs"):
        await target.sink().progress(APP)
    link.server.client.delete_object(Bucket=bucket, Key="out/target/theirs/data.csv")
    assert await target.sink().progress(APP) is None
    put(Bucket=bucket, Key=f"out/_delta_log/{0:020d}.json", Body=b"{}")
    with pytest.raises(SinkRejected, match=f"is inside the Delta table {target.bucket}/out"):
        await target.sink().progress(APP)


async def test_a_file_without_its_metadata_stops_everything(link: S3Link, tmp_path: Path) -> None:
    target = in_s3("files", link, tmp_path)
    bucket = target.bucket.removeprefix("s3://")
    await delivered_until(target, 2)
    listed = link.server.client.list_objects_v2(Bucket=bucket)["Contents"]
    last = max(entry["Key"] for entry in listed)
    body = link.server.client.get_object(Bucket=bucket, Key=last)["Body"].read()
    link.server.client.delete_object(Bucket=bucket, Key=last)
    link.server.client.put_object(Bucket=bucket, Key=last, Body=body)
    with pytest.raises(SinkRejected, match="lacks the metadata"):
        await target.sink().progress(APP)

"""Lasting faults of an S3 server, and the number of requests without any."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from tenacity import wait_none

import tailer.formats.delta.table
import tailer.pipeline.retry
import tailer.stores.s3.sessions
from tailer.config.tables import TableRef, open_files
from tailer.engine.local import LocalEngine
from tailer.errors import FileVacuumed, StorageAccessRefused, StorageUnavailable, TailerError, VersionGone
from tailer.formats.delta.log.commit_reader import settled_before_ms
from tailer.formats.delta.log.following import CHECK_S, QuietLog
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.start import Start
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tests.support.histories.s3_history import upload
from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import S3Server
from tests.support.streams import Destination, Growing, become

pytestmark = [pytest.mark.stores, pytest.mark.anyio]

ALWAYS = 10**6


@pytest.fixture(autouse=True)
def no_time_is_lost(monkeypatch: pytest.MonkeyPatch, versitygw: S3Server) -> None:
    """Send each request once, and again without a pause."""
    monkeypatch.setattr(tailer.pipeline.retry, "wait_random_exponential", lambda **_: wait_none())
    monkeypatch.setattr(tailer.stores.s3.sessions, "_ATTEMPTS", 1)
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def link(versitygw: S3Server) -> Iterator[S3Link]:
    """A link before a server."""
    with S3Link(versitygw) as link:
        yield link


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """A table of five versions, with one file each."""
    found = Growing(tmp_path / "t")
    for first in range(0, 50, 10):
        found.insert(range(first, first + 10))
    return found


def following(link: S3Link, bucket: str, there: Destination, until: str | None = None) -> Pipeline:
    """Make a pipeline that follows the table at the root of the bucket's folder `t`."""
    stores = Stores(((f"s3://{bucket}", S3Options(endpoint=link.endpoint)),))
    log = TableRef(f"s3://{bucket}/t").open(stores)
    end = None if until is None else Start.parse(until)
    engine, limits = LocalEngine(2, open_files(stores)), Limits(poll_interval_s=0.02, retry_for_s=1)
    return row_pipeline(
        "p", log, there.sink(), engine, log.make_wake(), Start.parse("earliest"), until=end, limits=limits
    )


def of_file(version: int) -> Callable[[Request], bool]:
    """Return whether a request is for the data file of a version."""
    return lambda request: request.path.endswith(f"/{version}-0.parquet")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(of_file(3), ALWAYS, 404, "NoSuchKey"), FileVacuumed),
        (Fault(of_file(3), ALWAYS, 403, "AccessDenied"), StorageAccessRefused),
        (Fault(of_file(3), ALWAYS, 403, "ExpiredToken"), StorageUnavailable),
        (Fault(of_file(3), ALWAYS, 503, "SlowDown"), StorageUnavailable),
        (Fault(of_file(3), ALWAYS, torn_at=10), StorageUnavailable),
    ],
    ids=["404", "denied", "expired", "slow down", "torn"],
)
async def test_a_lasting_fault_stops_after_every_earlier_version(
    versitygw: S3Server, link: S3Link, table: Growing, fault: Fault, error: type[TailerError]
) -> None:
    bucket, there = versitygw.new_bucket(), Destination()
    await to_thread.run_sync(upload, versitygw, bucket, "t", table.path)
    link.faults = [fault]
    with pytest.raises(error) as caught:
        await following(link, bucket, there, until="latest").run()
    assert f"s3://{bucket}/t" in str(caught.value)
    assert there.delivered() == table.rows(0, 2)
    # What was refused is delivered once it is allowed again.
    link.faults = []
    await following(link, bucket, there, until="latest").run()
    assert there.delivered() == table.rows()


async def test_access_denied_to_everything_from_some_moment_on(
    versitygw: S3Server, link: S3Link, table: Growing
) -> None:
    bucket, there = versitygw.new_bucket(), Destination()
    await to_thread.run_sync(upload, versitygw, bucket, "t", table.path)

    async def deny() -> None:
        await become(lambda: there.delivered() == table.rows())
        link.faults = [Fault(times=ALWAYS, status=403, code="AccessDenied")]

    async with anyio.create_task_group() as group:
        group.start_soon(deny)
        with pytest.raises(StorageAccessRefused, match="AccessDenied"):
            await following(link, bucket, there).run()


@pytest.mark.parametrize("fault", [Fault(of_file(3), 1, 404, "NoSuchKey"), Fault(of_file(3), 1, 403, "ExpiredToken")])
async def test_a_single_fault_of_a_file_is_no_error(
    versitygw: S3Server, link: S3Link, table: Growing, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, there = versitygw.new_bucket(), Destination()
    await to_thread.run_sync(upload, versitygw, bucket, "t", table.path)
    link.faults = [Fault(fault.where, 1, fault.status, fault.code)]
    await following(link, bucket, there, until="latest").run()
    assert there.delivered() == table.rows()
    assert not caplog.records


async def test_requests(versitygw: S3Server, link: S3Link, table: Growing) -> None:
    """A look is one GET and nothing else. A commit is also a HEAD of the one before it and a GET of its file.

    A backlog is one GET for each commit, and one for its file, if its commits are not so young that another file may
    still take their names, sizes and times.
    """
    bucket, there = versitygw.new_bucket(), Destination()
    await to_thread.run_sync(upload, versitygw, bucket, "t", table.path)
    written_ms = time.time() * 1000
    await become(lambda: settled_before_ms() > written_ms)
    pipeline = following(link, bucket, there)
    async with anyio.create_task_group() as group:
        group.start_soon(pipeline.run)
        await become(lambda: there.delivered() == table.rows())
        await become(lambda: looks(link, 6) > 0)
        backlog = Counter(each.method for each in link.requests if each.path.endswith(".json"))
        assert backlog == {"GET": 6 + 6 + looks(link, 6)}  # the start reads them, too, to find the metadata
        link.requests.clear()
        await become(lambda: looks(link, 6) == 50)
        assert Counter(link.methods()) == {"GET": 50}
        version = table.insert([1000])
        for name in (f"{version}-0.parquet", f"_delta_log/{version:020d}.json"):
            body = (table.path / name).read_bytes()
            await to_thread.run_sync(partial(versitygw.client.put_object, Bucket=bucket, Key=f"t/{name}", Body=body))
        await become(lambda: looks(link, 7) > 0)
        pipeline.stop()
    assert there.delivered() == table.rows()
    names = [(each.method, each.path.rpartition("/")[2]) for each in link.requests]
    found = max(at for at, name in enumerate(names) if name == ("GET", f"{6:020d}.json"))
    following_one = names.index(("GET", f"{7:020d}.json"))
    assert names[found + 1 : following_one] == [("HEAD", f"{5:020d}.json"), ("GET", "6-0.parquet")]


async def test_a_quiet_table_is_listed_once_in_a_while(
    versitygw: S3Server, link: S3Link, table: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check is one LIST, and finds a commit that is missing before a later one."""
    seconds = [0.0]
    monkeypatch.setattr(tailer.formats.delta.table, "QuietLog", partial(QuietLog, clock=lambda: seconds[0]))
    bucket, there = versitygw.new_bucket(), Destination()
    await to_thread.run_sync(upload, versitygw, bucket, "t", table.path)
    pipeline = following(link, bucket, there)
    async with anyio.create_task_group() as group:
        group.start_soon(pipeline.run)
        await become(lambda: there.delivered() == table.rows() and looks(link, 6) > 0)
        link.requests.clear()
        seconds[0] += CHECK_S
        await become(lambda: looks(link, 6) > 20)
        assert Counter(link.methods())["LIST"] == 1
        pipeline.stop()
    pipeline = following(link, bucket, there)
    lost: list[VersionGone] = []

    async def run() -> None:
        with pytest.raises(VersionGone) as caught:
            await pipeline.run()
        lost.append(caught.value)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await become(lambda: looks(link, 6) > 50)
        key = f"t/_delta_log/{7:020d}.json"
        await to_thread.run_sync(partial(versitygw.client.put_object, Bucket=bucket, Key=key, Body=b"{}\n"))
        await become(lambda: looks(link, 6) > 80)
        assert not lost
        seconds[0] += CHECK_S
        await become(lambda: bool(lost))
    assert lost[0].version == 6


def looks(link: S3Link, version: int) -> int:
    """Return the number of requests for a commit."""
    return sum(each.method == "GET" and each.path.endswith(f"/{version:020d}.json") for each in link.requests)

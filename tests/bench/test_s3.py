"""Tables in S3: requests, bytes, rows/s, latency and catching up, from versitygw on this machine, beside delta-rs.

Requests and bytes are counted by a link before the server, whose own work is part of the latency; speeds are measured
at the server itself, once there is a client: making ours takes some 0.2 s, which a program that follows a table spends
once. Nothing is asserted about any of them. `make bench` prints the figures.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable

from tailer.config.tables import TableRef, open_files
from tailer.engine.local import LocalEngine
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import ChangePlan
from tailer.start import Start
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tailer.stores.wakeup import TimerWake
from tailer.table_log import TableLog
from tests.bench import change_tables
from tests.bench.change_tables import write_appends
from tests.bench.conftest import PutLine
from tests.bench.counting_link import CountingLink
from tests.support.s3.link import S3Link
from tests.support.s3.server import S3Server, close_thread_clients
from tests.support.s3.tables import RemoteTable
from tests.support.streams import Destination, become

RUNS: Final = 5
POLL_S: Final = 0.1
LATENCIES: Final = 100

Show = Callable[[str], None]
Timed = tuple[int, float, float]  # a number of rows, the seconds for them, and those of this process's CPU


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(begun: tuple[float, float], rows: int) -> Timed:
    seconds, cpu_s = clocks()
    return rows, seconds - begun[0], cpu_s - begun[1]


@dataclass(frozen=True)
class Reader:
    """lake-tailer over a table, local or not."""

    location: str
    stores: Stores = Stores()  # noqa: RUF009 - frozen

    def opened(self) -> tuple[TableLog, LocalEngine]:
        """Open the table."""
        return TableRef(self.location).open(self.stores), LocalEngine(files=open_files(self.stores))

    def rows(self) -> Timed:
        """Deliver every change to a destination in memory, as a pipeline does."""

        async def run() -> Timed:
            (log, engine), there = self.opened(), Destination()
            await log.latest()
            start, end = Start.parse("earliest"), Start.parse("latest")
            begun = clocks()
            await row_pipeline("p", log, there.sink(), engine, TimerWake(), start, end).run()
            return since(begun, sum(rows for _, rows in there.transactions))

        return anyio.run(run)

    def snapshot(self) -> Timed:
        """Read the newest rows."""

        async def run() -> Timed:
            log, engine = self.opened()
            newest = await log.latest()
            begun = clocks()
            rows = sum([await run_plan(plan, engine) async for plan in log.snapshot_plans(newest)])
            return since(begun, rows)

        return anyio.run(run)


async def run_plan(plan: ChangePlan, engine: LocalEngine) -> int:
    async with engine.run([plan]) as batches:
        return sum([len(batch) async for batch in batches])


def options(server: S3Server | S3Link) -> dict[str, str]:
    """Return the settings of delta-rs."""
    login = server if isinstance(server, S3Server) else server.server
    return {
        "aws_access_key_id": login.key,
        "aws_secret_access_key": login.secret,
        "aws_endpoint_url": server.endpoint,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
    }


def timed(read: Callable[[], int]) -> Timed:
    """Read by delta-rs."""
    begun = clocks()
    return since(begun, read())


def cdf(location: str, settings: dict[str, str], only: int | None = None) -> int:
    """Read the changes of all versions, or of one, by delta-rs; return the number of rows."""
    changes = DeltaTable(location, storage_options=settings).load_cdf(only or 0, only)
    return sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(changes))


def medians(work: dict[str, Callable[[], Timed]], rows: int) -> dict[str, tuple[float, float]]:
    """Run all contenders in turn, each to all rows; return the medians of their seconds, and of those of CPU."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(RUNS):
        for name, read in work.items():
            found, *taken = read()
            assert found == rows, name
            times[name].append((taken[0], taken[1]))
    both = {name: tuple(zip(*each, strict=True)) for name, each in times.items()}
    return {name: (statistics.median(seconds), statistics.median(cpu_s)) for name, (seconds, cpu_s) in both.items()}


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Print past pytest's capture."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="")

    return line


@pytest.fixture(autouse=True)
def _keys(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in versitygw.environment.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)
    yield
    close_thread_clients()


@pytest.fixture
def link(versitygw: S3Server) -> Iterator[CountingLink]:
    """A link that counts."""
    with CountingLink(versitygw) as link:
        yield link


@pytest.fixture(scope="module")
def appends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 20 versions of 50,000 rows."""
    path = tmp_path_factory.mktemp("bench") / "appends"
    write_appends(path, 20, 50_000)
    return path


@pytest.fixture(scope="module")
def small_commits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 500 versions of 10 rows."""
    path = tmp_path_factory.mktemp("bench") / "small"
    write_appends(path, 500, 10)
    return path


def through(link: CountingLink, location: str) -> Reader:
    """Return a reader that goes through the link."""
    return Reader(location, Stores(((location, S3Options(endpoint=link.endpoint)),)))


def copied(path: Path, server: S3Server) -> Reader:
    """Copy a table; return its reader."""
    remote = RemoteTable.copied(path, server, server.new_bucket())
    return Reader(remote.location, remote.stores)


def append(path: Path, server: S3Server, location: str, version: int, rows: int) -> None:
    """Commit new rows to a local table, and copy the new files, the commit last."""
    known = set(path.rglob("*"))
    change_tables.append(path, version, 1000 + version * rows, rows)
    bucket = location.removeprefix("s3://").partition("/")[0]
    new = (file for file in path.rglob("*") if file.is_file() and file not in known)
    for file in sorted(new, key=lambda file: file.parent.name == "_delta_log"):
        key = f"{path.name}/{file.relative_to(path)}"
        server.client.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())


def test_rows_per_second(appends: Path, versitygw: S3Server, tmp_path: Path, put_line: PutLine) -> None:
    """1 M rows of 12 columns in 20 versions: as changes, and as a snapshot; and in one version."""
    rows, remote, local, settings = 1_000_000, copied(appends, versitygw), Reader(str(appends)), options(versitygw)
    whole = tmp_path / "whole"
    write_appends(whole, 1, rows)
    remote_whole = copied(whole, versitygw)

    def theirs() -> int:
        return len(DeltaTable(remote.location, storage_options=settings).to_pyarrow_table())

    works: dict[str, tuple[Callable[[], Timed], Callable[[], Timed], Callable[[], int], str]] = {
        "20 versions of 50,000 rows": (remote.rows, local.rows, lambda: cdf(remote.location, settings), "0.9 of local"),
        "a snapshot of them": (remote.snapshot, local.snapshot, theirs, "-"),
        "one version of 1,000,000 rows": (
            remote_whole.rows,
            Reader(str(whole)).rows,
            lambda: cdf(remote_whole.location, settings),
            "-",
        ),
    }
    for title, (stored, beside, peer, goal) in works.items():
        found = medians({"S3": stored, "local": beside, "delta-rs": lambda: timed(peer)}, rows)  # noqa: B023 - called at once
        (seconds, cpu_s), (local_s, _), (peer_s, _) = found.values()
        speed = f"{rows / seconds / 1e6:.2f} Mrows/s, {1e6 * cpu_s / rows:.2f} us of CPU a row"
        theirs_shown = f"delta-rs: {rows / peer_s / 1e6:.2f} Mrows/s; {peer_s / seconds:.2f}"
        put_line(f"S3: {title}", f"{speed}, {local_s / seconds:.2f} of local", theirs_shown, goal)


def test_latency(link: CountingLink, versitygw: S3Server, tmp_path: Path, show: Show) -> None:
    """From the end of a commit's PUT to its row in the destination, the commits at random moments."""
    path = tmp_path / "t"
    write_appends(path, 1, 10)
    reader, there, chance = through(link, copied(path, versitygw).location), Destination(), random.Random(1)
    found: list[float] = []

    async def follow() -> None:
        log, engine = reader.opened()
        limits = Limits(poll_interval_s=POLL_S)
        start = Start.parse("earliest")
        pipeline = row_pipeline("p", log, there.sink(), engine, log.make_wake(), start, limits=limits)
        async with anyio.create_task_group() as group:
            group.start_soon(pipeline.run)
            await become(lambda: bool(there.transactions))
            for number in range(LATENCIES):
                await anyio.sleep(chance.uniform(0, 2 * POLL_S))
                await to_thread.run_sync(append, path, versitygw, reader.location, number + 1, 1)
                start_s = time.perf_counter()
                await become(lambda: there.transactions[-1][0].version == number + 1)  # noqa: B023 - called at once
                found.append(time.perf_counter() - start_s)
            pipeline.stop()

    anyio.run(follow)
    found.sort()
    p50, p99 = (1000 * found[math.ceil(len(found) * share) - 1] for share in (0.5, 0.99))
    show(f"from commit to event, {1000 * POLL_S:.0f} ms poll, {LATENCIES} commits: p50 {p50:.0f} ms, p99 {p99:.0f} ms")


def test_catching_up(small_commits: Path, versitygw: S3Server, put_line: PutLine) -> None:
    """500 commits of 10 rows. delta-rs reads them all at once, or some of them one by one, as a follower would."""
    versions, remote, local = 500, copied(small_commits, versitygw), Reader(str(small_commits))
    settings, last, some = options(versitygw), 499, 500 // 16

    def one_by_one() -> int:
        asked = range(last - some + 1, last + 1)
        return sum(cdf(remote.location, settings, at) for at in asked)

    work: dict[str, Callable[[], Timed]] = {"local": local.rows, "S3": remote.rows}
    work["delta-rs"] = lambda: timed(lambda: cdf(remote.location, settings))
    (local_s, _), (seconds, cpu_s), (peer_s, _) = medians(work, 10 * versions).values()
    ((one_s, _),) = medians({"one by one": lambda: timed(one_by_one)}, 10 * some).values()
    figures = f"{versions / seconds:,.0f} versions/s, {1000 * cpu_s / versions:.2f} ms of CPU each"
    theirs = f"delta-rs, at once and one by one: {versions / peer_s:,.0f}, {some / one_s:,.0f} versions/s"
    put_line(f"S3: {versions} commits of 10 rows", f"{figures}, {local_s / seconds:.2f} of local", theirs, "-")

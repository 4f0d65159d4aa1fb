"""Each fault of an S3 server under the real daemon: no row is lost or doubled, and `/metrics` counts the fault."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import msgspec
import pytest

from tests.support.daemon.process import Daemon, FilesDestination
from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import S3Server
from tests.support.servers.ports import free_ports
from tests.support.streams import Growing
from tests.support.waiting import until

pytestmark = pytest.mark.stores

_SAMPLE: Final = re.compile(r'lake_tailer_store_faults_total\{fault="(\w+)",store="lake",verb="(\w+)"\} (\S+)')


def is_list(request: Request) -> bool:
    """Return whether a request lists the log."""
    return "list-type=" in request.query


def is_commit(request: Request) -> bool:
    """Return whether a request reads a commit of the table."""
    return request.method == "GET" and bool(re.search(r"/t/_delta_log/\d{20}\.json$", request.path))


def is_file(request: Request) -> bool:
    """Return whether a request reads a data file."""
    return request.method == "GET" and request.path.endswith(".parquet")


def is_progress(request: Request) -> bool:
    """Return whether a request writes a commit of the state table."""
    return request.is_conditional_put


# The client makes three requests by itself, so a fault of four times reaches the pipeline.
FAULTS: Final[list[tuple[Fault, set[tuple[str, str]]]]] = [
    (Fault(is_file, 1, 503, "SlowDown"), {("get", "throttled")}),
    (Fault(is_file, 4, 503, "SlowDown"), {("get", "throttled")}),
    (Fault(is_commit, 4, 503, "SlowDown"), {("get", "throttled")}),
    (Fault(is_commit, 1, 500, "InternalError"), {("get", "server_error")}),
    (Fault(is_file, 2, is_lost=True), {("get", "connection")}),
    (Fault(is_commit, 1, is_lost=True), {("get", "connection")}),
    (Fault(is_file, 1, torn_at=9), {("get", "torn_body")}),
    (Fault(is_file, 3, torn_at=9), {("get", "torn_body")}),
    (Fault(is_commit, 1, torn_at=9), {("get", "torn_body")}),
    (Fault(is_list, 1, torn_at=9), {("list", "torn_body")}),
    (Fault(is_list, 1, 404), {("list", "not_found_once")}),
    (Fault(is_file, 1, 404, "NoSuchKey"), {("get", "not_found_once")}),
    (Fault(is_file, 1, 403, "ExpiredToken"), {("get", "expired_token")}),
    (Fault(is_commit, 2, 403, "ExpiredToken"), {("get", "expired_token")}),
    (Fault(is_file, 1, 412, "PreconditionFailed"), {("get", "conflict")}),
    (Fault(is_progress, 1, 409, "ConditionalRequestConflict"), {("put", "conflict")}),
    (Fault(is_progress, 1, 412, "PreconditionFailed"), {("put", "conflict")}),
    (Fault(is_progress, 4, 503, "SlowDown"), {("put", "throttled")}),
    (Fault(is_progress, 1, is_lost=True), {("put", "conflict"), ("put", "lost_answer")}),
    # All that the client sends.
    (Fault(is_progress, 6, is_lost=True), {("put", "connection"), ("put", "lost_answer")}),
]


@pytest.fixture
def link(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Link]:
    """A link before a server, with its login in the environment."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    with S3Link(versitygw) as link:
        yield link


@pytest.fixture
def start() -> Iterator[Callable[[Path], Daemon]]:
    """Start a daemon that is killed at the end of the test, if it still runs."""
    started: list[Daemon] = []

    def start(config: Path) -> Daemon:
        started.append(Daemon(config))
        started[-1].wait_until_running()
        return started[-1]

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()


def upload(link: S3Link, bucket: str, table: Growing, version: int) -> None:
    """Put a commit and its data file below `t`."""
    names = [f"_delta_log/{version:020d}.json"]
    if (table.path / f"{version}-0.parquet").exists():
        names.insert(0, f"{version}-0.parquet")
    for name in names:
        link.server.client.put_object(Bucket=bucket, Key=f"t/{name}", Body=(table.path / name).read_bytes())


def printed(daemon: Daemon) -> list[tuple[int, int]]:
    """Return version and id of every row that the daemon has printed."""
    lines = [line for line in daemon.said.splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n")]
    rows = [msgspec.json.decode(line) for line in lines]
    return [
        (row["_commit_version"], row["id"]) for row in rows if "_commit_version" in row
    ]  # a line of the log has none


def metrics(port: int) -> str:
    """Return the daemon's metrics."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def faults(port: int) -> dict[tuple[str, str], float]:
    """Return the daemon's number of faults by verb and fault."""
    return {(verb, fault): float(value) for fault, verb, value in _SAMPLE.findall(metrics(port))}


def committed(port: int) -> list[int]:
    """Return the number of inserted rows of each pipeline whose progress is written."""
    samples = re.findall(r'lake_tailer_rows_delivered_total\{[^}]*kind="insert"[^}]*\} (\S+)', metrics(port))
    return [int(float(value)) for value in samples]


def test_each_fault_is_counted(link: S3Link, tmp_path: Path, start: Callable[[Path], Daemon]) -> None:
    table, bucket = Growing(tmp_path / "t"), link.server.new_bucket()
    files = FilesDestination(tmp_path / "out", f"kept/{table.metadata['id']}")
    table.insert([0])
    for version in range(table.version + 1):
        upload(link, bucket, table, version)
    (port,) = free_ports(1)
    config = tmp_path / "tailer.toml"
    shared = f'table = "s3://{bucket}/t"\nstart = "earliest"\npoll_interval_s = 0.05\n'
    config.write_text(
        f'metrics = "127.0.0.1:{port}"\nstate_table = "s3://{bucket}/state"\n'
        f'[stores.lake]\nprefix = "s3://{bucket}"\nendpoint = "{link.endpoint}"\n'
        f"[pipelines.kept]\n{shared}[pipelines.kept.sink]\n{files.sink}"
        f'[pipelines.printed]\n{shared}[pipelines.printed.sink]\nkind = "stdout"\n'
    )
    daemon = start(config)
    until(lambda: committed(port) == [1, 1])
    assert not faults(port)
    for number, (fault, expected) in enumerate(FAULTS, 1):
        before = faults(port)
        link.faults = [fault]
        upload(link, bucket, table, table.insert([number]))

        def is_counted(fault: Fault = fault, expected: set[tuple[str, str]] = expected) -> bool:
            now = faults(port)
            return not fault.times and all(now.get(each, 0) > before.get(each, 0) for each in expected)  # noqa: B023

        until(is_counted)
        until(lambda: committed(port) == [len(table.rows())] * 2)
        assert set(printed(daemon)) == set(table.rows())
        link.faults = []
    assert daemon.terminate() == 0, daemon.said
    # Standard output has a row again if its progress could not be written, and not if only the answer was lost.
    doubled = Counter(printed(daemon)) - Counter(table.rows())
    assert {FAULTS[number - 1][0].status for _, number in doubled} <= {412, 503}
    assert [row[::2] for rows in files.transactions() for row in rows] == table.rows()

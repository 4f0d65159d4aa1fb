"""SIGKILL of the real daemon while its table is in S3 and requests fail at random: nothing is missing or duplicated.

The target is on this machine, or in S3 beside the table. A second pipeline keeps its progress in a state table in S3,
and delivers at least once.
"""

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final
from urllib.request import urlopen

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.support.daemon.commands import versions_delivered
from tests.support.daemon.kills import STDOUT, kill_while_busy, printed
from tests.support.daemon.process import Daemon, Delivered, DeltaDestination, Destination, FilesDestination
from tests.support.histories.long_history import LongHistory
from tests.support.histories.s3_history import S3History
from tests.support.s3.faults import FaultKind, FaultyS3Link
from tests.support.s3.link import Fault
from tests.support.s3.server import S3Server, download
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

pytestmark = pytest.mark.stores

KILLS: Final = 2
COMMITS: Final = 60


@pytest.fixture
def source(tmp_path: Path, versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3History:
    """A busy table in S3."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    return S3History(LongHistory(tmp_path / "source", 5, COMMITS), versitygw)


@pytest.fixture
def link(versitygw: S3Server) -> Iterator[FaultyS3Link]:
    """A link that fails now and then, without what takes a timeout."""
    with FaultyS3Link(versitygw, 5, 50, 0, {FaultKind.STALL, FaultKind.STALL_IN_BODY}) as link:
        yield link


class InS3Destination:
    """A target in S3, beside the source. It is read from a copy, made without the link."""

    kind: ClassVar[str]

    def __init__(self, server: S3Server, bucket: str, app_id: str, copies: Path) -> None:
        self.app_id = app_id
        self._server = server
        self._bucket = bucket
        self._copies = copies

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        return f'kind = "{self.kind}"\npath = "s3://{self._bucket}/target"\n'

    def copy(self) -> Path:
        """Return a new copy of the target."""
        folder = self._copies / uuid.uuid4().hex
        folder.mkdir(parents=True)
        download(self._server, self._bucket, "target", folder)
        return folder


class DeltaInS3Destination(InS3Destination):
    """The target of the delta sink."""

    kind = "delta"

    def reached(self) -> int:
        """See `Destination.reached`."""
        settings = {f"aws_{name}": value for name, value in self._login().items()}
        try:
            version = DeltaTable(f"s3://{self._bucket}/target", storage_options=settings).transaction_version(
                self.app_id
            )
        except TableNotFoundError:
            return -1
        return -1 if version is None else version

    def transactions(self) -> Iterator[Delivered]:
        """See `Destination.transactions`."""
        return DeltaDestination(self.copy(), self.app_id).transactions()

    def _login(self) -> dict[str, str]:
        server = self._server
        found = {"access_key_id": server.key, "secret_access_key": server.secret, "endpoint": server.endpoint}
        return found | {"region": "us-east-1", "allow_http": "true"}


class FilesInS3Destination(InS3Destination):
    """The folder of the files sink; each object leads to the next."""

    kind = "files"

    def reached(self) -> int:
        """See `Destination.reached`."""
        client = self._server.client
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix="target/")
        for key in sorted((entry["Key"] for page in pages for entry in page.get("Contents", ())), reverse=True):
            metadata = client.head_object(Bucket=self._bucket, Key=key)["Metadata"]
            # The server shows an object a moment before it has stored its metadata.
            if "lake-tailer-next" in metadata:
                return int(metadata["lake-tailer-next"]) - 1
        return -1

    def transactions(self) -> Iterator[Delivered]:
        """See `Destination.transactions`."""
        return FilesDestination(self.copy(), self.app_id).transactions()


def configure(tmp_path: Path, source: S3History, link: FaultyS3Link, there: Destination, port: int) -> Path:
    """Write the configuration, with metrics on a port: one pipeline to the target, and one to `stdout`."""
    path = tmp_path / "tailer.toml"
    pipeline = f'table = "{source.location}"\nstart = "earliest"\npoll_interval_s = 0.05\n'
    path.write_text(
        f'metrics = "127.0.0.1:{port}"\nstate_table = "s3://{source.bucket}/state"\n'
        f'[stores.lake]\nprefix = "s3://{source.bucket}"\nendpoint = "{link.endpoint}"\n'
        f"[pipelines.orders]\n{pipeline}[pipelines.orders.sink]\n{there.sink}"
        f"[pipelines.screen]\n{pipeline}sink = {STDOUT}\n"
    )
    return path


def errors(port: int) -> float:
    """Return the daemon's metric."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("lake_tailer_errors_total"))


@pytest.mark.parametrize(
    "kind",
    [FilesDestination, DeltaDestination, DeltaInS3Destination, FilesInS3Destination],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.sampled(3)
def test_killed_again_and_again(
    source: S3History, link: FaultyS3Link, tmp_path: Path, started: list[Daemon], kind: type
) -> None:
    app_id = f"orders/{source.history.table_id}"
    in_s3 = issubclass(kind, InS3Destination)
    where = (link.server, source.bucket, app_id, tmp_path / "copies") if in_s3 else (tmp_path / "target", app_id)
    there: Destination = kind(*where)
    (port,) = free_ports(1)
    config = configure(tmp_path, source, link, there, port)
    moments, reached = random.Random(5), []
    for _ in range(KILLS):
        started.append(Daemon(config))
        reached.append(kill_while_busy(started[-1], source, there, moments))
    source.publish(COMMITS)
    started.append(Daemon(config))
    started[-1].wait_until_running()
    started[-1].wait_until_reached(there, source.history.last)
    until(lambda: versions_delivered(config) == [str(source.history.last)] * 2)
    # A fault that lasts longer than each client tries is in the metrics.
    link.is_faulty = False
    counted = errors(port)
    link.faults.append(Fault(times=10_000, status=503, code="SlowDown"))
    until(lambda: errors(port) > counted)
    link.faults.clear()
    assert started[-1].terminate() == 0, started[-1].said
    assert printed(started) == set(source.history.changes)
    transactions = [[row[:3] for row in transaction] for transaction in there.transactions()]
    bounds = [bound for rows in transactions if rows for bound in (min(rows)[0], max(rows)[0])]
    assert bounds == sorted(bounds)
    assert Counter(row for rows in transactions for row in rows) == source.history.changes
    print(f"killed at versions {reached}; {link.injected.total()} faults")
    assert -1 < reached[0] < reached[-1] < source.history.last

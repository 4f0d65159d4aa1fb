"""SIGKILL of the real daemon while its table and its state table are in Google Cloud Storage or Azure.

The target is on this machine, or a Delta table beside the source.
"""

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tailer.stores.stores import Stores
from tests.support.cloud.servers import CloudServer
from tests.support.cloud.tables import download
from tests.support.daemon.commands import versions_delivered
from tests.support.daemon.kills import STDOUT, kill_while_busy, printed
from tests.support.daemon.process import Daemon, Delivered, DeltaDestination, Destination, FilesDestination
from tests.support.histories.long_history import LongHistory
from tests.support.histories.s3_history import StoredHistory
from tests.support.s3.link import Fault
from tests.support.waiting import until

pytestmark = pytest.mark.stores

KILLS: Final = 3
COMMITS: Final = 50


@pytest.fixture
def source(tmp_path: Path, cloud: CloudServer) -> StoredHistory:
    """A busy table in the store."""
    location = f"{cloud.new_bucket()}/lake/orders"
    history = LongHistory(tmp_path / "source", 7, COMMITS)
    return StoredHistory(history, location, lambda name, body: cloud.put(f"{location}/{name}", body))


class DeltaInCloudDestination:
    """The target of the delta sink, beside the source. Its rows are read from a copy."""

    def __init__(self, server: CloudServer, bucket: str, app_id: str, copies: Path) -> None:
        self.app_id = app_id
        self._server = server
        self._location = f"{bucket}/copy of orders"
        self._stores = Stores(((bucket, server.options),))
        self._copies = copies

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        return f'kind = "delta"\npath = "{self._location}"\n'

    def reached(self) -> int:
        """See `Destination.reached`."""
        settings = dict(self._stores.delta_rs_settings(self._location))
        try:
            version = DeltaTable(self._location, storage_options=settings).transaction_version(self.app_id)
        except TableNotFoundError:
            return -1
        return -1 if version is None else version

    def transactions(self) -> Iterator[Delivered]:
        """See `Destination.transactions`."""
        folder = self._copies / uuid.uuid4().hex
        download(self._server, self._location, folder)
        return DeltaDestination(folder, self.app_id).transactions()


def configure(tmp_path: Path, source: StoredHistory, cloud: CloudServer, there: Destination) -> Path:
    """Write the configuration of two pipelines: one keeps progress in its sink, and one in the state table."""
    path = tmp_path / "tailer.toml"
    pipeline = f'table = "{source.location}"\nstart = "earliest"\npoll_interval_s = 0.05\n'
    bucket = source.location.removesuffix("/lake/orders")
    path.write_text(
        f'state_table = "{bucket}/state"\n[stores.here]\nprefix = "{bucket}"\n'
        + "".join(f'{name} = "{value}"\n' for name, value in cloud.settings.items())
        + f"[pipelines.orders]\n{pipeline}[pipelines.orders.sink]\n{there.sink}"
        + f"[pipelines.screen]\n{pipeline}sink = {STDOUT}\n"
    )
    return path


@pytest.mark.parametrize("is_in_cloud", [False, True], ids=["files here", "delta there"])
@pytest.mark.sampled(4)
def test_killed_again_and_again(
    source: StoredHistory, cloud: CloudServer, tmp_path: Path, started: list[Daemon], is_in_cloud: bool
) -> None:
    """Deliver each row once where the sink has the progress, and at least once where the state table has it."""
    app_id, bucket = f"orders/{source.history.table_id}", source.location.removesuffix("/lake/orders")
    there: Destination = FilesDestination(tmp_path / "target", app_id)
    if is_in_cloud:
        there = DeltaInCloudDestination(cloud, bucket, app_id, tmp_path / "copies")
    config = configure(tmp_path, source, cloud, there)
    moments, reached = random.Random(7), []
    for number in range(KILLS):
        # Answers to commits of the state table and of the target are lost now and then.
        cloud.link.faults = [Fault(lambda request: request.is_conditional_put, times=number, is_lost=True)]
        started.append(Daemon(config))
        reached.append(kill_while_busy(started[-1], source, there, moments))
    source.publish(COMMITS)
    started.append(Daemon(config))
    started[-1].wait_until_running()
    started[-1].wait_until_reached(there, source.history.last)
    until(lambda: versions_delivered(config) == [str(source.history.last)] * 2)
    assert started[-1].terminate() == 0, started[-1].said
    assert printed(started) == set(source.history.changes)
    transactions = [[row[:3] for row in transaction] for transaction in there.transactions()]
    assert Counter(row for rows in transactions for row in rows) == source.history.changes
    print(f"killed at versions {reached}")
    assert -1 < reached[0] < reached[-1] < source.history.last

"""SIGKILL of the real daemon while its table and its state table are in Google Cloud Storage or Azure."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.cloud.servers import CloudServer
from tests.support.daemon.kills import STDOUT, kill_while_busy, printed, progress
from tests.support.daemon.process import Daemon, FilesDestination, until
from tests.support.histories.long_history import LongHistory
from tests.support.histories.s3_history import StoredHistory
from tests.support.s3.link import Fault

pytestmark = pytest.mark.stores

KILLS: Final = 3
COMMITS: Final = 50


@pytest.fixture
def source(tmp_path: Path, cloud: CloudServer) -> StoredHistory:
    """A busy table in the store."""
    location = f"{cloud.new_bucket()}/lake/orders"
    history = LongHistory(tmp_path / "source", 7, COMMITS)
    return StoredHistory(history, location, lambda name, body: cloud.put(f"{location}/{name}", body))


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    """The daemons of a test, all killed at its end."""
    found: list[Daemon] = []
    yield found
    for daemon in found:
        if daemon.process.poll() is None:
            daemon.process.kill()
            daemon.process.wait()


def configure(tmp_path: Path, source: StoredHistory, cloud: CloudServer, there: FilesDestination) -> Path:
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


def test_killed_again_and_again(
    source: StoredHistory, cloud: CloudServer, tmp_path: Path, daemons: list[Daemon]
) -> None:
    """Deliver each row once where the sink has the progress, and at least once where the state table has it."""
    there = FilesDestination(tmp_path / "target", f"orders/{source.history.table_id}")
    config = configure(tmp_path, source, cloud, there)
    moments, reached = random.Random(7), []
    for number in range(KILLS):
        # Answers to commits of the state table are lost now and then.
        cloud.link.faults = [Fault(lambda request: request.is_conditional_put, times=number, is_lost=True)]
        daemons.append(Daemon(config))
        reached.append(kill_while_busy(daemons[-1], source, there, moments))
    source.publish(COMMITS)
    daemons.append(Daemon(config))
    daemons[-1].wait_until_running()
    daemons[-1].wait_until_reached(there, source.history.last)
    until(lambda: progress(config) == [str(source.history.last)] * 2)
    assert daemons[-1].terminate() == 0, daemons[-1].said
    assert printed(daemons) == set(source.history.changes)
    transactions = [[row[:3] for row in transaction] for transaction in there.transactions()]
    assert Counter(row for rows in transactions for row in rows) == source.history.changes
    print(f"killed at versions {reached}")
    assert -1 < reached[0] < reached[-1] < source.history.last

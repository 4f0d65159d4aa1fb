"""SIGKILL of the real daemon while it mirrors a table into Delta: each version of the mirror is a version of the table.

The mirror is on this machine, or in S3. Updates of the history change keys. An operator orders a snapshot in between.
"""

from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tailer.daemon.client import DaemonClient
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tests.support.daemon.process import Daemon
from tests.support.histories.long_history import LongHistory
from tests.support.mirrors.long_history import HistoryMirror, kill_again_and_again
from tests.support.s3.server import S3Server

FEW_KILLS: Final = 3
# Kills on a landing, of a mirror that is plain, and of those that keep the past.
MODES: Final = {"": FEW_KILLS, 'deletes = "mark"': 2, 'mode = "history"': 2}
KILLS: Final = 20
COMMITS: Final = 120

# The client library forgets a Unix socket that nobody serves.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")


def write_config(path: Path, history: LongHistory, location: str, stores: str = "", past: str = "") -> None:
    pipeline = f'[pipelines.orders]\ntable = "{history.path}"\npoll_interval_s = 0.05\n'
    mode = past if "mode" in past else f'mode = "mirror"\n{past}'
    sink = f'kind = "delta"\npath = "{location}"\nkey = ["id"]\n{mode}\n'
    path.write_text(f"{stores}{pipeline}[pipelines.orders.sink]\n{sink}")


@pytest.mark.parametrize("past", MODES)
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_every_commit_is_a_version(tmp_path: Path, started: list[Daemon], past: str, is_long: bool) -> None:
    """Rows of the past are those of the source, too."""
    kills = KILLS if is_long else MODES[past]
    history = LongHistory(tmp_path / "source", seed=7, length=COMMITS if is_long or not past else COMMITS // 2)
    config, location = tmp_path / "tailer.toml", str(tmp_path / "mirror")
    write_config(config, history, location, past=past)
    mirror = HistoryMirror(location, history)
    check_each_commit(config, history, mirror, started, kills)
    mirror.check_past()


@pytest.mark.stores
def test_every_commit_in_s3_is_a_version(
    tmp_path: Path, started: list[Daemon], versitygw: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    history = LongHistory(tmp_path / "source", seed=8, length=COMMITS // 2)
    bucket = f"s3://{versitygw.new_bucket()}"
    config, location = tmp_path / "tailer.toml", f"{bucket}/mirror"
    stores = Stores(((bucket, S3Options(endpoint=versitygw.endpoint)),))
    store = f'[stores.lake]\nprefix = "{bucket}"\nendpoint = "{versitygw.endpoint}"\n'
    write_config(config, history, location, store)
    mirror = HistoryMirror(location, history, dict(stores.delta_rs_settings(location)))
    check_each_commit(config, history, mirror, started, FEW_KILLS)


def check_each_commit(
    config: Path, history: LongHistory, mirror: HistoryMirror, started: list[Daemon], kills: int
) -> None:
    """Kill daemons of a configuration while the history goes on, and check each commit of the mirror."""
    client = DaemonClient(socket=config.with_suffix(".sock"))
    order = partial(client.send, "orders", "resnapshot")
    kill_again_and_again(config, history, mirror, started, kills, order=order)
    for commit in range(mirror.commits()):
        mirror.version(commit)

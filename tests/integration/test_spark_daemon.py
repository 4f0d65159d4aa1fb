"""`tailer run` with an engine on Spark: the same rows, and a process that ends on request."""

import os
import signal
from pathlib import Path
from typing import Final

import pytest
from deltalake.exceptions import TableNotFoundError

from tests.support.daemon.commands import Orders, background
from tests.support.spark.configuration import configuration
from tests.support.waiting import until

pytestmark = pytest.mark.spark

WAIT_S = 600.0


def copied(orders: Orders, target: Path) -> bool:
    """Return whether every change is in the target."""
    try:
        return orders.copied_to(target) == sorted(orders.changes)
    except TableNotFoundError:
        return False


def java_children(pid: int) -> list[str]:
    """Return the running Java children of a process, by their commands."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            command = (status.parent / "comm").read_text().strip()
        except OSError:
            continue
        if int(fields[1]) == pid and command == "java":
            found.append(command)
    return found


READ_BY_EXECUTORS: Final = """
        [pipelines.read]
        table = "source"
        poll_interval_s = 0.1
        write = "driver"
        [pipelines.read.sink]
        kind = "delta"
        path = "target-read"
"""


def test_executors_write_or_read_and_the_driver_continues_after_them(tmp_path: Path) -> None:
    """Two pipelines of one daemon: one whose rows executors write, one whose rows executors only read."""
    orders = Orders(tmp_path / "source")
    orders.insert(*range(200))
    orders.delete(3, 4)
    config = configuration(tmp_path, "spark", "same")
    config.write_text(config.read_text() + READ_BY_EXECUTORS)
    with background("run", "--config", config, SPARK_LOCAL_IP="127.0.0.1") as daemon:
        until(lambda: copied(orders, tmp_path / "target-same") and copied(orders, tmp_path / "target-read"))
        orders.insert(1000)
        orders.delete(1000, 5)
        until(lambda: copied(orders, tmp_path / "target-same") and copied(orders, tmp_path / "target-read"))
        assert java_children(daemon.pid)
        daemon.send_signal(signal.SIGTERM)
        _, said = daemon.communicate(timeout=WAIT_S)
        assert daemon.returncode == 0, said
    assert "Spark at local[2] is up" in said
    orders.insert(2000)
    with background("run", "--config", configuration(tmp_path, "local", "same")) as daemon:
        until(lambda: copied(orders, tmp_path / "target-same"))
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(WAIT_S) == 0


def test_auto_starts_no_spark_for_small_versions(tmp_path: Path) -> None:
    orders = Orders(tmp_path / "source")
    orders.insert(1, 2)
    with background("run", "--config", configuration(tmp_path, "auto")) as daemon:
        until(lambda: copied(orders, tmp_path / "target-auto"))
        assert java_children(daemon.pid) == []
        os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.wait(WAIT_S) == 0

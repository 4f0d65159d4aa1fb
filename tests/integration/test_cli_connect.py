"""`tailer check --connect`: what can be reached, what cannot, and that nothing is written."""

from pathlib import Path

import pytest

from tests.support.daemon.commands import Orders, background, tailer
from tests.support.tables.log_files import commit_info, remove, write_commit
from tests.support.waiting import until

CONFIG = """
[pipelines.copy]
table = "orders"
sink = {kind = "files", path = "copy"}
"""
LOST = """
[pipelines.lost]
table = "tailer.toml"
sink = {kind = "files", path = "lost"}
"""


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Two versions of a table beside a configuration."""
    table = Orders(tmp_path / "orders")
    table.insert(1, 2)
    table.insert(3)
    return table


def test_tables_and_sinks_are_reached_and_left_alone(orders: Orders) -> None:
    config = orders.configured(CONFIG)
    done = tailer("check", "--connect", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, last = done.stdout.splitlines()
    assert first.startswith("ok     pipeline copy: ")
    reached = f"       reached version 1 of {orders.path}, and one of its files"
    assert second == f"{reached}; the sink has no progress"
    assert last == f"ok     {config}"
    assert sorted(path.name for path in config.parent.iterdir()) == ["orders", "tailer.toml"]
    with background("run", "--config", config) as daemon:
        until(lambda: _lag(config) == "0")
        daemon.terminate()
        daemon.communicate(timeout=300)
    _, second, _ = tailer("check", "--connect", "--config", config).stdout.splitlines()
    assert second == f"{reached}; the sink has everything to the end of version 1"


def test_what_cannot_be_reached_does_not_hide_the_rest(orders: Orders) -> None:
    config = orders.configured(LOST + CONFIG)
    done = tailer("check", "--connect", "--config", config)
    assert done.returncode == 3
    lost, reason, hint, copy, reached, verdict = done.stdout.splitlines()
    assert lost.startswith("failed pipeline lost: ")
    assert reason == f"       {config}: not a Delta table: it is a file, not a folder"
    assert hint == "       hint: Give the folder of a table."
    assert copy.startswith("ok     pipeline copy: ")
    assert reached.startswith("       reached version 1")
    assert verdict == f"failed {config}: 1 fault"


def test_files_are_opened(orders: Orders) -> None:
    config = orders.configured(CONFIG)
    for file in orders.path.glob("*.parquet"):
        file.write_bytes(b"PAR1 and nothing else PAR1")
    done = tailer("check", "--connect", "--config", config)
    assert done.returncode == 3
    first, reason, *_ = done.stdout.splitlines()
    assert first.startswith("failed pipeline copy: ")
    assert reason.startswith(f"       {orders.path}: version 1: {orders.path}/")


def test_a_table_without_a_file_to_try(orders: Orders) -> None:
    orders.delete(3)
    for file in orders.path.rglob("*.parquet"):
        file.unlink()
    done = tailer("check", "--connect", "--config", orders.configured(CONFIG))
    assert done.returncode == 0
    assert "whose newest version names no file that can be tried" in done.stdout


def test_versions_that_contradict_the_table_are_noted(orders: Orders) -> None:
    write_commit(orders.path, 2, commit_info(operation="DELETE"), remove("gone.parquet"))
    done = tailer("check", "--connect", "--config", orders.configured(CONFIG))
    assert (done.returncode, done.stderr) == (0, "")
    _, _, note, hint, _ = done.stdout.splitlines()
    reason = "it removes a file that was not in the table, or was with another deletion vector"
    assert note == f"       note: version 2: {reason}: {orders.path}/gone.parquet"
    assert 'start = "snapshot"' in hint


def test_faults_of_the_configuration_come_first(orders: Orders) -> None:
    done = tailer("check", "--connect", "--config", orders.configured(CONFIG.replace('"files"', '"fils"')))
    assert done.returncode == 2
    assert "reached" not in done.stdout


def _lag(config: Path) -> str:
    return tailer("progress", "show", "--config", config).stdout.split("\t")[-1].strip()

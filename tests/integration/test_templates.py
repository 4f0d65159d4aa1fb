"""Templates in the real daemon: tables come and go while it runs, is killed, and cannot list them."""

import random
import shutil
import time
from pathlib import Path
from typing import Final

import pytest
from deltalake.exceptions import TableNotFoundError

from tailer.daemon.client import DaemonClient
from tests.support.daemon.commands import Orders, background, states, tailer
from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.waiting import until

# The client library forgets a Unix socket that nobody serves.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")

TEMPLATE: Final = """
[defaults]
poll_interval_s = 0.1
discover_interval_s = 0.2
[pipelines.sales]
table = "lake/sales/*"
sink = {kind = "delta", path = "copies/{table}"}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of one template, whose folder of tables is empty."""
    (tmp_path / "lake/sales").mkdir(parents=True)
    (tmp_path / "t.toml").write_text(TEMPLATE)
    return tmp_path / "t.toml"


def table(config: Path, name: str) -> Orders:
    """A new table with one version."""
    made = Orders(config.parent / "lake/sales" / name)
    made.insert(1, 2, 3)
    return made


def copied(orders: Orders, config: Path) -> list[tuple[int, str, int]]:
    """Return the rows delivered so far."""
    try:
        return orders.copied_to(config.parent / "copies" / orders.path.name)
    except TableNotFoundError:
        return []


def test_tables_that_come_and_go_are_followed_and_retired(config: Path) -> None:
    orders = table(config, "orders")
    with background("run", "--config", config) as daemon:
        until(lambda: copied(orders, config) == orders.changes)
        items = table(config, "items")
        until(lambda: copied(items, config) == items.changes)
        assert set(states(config)) == {"sales/orders", "sales/items"}
        (config.parent / "lake/sales/no table").mkdir()
        shutil.rmtree(orders.path)
        until(lambda: set(states(config)) == {"sales/items"})
        items.insert(4)
        until(lambda: copied(items, config) == items.changes)
        assert tailer("pause", "sales/items", "--config", config).returncode == 0
        until(lambda: states(config) == {"sales/items": "paused"})
        assert tailer("resume", "sales/items", "--config", config).returncode == 0
        shutil.rmtree(items.path)
        until(lambda: states(config) == {} and daemon.poll() is None)
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 0
    assert "pipelines retired: sales/orders; 1 go on as they are" in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_tables_made_and_removed_at_random_while_the_daemon_is_killed(config: Path) -> None:
    chance = random.Random(5)
    tables: dict[str, Orders] = {}
    retired: list[Orders] = []
    for round_ in range(5):
        with background("run", "--config", config) as daemon:
            for number in range(4):
                name = f"t{round_}{number}"
                tables[name] = table(config, name)
                for each in chance.sample(sorted(tables), min(3, len(tables))):
                    tables[each].insert(100 * round_ + number, 1000 + 100 * round_ + number)
                time.sleep(chance.uniform(0, 0.4))
            retired.append(tables.pop(chance.choice(sorted(tables))))
            shutil.rmtree(retired[-1].path)
            time.sleep(chance.uniform(0, 0.6))
            daemon.kill()
            daemon.communicate()
    with background("run", "--config", config) as daemon:
        until(lambda: all(copied(each, config) == each.changes for each in tables.values()))
        until(lambda: set(states(config)) == {f"sales/{name}" for name in tables})
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 0, errors
    for gone in retired:
        rows = copied(gone, config)
        assert rows == gone.changes[: len(rows)]


def test_a_listing_that_fails_retires_nothing(config: Path) -> None:
    orders = table(config, "orders")
    folder, away = config.parent / "lake", config.parent / "unmounted"
    with background("run", "--config", config) as daemon:
        until(lambda: copied(orders, config) == orders.changes)
        folder.rename(away)
        assert daemon.stderr is not None
        assert any("sales: cannot list all tables" in line for line in daemon.stderr)
        assert set(states(config)) == {"sales/orders"}
        away.rename(folder)
        tailer("resume", "sales/orders", "--config", config)  # if it has stopped meanwhile
        orders.insert(9)
        until(lambda: copied(orders, config) == orders.changes)
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert "sales: tables can be listed again" in errors
    assert "retired" not in errors


def test_of_two_tables_with_one_target_the_second_is_refused(config: Path) -> None:
    text = TEMPLATE + '[pipelines.single]\ntable = "single"\nsink = {kind = "delta", path = "copies/orders"}\n'
    config.write_text(text)
    single = Orders(config.parent / "single")
    single.insert(7)
    with background("run", "--config", config):
        until(lambda: states(config) != {})
        orders, items = table(config, "orders"), table(config, "items")
        until(lambda: copied(items, config) == items.changes)
        until(lambda: states(config).get("sales/orders") == "stopped")
        report = DaemonClient(socket=config.with_suffix(".sock")).status()
        (refused,) = (each for each in report.pipelines if each.name == "sales/orders")
        assert f"{config.parent}/copies/orders is that of single too" in refused.why
        assert copied(orders, config) == single.changes


@pytest.mark.stores
def test_tables_in_s3(versitygw: S3Server, tmp_path: Path) -> None:
    """Discovery costs a listing for the folder, and one for each table when it is new."""
    bucket = versitygw.new_bucket()
    tables = [Orders(tmp_path / name) for name in ("orders", "items")]
    for each in tables:
        each.insert(1, 2)
    with S3Link(versitygw) as link:
        text = TEMPLATE.replace("lake/sales/*", f"s3://{bucket}/*")
        store = f'[stores.lake]\nprefix = "s3://{bucket}"\nendpoint = "{link.endpoint}"\n'
        (config := tmp_path / "t.toml").write_text(store + text)
        with background("run", "--config", config, **versitygw.environment) as daemon:
            for each in tables:
                RemoteTable.copied(each.path, versitygw, bucket)
                until(lambda each=each: copied(each, config) == each.changes)  # type: ignore[misc]
            began = len(link.requests)
            until(lambda: sum(_is_of_root(each) for each in link.requests[began:]) >= 5)
            asked = link.requests[began:]
            # The first version of each table is looked for by its pipeline, and nothing else.
            assert not [each for each in asked if each.query.endswith("_delta_log%2F")]
            link.faults.append(Fault(_is_of_root, times=10**6, status=503, code="SlowDown"))
            assert daemon.stderr is not None
            assert any("sales: cannot list all tables" in line for line in daemon.stderr)
            assert set(states(config)) == {"sales/orders", "sales/items"}


def _is_of_root(request: Request) -> bool:
    return "list-type=" in request.query and "_delta_log" not in request.query

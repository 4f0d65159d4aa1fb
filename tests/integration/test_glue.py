"""Tables that AWS Glue names, in moto's catalog, with their files in a real S3 server."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from deltalake.exceptions import TableNotFoundError

import tailer
from tailer.errors import NotATable
from tests.support.daemon.commands import Orders, background, states
from tests.support.daemon.commands import tailer as run
from tests.support.s3.glue import GlueServer, serving_glue
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.waiting import until

pytestmark = [
    pytest.mark.stores,
    # The client library forgets a Unix socket that nobody serves.
    pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning"),
]

SPARK: Final = {"spark__sql__sources__provider": "delta"}
PIPELINES: Final = """
[defaults]
poll_interval_s = 0.1
discover_interval_s = 0.2
[pipelines.all]
table = "glue://sales/sales_*"
sink = {kind = "delta", path = "copies/{table}"}
[pipelines.single]
table = "glue://sales/single"
sink = {kind = "delta", path = "copies/single"}
"""


@pytest.fixture
def glue(tmp_path: Path) -> Iterator[GlueServer]:
    """A catalog of its own."""
    with serving_glue(tmp_path) as server:
        yield server


@pytest.fixture
def variables(versitygw: S3Server, glue: GlueServer) -> dict[str, str]:
    """The environment through which both servers are found."""
    return {**versitygw.environment, "AWS_ENDPOINT_URL_GLUE": glue.endpoint}


def table(folder: Path, name: str, server: S3Server, bucket: str) -> Orders:
    """A new table with one version, copied into the bucket."""
    made = Orders(folder / name)
    made.insert(1, 2, 3)
    RemoteTable.copied(made.path, server, bucket)
    return made


def copied(orders: Orders, folder: Path) -> list[tuple[int, str, int]]:
    """Return the rows delivered so far."""
    try:
        return orders.copied_to(folder / "copies" / orders.path.name)
    except TableNotFoundError:
        return []


def test_tables_that_come_move_and_go(
    glue: GlueServer, versitygw: S3Server, variables: dict[str, str], tmp_path: Path
) -> None:
    bucket, config = versitygw.new_bucket(), tmp_path / "t.toml"
    config.write_text(f'[stores.glue]\nprefix = "glue://sales"\nendpoint = "{glue.endpoint}"\n{PIPELINES}')
    variables = {name: value for name, value in variables.items() if name != "AWS_ENDPOINT_URL_GLUE"}
    orders = table(tmp_path, "sales_orders", versitygw, bucket)
    glue.write("sales_orders", f"s3://{bucket}/sales_orders", table_type="DELTA")
    glue.write("sales_other", f"s3://{bucket}/sales_orders", table_type="ICEBERG")
    with background("run", "--config", config, **variables) as daemon:
        until(lambda: copied(orders, tmp_path) == orders.changes)
        assert states(config)["single"] == "waiting"
        assert "all/sales_other" not in states(config)
        # Each is written as another program writes it.
        items, single = (table(tmp_path, name, versitygw, bucket) for name in ("sales_items", "single"))
        glue.write("sales_items", "s3://w/sales_items-__PLACEHOLDER__", f"s3a://{bucket}/sales_items", **SPARK)
        glue.write("single", f"s3://{bucket}/single/", classification="delta")
        until(lambda: copied(items, tmp_path) == items.changes)
        until(lambda: copied(single, tmp_path) == single.changes)
        # An order to backfill is checked against the log at the location.
        ordered = run("backfill", "single", "--config", config, "--where", "colour = 'red'")
        assert (ordered.returncode, "at version 0" in ordered.stderr) == (2, True), ordered.stderr
        ordered = run("backfill", "single", "--config", config, "--where", "id = 1")
        assert ordered.returncode == 0, ordered.stderr
        single.changes.append((0, "insert", 1))
        until(lambda: copied(single, tmp_path) == sorted(single.changes))
        glue.remove("sales_orders")
        until(lambda: set(states(config)) == {"all/sales_items", "single"})
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 0, errors
    assert "Traceback" not in errors
    # A copy of a table has its id, so a pipeline goes on there after its progress.
    single.insert(4)
    other = versitygw.new_bucket()
    RemoteTable.copied(single.path, versitygw, other)
    glue.write("single", f"s3://{other}/single", classification="delta")
    with background("run", "--config", config, **variables):
        until(lambda: copied(single, tmp_path) == sorted(single.changes))
        shutil.rmtree(single.path)
        glue.write("sales_bad", "", **SPARK)
        until(lambda: states(config).get("all/sales_bad") == "stopped")
        assert states(config)["single"] != "stopped"


def test_commands_and_the_api(
    glue: GlueServer,
    versitygw: S3Server,
    variables: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, name = versitygw.new_bucket(), "glue://sales/orders"
    table(tmp_path, "orders", versitygw, bucket)
    glue.write("orders", f"s3n://{bucket}/orders", table_type="delta")
    glue.write("iceberg", f"s3://{bucket}/iceberg", table_type="ICEBERG")
    shown = run("tail", name, "--from", "earliest", "--to", "latest", "--format", "jsonl", cwd=None, **variables)
    assert [json.loads(line)["id"] for line in shown.stdout.splitlines()] == [1, 2, 3], shown.stderr
    planned = run("plan", name, "0", "--json", cwd=None, **variables)
    assert json.loads(planned.stdout)["table"] == f"s3://{bucket}/orders", planned.stderr
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert sorted(tailer.changes(name).to_arrow()["id"].to_pylist()) == [1, 2, 3]
    with pytest.raises(NotATable, match="Glue has no such table"):
        tailer.changes("glue://sales/none").to_arrow()
    (config := tmp_path / "t.toml").write_text(PIPELINES.replace("glue://sales/single", "glue://sales/iceberg"))
    checked = run("check", "--connect", "--config", config, cwd=None, **variables)
    assert "in Glue it is an Iceberg table" in checked.stdout
    assert checked.returncode == 3
    config.write_text(PIPELINES.replace("glue://sales/single", name))
    checked = run("check", "--connect", "--config", config, cwd=None, **variables)
    assert f"reached version 0 of s3://{bucket}/orders" in checked.stdout
    progress = json.loads(run("progress", "show", "--json", "--config", config, cwd=None, **variables).stdout)
    assert [(each["name"], each["table"]) for each in progress["pipelines"]] == [("single", name)]

"""Iceberg tables by their names in a catalog: a SQL catalog in SQLite, written by PyIceberg."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest
import requests
from pyiceberg import exceptions as theirs
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy import event

from tailer.config.pipelines import TablePattern
from tailer.config.settings import examine, load
from tailer.config.tables import TableRef
from tailer.daemon.fleet.discovery import find_tables
from tailer.errors import (
    ConfigError,
    NotATable,
    ObjectNotFound,
    StorageAccessRefused,
    StorageUnavailable,
    TailerError,
)
from tailer.formats.iceberg.catalogs import client as clients
from tailer.formats.iceberg.catalogs.client import read_properties, translate
from tailer.formats.registry import parse_table
from tailer.stores.stores import Stores
from tests.support.iceberg.catalogs import serving_hive

pytestmark = pytest.mark.anyio

SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])
NAME: Final = "iceberg://prod/sales.orders"


def rows(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": ids, "name": [f"n{one}" for one in ids]}, SCHEMA)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """The options of the catalog `prod`, with its address in a file."""
    (tmp_path / "uri").write_text(f"sqlite:///{tmp_path / 'catalog.db'}\n")
    return {"type": "sql", "uri": {"file": str(tmp_path / "uri")}}


@pytest.fixture
def stores(options: dict[str, Any]) -> Stores:
    """The stores of a configuration with the catalog."""
    return Stores(catalogs={"prod": options})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """The catalog, with the namespace `sales` and the table `orders` of one version."""
    uri, warehouse = f"sqlite:///{tmp_path / 'catalog.db'}", f"file://{tmp_path / 'warehouse'}"
    catalog = load_catalog("prod", type="sql", uri=uri, warehouse=warehouse)
    catalog.create_namespace("sales")
    catalog.create_table("sales.orders", SCHEMA).append(rows(1, 2))
    return catalog


async def planned(ref: TableRef, stores: Stores) -> list[tuple[int, int]]:
    """Return the versions from the first on, and the number of tasks of each."""
    log = (await ref.checked().located(stores)).open(stores)
    await log.seek(1)
    plans = []
    while (plan := await log.next_plan()) is not None:
        plans.append((plan.version, len(plan.tasks)))
    return plans


async def test_a_table_is_followed_and_each_look_is_one_statement(catalog: Catalog, stores: Stores) -> None:
    assert await planned(TableRef(NAME), stores) == [(1, 1)]
    located = await TableRef(NAME).checked().located(stores)
    log = located.open(stores)
    assert (located.location, located.has_catalog) == (log.uri, True)
    assert log.uri.endswith("/warehouse/sales/orders")
    await log.seek(2)
    statements: list[str] = []
    (client,) = [client for (name, _), client in clients._clients.items() if client._given is stores.catalogs["prod"]]
    engine: Any = client._catalog
    event.listen(engine.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert await log.next_plan() is None
    assert len(statements) == 1
    table = catalog.load_table("sales.orders")
    table.append(rows(3))
    table.delete("id = 1")
    for version in (2, 3):
        plan = await log.next_plan()
        assert plan is not None
        assert plan.version == version
    assert len(statements) == 2  # both versions by one look
    assert await log.table_id() == str(table.metadata.table_uuid)


@pytest.mark.usefixtures("catalog")
async def test_a_file_of_a_commit_that_failed_is_never_read(stores: Stores, tmp_path: Path) -> None:
    folder = tmp_path / "warehouse" / "sales" / "orders" / "metadata"
    newest = max(folder.glob("*.metadata.json"))
    newest.with_name(f"00009{newest.name[5:]}").write_text("{}")
    assert await planned(TableRef(NAME), stores) == [(1, 1)]
    with pytest.raises(NotATable, match="named by a catalog") as refused:
        await TableRef(str(folder.parent)).open().latest()
    assert "iceberg://CATALOG/NAMESPACE.TABLE" in refused.value.hint


@pytest.mark.parametrize("change", ["drop", "rename"])
async def test_a_table_that_goes_is_named(catalog: Catalog, stores: Stores, change: str) -> None:
    log = (await TableRef(NAME).checked().located(stores)).open(stores)
    await log.seek(2)
    if change == "drop":
        catalog.drop_table("sales.orders")
    else:
        catalog.rename_table("sales.orders", "sales.old")
    with pytest.raises(NotATable, match=r"prod/sales.orders: .*it was dropped or renamed"):
        await log.next_plan()
    with pytest.raises(NotATable, match="not an Iceberg table: the catalog has no such table"):
        await TableRef(NAME).checked().located(stores)


async def test_a_table_that_was_made_again_has_another_id(catalog: Catalog, stores: Stores, tmp_path: Path) -> None:
    log = (await TableRef(NAME).checked().located(stores)).open(stores)
    first = await log.table_id()
    await log.seek(2)
    catalog.drop_table("sales.orders")
    made = catalog.create_table("sales.orders", SCHEMA, location=f"file://{tmp_path / 'elsewhere'}")
    made.append(rows(7))
    plan = await log.next_plan()
    assert plan is not None
    assert (plan.table_id, plan.version) == (str(made.metadata.table_uuid), 1)
    assert plan.table_id != first


async def test_what_a_pattern_finds(catalog: Catalog, stores: Stores) -> None:
    catalog.create_table("sales.other", SCHEMA)
    for pattern, names in (("sales.*", {("sales.orders",), ("sales.other",)}), ("sales.or*", {("sales.orders",)})):
        parsed = TablePattern.parse(parse_table(f"iceberg://prod/{pattern}", Path("/"), ""))
        assert parsed is not None
        assert (await find_tables(parsed, stores)).tables == names
    parsed = TablePattern.parse("iceberg://prod/nowhere.*")
    assert parsed is not None
    assert [type(fault) for fault in (await find_tables(parsed, stores)).faults] == [ObjectNotFound]


def test_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config := tmp_path / "tailer.toml").write_text(
        """
        [catalogs.prod]
        type = "rest"
        uri = "http://127.0.0.1:1"
        token = {file = "token"}
        "rest.page-size" = 10
        [catalogs.prod.ssl]
        cabundle = {env = "BUNDLE"}
        [pipelines.orders]
        table = "ICEBERG://prod/sales.eu.orders"
        sink = {kind = "files", path = "out"}
        """
    )
    (tmp_path / "token").write_text("hidden\n")
    monkeypatch.setenv("BUNDLE", "/ca.pem")
    (orders,) = load(config).pipelines
    assert (orders.table, orders.source.table_format) == ("iceberg://prod/sales.eu.orders", "iceberg")
    given = orders.stores.catalogs["prod"]
    assert given["token"] == {"file": str(tmp_path / "token")}
    properties = read_properties("prod", given)
    assert (properties["token"], properties["rest.page-size"]) == ("hidden", "10")
    assert properties["ssl"] == {"cabundle": "/ca.pem"}
    monkeypatch.setenv("TAILER_CATALOGS__PROD__TOKEN", "by the environment")
    (other,) = load(config).pipelines
    assert other.differs(orders)
    assert "hidden" not in repr(other)
    assert "by the environment" not in repr(other)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("iceberg://prod", "not the name of a table"),
        ("iceberg://prod/orders", "not the name of a table"),
        ("iceberg:///sales.orders", "not the name of a table"),
        ("iceberg://prod/sales..orders", "not the name of a table"),
        ("iceberg://prod/sa*.orders", "in the name of a namespace"),
        ('iceberg://prod/sales.orders"\ntable_format = "delta', "only an Iceberg table"),
    ],
)
def test_names_that_are_refused(tmp_path: Path, table: str, reason: str) -> None:
    (config := tmp_path / "tailer.toml").write_text(
        f'[pipelines.p]\ntable = "{table}"\nsink = {{kind = "files", path = "out"}}\n'
    )
    (problem,) = examine(config).problems
    assert reason in problem.error.reason


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({}, ConfigError, "catalogs.other: there is no such catalog"),
        ({"type": "sql", "uri": {"file": "/no/such"}}, ConfigError, "/no/such cannot be read"),
        ({"type": "sql", "uri": {"file": 5}}, ConfigError, r"catalogs\.other\.uri: must be text"),
        ({"type": "sql", "uri": {"fil": "x"}}, ConfigError, "catalogs.other: cannot be used"),
        ({"type": "nothing", "uri": "x"}, ConfigError, "catalogs.other: cannot be used"),
        ({"type": "sql", "uri": "sqlite:////no/folder/c.db"}, StorageAccessRefused, "has no catalog"),
        ({"type": "sql", "uri": "sqlite://"}, StorageAccessRefused, "has no catalog"),
        ({"type": "rest", "uri": "http://127.0.0.1:1"}, StorageUnavailable, "the catalog other: ConnectionError"),
    ],
)
async def test_faults_are_named(given: Mapping[str, Any], kind: type[TailerError], words: str) -> None:
    ref = TableRef("iceberg://other/sales.orders").checked()
    with pytest.raises(kind, match=words):
        await ref.located(Stores(catalogs={"other": given}))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (theirs.UnauthorizedError("secret"), StorageAccessRefused, "refuses the login"),
        (theirs.OAuthError("secret"), StorageAccessRefused, "refuses the login"),
        (RuntimeError("password authentication failed for secret"), StorageAccessRefused, "refuses the login"),
        (theirs.ServiceUnavailableError("secret"), StorageUnavailable, "ServiceUnavailableError"),
        (requests.Timeout("secret"), StorageUnavailable, "Timeout"),
        (theirs.NotInstalledError("pip install 'pyiceberg[glue]'"), ConfigError, r"pyiceberg\[glue\]"),
        (ModuleNotFoundError("No module named 'thrift'"), ConfigError, "It lacks thrift"),
    ],
)
def test_errors_have_our_words(error: Exception, kind: type[TailerError], words: str) -> None:
    fault = translate(error, NAME, "prod")
    assert type(fault) is kind
    text = f"{fault}\n{fault.hint}"
    assert words.replace("\\", "") in text
    assert "secret" not in text


@pytest.mark.usefixtures("catalog")
async def test_a_catalog_that_hangs_takes_few_threads_and_no_longer_than_a_limit(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = clients.CatalogClient("prod", stores.catalogs["prod"])
    monkeypatch.setattr(clients, "_ANSWER_WITHIN_S", 0.1)
    monkeypatch.setattr(client, "_locate", lambda *_: time.sleep(1.0))
    for _ in range(4):
        with pytest.raises(StorageUnavailable, match=r"no answer in 0\.1 s"):
            await client.location(NAME, ("sales", "orders"))
    with pytest.raises(StorageUnavailable, match="4 requests have had no answer"):
        await client.location(NAME, ("sales", "orders"))
    await anyio.sleep(1.2)
    monkeypatch.undo()
    assert await client.location(NAME, ("sales", "orders")) is not None


async def test_looks_at_once_in_a_metastore_have_their_own_answers(tmp_path: Path) -> None:
    from hive_metastore import ttypes  # noqa: PLC0415 - slow

    names = [f"t{number}" for number in range(4)]
    with serving_hive(tmp_path) as options:
        load_catalog("prod", **options).create_namespace("sales")
        with load_catalog("prod", **options)._client as metastore:
            for name in names:
                values = {"table_type": "ICEBERG", "metadata_location": f"/{name}.metadata.json"}
                columns = ttypes.StorageDescriptor(cols=[])
                metastore.create_table(ttypes.Table(name, "sales", sd=columns, parameters=values, partitionKeys=[]))
        client = clients.CatalogClient("prod", options)

        async def look(name: str) -> None:
            for _ in range(50):
                location = await client.location(f"iceberg://prod/sales.{name}", ("sales", name))
                assert location == f"/{name}.metadata.json"

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(look, name)


def test_a_catalog_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        address = f"thrift://127.0.0.1:{server.getsockname()[1]}"
        catalog = {"PYICEBERG_CATALOG__PROD__TYPE": "hive", "PYICEBERG_CATALOG__PROD__URI": address}
        command = [sys.executable, "-m", "tailer", "tail", NAME]
        with subprocess.Popen(command, env={**os.environ, **catalog}) as process:
            try:
                with server.accept()[0]:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(10) in (0, 130)
            finally:
                process.kill()

"""Iceberg tables in catalogs of each kind, with servers: followed from their names, by one request for each look."""

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog

from tailer.config.tables import TableRef
from tailer.errors import NotATable
from tailer.formats.iceberg.catalogs import client as clients
from tailer.stores.port import in_thread
from tailer.stores.stores import Stores
from tests.support.daemon.commands import tailer as command
from tests.support.iceberg.catalogs import serving_glue_catalog, serving_hive, serving_rest
from tests.support.s3.server import S3Server
from tests.support.servers.postgres import USER, Postgres

pytestmark = [pytest.mark.stores, pytest.mark.anyio]

SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])
SERVERS: Final = {"rest": serving_rest, "glue": serving_glue_catalog, "hive": serving_hive}


def opened(options: Mapping[str, str], **more: str) -> Catalog:
    """Return a catalog of its own as a writer has it, with the namespace `sales`."""
    catalog = load_catalog(f"prod{uuid.uuid4().hex}", **options, **more)
    catalog.create_namespace_if_not_exists("sales")
    return catalog


def rows(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": ids, "name": [f"n{one}" for one in ids]}, SCHEMA)


@pytest.fixture(params=["postgresql", *SERVERS])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """The options of a catalog that a server has."""
    if request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        address = postgres.url.removeprefix("jdbc:postgresql://")
        yield {"type": "sql", "uri": f"postgresql+psycopg://{USER}@{address}"}
    else:
        with SERVERS[request.param](tmp_path) as served:
            yield served


@pytest.fixture
def catalog(options: Mapping[str, str], tmp_path: Path) -> Iterator[Catalog]:
    """The catalog, with the table `orders` of one version."""
    catalog = opened(options, warehouse=f"file://{tmp_path / 'warehouse'}")
    location = None if options["type"] == "rest" else f"file://{tmp_path / 'warehouse' / 'orders'}"
    catalog.create_table("sales.orders", SCHEMA, location).append(rows(1, 2))
    yield catalog
    catalog.close()
    for client in clients._clients.values():
        if client._catalog is not None:
            client._catalog.close()
    clients._clients.clear()


async def test_a_table_is_followed(
    options: Mapping[str, str], catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, table = Stores(catalogs={catalog.name: options}), await in_thread(catalog.load_table, "sales.orders")
    ref = TableRef(f"iceberg://{catalog.name}/sales.orders").checked()
    log = (await ref.located(stores)).open(stores)
    assert await log.table_id() == str(table.metadata.table_uuid)
    await log.seek(1)
    statuses: list[tuple[int, int]] = []
    send = requests.adapters.HTTPAdapter.send

    def noted(self: Any, *given: Any, **more: Any) -> Any:
        response = send(self, *given, **more)
        statuses.append((response.status_code, len(response.content)))
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", noted)
    versions = []
    for _ in range(3):
        while (plan := await log.next_plan()) is not None:
            versions.append(plan.version)
        statuses.clear()
        assert await log.next_plan() is None
        if options["type"] == "rest":
            assert statuses == [(304, 0)]
        await in_thread(table.append, rows(3))
    assert versions == [1, 2, 3]
    await in_thread(catalog.drop_table, "sales.orders")
    with pytest.raises(NotATable, match=r"an Iceberg table: .* dropped or renamed"):
        await log.next_plan()
    for missing in ("sales.orders", "nowhere.orders"):
        with pytest.raises(NotATable, match="the catalog has no such table"):
            await TableRef(f"iceberg://{catalog.name}/{missing}").checked().located(stores)


def test_commands_read_tables_in_s3(s3proxy: S3Server, tmp_path: Path) -> None:
    keys = {
        "s3.endpoint": s3proxy.endpoint,
        "s3.access-key-id": s3proxy.environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": s3proxy.environment["AWS_SECRET_ACCESS_KEY"],
        "s3.region": "us-east-1",
    }
    uri = f"sqlite:///{tmp_path / 'catalog.db'}"
    catalog = load_catalog("lake", type="sql", uri=uri, warehouse=f"s3://{s3proxy.new_bucket()}/lake", **keys)
    catalog.create_namespace("sales")
    tables = [catalog.create_table(f"sales.{name}", SCHEMA) for name in ("orders",)]
    for table in tables:
        table.append(rows(1, 2, 3))
        table.delete("id = 2")
    catalog.close()
    (config := tmp_path / "tailer.toml").write_text(
        f"""
        [catalogs.lake]
        type = "sql"
        uri = {{file = "uri"}}
        [stores.lake]
        prefix = "{table.location().rpartition("/sales")[0]}"
        endpoint = "{s3proxy.endpoint}"
        [pipelines.all]
        table = "iceberg://lake/sales.*"
        sink = {{kind = "files", path = "out/{{table}}"}}
        """
    )
    (tmp_path / "uri").write_text(uri)
    checked = command("check", "--connect", "--config", config, cwd=None, **s3proxy.environment)
    assert checked.returncode == 0, (checked.stdout, checked.stderr)
    catalogs = {"PYICEBERG_CATALOG__LAKE__TYPE": "sql", "PYICEBERG_CATALOG__LAKE__URI": uri}
    variables = {**s3proxy.environment, **catalogs}
    read = command("tail", "iceberg://lake/sales.orders", "--from", "earliest", "--to", "latest", cwd=None, **variables)
    assert read.returncode == 0, read.stderr
    assert "delete" in read.stdout
    examined = command("doctor", "iceberg://lake/sales.*", cwd=None, **variables)
    assert examined.returncode == 0, (examined.stdout, examined.stderr)

"""Catalogs of Iceberg tables on loopback ports, each with the namespace `sales`, which PyIceberg writes into.

REST is the server of Iceberg's own tests of conformity; Glue is moto; the metastore is a small server with the
interface of Hive's, by Thrift, over tables in memory.
"""

import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyspark

from tests.jars.where import jars
from tests.support.s3.glue import serving_glue
from tests.support.servers.ports import free_ports

__all__ = ["serving_glue_catalog", "serving_hive", "serving_rest"]

Options = Mapping[str, str]
_START_S: Final = 60.0


@contextmanager
def serving_rest(directory: Path) -> Iterator[Options]:
    """Run the REST catalog until the block is left. Raises `MissingJarsError`."""
    (port,) = free_ports(1)
    uri = f"http://127.0.0.1:{port}"
    spark = Path(pyspark.__file__).parent / "jars"
    shared = [*spark.glob("hadoop-client-*.jar"), *spark.glob("commons-logging-*.jar")]
    environment = {
        **os.environ,
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": f"file://{directory / 'warehouse'}",
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": "jdbc:sqlite::memory:",
    }
    path = os.pathsep.join(map(str, [*jars("iceberg-rest"), *shared]))
    main = "org.apache.iceberg.rest.RESTCatalogServer"
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", path, main]
    with (directory / "rest.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        ends_s = time.monotonic() + _START_S
        while not _answers(f"{uri}/v1/config"):
            is_starting = process.poll() is None and time.monotonic() < ends_s
            assert is_starting, (directory / "rest.log").read_text()
            time.sleep(0.1)
        yield {"type": "rest", "uri": uri}
    finally:
        process.kill()
        process.wait()


def _answers(uri: str) -> bool:
    with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(uri, timeout=2):
        return True
    return False


@contextmanager
def serving_glue_catalog(directory: Path) -> Iterator[Options]:
    """Run Glue until the block is left. It has the database `sales`."""
    with serving_glue(directory) as server:
        keys = {"glue.access-key-id": "any", "glue.secret-access-key": "any", "glue.region": "us-east-1"}
        yield {"type": "glue", "glue.endpoint": server.endpoint, **keys}


class _Metastore:
    """The calls of a metastore that catalogs of tables need."""

    def __init__(self, types: Any) -> None:
        self._types = types
        self._databases: dict[str, Any] = {}
        self._tables: dict[tuple[str, str], Any] = {}

    def create_database(self, database: Any) -> None:
        self._databases[database.name] = database

    def get_database(self, name: str) -> Any:
        if name not in self._databases:
            raise self._types.NoSuchObjectException(name)
        return self._databases[name]

    def create_table(self, tbl: Any) -> None:
        self._tables[tbl.dbName, tbl.tableName] = tbl

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        if (dbname, tbl_name) not in self._tables:
            raise self._types.NoSuchObjectException(tbl_name)
        return self._tables[dbname, tbl_name]

    def alter_table_with_environment_context(self, dbname: str, tbl_name: str, new_tbl: Any, _context: Any) -> None:
        self._tables[dbname, tbl_name] = new_tbl

    def drop_table(self, dbname: str, name: str, deleteData: bool) -> None:  # noqa: N803 - Hive's name
        del self._tables[dbname, name]

    def get_all_tables(self, db_name: str) -> list[str]:
        return [table for database, table in self._tables if database == db_name]

    def get_table_objects_by_name(self, dbname: str, tbl_names: list[str]) -> list[Any]:
        return [self._tables[dbname, name] for name in tbl_names]

    def lock(self, _request: Any) -> Any:
        return self._types.LockResponse(lockid=1, state=self._types.LockState.ACQUIRED)

    def unlock(self, _request: Any) -> None:
        pass


@contextmanager
def serving_hive(_directory: Path) -> Iterator[Options]:
    """Run a metastore in this process."""
    from hive_metastore import ThriftHiveMetastore, ttypes  # noqa: PLC0415 - slow
    from thrift.protocol import TBinaryProtocol  # noqa: PLC0415
    from thrift.server import TServer  # noqa: PLC0415
    from thrift.transport import TSocket, TTransport  # noqa: PLC0415

    (port,) = free_ports(1)
    socket = TSocket.TServerSocket("127.0.0.1", port)
    server = TServer.TThreadedServer(
        ThriftHiveMetastore.Processor(_Metastore(ttypes)),
        socket,
        TTransport.TBufferedTransportFactory(),
        TBinaryProtocol.TBinaryProtocolFactory(),
        daemon=True,
    )
    threading.Thread(target=server.serve, daemon=True).start()
    time.sleep(0.2)
    yield {"type": "hive", "uri": f"thrift://127.0.0.1:{port}"}
    socket.close()

"""Tables copied to a server of one of obstore's clouds."""

from pathlib import Path

from tailer.stores.stores import Stores
from tests.support.cloud.servers import CloudServer
from tests.support.s3.tables import RemoteTable

__all__ = ["copied", "upload"]


def copied(table: Path, server: CloudServer, bucket: str) -> RemoteTable:
    """Copy a local table, file by file, below its own name."""
    for file in sorted(path for path in table.rglob("*") if path.is_file()):
        upload(server, bucket, table, str(file.relative_to(table)))
    return RemoteTable(f"{bucket}/{table.name}", Stores(((bucket, server.options),)))


def upload(server: CloudServer, bucket: str, table: Path, name: str) -> None:
    """Copy one file of a local table."""
    server.put(f"{bucket}/{table.name}/{name}", (table / name).read_bytes())

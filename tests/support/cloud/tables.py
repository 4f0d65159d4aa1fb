"""Tables copied to a server of one of obstore's clouds, and back."""

from pathlib import Path

import obstore

from tailer.stores.cloud.clients import find_client
from tailer.stores.location import split_location
from tailer.stores.stores import Stores
from tests.support.cloud.servers import CloudServer
from tests.support.s3.tables import RemoteTable

__all__ = ["copied", "download", "upload"]


def copied(table: Path, server: CloudServer, bucket: str) -> RemoteTable:
    """Copy a local table, file by file, below its own name."""
    for file in sorted(path for path in table.rglob("*") if path.is_file()):
        upload(server, bucket, table, str(file.relative_to(table)))
    return RemoteTable(f"{bucket}/{table.name}", Stores(((bucket, server.options),)))


def upload(server: CloudServer, bucket: str, table: Path, name: str) -> None:
    """Copy one file of a local table."""
    server.put(f"{bucket}/{table.name}/{name}", (table / name).read_bytes())


def download(server: CloudServer, location: str, folder: Path) -> None:
    """Copy all objects below a location into a folder. Blocking."""
    found = split_location(location)
    assert found is not None
    store = find_client(found.root, server.options).store
    for each in obstore.list(store, found.key).collect():
        file = folder / each["path"].removeprefix(f"{found.key}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(obstore.get(store, each["path"]).bytes()))

"""A catalog of Glue on a loopback port, in moto's server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session

from tests.support.s3.queues import serving_sqs

__all__ = ["GlueServer", "serving_glue"]


@dataclass(frozen=True)
class GlueServer:
    """A running catalog with the database `database`."""

    endpoint: str
    client: Any
    database: str = "sales"

    def write(self, name: str, location: str, path: str | None = None, **parameters: str) -> None:
        """Add a table, or change it. `path`: as Spark keeps it. In parameters, `__` stands for a dot."""
        serde = {} if path is None else {"Parameters": {"path": path}}
        made = {key.replace("__", "."): value for key, value in parameters.items()}
        found = {
            "Name": name,
            "Parameters": made,
            "StorageDescriptor": {"Location": location, "Columns": [], "SerdeInfo": serde},
        }
        if name in self.names():
            self.client.update_table(DatabaseName=self.database, TableInput=found)
        else:
            self.client.create_table(DatabaseName=self.database, TableInput=found)

    def remove(self, name: str) -> None:
        """Remove a table from the catalog; its files stay."""
        self.client.delete_table(DatabaseName=self.database, Name=name)

    def names(self) -> list[str]:
        """Return the names of all tables."""
        return [each["Name"] for each in self.client.get_tables(DatabaseName=self.database)["TableList"]]


@contextmanager
def serving_glue(directory: Path) -> Iterator[GlueServer]:
    """Run the server, whose catalog has one empty database, until the block is left. Raises `ServerDownError`."""
    with serving_sqs(directory) as server:
        client = botocore.session.Session().create_client(
            "glue",
            region_name="us-east-1",
            endpoint_url=server.endpoint,
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )
        glue = GlueServer(server.endpoint, client)
        client.create_database(DatabaseInput={"Name": glue.database})
        yield glue
        client.close()

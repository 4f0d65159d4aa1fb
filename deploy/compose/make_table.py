"""Create the bucket and the table of `compose.yaml`, and commit to it: new rows, an update, a delete.

It runs again without harm: an existing table gets another round of commits.
"""

import os
from collections.abc import Iterable
from typing import Final

import botocore.session
import pyarrow as pa
from botocore.config import Config
from deltalake import DeltaTable, write_deltalake

BUCKET: Final = "lake"
TABLE: Final = f"s3://{BUCKET}/shop/orders"
# delta-rs asks for plain HTTP to be allowed; the commit is a PUT that the server refuses if the file exists.
OPTIONS: Final = {"AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag"}


def make_bucket() -> None:
    """Create the bucket unless it exists."""
    client = botocore.session.Session().create_client(
        "s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], config=Config(s3={"addressing_style": "path"})
    )
    if BUCKET not in [each["Name"] for each in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)


def insert(ids: Iterable[int]) -> None:
    """Commit new rows."""
    rows = [{"id": each, "customer": f"customer-{each}", "amount": 10.0 * each} for each in ids]
    write_deltalake(TABLE, pa.Table.from_pylist(rows), mode="append", storage_options=OPTIONS)


def main() -> None:
    """Make the table and one round of commits."""
    make_bucket()
    first = 1
    if DeltaTable.is_deltatable(TABLE, OPTIONS):
        rounds = (DeltaTable(TABLE, storage_options=OPTIONS).version() + 1) // 4
        first = 1 + 5 * rounds
    insert(range(first, first + 3))
    insert(range(first + 3, first + 5))
    table = DeltaTable(TABLE, storage_options=OPTIONS)
    table.update(updates={"amount": "amount + 1"}, predicate=f"id = {first + 1}")
    table.delete(f"id = {first + 3}")
    print(f"{TABLE}: version {table.version()}")


if __name__ == "__main__":
    main()

"""Locations as users write them."""

from pathlib import Path
from typing import Final

import pytest

from tailer.errors import ConfigError
from tailer.stores.cloud import AzureOptions, GcsOptions
from tailer.stores.location import is_local, parse_location, split_location
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tests.support.cases import cases

HOST: Final = "shop1.dfs.core.windows.net"


@cases(
    ("text", "expected"),
    [
        ("s3://lake/sales/orders", "s3://lake/sales/orders"),
        ("s3://lake/sales/orders/", "s3://lake/sales/orders"),
        ("s3a://lake/orders", "s3://lake/orders"),
        ("S3N://lake/orders", "s3://lake/orders"),
        ("s3://lake", "s3://lake"),
        ("s3://lake/", "s3://lake"),
        ("s3://lake/a b%20c/é+#?x=1", "s3://lake/a b%20c/é+#?x=1"),
        ("s3://lake/a//b", "s3://lake/a//b"),
        ("gs://lake/sales/orders/", "gs://lake/sales/orders"),
        ("GS://lake_1.example.com/a b%20c/é?x=1", "gs://lake_1.example.com/a b%20c/é?x=1"),
        ("gs://lake", "gs://lake"),
        (f"abfss://lake@{HOST}/sales/orders/", f"abfss://lake@{HOST}/sales/orders"),
        (f"abfs://lake@{HOST.upper()}/a%20b", f"abfss://lake@{HOST}/a%20b"),
        (f"abfss://$web@{HOST}", f"abfss://$web@{HOST}"),
        ("abfss://a-b@shop1.dfs.core.usgovcloudapi.net/t", "abfss://a-b@shop1.dfs.core.usgovcloudapi.net/t"),
        ("orders", "/top/orders"),
        ("file:///data/orders", "/data/orders"),
        ("/data/s3:x", "/data/s3:x"),
    ],
)
def test_locations(text: str, expected: str) -> None:
    found = parse_location(text, Path("/top"), "table")
    assert found == expected
    assert is_local(found) == expected.startswith("/")
    assert parse_location(found, Path("/elsewhere"), "table") == found


@cases(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("s3://", "'' is not the name of a bucket"),
        ("s3:///orders", "'' is not the name of a bucket"),
        ("s3://a/orders", "'a' is not the name of a bucket"),
        ("s3://key:word@lake/orders", "holds credentials"),
        ("s3://lake/../orders", "no object can be in"),
        ("s3://lake/a/./b", "no object can be in"),
        ("gs://", "'' is not the name of a bucket"),
        ("gs://Lake/orders", "'Lake' is not the name of a bucket"),
        ("gs://key:word@lake/orders", "holds credentials"),
        ("gs://lake/../orders", "no object can be in"),
        ("abfss://lake/orders", "'lake' is not container and account"),
        (f"abfss://{HOST}/orders", "is not container and account"),
        (f"abfss://Lake@{HOST}/orders", "is not container and account"),
        ("abfss://lake@shop1.example.com/orders", "is not container and account"),
        (f"abfss://lake:word@{HOST}/orders", "holds credentials"),
        (f"abfss://lake@{HOST}/orders?sv=2024&sig=secret", "holds credentials"),
        (f"abfss://lake@{HOST}/a/../b", "no object can be in"),
        ("az://lake/orders", "az:// is not a store"),
        (f"wasbs://lake@{HOST}/orders", "wasbs:// is not a store"),
        ("hdfs://host/secret", "hdfs:// is not a store"),
        ("s3+ddb://lake/orders.lance?ddbTableName=t", r"s3\+ddb:// is not a store"),
        ("file://elsewhere/orders", "is not a local path"),
    ],
)
def test_locations_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_location(text, Path("/top"), "TABLE")
    assert caught.value.where == "TABLE"
    assert caught.value.hint
    assert "word" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_objects_have_a_bucket_and_a_key() -> None:
    assert split_location("s3://lake/a/b%20c") == ("s3", "lake", "a/b%20c")
    assert split_location("s3a://lake/a") == ("s3", "lake", "a")
    assert split_location("s3://lake") == ("s3", "lake", "")
    assert split_location("gs://lake/a//b") == ("gs", "lake", "a//b")
    assert split_location(f"abfs://lake@{HOST}/a") == ("abfss", f"lake@{HOST}", "a")
    assert split_location("/data/s3://lake/a") is None
    assert split_location("hdfs://lake/a") is None


def test_the_longest_prefix_decides() -> None:
    lake, sales = S3Options(region="a"), S3Options(region="b")
    stores = Stores((("s3://lake", lake), ("s3://lake/sales", sales)))
    assert stores.options("s3://lake/sales/orders") == sales
    assert stores.options("s3://lake/sales") == sales
    assert stores.options("s3://lake/sales2/orders") == lake
    assert stores.options("s3://lake2/orders") == S3Options()
    assert stores.options("gs://lake/orders") == GcsOptions()
    assert stores.options(f"abfss://lake@{HOST}/orders") == AzureOptions()

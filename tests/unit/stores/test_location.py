"""Locations as users write them."""

from pathlib import Path

import pytest

from tailer.errors import ConfigError
from tailer.stores.location import bucket_and_key, is_local, parse_location
from tailer.stores.s3.options import S3Options
from tailer.stores.stores import Stores


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("s3://", "'' is not the name of a bucket"),
        ("s3:///orders", "'' is not the name of a bucket"),
        ("s3://a/orders", "'a' is not the name of a bucket"),
        ("s3://key:word@lake/orders", "holds credentials"),
        ("s3://lake/../orders", "no object can be in"),
        ("s3://lake/a/./b", "no object can be in"),
        ("gs://lake/orders", "gs:// is not a store"),
        ("abfss://lake@account.dfs.core.windows.net/orders", "abfss:// is not a store"),
        ("hdfs://host/secret", "hdfs:// is not a store"),
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
    assert bucket_and_key("s3://lake/a/b%20c") == ("lake", "a/b%20c")
    assert bucket_and_key("s3a://lake/a") == ("lake", "a")
    assert bucket_and_key("s3://lake") == ("lake", "")
    assert bucket_and_key("/data/s3://lake/a") is None
    assert bucket_and_key("gs://lake/a") is None


def test_the_longest_prefix_decides() -> None:
    lake, sales = S3Options(region="a"), S3Options(region="b")
    stores = Stores((("s3://lake", lake), ("s3://lake/sales", sales)))
    assert stores.options("s3://lake/sales/orders") == sales
    assert stores.options("s3://lake/sales") == sales
    assert stores.options("s3://lake/sales2/orders") == lake
    assert stores.options("s3://lake2/orders") == S3Options()

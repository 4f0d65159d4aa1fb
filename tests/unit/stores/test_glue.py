"""Names of tables in AWS Glue, what its entries say of a table, and its answers as ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from tailer.errors import (
    ConfigError,
    NotATable,
    ObjectNotFound,
    StorageAccessRefused,
    StorageError,
    StorageUnavailable,
    TailerError,
)
from tailer.formats.registry import parse_table
from tailer.stores.glue import GlueOptions, catalog, check_prefix, find_location, is_named, list_tables
from tailer.stores.glue.catalog import is_delta, location_of
from tests.support.cases import cases

pytestmark = pytest.mark.anyio

NAME: Final = "glue://sales/orders"
SYMLINK: Final = "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat"
SECRET: Final = "hush+hush/AlsoForTests"


def entry(location: str = "", path: str = "", **parameters: str) -> dict[str, Any]:
    """Return an entry of the catalog. In parameters, `__` stands for a dot."""
    made = {key.replace("__", "."): value for key, value in parameters.items()}
    serde = {"Parameters": {"path": path}} if path else {}
    return {"Name": "orders", "Parameters": made, "StorageDescriptor": {"Location": location, "SerdeInfo": serde}}


SPARK: Final = {"spark__sql__sources__provider": "delta"}


@cases(
    "found",
    [
        entry("s3://lake/orders", table_type="DELTA"),  # Athena
        entry("s3://lake/orders/", classification="delta", table_type="delta", **SPARK),  # a crawler
        entry("s3a://lake/orders", "s3://lake/orders", **SPARK),  # Spark
        entry("s3://warehouse/sales.db/orders-__PLACEHOLDER__", "s3n://lake/orders/", **SPARK),
        entry("s3://warehouse/sales.db/orders/-__PLACEHOLDER__", "s3://lake/orders", **SPARK),
        entry("", "s3://lake/orders", spark__sql__sources__provider="DELTA"),
        entry("s3://lake/orders", table_type="ICEBERG", metadata_location="s3://lake/m.json", **SPARK),  # UniForm
    ],
)
def test_locations_of_delta_tables(found: dict[str, Any]) -> None:
    assert is_delta(found)
    assert location_of(NAME, found) == "s3://lake/orders"


@cases(
    ("found", "reason", "remedy"),
    [
        (entry("s3://lake/orders", table_type="ICEBERG"), "in Glue it is an Iceberg table", "name of a Delta table"),
        (entry("s3://lake/o", spark__sql__sources__provider="iceberg"), "an Iceberg table", "name of a Delta table"),
        (entry("s3://lake/o", spark__sql__sources__provider="hudi"), "a Hudi table", "location in place of its name"),
        (entry("s3://lake/o", classification="parquet"), "a table of the kind 'parquet'", "location"),
        (entry("s3://lake/o"), "a table of an unknown kind", "location"),
        ({"Name": "orders"}, "a table of an unknown kind", "location"),
        ({"Name": "orders", "TableType": "VIRTUAL_VIEW"}, "it is a view", "location"),
        (
            {"Name": "orders", "TargetTable": {"DatabaseName": "other", "Name": "real"}},
            "a link to the table real of the database other",
            "location",
        ),
    ],
)
def test_other_tables_are_named(found: dict[str, Any], reason: str, remedy: str) -> None:
    assert not is_delta(found)
    with pytest.raises(NotATable, match=reason) as caught:
        location_of(NAME, found)
    assert NAME in str(caught.value)
    assert remedy in caught.value.hint


@pytest.mark.parametrize(
    "location", ["s3://lake/orders/_symlink_format_manifest", "s3://lake/orders/_symlink_format_manifest/"]
)
def test_a_symlink_manifest_is_refused(location: str) -> None:
    found = entry(location, classification="delta")
    assert not is_delta(found)
    with pytest.raises(NotATable, match="symlink manifest") as caught:
        location_of(NAME, found)
    assert caught.value.hint == "Give the location of the table: s3://lake/orders"
    found = entry("s3://elsewhere/manifests", **SPARK)
    found["StorageDescriptor"]["InputFormat"] = SYMLINK
    with pytest.raises(NotATable, match="symlink manifest"):
        location_of(NAME, found)


@cases(
    ("found", "reason"),
    [
        (entry(**SPARK), "no location"),
        (entry("s3://warehouse/orders-__PLACEHOLDER__", **SPARK), "no location"),
        (entry("dbfs:/orders", **SPARK), "not in a store"),
        (entry("file:/orders", **SPARK), "not in a store"),
        (entry(f"s3://key:{SECRET}@lake/orders", **SPARK), "holds credentials"),
        (entry("hdfs://host/orders", **SPARK), "hdfs:// is not a store"),
        (entry("s3://lake/orders", "s3://lake/items", **SPARK), "two locations"),
    ],
)
def test_delta_tables_without_a_usable_location_are_named(found: dict[str, Any], reason: str) -> None:
    assert is_delta(found)
    with pytest.raises(NotATable, match=reason) as caught:
        location_of(NAME, found)
    assert "in place of its name" in caught.value.hint
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_names() -> None:
    here = Path("/data")
    assert parse_table("GLUE://sales/my orders%20/", here, "table") == "glue://sales/my orders%20"
    assert parse_table("glue://sales/sales_*", here, "table") == "glue://sales/sales_*"
    assert is_named("glue://sales/orders")
    assert parse_table("s3a://lake/orders", here, "table") == "s3://lake/orders"
    assert parse_table("orders", here, "table") == "/data/orders"
    assert not is_named("/data/orders")
    assert check_prefix("Glue://sales/", "prefix") == "glue://sales"
    assert check_prefix("s3://lake", "prefix") is None


@cases(
    ("text", "reason"),
    [
        ("glue://", "not the name"),
        ("glue://sales", "not the name"),
        ("glue:///orders", "not the name"),
        ("glue://a/b/c", "not the name"),
        ("glue://sales/a\0b", "not the name"),
        ("glue://sales/" + "x" * 256, "not the name"),
        ("glue://*/orders", "name of a database"),
    ],
)
def test_wrong_names(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_table(text, Path("/"), "table")
    assert (caught.value.where, bool(caught.value.hint)) == ("table", True)


@pytest.mark.parametrize("text", ["glue://", "glue://sales/orders", "glue://sal*"])
def test_wrong_prefixes(text: str) -> None:
    with pytest.raises(ConfigError, match="not a database"):
        check_prefix(text, "prefix")


def answer(code: str, message: str = "as told") -> ClientError:
    """Make the error of an answer."""
    found = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return ClientError(found, "GetTable")


class Glue:
    """A client that gives these answers one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.retired = 0
        self.meta = SimpleNamespace(endpoint_url="https://glue.example:8000")
        monkeypatch.setattr(catalog, "loop_client", self.lend)

    @asynccontextmanager
    async def lend(self, options: object, service: str) -> AsyncIterator[Any]:
        """Lend it."""
        assert service == "glue"
        yield SimpleNamespace(client=self, credentials="with credentials from env", retire=self.retire)

    def retire(self) -> None:
        """Count."""
        self.retired += 1

    async def get_table(self, **request: str) -> Any:
        """Answer."""
        return self._answer("get_table", request)

    async def get_tables(self, **request: str) -> Any:
        """Answer."""
        return self._answer("get_tables", request)

    def _answer(self, operation: str, request: dict[str, str]) -> Any:
        self.requests.append((operation, request))
        if isinstance(found := self.answers.pop(0), Exception):
            raise found
        return found


async def test_the_location_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"Table": entry("s3a://lake/orders", **SPARK)}
    glue = Glue(monkeypatch, table, answer("ExpiredTokenException"), table, answer("EntityNotFoundException"))
    assert await find_location(NAME, GlueOptions()) == "s3://lake/orders"
    assert glue.requests == [("get_table", {"DatabaseName": "sales", "Name": "orders"})]
    assert await find_location(NAME, GlueOptions()) == "s3://lake/orders"
    assert glue.retired == 1
    assert await find_location(NAME, GlueOptions()) is None
    assert not glue.answers


async def test_the_tables_of_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [entry("s3://a/b", **SPARK) | {"Name": "a"}, entry("s3://a/c", table_type="ICEBERG") | {"Name": "b"}]
    pages = {"TableList": first, "NextToken": "more"}, {"TableList": [entry(**SPARK) | {"Name": "c"}]}
    glue = Glue(monkeypatch, *pages, answer("EntityNotFoundException"))
    assert await list_tables("glue://sales", GlueOptions()) == ["a", "c"]
    assert glue.requests[1] == ("get_tables", {"DatabaseName": "sales", "NextToken": "more"})
    with pytest.raises(ObjectNotFound, match="glue://sales"):
        await list_tables("glue://sales", GlueOptions())


@pytest.mark.parametrize(
    ("error", "kind", "text", "hint"),
    [
        (answer("AccessDeniedException"), StorageAccessRefused, "access to the database sales of Glue", "glue:GetTab"),
        (answer("InvalidInputException"), StorageAccessRefused, "InvalidInputException: as told", "name"),
        (answer("GlueEncryptionException"), StorageAccessRefused, "GlueEncryptionException", "options"),
        (answer("UnrecognizedClientException", SECRET), StorageAccessRefused, "access key", "AWS_ACCESS_KEY_ID"),
        (answer("InvalidSignatureException", SECRET), StorageAccessRefused, "secret key", "AWS_SECRET"),
        (answer("ThrottlingException"), StorageUnavailable, "ThrottlingException", "reachable"),
        (answer("InternalServiceException"), StorageUnavailable, "InternalServiceException", "reachable"),
        (NoCredentialsError(), StorageAccessRefused, "no credentials", "AWS_ACCESS_KEY_ID"),
        (EndpointConnectionError(endpoint_url=f"https://:{SECRET}@h"), StorageUnavailable, "glue.example:8000", ""),
    ],
)
async def test_refusals(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[StorageError], text: str, hint: str
) -> None:
    Glue(monkeypatch, error)
    with pytest.raises(TailerError, match=text) as caught:
        await find_location(NAME, GlueOptions())
    assert type(caught.value) is kind
    assert hint in caught.value.hint
    assert SECRET not in f"{caught.value} {caught.value.hint}"

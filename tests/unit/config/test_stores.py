"""The stores of a configuration: options by prefix, and that every fault is named with its key and a next step."""

import pickle
from pathlib import Path
from typing import Final

import pytest

from tailer.config.settings import examine, load
from tailer.stores.cloud import AzureOptions, GcsOptions
from tailer.stores.s3 import S3Options

PIPELINE = """
[pipelines.orders]
table = "s3a://lake/sales/orders/"
sink = {kind = "files", path = "copy"}
"""
AZURE: Final = "abfss://lake@shop1.dfs.core.windows.net"
STORE = """
[stores.lake]
prefix = "s3://lake"
endpoint = "http://127.0.0.1:9000"
"""


def written(folder: Path, text: str) -> Path:
    """Write a configuration with this text."""
    path = folder / "tailer.toml"
    path.write_text(text)
    return path


def test_a_table_has_the_options_of_its_prefix(tmp_path: Path) -> None:
    text = f"""
    {STORE}
    [stores.sales]
    prefix = "s3://lake/sales/"
    region = "eu-central-1"
    path_style = true
    profile = "sales"
    role_arn = "arn:aws:iam::123456789012:role/reader"
    external_id = "4711"
    requester_pays = true
    {PIPELINE}
    """
    (orders,) = load(written(tmp_path, text)).pipelines
    assert orders.table == "s3://lake/sales/orders"
    assert orders.stores.options(orders.table) == S3Options(
        region="eu-central-1",
        path_style=True,
        profile="sales",
        role_arn="arn:aws:iam::123456789012:role/reader",
        external_id="4711",
        requester_pays=True,
        name="sales",
    )
    assert orders.stores.options("s3://lake/other") == S3Options(endpoint="http://127.0.0.1:9000", name="lake")
    assert orders.stores.options("s3://elsewhere/other") == S3Options()


def test_each_cloud_has_options_of_its_own(tmp_path: Path) -> None:
    text = f"""
    [stores.google]
    prefix = "gs://lake"
    endpoint = "http://127.0.0.1:4443"
    service_account = "/run/key.json"
    [stores.azure]
    prefix = "{AZURE.upper().replace("LAKE", "lake")}"
    credential_type = "azure_cli"
    [stores.open]
    prefix = "{AZURE}/open"
    anonymous = true
    {PIPELINE}
    """
    stores = load(written(tmp_path, text)).stores
    assert stores.options("gs://lake/t") == GcsOptions("http://127.0.0.1:4443", "/run/key.json", name="google")
    assert stores.options(f"{AZURE}/t") == AzureOptions(credential_type="azure_cli", name="azure")
    assert stores.options(f"{AZURE}/open/t") == AzureOptions(anonymous=True, name="open")
    assert stores.options("gs://other/t") == GcsOptions()
    assert pickle.loads(pickle.dumps(stores)) == stores


def test_the_environment_sets_options_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILER_STORES__LAKE__ENDPOINT", "https://s3.example.com")
    monkeypatch.setenv("TAILER_STORES__LAKE__ANONYMOUS", "true")
    (orders,) = load(written(tmp_path, STORE + PIPELINE)).pipelines
    options = orders.stores.options(orders.table)
    assert options == S3Options(endpoint="https://s3.example.com", anonymous=True, name="lake")


@pytest.mark.parametrize("lines", ['engine = "auto"', 'engine = "spark"'])
def test_executors_may_read_a_store(tmp_path: Path, lines: str) -> None:
    found = load(written(tmp_path, f'{lines}\n[stores.lake]\nprefix = "s3://lake"\nprofile = "p"\n{PIPELINE}'))
    (orders,) = found.pipelines
    assert found.stores.options(orders.table) == S3Options(profile="p", name="lake")
    assert pickle.loads(pickle.dumps(orders.stores)) == found.stores


def test_a_state_table_may_be_in_a_store(tmp_path: Path) -> None:
    found = load(written(tmp_path, f'state_table = "s3a://lake/state/"\n{PIPELINE}'))
    assert found.state_table == "s3://lake/state"


@pytest.mark.parametrize("place", ["s3://lake/sales/orders", "s3://lake/sales", "s3a://lake/sales/orders/state"])
def test_a_state_table_is_apart_from_tables(tmp_path: Path, place: str) -> None:
    (problem,) = examine(written(tmp_path, f'state_table = "{place}"\n{PIPELINE}')).problems
    assert problem.error.where.endswith(": state_table")
    same = problem.error.reason == "s3://lake/sales/orders is pipelines.orders.table too"
    assert same or "nested in each other" in problem.error.reason


@pytest.mark.parametrize(
    ("lines", "key", "reason", "remedy"),
    [
        ("", "stores.lake.prefix", "is missing", 'prefix = "s3://lake"'),
        ('prefix = "/data"', "stores.lake.prefix", "is not in a store", "s3://BUCKET"),
        ('prefix = "az://lake"', "stores.lake.prefix", "az:// is not a store", "abfss://CONTAINER@ACCOUNT"),
        ('prefix = "gs://lake"\nregion = "x"', "stores.lake.region", "no option of a store at gs://", "Leave it out"),
        ('prefix = "gs://lake"\nservice_account = ""', "stores.lake.service_account", "is empty", "Leave it out"),
        ('prefix = "gs://lake"\nclient_secret = "hush"', "stores.lake.client_secret", "a secret", "environment"),
        ('prefix = "s3://lake"\nservice_account = "f"', "stores.lake.service_account", "store at s3://", "Leave it"),
        (f'prefix = "{AZURE}"\ncredential_type = "x"', "stores.lake.credential_type", "not a way", "azure_cli"),
        (f'prefix = "{AZURE}"\naccount_key = "hush"', "stores.lake.account_key", "a secret", "environment"),
        (
            f'prefix = "{AZURE}"\nanonymous = true\ncredential_type = "azure_cli"',
            "stores.lake.credential_type",
            "no effect",
            "Leave one",
        ),
        ('prefix = "s3://k:hush@lake"', "stores.lake.prefix", "holds credentials", "environment"),
        ('prefix = "s3://lake"\nendpoint = "minio:9000"', "stores.lake.endpoint", "is not an address", "http://"),
        ('prefix = "s3://lake"\nendpoint = "http://[::1"', "stores.lake.endpoint", "is not an address", "http://"),
        ('prefix = "s3://lake"\nendpoint = "https://k:hush@h"', "stores.lake.endpoint", "a password", "profile"),
        (
            'prefix = "s3://lake"\nnotifications = "commits"',
            "stores.lake.notifications",
            "is not an address",
            "https://sqs",
        ),
        (
            'prefix = "s3://lake"\nnotifications = "https://sqs.x/"',
            "stores.lake.notifications",
            "does not name",
            "https://sqs",
        ),
        (
            'prefix = "s3://lake"\nnotifications = "https://k:hush@h/1/q"',
            "stores.lake.notifications",
            "a password",
            "https",
        ),
        ('prefix = "s3://lake"\nsecret_access_key = "hush"', "stores.lake.secret_access_key", "secret", "AWS_SECRET"),
        ('prefix = "s3://lake"\nregoin = "x"', "stores.lake.regoin", "no such option", "Did you mean 'region'?"),
        ('prefix = "s3://lake"\nregion = ""', "stores.lake.region", "is empty", "Leave it out"),
        ('prefix = "s3://lake"\npath_style = "yes"', "stores.lake.path_style", "must be true or false", "quotes"),
        ('prefix = "s3://lake"\nexternal_id = "1"', "stores.lake.external_id", "without a role", "role"),
        ('prefix = "s3://lake"\nanonymous = true\nprofile = "p"', "stores.lake.profile", "no effect", "Leave one"),
        (
            'prefix = "s3://lake"\n[stores.b]\nprefix = "s3a://lake/"',
            "stores.b.prefix",
            "has another table",
            "Keep one",
        ),
    ],
)
def test_faults_are_named(tmp_path: Path, lines: str, key: str, reason: str, remedy: str) -> None:
    path = written(tmp_path, f"[stores.lake]\n{lines}\n{PIPELINE}")
    (problem,) = examine(path).problems
    assert problem.error.where == f"{path}: {key}"
    assert reason in problem.error.reason
    assert remedy in problem.error.hint
    assert "hush" not in str(problem.error) + problem.error.hint


def test_faults_of_stores_do_not_hide_each_other(tmp_path: Path) -> None:
    path = written(tmp_path, f'[stores]\na = 1\n[stores.b]\nprefix = 1\nendpoint = "x"\n{PIPELINE}')
    found = {problem.error.where.removeprefix(f"{path}: ") for problem in examine(path).problems}
    assert found == {"stores.a", "stores.b.prefix"}


@pytest.mark.parametrize(
    ("location", "library", "extra"),
    [("s3://lake/t", "aiobotocore", "s3"), ("gs://lake/t", "obstore", "gcs"), (f"{AZURE}/t", "obstore", "azure")],
)
def test_a_client_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, library: str, extra: str
) -> None:
    monkeypatch.setattr("tailer.stores.stores.find_spec", lambda wanted: None if wanted == library else object())
    text = f"""state_table = "{location}/state"
    [pipelines.orders]
    table = "{location}"
    sink = {{kind = "files", path = "{location}_copy", fromat = "csv"}}
    """
    found = [problem.error for problem in examine(written(tmp_path, text)).problems]
    assert [error.where.rpartition(": ")[2] for error in found] == [
        "state_table",
        "pipelines.orders.table",
        "pipelines.orders.sink.path",
        "pipelines.orders.sink.fromat",
    ]
    assert [f"lake-tailer[{extra}]" in error.hint for error in found] == [True, True, True, False]

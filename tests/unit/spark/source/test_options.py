"""The options of the data source: their meaning, and that every fault is named as the user writes the option."""

import pickle
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from tailer.changelog.rules import Carryovers, PairingRules
from tailer.config.options import faults_by, option_names
from tailer.config.shapes import RangeOptions
from tailer.config.tables import TableRef
from tailer.errors import ConfigError
from tailer.spark.source.admission import Budget
from tailer.spark.source.options import _OPTIONS, SourceOptions, read_options
from tailer.start import Start, StartKind
from tailer.stores.cloud import GcsOptions
from tailer.stores.s3 import S3Options
from tests.support.cases import cases


def options(**given: object) -> SourceOptions:
    """Parse Spark's dictionary of these options; the path is /data/orders."""
    return read_options(
        CaseInsensitiveDict({"path": "/data/orders", **{name: str(each) for name, each in given.items()}})
    )


def option_faults(name: str, value: str) -> list[ConfigError]:
    """Return what is wrong with one option beside the path."""
    return faults_by(partial(read_options, {"path": "/data/orders", name: value}))


def refused(**given: object) -> tuple[str, str, str]:
    """Return option, reason and remedy of the refusal."""
    with pytest.raises(ConfigError) as caught:
        options(**given)
    return caught.value.where, caught.value.reason, caught.value.remedy


def at(kind: StartKind, value: int = 0) -> Start:
    """Make a position in a table's history."""
    return Start(kind, value)


def test_everything_has_its_documented_default() -> None:
    found = options()
    assert found == SourceOptions(TableRef("/data/orders"))
    assert (found.start, found.end, found.read, found.app_id) == (None, None, RangeOptions(), None)
    assert found.budget == Budget(max_files=1000)
    assert found.rules == PairingRules(Carryovers.DROP, compute_updates=False, key=())
    assert not found.envelope


def test_everything_can_be_set() -> None:
    found = options(
        startingVersion=3,
        endingTimestamp="2026-03-01",
        maxFilesPerTrigger=7,
        maxBytesPerTrigger="64m",
        maxRowsPerTrigger=9,
        columns="id, `a,b`,`c``d` , total amount",
        carryovers="KEEP",
        computeUpdates=True,
        key="iD",
        skipUnchanged="true",
        schema="Envelope",
        appId="orders.eu-1",
        rowIds="true",
    )
    assert (found.start, found.end) == (at(StartKind.VERSION, 3), at(StartKind.TIMESTAMP, 1_772_323_200_000))
    assert found.budget == Budget(7, 64 * 2**20, 9)
    assert found.read.columns == ["id", "a,b", "c`d", "total amount"]
    assert found.rules == PairingRules(Carryovers.KEEP, compute_updates=True, key=("id",), skip_unchanged=True)
    assert (found.envelope, found.app_id, found.read.row_ids) == (True, "orders.eu-1", True)
    assert pickle.loads(pickle.dumps(found)) == found


def test_net_changes_may_have_a_key() -> None:
    found = options(netChanges="true", key="id")
    assert (found.read.net, found.rules.key, found.rules.compute_updates) == (True, ("id",), False)


@cases(
    ("given", "start"),
    [
        ({"startingVersion": "latest"}, at(StartKind.LATEST)),
        ({"startingVersion": "earliest"}, at(StartKind.EARLIEST)),
        ({"startingVersion": " 12 "}, at(StartKind.VERSION, 12)),
        ({"startingVersion": "tag:Daily-1"}, Start(StartKind.TAG, tag="Daily-1")),
        ({"startingVersion": "TAG:Daily-1"}, Start(StartKind.TAG, tag="Daily-1")),
        ({"snapshot": "TRUE"}, at(StartKind.SNAPSHOT)),
        ({"startingTimestamp": "1970-01-01 00:00:01.500"}, at(StartKind.TIMESTAMP, 1500)),
        ({"startingTimestamp": "1970-01-01 00:00:01"}, at(StartKind.TIMESTAMP, 1000)),
        ({"startingTimestamp": "1970-01-02"}, at(StartKind.TIMESTAMP, 86_400_000)),
        ({"startingTimestamp": "1970-01-01T01:00:01+01:00"}, at(StartKind.TIMESTAMP, 1000)),
        ({"startingTimestamp": "1970-01-01T00:00:01Z"}, at(StartKind.TIMESTAMP, 1000)),
    ],
)
def test_starts(given: dict[str, str], start: Start) -> None:
    assert options(**given).start == start


@cases(
    ("text", "size"),
    [("1", 1), ("100b", 100), ("2k", 2048), ("2KB", 2048), ("64m", 2**26), ("1 g", 2**30), ("1t", 2**40)],
)
def test_sizes_are_written_as_spark_writes_them(text: str, size: int) -> None:
    assert options(maxBytesPerTrigger=text).budget == Budget(max_bytes=size)


def test_one_limit_replaces_the_default() -> None:
    assert options(maxRowsPerTrigger=5).budget == Budget(max_rows=5)
    assert options(maxFilesPerTrigger=5, maxBytesPerTrigger=6).budget == Budget(5, 6)


@cases(
    ("text", "folder"),
    [
        ("/data/orders/", "/data/orders"),
        ("//data//orders", "/data/orders"),
        ("file:/data/orders", "/data/orders"),
        ("file:///data/../data/orders", "/data/orders"),
        ("FILE:/data/a%20b", "/data/a%20b"),
        ("/data/a%20b c#d?e", "/data/a%20b c#d?e"),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_paths_are_read_as_hadoop_reads_them(text: str, folder: str) -> None:
    assert read_options({"path": text}).table.location == folder


def test_relative_paths_are_relative_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_options({"path": "orders"}).table.location == str(tmp_path / "orders")
    assert read_options({"path": "./a:b"}).table.location == str(tmp_path / "a:b")


def test_a_list_of_one_path_is_that_path() -> None:
    assert read_options({"paths": '["/data/orders"]'}).table.location == "/data/orders"
    with pytest.raises(ConfigError, match="path: must be one table"):
        read_options({"paths": '["/a","/b"]'})


@cases(
    ("text", "reason"),
    [
        ("", "is missing or empty"),
        ("  ", "is missing or empty"),
        ("hdfs://bucket/secret", "hdfs: is neither a local path nor a store that can be read"),
        ("hdfs:/data", "hdfs: is neither a local path nor a store that can be read"),
        ("s3:/bucket/t", "s3: is neither a local path nor a store that can be read"),
        ("s3://key:secret@bucket/t", "holds credentials"),
        ("s3:///t", "'' is not the name of a bucket"),
        ("file:orders", "is not an absolute path on this machine"),
        ("file://host/orders", "is not an absolute path on this machine"),
    ],
)
def test_other_paths_are_refused(text: str, reason: str) -> None:
    where, said, remedy = refused(path=text)
    assert (where, said) == ("path", reason)
    assert remedy
    assert "secret" not in said


def test_a_missing_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="path: is missing or empty"):
        read_options({})


@cases(
    ("given", "where", "reason"),
    [
        ({"startingVersion": "1", "startingTimestamp": "2026-03-01"}, "startingTimestamp", "does not go with"),
        ({"endingVersion": "1", "endingTimestamp": "2026-03-01"}, "endingTimestamp", "does not go with"),
        ({"startingVersion": "-1"}, "startingVersion", "'-1' is not a version"),
        ({"startingVersion": "2026-03-01"}, "startingVersion", "is not a version"),
        ({"startingVersion": "snapshot"}, "startingVersion", "is not a version"),
        ({"startingVersion": str(2**63)}, "startingVersion", "is not a version"),
        ({"startingTimestamp": "20260301"}, "startingTimestamp", "is not a time"),
        ({"startingTimestamp": "latest"}, "startingTimestamp", "is not a time"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp", "is not a time"),
        ({"endingVersion": "earliest"}, "endingVersion", "is not a version"),
        ({"startingVersion": "tag:"}, "startingVersion", "'tag:' is not a version"),
        ({"startingTimestamp": "tag:daily"}, "startingTimestamp", "is not a time"),
        ({"startingVersion": "5", "endingVersion": "4"}, "endingVersion", "comes before startingVersion"),
        (
            {"startingTimestamp": "2026-03-02", "endingTimestamp": "2026-03-01"},
            "endingTimestamp",
            "comes before startingTimestamp",
        ),
        ({"snapshot": "true", "startingVersion": "1"}, "startingVersion", "does not go with snapshot"),
        ({"snapshot": "true", "endingVersion": "1"}, "endingVersion", "does not go with snapshot"),
        ({"snapshot": "yes"}, "snapshot", "must be true or false"),
        ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger", "must be a whole number above 0"),
        ({"maxRowsPerTrigger": "-5"}, "maxRowsPerTrigger", "must be a whole number above 0"),
        ({"maxRowsPerTrigger": "1.5"}, "maxRowsPerTrigger", "must be a whole number above 0"),
        ({"maxBytesPerTrigger": "0m"}, "maxBytesPerTrigger", "is not a size above 0"),
        ({"maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger", "is not a size above 0"),
        ({"maxBytesPerTrigger": "1.5g"}, "maxBytesPerTrigger", "is not a size above 0"),
        ({"maxBytesPerTrigger": "5x"}, "maxBytesPerTrigger", "is not a size above 0"),
        ({"columns": ""}, "columns", "has an empty name"),
        ({"columns": "a,,b"}, "columns", "has an empty name"),
        ({"columns": "a,"}, "columns", "has an empty name"),
        ({"columns": "`a"}, "columns", "half a pair of backticks"),
        ({"columns": "`a`b"}, "columns", "half a pair of backticks"),
        ({"columns": "a, A"}, "columns", "names 'a' twice"),
        ({"columns": "a, _change_type"}, "columns", "is not a column of the table"),
        ({"carryovers": "maybe"}, "carryovers", "is 'maybe', but must be 'drop' or 'keep'"),
        ({"schema": "json"}, "schema", "must be 'typed' or 'envelope'"),
        ({"netChanges": "true", "carryovers": "keep"}, "carryovers", "does not go with netChanges"),
        ({"key": "id"}, "key", "has no effect without computeUpdates"),
        ({"key": "id", "computeUpdates": "true", "columns": "a"}, "key", "is not one of columns"),
        ({"select": "id"}, "select", "is Spark's own work"),
        ({"appId": ""}, "appId", "must be a name"),
        ({"appId": "a/b"}, "appId", "must be a name"),
        ({"startingversoin": "1"}, "startingversoin", "no such option"),
        ({"filter": "a > 1"}, "filter", "no such option"),
    ],
)
def test_refusals_name_the_option_and_a_remedy(given: dict[str, str], where: str, reason: str) -> None:
    found, said, remedy = refused(**given)
    assert found == where
    assert reason in said
    assert remedy


@cases("text", ["null", "None", "", "1", "0", "yes", "t", "1.0"])
def test_only_true_and_false_are_booleans(text: str) -> None:
    for option in ("snapshot", "netChanges", "computeUpdates", "rowIds", "skipUnchanged"):
        assert refused(**{option: text}) == (option, f"is {text!r}, but must be true or false", "Give one of these.")


@cases(
    "text",
    ["null", "None", "", "0", "-1", "+1", "1.0", "1e3", "1_000", "0x10", "NaN", "٣", "true", str(2**63), "9" * 99],
)
def test_only_digits_are_counts(text: str) -> None:
    for option in ("maxFilesPerTrigger", "maxRowsPerTrigger"):
        reason = f"is {text!r}, but must be a whole number above 0"
        assert refused(**{option: text}) == (option, reason, "Give a value such as 1000.")


def test_counts_and_booleans_in_any_case() -> None:
    assert options(maxFilesPerTrigger=" 007 ").budget == Budget(max_files=7)
    assert options(maxRowsPerTrigger=2**63 - 1).budget == Budget(max_rows=2**63 - 1)
    assert options(netChanges="False", snapshot="fALSE").snapshot is False
    assert options(key="null", columns="null", netChanges="TRUE").read.columns == ["null"]


@cases("name", option_names(_OPTIONS))
def test_every_option_misspelled_or_with_a_strange_value_is_named(name: str) -> None:
    middle = next(at for at in range(len(name) // 2, -1, -1) if name[at].lower() != name[at + 1].lower())
    swapped = name[:middle] + name[middle + 1] + name[middle] + name[middle + 2 :]
    snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in name)
    for word in {swapped, f"{name}x", snake} - {name}:
        where, _, remedy = refused(**{word: "x"})
        assert (where, remedy) == (word.lower(), f"Did you mean {name!r}?")
    found = [option_faults(name, value) for value in ("", "\0", "x", "-1", "[[1]]", "1e400", "`", ",")]
    assert all(fault.hint for faults in found for fault in faults)


def test_a_near_miss_gets_a_suggestion_and_others_the_list() -> None:
    assert refused(paths="orders")[:2] == ("paths", "is not a list of paths in JSON")
    assert refused(password="x")[2].startswith("The options are: endpoint, anonymous, region, ")


def test_folders_outside_of_the_table() -> None:
    found = read_options({"path": "/t", "allowedRoots": "/origin, file:///other/raw", "startingVersion": "0"})
    assert found.table.allowed_roots == ("/origin", "/other/raw")
    with pytest.raises(ConfigError, match="allowedRoots: is missing or empty"):
        read_options({"path": "/t", "allowedRoots": "/origin,", "startingVersion": "0"})
    with pytest.raises(ConfigError, match="allowedRoots: hdfs: is neither"):
        read_options({"path": "/t", "allowedRoots": "hdfs://raw", "startingVersion": "0"})


@pytest.mark.parametrize("text", ["s3://lake/sales/orders", "S3A://lake/sales/orders/", " s3n://lake/sales/orders"])
def test_tables_in_a_store(text: str) -> None:
    found = options(path=text)
    assert found.table.location == "s3://lake/sales/orders"
    assert found.stores.options(found.table.location) == S3Options()
    assert options(path="s3://lake").table.location == "s3://lake"
    assert options(path="s3://lake/a%20b c#d?e").table.location == "s3://lake/a%20b c#d?e"


def test_the_options_of_a_store_are_those_of_the_table_and_its_roots() -> None:
    found = options(
        path="s3://lake/clone",
        allowedRoots="s3a://raw/orders, /data/other",
        endPoint="https://s3.example.com",
        region="eu-central-1",
        pathStyle="TRUE",
        profile="reader",
        roleArn="arn:aws:iam::123456789012:role/reader",
        externalId="4711",
        requesterPays="true",
    )
    assert found.table.allowed_roots == ("s3://raw/orders", "/data/other")
    given = S3Options(
        "https://s3.example.com",
        "eu-central-1",
        True,
        "reader",
        "arn:aws:iam::123456789012:role/reader",
        "4711",
        requester_pays=True,
    )
    assert found.stores.options("s3://lake/clone/file") == given
    assert found.stores.options("s3://raw/orders/file") == given
    assert found.stores.options("s3://raw/others/file") == S3Options()
    assert pickle.loads(pickle.dumps(found)) == found
    google = options(path="gs://lake/t", allowedRoots="s3://raw/t", serviceAccount="/key.json", region="r")
    assert google.stores.options("gs://lake/t/file") == GcsOptions(service_account="/key.json")
    assert google.stores.options("s3://raw/t/file") == S3Options(region="r")
    anonymous = options(path="s3://open/t", anonymous="true")
    assert anonymous.stores.options(anonymous.table.location) == S3Options(anonymous=True)


@pytest.mark.parametrize("name", ["accessKeyId", "secretAccessKey", "SESSIONTOKEN", "fs.s3a.secret.key"])
def test_secrets_are_refused_and_not_shown(name: str) -> None:
    where, reason, remedy = refused(path="s3://lake/t", **{name: "hush"})
    assert (where.lower(), reason) == (name.lower(), "would be a secret in Spark's plans")
    assert "AWS_SECRET_ACCESS_KEY in the environment of the driver and of all executors" in remedy
    assert "hush" not in where + reason + remedy


@cases(
    ("given", "where", "reason"),
    [
        ({"endpoint": "https://k:hush@s3.example.com"}, "endpoint", "holds a user or a password"),
        ({"endpoint": "minio:9000"}, "endpoint", "is not an address"),
        ({"region": ""}, "region", "is empty"),
        ({"externalId": "1"}, "externalId", "has no effect without a role"),
        ({"anonymous": "true", "roleArn": "r"}, "roleArn", "has no effect with anonymous = true"),
        ({"pathStyle": "yes"}, "pathStyle", "is 'yes', but must be true or false"),
        ({"credentialType": "azure_cli"}, "credentialType", "is no option of a store at s3://"),
        ({"path": "gs://lake/t", "region": "r"}, "region", "is no option of a store at gs://"),
        ({"path": "/data/t", "serviceAccount": "p"}, "serviceAccount", "is of no use: the table is on a local disk"),
        ({"path": "/data/t", "profile": "p"}, "profile", "is of no use: the table is on a local disk"),
        ({"path": "/data/t", "requesterPays": "true"}, "requesterPays", "is of no use"),
    ],
)
def test_faults_of_a_store_are_named(given: dict[str, str], where: str, reason: str) -> None:
    found, said, remedy = refused(**{"path": "s3://lake/t", **given})
    assert found == where
    assert said.startswith(reason)
    assert remedy
    assert "hush" not in said + remedy


def test_a_table_made_with_sql_is_refused() -> None:
    """Spark passes its options to `schema`, with some of its own, and none of them to the reader."""
    with pytest.raises(ConfigError, match="CREATE TABLE: ") as caught:
        read_options({"path": "file:/x", "location": "file:/x", "provider": "tailer", "owner": "me", "option.a": "1"})
    assert "CREATE TEMPORARY VIEW" in caught.value.remedy


def test_a_batch_needs_a_start() -> None:
    for given in ({}, {"snapshot": "false"}, {"endingVersion": "3"}):
        with pytest.raises(ConfigError, match="startingVersion: is missing") as caught:
            options(**given).check_batch()
        assert "snapshot = true" in caught.value.remedy
    with pytest.raises(ConfigError, match="latest means after the newest version"):
        options(startingVersion="latest").check_batch()
    for each in ({"startingVersion": 0, "endingVersion": "latest"}, {"snapshot": "true"}):
        options(**each).check_batch()


def test_a_stream_without_a_start_begins_with_a_snapshot_by_default() -> None:
    options().check_stream()
    options(startingVersion="latest", endingVersion=9, snapshot="false").check_stream()
    with pytest.raises(ConfigError, match="snapshot: is false"):
        options(snapshot="false").check_stream()
    with pytest.raises(ConfigError, match="an end needs a start"):
        options(endingVersion=9).check_stream()


def test_columns_are_spelled_as_the_table_spells_them() -> None:
    found = options(columns="ID, Amount", key="iD", computeUpdates=True).spelled_as(["id", "other", "AMOUNT"])
    assert (found.read.columns, found.rules.key) == (["id", "AMOUNT"], ("id",))
    with pytest.raises(ConfigError, match="columns: no column 'amout'") as caught:
        options(columns="amout").spelled_as(["id", "Amount"])
    assert caught.value.remedy == "The columns are: id, Amount. Did you mean 'Amount'?"


def test_the_format_and_the_branch() -> None:
    found = options(tableFormat="Lance", branch="dev")
    assert (found.table.table_format, found.table.branch) == ("lance", "dev")
    assert options(branch="dev").table.table_format == "lance"
    with pytest.raises(ConfigError, match="branch: is given, but a Delta table has no branches"):
        options(tableFormat="delta", branch="dev")
    with pytest.raises(ConfigError, match="tableFormat: 'hudi' is no format of a table"):
        options(tableFormat="hudi")

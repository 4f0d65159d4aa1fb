"""The configuration: valid values, precedence, and that every fault is named with its key and a next step."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailer.config.file import read_file
from tailer.config.pipelines import Settings
from tailer.config.settings import examine, load
from tailer.config.shapes import EngineKind, SparkSettings, Writers
from tailer.errors import ConfigError
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange, Policy
from tailer.start import Start, StartKind
from tailer.stores.folders import local_folder
from tests.support.cases import cases

PIPELINE = """
[pipelines.orders]
table = "orders"
sink = {kind = "delta", path = "copy"}
"""

SPARK = f'engine = "spark"\n{PIPELINE}write = "executors"\n'
KAFKA = SPARK.replace('{kind = "delta", path = "copy"}', '{kind = "kafka", bootstrap_servers = "h:1", topic = "t"}')
CLUSTER = '\n[spark]\nmaster = "spark://h:7077"\n'
STDOUT = SPARK.replace('{kind = "delta", path = "copy"}', '{kind = "stdout"}')


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own variables."""
    for name in ("TAILER_STATE_TABLE", "TAILER_DRAIN_S", "TAILER_PIPELINES", "TAILER_ENGINE", "TAILER_SPARK"):
        monkeypatch.delenv(name, raising=False)


def written(folder: Path, text: str) -> Path:
    """Write a configuration with this text."""
    path = folder / "tailer.toml"
    path.write_text(text)
    return path


def settings(folder: Path, text: str) -> Settings:
    """Read the settings."""
    return load(written(folder, text))


def problems(folder: Path, text: str) -> list[tuple[str, str, str]]:
    """Return key, reason and remedy of every fault."""
    path = written(folder, text)
    errors = [problem.error for problem in examine(path).problems]
    return [(error.where.removeprefix(f"{path}: "), error.reason, error.remedy) for error in errors]


def one_problem(folder: Path, text: str) -> tuple[str, str, str]:
    """Return the only fault."""
    found = problems(folder, text)
    assert len(found) == 1, found
    return found[0]


def test_everything_has_its_documented_default(tmp_path: Path) -> None:
    found = settings(tmp_path, PIPELINE)
    assert (found.state_table, found.drain_s) == (None, 30.0)
    (orders,) = found.pipelines
    assert (orders.name, orders.table, orders.target) == ("orders", str(tmp_path / "orders"), str(tmp_path / "copy"))
    assert (orders.start, orders.policy.columns, orders.poll_interval_s) == (Start(StartKind.EARLIEST), (), 1.0)
    assert (orders.limits.idle_poll_interval_s, orders.limits.max_polls_per_hour) == (10.0, 7200)
    assert (orders.sink_kind, orders.sink_options) == ("delta", {"path": str(tmp_path / "copy")})
    assert orders.policy == Policy((), False, OnSchemaChange.EVOLVE, OnDataLoss.FAIL)
    assert found.metrics is None


def test_everything_can_be_set(tmp_path: Path) -> None:
    text = """
    state_table = "~/state"
    drain_s = 2
    [pipelines."orders.eu-1"]
    table = "/data/../data/orders"
    start = "snapshot"
    columns = ["id", "amount"]
    row_ids = true
    on_schema_change = "fail"
    on_data_loss = "skip-with-gap-event"
    poll_interval_s = 0.5
    [pipelines."orders.eu-1".sink]
    kind = "stdout"
    format = "jsonl"
    """
    found = settings(tmp_path, text)
    assert (found.state_table, found.drain_s) == (str(Path.home() / "state"), 2.0)
    (orders,) = found.pipelines
    assert (orders.name, orders.table, orders.target) == ("orders.eu-1", "/data/orders", None)
    assert (orders.start.kind, orders.policy.columns, orders.poll_interval_s) == (
        StartKind.SNAPSHOT,
        ("id", "amount"),
        0.5,
    )
    assert orders.sink_options == {"format": "jsonl"}
    assert orders.policy == Policy(("id", "amount"), True, OnSchemaChange.FAIL, OnDataLoss.SKIP)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ('"latest"', Start(StartKind.LATEST)),
        ("12", Start(StartKind.VERSION, 12)),
        ('"12"', Start(StartKind.VERSION, 12)),
        ('"1970-01-01T00:00:01"', Start(StartKind.TIMESTAMP, 1000)),
        ("1970-01-01T01:00:01+01:00", Start(StartKind.TIMESTAMP, 1000)),
        ("1970-01-02", Start(StartKind.TIMESTAMP, 86_400_000)),
    ],
)
def test_a_start_may_be_text_or_what_toml_has_for_it(tmp_path: Path, start: str, expected: Start) -> None:
    (orders,) = settings(tmp_path, PIPELINE + f"start = {start}").pipelines
    assert orders.start == expected


def test_paths_are_relative_to_the_file_not_to_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, PIPELINE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (orders,) = load(Path("../tailer.toml")).pipelines
    assert (orders.table, orders.target) == (str(tmp_path / "orders"), str(tmp_path / "copy"))
    for kind in ("sqlite", "duckdb"):
        sink = f'{{kind = "sql", url = "{kind}:///shop.db"}}'
        written(tmp_path, f'[pipelines.orders]\ntable = "orders"\nsink = {sink}\n')
        (orders,) = load(Path("../tailer.toml")).pipelines
        assert orders.sink_options["url"] == f"{kind}:///{tmp_path}/shop.db"


def test_options_of_a_sink_that_are_paths_are_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILER_PIPELINES__ORDERS__SINK__HEADERS__AUTHORIZATION", "Bearer hush")
    sink = '{kind = "http", url = "https://h/", dead_letter_folder = "refused", headers = {X-A = {file = "a"}}}'
    text = 'state_table = "state"\n' + PIPELINE.replace('{kind = "delta", path = "copy"}', sink)
    (orders,) = settings(tmp_path, text).pipelines
    assert orders.sink_options == {
        "url": "https://h/",
        "dead_letter_folder": str(tmp_path / "refused"),
        "headers": {"X-A": {"file": str(tmp_path / "a")}, "authorization": "Bearer hush"},
    }
    assert "hush" not in repr(orders)


def test_nothing_is_read_but_the_file(tmp_path: Path) -> None:
    settings(tmp_path, PIPELINE)
    assert [path.name for path in tmp_path.iterdir()] == ["tailer.toml"]


def test_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILER_DRAIN_S", "7")
    monkeypatch.setenv("TAILER_STATE_TABLE", "state")
    monkeypatch.setenv("TAILER_PIPELINES__ORDERS_EU__START", "12")
    monkeypatch.setenv("TAILER_PIPELINES__ORDERS_EU__COLUMNS", '["id"]')
    monkeypatch.setenv("tailer_pipelines__orders_eu__sink__path", "/elsewhere")
    found = settings(tmp_path, PIPELINE.replace("orders]", '"Orders-EU"]'))
    assert (found.drain_s, found.state_table) == (7.0, str(tmp_path / "state"))
    (orders,) = found.pipelines
    assert (orders.name, orders.start.value, orders.policy.columns) == ("Orders-EU", 12, ("id",))
    assert (orders.target, orders.table) == ("/elsewhere", str(tmp_path / "orders"))


@pytest.mark.parametrize(
    ("name", "value", "where", "reason", "remedy"),
    [
        ("TAILER_DRAIN_S", "soon", "TAILER_DRAIN_S", "must be a finite number", ""),
        ("TAILER_DRIAN_S", "1", "TAILER_DRIAN_S", "is not a setting", "Did you mean TAILER_DRAIN_S?"),
        ("TAILER_PIPELINES__ORDRES__TABLE", "x", "TAILER_PIPELINES__ORDRES", "no pipeline 'ordres'", "'orders'?"),
        ("TAILER_PIPELINES__ORDERS__TABEL", "x", "TAILER_PIPELINES__ORDERS__TABEL", "no such option", "'table'?"),
        ("TAILER_PIPELINES__ORDERS__SINK__KIND", "delt", "orders.sink", "no sink of kind 'delt'", "delta, files"),
        ("TAILER_PIPELINES__ORDERS__SINK__PHAT", "x", "ORDERS__SINK__PHAT", "no such option", "path"),
        ("TAILER_METRICS_TOKEN_FILE", "x", "TAILER_METRICS_TOKEN_FILE", "metrics_token = {file =", "__FILE at the end"),
        ("TAILER_PIPELINES", "[", "TAILER_PIPELINES", "is not a table in JSON", "TAILER_PIPELINES__NAME__TABLE"),
        ("TAILER_PIPELINES", "[]", "TAILER_PIPELINES", "must be a table", ""),
    ],
)
def test_a_fault_in_the_environment_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, where: str, reason: str, remedy: str
) -> None:
    monkeypatch.setenv(name, value)
    found = one_problem(tmp_path, PIPELINE)
    assert where in found[0]
    assert reason in found[1]
    assert remedy in found[2]


@cases(
    ("given", "password"),
    [
        ({}, {"file": "/of/defaults"}),
        ({"ORDERS__SINK__PASSWORD__ENV": "SHOP"}, {"env": "SHOP"}),
        ({"ORDERS__SINK__PASSWORD": '{"command": ["pass"]}'}, {"command": ["pass"]}),
        ({"ORDERS__SINK__PASSWORD": "hush"}, "hush"),
    ],
)
def test_a_secret_has_one_place_which_is_replaced_as_a_whole(
    tmp_path: Path, given: dict[str, str], password: object
) -> None:
    """By a pipeline that of the defaults, and by the environment that of the file."""
    text = """
    [defaults.sink]
    kind = "sql"
    url = "postgresql://db/shop"
    password = {file = "/of/defaults"}
    [pipelines.orders]
    table = "orders"
    [pipelines.others]
    table = "others"
    sink.password = {command = ["pass"]}
    """
    with pytest.MonkeyPatch.context() as environment:
        for name, value in given.items():
            environment.setenv(f"TAILER_PIPELINES__{name}", value)
        orders, others = settings(tmp_path, text).pipelines
    assert (orders.sink_options["password"], others.sink_options["password"]) == (password, {"command": ["pass"]})
    assert "hush" not in repr(orders)


def test_a_variable_and_a_part_of_it_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = "TAILER_PIPELINES__ORDERS__SINK__PASSWORD"
    monkeypatch.setenv(prefix, "hush")
    monkeypatch.setenv(f"{prefix}__FILE", "hush")
    where, reason, remedy = one_problem(tmp_path, PIPELINE)
    assert (where, reason) == (f"environment {prefix}__FILE", f"is a part of {prefix}, also set")
    assert remedy == "Keep one of the two."


def test_variables_of_others_are_let_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILER_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("TAILER_SERVICE_HOST", "10.0.0.1")
    assert problems(tmp_path, PIPELINE) == []


FAULTS: list[tuple[str, str, str, str]] = [
    ("", "pipelines", "missing or empty", "[pipelines.NAME]"),
    ("pipelines = 3", "pipelines", "must be a table", ""),
    ("stat_table = 'x'" + PIPELINE, "stat_table", "no such option", "'state_table'"),
    (
        "zzz = 1" + PIPELINE,
        "zzz",
        "no such option",
        "The options are: state_table, drain_s, metrics, metrics_token, hung_s,",
    ),
    ("metrics = '9464'" + PIPELINE, "metrics", "is not an address", "Give a host and a port"),
    ("metrics_token = {file = 'token'}" + PIPELINE, "metrics_token", "has no effect without metrics", "Set metrics"),
    (
        "metrics_token_file = 'token'" + PIPELINE,
        "metrics_token_file",
        'is now metrics_token = {file = "..."}',
        "__FILE at the end",
    ),
    (
        "control_token = {file = 'token', command = ['x']}" + PIPELINE,
        "control_token",
        "must be text, or a table with one of file, command and env",
        'Give a text in quotes, or {file = "..."}, {command = ["..."]}, {env = "..."}',
    ),
    ("control_token = {command = ['']}" + PIPELINE, "control_token", "must be text, or a table with", ""),
    ("control_token = {file = '$HOME/x'}" + PIPELINE, "control_token.file", "$HOME", ""),
    (
        "metrics = '127.0.0.1:0'\nmetrics_key_file = 'key.pem'" + PIPELINE,
        "metrics_key_file",
        "is no option any more",
        "Put a proxy that speaks HTTPS before the address of metrics",
    ),
    ("drain_s = -1" + PIPELINE, "drain_s", "of at least 0", ""),
    ("drain_s = inf" + PIPELINE, "drain_s", "finite", ""),
    ("drain_s = 'x'" + PIPELINE, "drain_s", "must be a finite number", ""),
    ("state_table = 'az://bucket/x'" + PIPELINE, "state_table", "az:// is not a store", "abfss://CONTAINER@ACCOUNT"),
    ("state_table = ''" + PIPELINE, "state_table", "is empty", ""),
    ("pipelines.orders = 3", "pipelines.orders", "must be a table", ""),
    (PIPELINE + "tabel = 'x'", "pipelines.orders.tabel", "no such option", "'table'"),
    (PIPELINE + "start = 'yesterday'", "pipelines.orders.start", "'yesterday' is not a version", "earliest"),
    (PIPELINE + "start = -1", "pipelines.orders.start", "'-1' is not a version", "earliest"),
    (PIPELINE + "start = true", "pipelines.orders.start", "must be text", ""),
    (PIPELINE + "columns = []", "pipelines.orders.columns", "is empty", "Leave it out"),
    (PIPELINE + "columns = ['a', 'a']", "pipelines.orders.columns", "twice", ""),
    (PIPELINE + "columns = 'a'", "pipelines.orders.columns", "must be a list", ""),
    (PIPELINE + "carryovers = 'forget'", "pipelines.orders.carryovers", "must be 'drop' or 'keep'", ""),
    (PIPELINE + "key = ['a']", "pipelines.orders.key", "has no effect", "compute_updates = true"),
    (PIPELINE + "key = ['a', 'a']\ncompute_updates = true", "pipelines.orders.key", "twice", ""),
    (
        PIPELINE + "key = ['a']\ncolumns = ['b']\ncompute_updates = true",
        "pipelines.orders.key",
        "not one of columns",
        "Add",
    ),
    (PIPELINE + "poll_interval_s = 0", "pipelines.orders.poll_interval_s", "greater than 0", ""),
    (PIPELINE + "idle_poll_interval_s = 0.5", "pipelines.orders.idle_poll_interval_s", "less than poll_interval_s", ""),
    (PIPELINE + "max_polls_per_hour = 0", "pipelines.orders.max_polls_per_hour", "at least 1", ""),
    (PIPELINE.replace('table = "orders"', ""), "pipelines.orders.table", "is missing", "_delta_log"),
    (PIPELINE.replace('"orders"', "3"), "pipelines.orders.table", "must be text", ""),
    (
        PIPELINE.replace('"orders"', '"hdfs://x/y"'),
        "pipelines.orders.table",
        "hdfs:// is not a store",
        "s3://BUCKET/FOLDER",
    ),
    (PIPELINE.replace('"orders"', '""'), "pipelines.orders.table", "is empty", ""),
    (PIPELINE.replace("orders]", '"a/b"]'), "pipelines.a/b", "not a valid name of a pipeline", "letters"),
    ("[pipelines.a]\ntable = 'x'", "pipelines.a.sink", "is missing", "[pipelines.NAME.sink]"),
    ("[pipelines.a]\ntable = 'x'\nsink = 'delta'", "pipelines.a.sink", "must be a table", ""),
    ("[pipelines.a]\ntable = 'x'\nsink = {}", "pipelines.a.sink.kind", "is missing", "kind"),
    (PIPELINE.replace('"delta"', '"delat"'), "pipelines.orders.sink", "no sink of kind 'delat'", "mean 'delta'?"),
    (PIPELINE.replace('"delta"', '"Kafka"'), "pipelines.orders.sink", "no sink of kind 'Kafka'", "mean 'kafka'?"),
    (
        PIPELINE.replace('"delta"', '"mail"'),
        "pipelines.orders.sink",
        "no sink of kind 'mail'",
        "Installed kinds: delta",
    ),
    (
        PIPELINE.replace('"delta"', '"memory"'),
        "pipelines.orders.sink",
        "no sink of kind 'memory'",
        "delta, files, http, kafka",
    ),
    (PIPELINE.replace("path", "pth"), "pipelines.orders.sink.pth", "no such option", "path"),
    (PIPELINE.replace('"copy"', "1"), "pipelines.orders.sink.path", "must be text", ""),
    (PIPELINE.replace('"copy"', '""'), "pipelines.orders.sink.path", "is empty", ""),
    (
        PIPELINE.replace('"copy"', '"hdfs://x/y"'),
        "pipelines.orders.sink.path",
        "hdfs:// is not a store",
        "s3://BUCKET/FOLDER",
    ),
    (
        PIPELINE.replace('"orders"', '"s3a://lake/a/"').replace('"copy"', '"s3://lake/a"'),
        "pipelines.orders.sink.path",
        "s3://lake/a is pipelines.orders.table too",
        "own",
    ),
    (
        PIPELINE.replace('"orders"', '"s3://lake/a"').replace('"copy"', '"s3://lake/a/copy"'),
        "pipelines.orders.sink.path",
        "nested in each other",
        "own",
    ),
    (
        "state_table = 's3://lake/a'" + PIPELINE.replace('"copy"', '"s3://lake"'),
        "pipelines.orders.sink.path",
        "s3://lake and state_table (s3://lake/a) are nested in each other",
        "own",
    ),
    (PIPELINE.replace('"copy"', '"orders"'), "pipelines.orders.sink.path", "orders is pipelines.orders.table", "own"),
    (PIPELINE.replace('"copy"', '"./x/../orders/"'), "pipelines.orders.sink.path", "is pipelines.orders.table", ""),
    (PIPELINE.replace('"copy"', '"orders/copy"'), "pipelines.orders.sink.path", "nested in each other", ""),
    (PIPELINE.replace('"copy"', '"."'), "pipelines.orders.sink.path", "nested in each other", ""),
    ("state_table = 'copy'" + PIPELINE, "pipelines.orders.sink.path", "is state_table too", ""),
    ("state_table = 'orders'" + PIPELINE, "state_table", "is pipelines.orders.table too", ""),
    ("[pipelines.a]\ntable='x'\nsink={kind='stdout'}", "pipelines.a.sink", "no state_table", "Add state_table"),
    ("a = b", "", "is not TOML", "quotes"),
    ("engine = 'duckdb'" + PIPELINE, "engine", "must be 'local', 'spark' or 'auto'", ""),
    ("spark = 3" + PIPELINE, "spark", "must be a table", "Make it a table in the file"),
    (PIPELINE + "[spark]\nmasters = 'local'", "spark.masters", "no such option", "'master'"),
    (PIPELINE + "[spark]\nmaster = ' '", "spark.master", "is empty", "Leave it out"),
    (PIPELINE + "[spark]\nremote = 'sc://host'", "spark.remote", "no such option", "master, conf"),
    (PIPELINE + "[spark.conf]\nspeculation = true", "spark.conf.speculation", "not a setting of Spark", "'spark.'"),
    (PIPELINE + "[spark.conf]\n'spark.master' = 'x'", "spark.conf.spark.master", "key of its own", "Set master"),
    (PIPELINE + "[spark.conf]\n'spark.remote' = 'x'", "spark.conf.spark.remote", "for Spark Connect", "Set master"),
    (PIPELINE + "[spark.conf]\nspark.x = [1]", "spark.conf.spark.x", "must be text, a number or a boolean", ""),
    (PIPELINE + "write = 'threads'", "pipelines.orders.write", "must be 'driver' or 'executors'", ""),
    (KAFKA.replace('"spark"', '"local"'), "pipelines.orders.write", 'engine is "local"', 'engine = "spark"'),
    (KAFKA.replace('"spark"', '"auto"'), "pipelines.orders.write", 'engine is "auto"', ""),
    (KAFKA + "on_data_loss = 'resnapshot'", "pipelines.orders.on_data_loss", 'is "resnapshot"', 'write = "driver"'),
    (PIPELINE + "shards = 2", "pipelines.orders.shards", "executors do not write", 'engine = "spark"'),
    (KAFKA + "shards = 0", "pipelines.orders.shards", "from 1 to 1024", ""),
    (KAFKA + "shards = 1025", "pipelines.orders.shards", "from 1 to 1024", ""),
    (KAFKA + "shards = true", "pipelines.orders.shards", "must be a whole number from 1 to 1024", ""),
    (SPARK, "pipelines.orders.write", "a delta sink is written by one", "`tailer.spark.follow`"),
    (SPARK.replace("delta", "files"), "pipelines.orders.write", "a files sink is written by one", 'kind = "kafka"'),
    ("state_table = 's'\n" + STDOUT, "pipelines.orders.write", "a stdout sink is written by one", 'kind = "kafka"'),
]


@pytest.mark.parametrize(("text", "key", "reason", "remedy"), FAULTS)
def test_a_fault_is_named_by_key_with_a_remedy(tmp_path: Path, text: str, key: str, reason: str, remedy: str) -> None:
    found = one_problem(tmp_path, text)
    assert found[0] == (key or str(tmp_path / "tailer.toml"))
    assert reason in found[1]
    assert remedy in found[2]


@pytest.mark.parametrize(
    ("text", "writers"),
    [
        (SPARK, Writers.DRIVER),
        (KAFKA, Writers.EXECUTORS),
        (KAFKA + CLUSTER, Writers.EXECUTORS),
        (KAFKA.replace('"spark"', '"auto"'), Writers.DRIVER),
        (KAFKA.replace('"spark"', '"local"'), Writers.DRIVER),
        (KAFKA + "on_data_loss = 'resnapshot'", Writers.DRIVER),
        (SPARK.replace("delta", "files"), Writers.DRIVER),
        ("state_table = 's'\n" + STDOUT, Writers.DRIVER),
        (KAFKA + "write = 'driver'", Writers.DRIVER),
    ],
)
def test_executors_write_wherever_they_can(tmp_path: Path, text: str, writers: Writers) -> None:
    (pipeline,) = settings(tmp_path, text.replace('write = "executors"\n', "")).pipelines
    assert pipeline.write is writers


@pytest.mark.parametrize(
    ("text", "is_fault"),
    [
        (PIPELINE + "table_format = 'lance'", True),
        (PIPELINE + "branch = 'x'", True),
        (PIPELINE.replace('"orders"', '"s3://lake/orders.lance"'), True),
        (PIPELINE.replace('"orders"', '"s3://lake/orders.lance"') + "table_format = 'delta'", False),
        (PIPELINE.replace('"orders"', '"s3://lake/orders"'), False),
        (PIPELINE, False),
        ("engine = 'auto'" + PIPELINE + "table_format = 'lance'", True),
        ("engine = 'spark'" + PIPELINE + "table_format = 'lance'", False),
    ],
)
def test_a_missing_reader_of_lance_datasets_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_fault: bool
) -> None:
    """Executors of Spark have libraries of their own."""
    monkeypatch.setattr("tailer.formats.lance.format.find_spec", lambda name: None if name == "lance" else object())
    found = [each.error for each in examine(written(tmp_path, text)).problems]
    assert [each.where.rpartition(": ")[2] for each in found] == ["pipelines.orders.table"] * is_fault
    assert all("pylance is not installed" in each.reason and "lake-tailer[lance]" in each.hint for each in found)


CLIENT = """\
[pipelines.orders]
table = "t"
[pipelines.orders.sink]
kind = "kafka"
bootstrap_servers = "h:1"
[pipelines.orders.sink.client]
security.protocol = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "ada"
"sasl.password" = "placeholder"
"ssl.ca.location" = "ca.pem"
"""


@pytest.mark.parametrize("key", ["PIPELINES__ORDERS__SINK__CLIENT__SASL_PASSWORD", "STATE_TABLE", "PIPELINES"])
def test_a_variable_that_is_not_utf8_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(f"TAILER_{key}", os.fsdecode(b"hush\xff"))
    (problem,) = examine(written(tmp_path, CLIENT)).problems
    assert str(problem.error) == f"environment TAILER_{key}: is not UTF-8 text"
    assert problem.error.remedy


def test_secrets_are_not_shown_in_what_was_read(tmp_path: Path) -> None:
    conf = '[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "hush"\n'
    catalog = '[pipelines.orders.catalog]\ntoken = "hush"\n'
    path = written(tmp_path, CLIENT.replace("placeholder", "hush") + catalog + conf)
    reading = read_file(path)
    assert path.read_text().count("hush") == 3
    assert "hush" not in repr(reading)
    assert reading.file is not None
    assert reading.spark is not None
    assert "hush" not in f"{reading.file!r}{reading.spark!r}{reading.pipelines['orders']!r}"


def test_the_environment_overrides_settings_of_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dots of a setting are underscores there; a JSON object may have them."""
    path = tmp_path / "tailer.toml"
    path.write_text(CLIENT)
    prefix = "TAILER_PIPELINES__ORDERS__SINK__CLIENT"
    monkeypatch.setenv(f"{prefix}__SASL_PASSWORD", "hush")
    monkeypatch.setenv(f"{prefix}__LINGER_MS", "7")
    (pipeline,) = load(path).pipelines
    assert pipeline.sink_options["client"] == {
        "security": {"protocol": "SASL_SSL"},
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
        "sasl.password": "hush",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "linger_ms": 7,
    }
    assert "hush" not in repr(pipeline)
    monkeypatch.delenv(f"{prefix}__SASL_PASSWORD")
    monkeypatch.delenv(f"{prefix}__LINGER_MS")
    monkeypatch.setenv(prefix, '{"sasl.password": "hush", "linger.ms": 8}')
    assert load(path).pipelines[0].sink_options["client"]["sasl.password"] == "hush"
    monkeypatch.delenv(prefix)
    monkeypatch.setenv(f"{prefix}__LINGER_MS", "soon")
    (problem,) = examine(path).problems
    assert problem.error.where == f"environment {prefix}__LINGER_MS"
    assert problem.error.reason == "must be a whole number from 0 to 900000"


@pytest.mark.parametrize(
    ("text", "idle", "notified"),
    [
        ("poll_interval_s = 0.1", 1.0, 3.0),
        ("poll_interval_s = 5", 10.0, 30.0),
        ("poll_interval_s = 60", 60.0, 60.0),
        ("poll_interval_s = 5\nidle_poll_interval_s = 300", 300.0, 300.0),
        ("poll_interval_s = 1\nidle_poll_interval_s = 2", 2.0, 2.0),
    ],
)
def test_the_longest_wait_follows_from_the_shortest(tmp_path: Path, text: str, idle: float, notified: float) -> None:
    (orders,) = settings(tmp_path, PIPELINE + text).pipelines
    assert (orders.limits.idle_poll_interval_s, orders.limits.notified_poll_interval_s) == (idle, notified)


def test_the_environment_has_booleans_and_numbers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILER_DRAIN_S", "2.5")
    monkeypatch.setenv("TAILER_PIPELINES__ORDERS__ROW_IDS", "true")
    monkeypatch.setenv("TAILER_PIPELINES__ORDERS__POLL_INTERVAL_S", "3")
    found = settings(tmp_path, PIPELINE)
    assert (found.drain_s, found.pipelines[0].policy.row_ids, found.pipelines[0].poll_interval_s) == (2.5, True, 3)
    monkeypatch.setenv("TAILER_PIPELINES__ORDERS__ROW_IDS", "yes")
    assert one_problem(tmp_path, PIPELINE)[1] == "must be true or false"


def test_spark_is_not_asked_for_unless_it_is_wanted(tmp_path: Path) -> None:
    found = settings(tmp_path, PIPELINE)
    assert (found.engine, found.spark) == (EngineKind.LOCAL, SparkSettings("local[*]"))
    (orders,) = found.pipelines
    assert (orders.write, orders.shards) == (Writers.DRIVER, 4)
    code = "import sys, tailer.config.settings; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_of_spark_keep_their_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
    {KAFKA}
    shards = 8
    [spark]
    master = "spark://host:7077"
    [spark.conf]
    spark.executor.cores = 4
    "spark.speculation" = true
    "spark.speculation.quantile" = 0.9
    "spark.executor.memory" = "2g"
    """
    monkeypatch.setenv("TAILER_SPARK__MASTER", "local[2]")
    monkeypatch.setenv("TAILER_SPARK__CONF", '{"spark.executor.memory": "4g", "spark.hadoop.secretKey": "hunter2"}')
    found = settings(tmp_path, text)
    assert (found.engine, found.spark.master) == (EngineKind.SPARK, "local[2]")
    assert found.spark.conf == {
        "spark.executor.cores": "4",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.9",
        "spark.executor.memory": "4g",
        "spark.hadoop.secretKey": "hunter2",
    }
    assert "hunter2" not in repr(found)
    (orders,) = found.pipelines
    assert (orders.write, orders.shards) == (Writers.EXECUTORS, 8)


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailer.config.process.find_spec", lambda name: None if name == "pyspark" else object())
    assert problems(tmp_path, PIPELINE) == []
    for engine in ("spark", "auto"):
        assert "lake-tailer[spark]" in one_problem(tmp_path, f"engine = '{engine}'\n{PIPELINE}")[2]


@pytest.mark.parametrize("key", ["metrics", "control"])
def test_the_missing_library_of_what_is_served_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr("tailer.config.process.find_spec", lambda name: None if name == "uvicorn" else object())
    assert problems(tmp_path, PIPELINE) == []
    found = one_problem(tmp_path, f"{key} = '127.0.0.1:0'{PIPELINE}")
    assert (found[0], found[1]) == (key, "cannot be served: No module named 'uvicorn'")
    assert "lake-tailer[daemon]" in found[2]


def test_pipelines_may_be_chained_and_may_share_a_table(tmp_path: Path) -> None:
    text = """
    [pipelines.a]
    table = "x"
    sink = {kind = "delta", path = "y"}
    [pipelines.b]
    table = "y"
    sink = {kind = "delta", path = "z"}
    [pipelines.c]
    table = "x"
    sink = {kind = "files", path = "out"}
    """
    assert problems(tmp_path, text) == []


@pytest.mark.parametrize("spelling", ["here", "linked/out", "a/../out", "./out/", "link"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_is_the_same_however_it_is_spelled(tmp_path: Path, spelling: str, exists: bool) -> None:
    """Two pipelines with one target, a state table in it, or a source that is the target are refused."""
    for name in ("a", "source") + (("out",) if exists else ()):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "here").symlink_to(tmp_path / "link")
    (tmp_path / "linked").symlink_to(tmp_path)
    two = """
    [pipelines.a]
    table = "source"
    sink = {kind = "delta", path = "out"}
    [pipelines.b]
    table = "source"
    sink = {kind = "files", path = "%s"}
    """
    assert "is pipelines.a.sink.path" in one_problem(tmp_path, two % spelling)[1]
    assert "are nested in each other" in one_problem(tmp_path, two % f"{spelling}/below")[1]
    source = PIPELINE.replace('"orders"', '"out"').replace('"copy"', f'"{spelling}"')
    assert "is pipelines.orders.table" in one_problem(tmp_path, source)[1]
    state = f'state_table = "{spelling}"' + PIPELINE.replace('"copy"', '"out"')
    assert "is state_table" in one_problem(tmp_path, state)[1]


def test_pipelines_are_chained_through_links_too(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("y")
    text = """
    [pipelines.a]
    table = "x"
    sink = {kind = "delta", path = "y"}
    [pipelines.b]
    table = "link"
    sink = {kind = "delta", path = "z"}
    """
    assert problems(tmp_path, text) == []


def test_a_state_table_is_not_created_among_foreign_files(tmp_path: Path) -> None:
    text = f'state_table = "state"{PIPELINE}'
    state = tmp_path / "state"
    assert problems(tmp_path, text) == []
    for folder in (state, state / "_delta_log"):
        folder.mkdir()
        assert problems(tmp_path, text) == []
    (state / "part-0.parquet").touch()
    key, reason, remedy = one_problem(tmp_path, text)
    assert (key, reason) == ("state_table", f"{state} holds 'part-0.parquet', but no state table")
    assert "folder of its own" in remedy
    (state / "_delta_log" / f"{0:020d}.json").touch()  # its owner is known only when it is read
    assert problems(tmp_path, text) == []
    assert "lies inside the Delta table" in one_problem(tmp_path, text.replace('"state"', '"state/x"'))[1]
    (tmp_path / "file").touch()
    assert "Not a directory" in one_problem(tmp_path, text.replace('"state"', '"file"'))[1]


def test_a_sink_option_that_may_be_secret_is_never_shown(tmp_path: Path) -> None:
    text = PIPELINE.replace("path =", 'password = "hunter2", path =')
    assert "hunter2" not in str(examine(written(tmp_path, text)))
    (orders,) = settings(tmp_path, PIPELINE).pipelines
    assert "copy" not in repr(orders)


@pytest.mark.parametrize("content", [None, b"\xff\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tailer.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExceptionGroup) as raised:
        load(path)
    (error,) = raised.value.exceptions
    assert isinstance(error, ConfigError)
    assert (error.where, error.hint) == (str(path), "Check the path of the configuration (--config).")


@cases(
    ("text", "expected"),
    [
        ("a/../b", "/top/b"),
        ("/a", "/a"),
        (".", "/top"),
        ("~", Path.home()),
        ("file:///a%20b/../c", "/c"),
        ("file:/a%20b", "/a%20b"),
        ("FILE://LocalHost/a", "/a"),
        ("file:a", "/top/file:a"),
    ],
)
def test_a_folder_is_made_absolute(text: str, expected: Any) -> None:
    assert local_folder(text, Path("/top"), "TABLE") == Path(expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("$HOME/orders", r"\$HOME is not replaced"),
        ("${LAKE}", r"\$\{LAKE\} is not replaced"),
        ("lake/$env/orders", r"\$env is not replaced"),
        ("~nobody-here/orders", "~nobody-here names a user that this machine does not have"),
        ("a\0b", "null character"),
    ],
)
def test_a_folder_that_is_written_for_a_shell_is_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        local_folder(text, Path("/top"), "TABLE")
    assert local_folder(f"file:/$HOME/{text}".replace("\0", ""), Path("/"), "TABLE").parts[1] == "$HOME"
    assert local_folder("x$y/$1/~nobody", Path("/top"), "TABLE") == Path("/top/x$y/$1/~nobody")


@pytest.mark.parametrize("text", ["s3://a/b", "file://elsewhere/a", "file:////a", "x://"])
def test_an_address_is_no_folder(text: str) -> None:
    with pytest.raises(ConfigError, match=":// is not a local path"):
        local_folder(text, Path("/top"), "TABLE")


def test_the_format_of_a_table(tmp_path: Path) -> None:
    (made,) = settings(tmp_path, f'{PIPELINE}table_format = "lance"\n').pipelines
    assert made.source.table_format == "lance"
    assert settings(tmp_path, PIPELINE).pipelines[0].source.table_format is None
    key, reason, remedy = one_problem(tmp_path, f'{PIPELINE}table_format = "hudi"\n')
    assert (key, reason) == ("pipelines.orders.table_format", "'hudi' is no format of a table")
    assert remedy == "Give delta, lance or iceberg."
    catalog = 'catalog = {kind = "unity", uri = "http://localhost:1", table = "a.b.c"}'
    key, reason, remedy = one_problem(tmp_path, f'{PIPELINE}table_format = "lance"\n{catalog}\n')
    assert key == "pipelines.orders.table_format"
    assert reason == "names a Lance dataset, whose commits no such catalog manages"
    assert remedy == "Leave out one of the two."


def test_options_that_the_format_in_the_folder_has_not(tmp_path: Path) -> None:
    """Nobody has to name the format, and a folder without a table may get one of any."""
    catalog = 'catalog = {kind = "unity", uri = "http://localhost:1", table = "a.b.c"}'
    managed = "whose commits no such catalog manages"
    for log, option, field, reason in (
        ("_delta_log", 'branch = "b"', "branch", "is given, but a Delta table has no branches"),
        ("_delta_log", 'start = "tag:t"', "start", "names a tag, but a Delta table has no tags"),
        ("_versions", catalog, "table", f"names a Lance dataset, {managed}"),
        ("metadata", catalog, "table", f"names an Iceberg table, {managed}"),
    ):
        folder = tmp_path / option.partition(" ")[0] / log
        text = f"{PIPELINE}{option}\n".replace('"orders"', f'"{folder.parent}"')
        assert settings(tmp_path, text).pipelines[0].name == "orders"
        folder.mkdir(parents=True)
        assert one_problem(tmp_path, text)[:2] == (f"pipelines.orders.{field}", reason)
        folder.rmdir()
        folder.parent.rmdir()


def test_the_branch_of_a_table(tmp_path: Path) -> None:
    (made,) = settings(tmp_path, f'{PIPELINE}branch = "a/b"\nstart = "tag:t"\n').pipelines
    assert (made.source.branch, made.source.table_format) == ("a/b", "lance")
    assert made.start == Start(StartKind.TAG, tag="t")
    key, reason, remedy = one_problem(tmp_path, f'{PIPELINE}branch = "a/../b"\n')
    assert (key, reason) == ("pipelines.orders.branch", "'a/../b' is not the name of a branch")
    assert remedy == "Names have letters, digits, '.', '-' and '_', and '/' between two of them."
    key, reason, _ = one_problem(tmp_path, f'{PIPELINE}branch = "b"\ntable_format = "delta"\n')
    assert (key, reason) == ("pipelines.orders.branch", "is given, but a Delta table has no branches")
    catalog = 'catalog = {kind = "unity", uri = "http://localhost:1", table = "a.b.c"}'
    key, reason, _ = one_problem(tmp_path, f'{PIPELINE}branch = "b"\n{catalog}\n')
    assert (key, reason) == (
        "pipelines.orders.branch",
        "names a Lance dataset, whose commits no such catalog manages",
    )

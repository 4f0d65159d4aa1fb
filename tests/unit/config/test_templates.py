"""Templates and defaults of the configuration: names, targets, inherited keys, and faults by their keys."""

from pathlib import Path

import pytest

from tailer.config.overlaps import conflict
from tailer.config.pipelines import PipelineSettings, TablePattern
from tailer.config.settings import examine, load
from tests.support.cases import cases

TEMPLATE = """
[pipelines.sales]
table = "lake/sales/*"
sink = {kind = "delta", path = "copies/{table}"}
"""


def faults(folder: Path, text: str) -> list[tuple[str, str]]:
    """Return key and reason of every fault."""
    path = folder / "tailer.toml"
    path.write_text(text)
    errors = [problem.error for problem in examine(path).problems]
    return [(error.where.removeprefix(f"{path}: "), error.reason) for error in errors]


def expanded(folder: Path, text: str, *names: str) -> PipelineSettings:
    """Return the pipeline of one table of the only template."""
    path = folder / "tailer.toml"
    path.write_text(text)
    (template,) = load(path).templates
    return template.expand(names)


def pattern(location: str) -> TablePattern:
    """Return a pattern, which the location is."""
    found = TablePattern.parse(location)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("location", "folder", "names"),
    [
        ("/lake/sales/*", "/lake/sales", ("*",)),
        ("/*", "", ("*",)),
        ("s3://lake/*/orders", "s3://lake", ("*", "orders")),
        ("gs://lake/a/b_*_c/*", "gs://lake/a", ("b_*_c", "*")),
    ],
)
def test_a_pattern_begins_at_the_first_star(location: str, folder: str, names: tuple[str, ...]) -> None:
    assert pattern(location) == TablePattern(folder, names)


@pytest.mark.parametrize("location", ["/lake/orders", "s3://lake/a?b[c]"])
def test_only_a_star_makes_a_pattern(location: str) -> None:
    assert TablePattern.parse(location) is None


@cases(
    ("location", "names"),
    [
        ("s3://lake/eu/orders", ("eu", "orders")),
        ("s3://lake/a.b/orders", ("a.b", "orders")),
        ("s3://lake/eu/items", None),
        ("s3://lake/orders", None),
        ("s3://lake/eu/orders/x", None),
        ("s3://lakes/eu/orders", None),
        ("s3://lake/_eu/orders", None),
        ("s3://lake/.eu/orders", None),
    ],
)
def test_locations_that_fit(location: str, names: tuple[str, ...] | None) -> None:
    assert pattern("s3://lake/*/orders").match(location) == names


def test_hidden_names_fit_a_pattern_that_names_them() -> None:
    assert pattern("/lake/_*").match("/lake/_a") == ("_a",)
    assert pattern("/lake/raw_*_v[1]").match("/lake/raw_x_v[1]") == ("raw_x_v[1]",)
    assert pattern("/lake/raw_*_v[1]").match("/lake/raw_x_v1") is None


def test_the_settings_of_a_table(tmp_path: Path) -> None:
    found = expanded(tmp_path, TEMPLATE + "poll_interval_s = 3", "orders")
    assert (found.name, found.table) == ("sales/orders", f"{tmp_path}/lake/sales/orders")
    assert (found.target, found.poll_interval_s) == (f"{tmp_path}/copies/orders", 3)


def test_targets_of_tables_in_several_folders(tmp_path: Path) -> None:
    text = TEMPLATE.replace("sales/*", "*/sales_*")
    found = expanded(tmp_path, text, "eu", "sales_orders")
    assert (found.name, found.target) == ("sales/eu/sales_orders", f"{tmp_path}/copies/eu/sales_orders")
    kafka = '{kind = "kafka", bootstrap_servers = "h:1", topic = "x.{table}", end_topic = "{table}-end"}'
    text = text.replace('{kind = "delta", path = "copies/{table}"}', kafka)
    found = expanded(tmp_path, text, "eu", "sales_orders")
    assert found.sink_options["topic"] == "x.eu.sales_orders"
    assert found.sink_options["end_topic"] == "eu.sales_orders-end"


def test_topics_that_a_column_names_have_the_name_of_the_table(tmp_path: Path) -> None:
    sink = '{kind = "kafka", bootstrap_servers = "h:1", topic = "x.{table}.{country}", topics = TOPICS}'
    text = TEMPLATE.replace('{kind = "delta", path = "copies/{table}"}', sink).replace("sales/*", "*/sales_*")
    found = expanded(tmp_path, text.replace("TOPICS", '["x.{table}.de"]'), "eu", "sales_orders")
    assert found.sink_options["topic"] == "x.eu.sales_orders.{country}"
    assert found.sink_options["topics"] == ["x.eu.sales_orders.de"]
    found = expanded(tmp_path, text.replace("TOPICS", "'x[.]{table}[.][a-z]{2}'"), "eu", "sales_orders")
    assert found.sink_options["topics"] == r"x[.]eu\.sales_orders[.][a-z]{2}"


def test_names_of_tables_of_databases(tmp_path: Path) -> None:
    sink = '{kind = "sql", url = "sqlite:///shop.db", table = "x_{table}"}'
    text = TEMPLATE.replace('{kind = "delta", path = "copies/{table}"}', sink).replace("sales/*", "*/sales_*")
    assert expanded(tmp_path, text, "eu", "sales_orders").sink_options["table"] == "x_eu_sales_orders"


def test_a_placeholder_means_nothing_to_other_pipelines(tmp_path: Path) -> None:
    (tmp_path / "tailer.toml").write_text(TEMPLATE.replace("*", "orders"))
    (orders,) = load(tmp_path / "tailer.toml").pipelines
    assert orders.target == f"{tmp_path}/copies/{{table}}"


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        ("{table}", "all", "pipelines.sales.sink.path", "has no {table}: all tables would share it"),
        (
            'delta", path = "copies/{table}"',
            'kafka", bootstrap_servers = "h:1"',
            "pipelines.sales.sink",
            "has no path, topic or table with {table}: all tables would share one target",
        ),
        (
            'delta", path = "copies/{table}"',
            'kafka", bootstrap_servers = "h:1", topic = "all"',
            "pipelines.sales.sink.topic",
            "has no {table}: all tables would share it",
        ),
        ("sales/*", "**/x", "pipelines.sales.table", "has **, but a * stands for one name"),
        (
            "copies/{table}",
            "lake/sales/{table}_changes",
            "pipelines.sales.sink.path",
            "would be found as a table, and followed again and again (sales to sales)",
        ),
        ("lake/sales/*", "s3://*/x", "pipelines.sales.table", "'*' is not the name of a bucket"),
        (
            "sink =",
            'catalog = {kind = "unity", uri = "http://h", table = "a.b.c"}\nsink =',
            "pipelines.sales.catalog",
            "names one table, but table is a pattern of many",
        ),
        (
            'lake/sales/*"',
            'lake/sales/orders"\ndiscover_interval_s = 5',
            "pipelines.sales.discover_interval_s",
            "has no effect for one table",
        ),
    ],
)
def test_faults_of_templates(tmp_path: Path, old: str, new: str, key: str, reason: str) -> None:
    assert faults(tmp_path, TEMPLATE.replace(old, new)) == [(key, reason)]


def test_templates_that_would_follow_each_other_for_ever(tmp_path: Path) -> None:
    back = '[pipelines.back]\ntable = "copies/*"\nsink = {kind = "delta", path = "lake/sales/{table}_back"}\n'
    ((key, reason),) = faults(tmp_path, TEMPLATE + back)
    assert key in ("pipelines.sales.sink.path", "pipelines.back.sink.path")
    assert "would be found as a table" in reason
    onwards = back.replace("lake/sales/{table}_back", "further/{table}")
    assert faults(tmp_path, TEMPLATE + onwards) == []


def test_a_state_table_is_not_to_be_found(tmp_path: Path) -> None:
    text = f'state_table = "lake/sales/state"\n{TEMPLATE}'
    reason = "fits the pattern of pipelines.sales.table, and would be followed"
    assert ("state_table", reason) in faults(tmp_path, text)


DEFAULTS = """
[defaults]
poll_interval_s = 2.5
start = 7
sink = {kind = "kafka", bootstrap_servers = "h:1", client = {acks = "all", "linger.ms" = 5}}

[pipelines.a]
table = "a"
sink = {topic = "a", client = {"linger.ms" = 9}}

[pipelines.b]
table = "b"
poll_interval_s = 1
sink = {kind = "delta", path = "copy"}
"""


def test_pipelines_inherit_what_they_do_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILER_DEFAULTS__START", "8")
    (tmp_path / "tailer.toml").write_text(DEFAULTS.replace('acks = "all", ', ""))
    a, b = load(tmp_path / "tailer.toml").pipelines
    assert (a.poll_interval_s, a.start.value, a.sink_kind) == (2.5, 8, "kafka")
    assert a.sink_options == {"bootstrap_servers": "h:1", "topic": "a", "client": {"linger.ms": 9}}
    # A sink of another kind inherits nothing.
    assert (b.poll_interval_s, b.start.value, b.sink_options) == (1, 8, {"path": f"{tmp_path}/copy"})


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('table = "x"', [("defaults.table", "cannot be the same for all")]),
        ("poll = 1", [("defaults.poll", "no such option")]),
        ('poll_interval_s = "1"', [("defaults.poll_interval_s", "must be a finite number greater than 0")]),
        ('start = "soon"', [("defaults.start", "is not a start")]),
        ("sink = 3", [("defaults.sink", "must be a table")]),
    ],
)
def test_faults_of_defaults_are_named_there(tmp_path: Path, line: str, found: list[tuple[str, str]]) -> None:
    pipeline = TEMPLATE.replace("*", "orders")
    shown = faults(tmp_path, f"[defaults]\n{line}\n{pipeline}")
    assert [key for key, _ in shown] == [key for key, _ in found]
    assert line == 'start = "soon"' or shown == found


@pytest.mark.parametrize(
    ("name", "differs"),
    [("s3://lake", False), ("s3://other", True), ("s3://lake/sales/orders", True)],
)
def test_of_the_stores_those_count_that_a_pipeline_uses(tmp_path: Path, name: str, differs: bool) -> None:
    """The pipeline's table is in `s3://other`, or a store with a longer prefix of it becomes its own."""
    text = '[pipelines.a]\ntable = "TABLE"\nsink = {kind = "files", path = "x"}\n[stores.one]\nprefix = "s3://lake"\n'
    place = "s3://lake/sales/orders" if name != "s3://other" else "s3://other/orders"
    path = tmp_path / "tailer.toml"
    path.write_text(text.replace("TABLE", place))
    (before,) = load(path).pipelines
    unrelated = name == "s3://lake"
    path.write_text(path.read_text() + f'[stores.two]\nprefix = "{"s3://far" if unrelated else name}"\nregion = "r"\n')
    (after,) = load(path).pipelines
    assert after.differs(before) is differs


KAFKA = """
[pipelines.{name}]
table = "{name}"
sink = {{kind = "kafka", bootstrap_servers = "{servers}", {topics}}}
"""
ROUTED = 'topic = "x.{c}", topics = ["x.de", "x.fr"], other_topic = "x-rest"'


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ('topic = "x"', 'topic = "x"', "x"),
        ('topic = "x"', 'topic = "y"', None),
        (ROUTED, 'topic = "x.fr"', "x.fr"),
        (ROUTED, 'topic = "x-rest"', "x-rest"),
        (ROUTED, 'topic = "x.it"', None),
        (ROUTED, 'topic = "x.{d}", topics = ["x.it", "x.fr"]', "x.fr"),
        (ROUTED, 'topic = "x.{d}", topics = ["x.it"]', None),
        (ROUTED, 'topic = "x.{d}", topics = "x[.][df].*"', "x.de"),
        (ROUTED, 'topic = "x.{d}", topics = "x[.][i].*"', None),
        (ROUTED, 'topic = "{d}", topics = ".*rest"', "x-rest"),
        ('topic = "x.{c}", topics = "x[.]a.*"', 'topic = "x.b.{c}", topics = "x[.]b.*"', "x[.]a.*"),
        ('topic = "a.{c}", topics = "a.*"', 'topic = "b.{c}", topics = "b.*"', None),
        ('topic = "{c}.a", topics = ".*a"', 'topic = "{c}.b", topics = ".*b"', None),
    ],
)
def test_pipelines_that_may_share_a_topic(tmp_path: Path, one: str, other: str, shared: str | None) -> None:
    """Two patterns may share one unless what is around their columns tells them apart."""
    text = KAFKA.format(name="a", servers="h:1", topics=one) + KAFKA.format(name="b", servers="h:1", topics=other)
    (path := tmp_path / "tailer.toml").write_text(text)
    a, b = load(path).pipelines
    for found in (conflict(a, [b]), conflict(b, [a])):
        assert (found is None) == (shared is None)
        assert shared is None or "is that of" in str(found)
    assert shared is None or f"its target {shared} is" in str(conflict(a, [b]))
    elsewhere = KAFKA.format(name="a", servers="h:1", topics=one) + KAFKA.format(name="b", servers="h:2", topics=other)
    path.write_text(elsewhere)
    a, b = load(path).pipelines
    assert conflict(a, [b]) is None

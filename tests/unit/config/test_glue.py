"""Tables that AWS Glue names, in a configuration."""

from pathlib import Path

import anyio
import pytest

from tailer.config.settings import examine, load
from tailer.config.tables import TableRef
from tailer.daemon.fleet.discovery import find_tables
from tailer.errors import ConfigError, NotATable, ObjectNotFound
from tailer.stores import glue
from tailer.stores.glue import GlueOptions

SINK = 'sink = {kind = "files", path = "out"}'


def written(folder: Path, text: str) -> Path:
    """Write a configuration with this text."""
    path = folder / "tailer.toml"
    path.write_text(text)
    return path


def test_a_name_and_its_store(tmp_path: Path) -> None:
    text = f"""
    [stores.glue]
    prefix = "GLUE://sales/"
    endpoint = "http://127.0.0.1:5000"
    region = "eu-central-1"
    profile = "sales"
    role_arn = "arn:aws:iam::123456789012:role/reader"
    external_id = "4711"
    [stores.lake]
    prefix = "s3://lake"
    region = "eu-west-1"
    [pipelines.orders]
    table = "glue://sales/orders"
    {SINK}
    """
    (orders,) = load(written(tmp_path, text)).pipelines
    assert (orders.table, orders.source.table_format) == ("glue://sales/orders", "delta")
    login = ("http://127.0.0.1:5000", "eu-central-1", "sales", "arn:aws:iam::123456789012:role/reader", "4711")
    assert orders.stores.glue_options(orders.table) == GlueOptions(*login, "glue")
    assert orders.stores.glue_options("glue://sales") == GlueOptions(*login, "glue")
    assert orders.stores.glue_options("glue://sales2/orders") == GlueOptions()
    assert GlueOptions(*login, "glue").login.region == "eu-central-1"
    assert len(orders.used_stores) == 2  # the table may be in any store


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ('table = "glue://sales"', "table", "not the name of a table in Glue"),
        ('table = "glue://*/orders"', "table", "name of a database"),
        ('table = "glue://sales/orders"\ntable_format = "lance"', "table_format", "only a Delta table"),
        ('table = "glue://sales/orders"\nbranch = "main"', "branch", "no branches"),
        ('table = "glue://sales/orders"\nallowed_roots = ["glue://sales/x"]', "allowed_roots", "glue:// is not"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, key: str, reason: str) -> None:
    (problem,) = examine(written(tmp_path, f"[pipelines.orders]\n{text}\n{SINK}\n")).problems
    assert problem.key[2:] == (key,)
    assert reason in problem.error.reason
    assert problem.error.hint


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('prefix = "glue://sales/orders"', "prefix"),
        ('prefix = "glue://sales"\nanonymous = true', "anonymous"),
        ('prefix = "glue://sales"\nnotifications = "https://sqs.eu-central-1.amazonaws.com/1/q"', "notifications"),
        ('prefix = "glue://sales"\nendpoint = "nowhere"', "endpoint"),
        ('prefix = "glue://sales"\nexternal_id = "x"', "external_id"),
    ],
)
def test_wrong_stores(tmp_path: Path, text: str, key: str) -> None:
    path = written(tmp_path, f'[stores.glue]\n{text}\n[pipelines.orders]\ntable = "glue://sales/orders"\n{SINK}\n')
    (problem,) = examine(path).problems
    assert problem.key == ("stores", "glue", key)


def test_formats() -> None:
    assert TableRef("glue://sales/orders").checked().table_format == "delta"
    assert TableRef("s3://lake/orders").checked().table_format is None
    assert TableRef("s3://lake/orders", "lance").checked().table_format == "lance"
    with pytest.raises(ConfigError, match="'lance', but of the tables that glue:// names only a Delta table"):
        TableRef("glue://sales/orders", "lance").checked()


def test_a_name_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(name: str, options: GlueOptions) -> str | None:
        assert options == GlueOptions()
        return None if name == "glue://sales/orders" else "s3://lake/items"

    monkeypatch.setattr(glue, "find_location", find)
    assert anyio.run(TableRef("glue://sales/items").located).location == "s3://lake/items"
    assert anyio.run(TableRef("/data/items").located).location == "/data/items"
    with pytest.raises(NotATable, match="Glue has no such table") as caught:
        anyio.run(TableRef("glue://sales/orders").located)
    assert "region" in caught.value.hint


def test_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed(database: str, options: GlueOptions) -> list[str]:
        if options.region is None:
            raise ObjectNotFound(database)
        return ["sales_a", "sales_b", "items", "_sales_c"]

    monkeypatch.setattr(glue, "list_tables", listed)
    store = '[stores.glue]\nprefix = "glue://shop"\nregion = "eu-central-1"\n'
    text = '[pipelines.all]\ntable = "glue://shop/sales_*"\nsink = {kind = "files", path = "out/{table}"}\n'
    settings = load(written(tmp_path, store + text))
    (template,) = settings.templates
    found = anyio.run(find_tables, template.pattern, settings.stores)
    assert (found.tables, found.faults) == ({("sales_a",), ("sales_b",)}, [])
    expanded = template.expand(("sales_a",))
    assert (expanded.name, expanded.table, expanded.target) == (
        "all/sales_a",
        "glue://shop/sales_a",
        f"{tmp_path}/out/sales_a",
    )
    missing = anyio.run(find_tables, template.pattern, load(written(tmp_path, text)).stores)
    assert [str(each) for each in missing.faults] == ["glue://shop: not found"]
    assert missing.over({("sales_a",)}) == {("sales_a",)}

"""The command line through schema changes, lost files and replaced tables: output and delivered rows."""

import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests.support.daemon.commands import background, complaints, tailer
from tests.support.tables.handwritten import HandwrittenTable
from tests.support.waiting import until

CONFIG = """
metrics = "127.0.0.1:0"
control = ""
[pipelines.copy]
table = "t"
poll_interval_s = 0.1
on_data_loss = "{on_data_loss}"
on_schema_change = "{on_schema_change}"
sink = {{kind = "{kind}", path = "{kind}"}}
"""


@pytest.fixture
def table(tmp_path: Path) -> HandwrittenTable:
    """A table whose version 1 has one column, and version 2 two."""
    found = HandwrittenTable(tmp_path / "t")
    found.commit(found.add(found.data("1.parquet", [1, 2])))
    widen(found, found.add(found.data("2.parquet", [3], note=["three"])))
    return found


def widen(table: HandwrittenTable, *actions: object) -> None:
    """Commit a schema with one more column."""
    schema = json.loads(table.metadata["schemaString"])
    schema["fields"].append({"name": "note", "type": "string", "nullable": True, "metadata": {}})
    table.metadata = {**table.metadata, "schemaString": json.dumps(schema)}
    table.commit({"metaData": table.metadata}, *actions)  # type: ignore[arg-type]


def configured(folder: Path, kind: str = "files", on_data_loss: str = "fail", on_schema_change: str = "evolve") -> Path:
    """Write a configuration beside the table."""
    path = folder / "tailer.toml"
    path.write_text(CONFIG.format(kind=kind, on_data_loss=on_data_loss, on_schema_change=on_schema_change))
    return path


def lines(folder: Path) -> list[dict[str, object]]:
    """Return all lines of the files sink, table by table."""
    files = sorted((folder / "files").rglob("*.jsonl"), key=lambda path: path.name)
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def delivered(folder: Path) -> list[tuple[object, object]]:
    """Return change type and version of every line."""
    return [(line["_change_type"], line["_commit_version"]) for line in lines(folder)]


def test_tail_prints_the_change_between_the_rows(table: HandwrittenTable) -> None:
    done = tailer("tail", table.path, "--from", "earliest", "--to", "latest")
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["_change_type"] for line in shown] == ["insert", "insert", "schema_change", "insert"]
    assert shown[2]["changes"] == ["column note string was added"]
    assert [line.get("note", "absent") for line in shown] == ["absent", "absent", "absent", "three"]
    table_view = tailer("tail", table.path, "--from", "earliest", "--to", "latest", "--format", "table")
    assert "column note string was added" in table_view.stdout


def test_row_ids_where_the_table_has_them(table: HandwrittenTable) -> None:
    table.metadata["configuration"] = {"delta.enableRowTracking": "true"}
    name = table.data("3.parquet", [7, 8], note=[None, None])
    table.commit({"metaData": table.metadata}, table.add(name, baseRowId=40, defaultRowCommitVersion=3))
    done = tailer("tail", table.path, "--from", "earliest", "--to", "latest", "--row-ids", "--columns", "id")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["_row_id"], row["_row_commit_version"]) for row in rows] == [
        (1, None, None),
        (2, None, None),
        (3, None, None),
        (7, 40, 3),
        (8, 41, 3),
    ]


def test_the_daemon_measures_how_far_it_is(table: HandwrittenTable) -> None:
    config = configured(table.path.parent)
    with background("run", "--config", config) as daemon:
        assert daemon.stderr is not None
        address = next(found for found in map(re.compile(r"http://\S+").search, daemon.stderr) if found)
        until(lambda: len(lines(table.path.parent)) == 4)

        def measured() -> str:
            with urllib.request.urlopen(address[0], timeout=10) as answer:
                return str(answer.read().decode())

        until(lambda: 'lake_tailer_lag_versions{pipeline="copy"} 0.0' in measured())
        assert 'lake_tailer_retention_headroom_seconds{pipeline="copy"} 604800.0' in measured()
        daemon.terminate()
        assert daemon.wait(300) == 0


def test_an_address_in_use_is_a_fault_of_the_configuration(table: HandwrittenTable) -> None:
    config = configured(table.path.parent)
    with background("run", "--config", config) as daemon:
        assert daemon.stderr is not None
        address = next(found for found in map(re.compile(r"http://127.0.0.1:(\d+)").search, daemon.stderr) if found)
        done = tailer("run", "--config", config, TAILER_METRICS=f"127.0.0.1:{address[1]}")
    assert done.returncode == 2
    assert "metrics" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plan_says_whether_the_feed_was_on(table: HandwrittenTable) -> None:
    plan = json.loads(tailer("plan", table.path, "1", "--json").stdout)
    assert (plan["feed"], plan["regime"]) == (True, "files")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('on_data_loss = "net"', "must be 'fail', 'resnapshot' or 'skip-with-gap-event'"),
        ('on_schema_change = "maybe"', "must be 'evolve' or 'fail'"),
        ("row_ids = 7", "row_ids"),
        ('catalog = {kind = "glue"}', "no catalog of kind 'glue'"),
        ('catalog = {kind = "unity", uri = "http://x"}', "catalog.table: is missing"),
        ('catalog = {kind = "unity", uri = "x", table = "a.b.c"}', "catalog.uri: is not an address"),
        ('catalog = {kind = "unity", uri = "http://u:secret@x", table = "a.b.c"}', "holds a user or a password"),
    ],
)
def test_check_finds_what_is_wrong(tmp_path: Path, line: str, complaint: str) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text(f'[pipelines.copy]\ntable = "t"\n{line}\nsink = {{kind = "files", path = "out"}}\n')
    done = tailer("check", "--config", config)
    assert done.returncode == 2
    assert complaint in done.stdout
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("address", ["x", "127.0.0.1", ":1", "127.0.0.1:99999", "127.0.0.1:x"])
def test_check_finds_an_address_that_is_none(tmp_path: Path, address: str) -> None:
    config = tmp_path / "tailer.toml"
    table = '[pipelines.copy]\ntable = "t"\nsink = {kind = "files", path = "out"}\n'
    config.write_text(f'metrics = "{address}"\n{table}')
    done = tailer("check", "--config", config)
    assert done.returncode == 2
    assert "is not an address" in done.stdout


def test_a_managed_table_without_its_catalog_says_what_to_do(table: HandwrittenTable) -> None:
    feature = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"]}
    table.commit({"protocol": {**feature, "writerFeatures": ["catalogManaged"]}})
    done = tailer("tail", table.path, "--from", "3", "--to", "3")
    assert done.returncode == 3
    assert "catalogManaged" in done.stderr
    assert "[pipelines.NAME.catalog]" in done.stderr

"""Pipelines whose tables come later: a running daemon waits for them, and says so."""

import json
import shutil
from pathlib import Path
from typing import Final

import httpx2
import lance
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.support.daemon.commands import background, metrics_address, states, tailer
from tests.support.waiting import until

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
NAMES = ("first", "newest", "lance", "named", "wrong")
CONFIG = """
metrics = "127.0.0.1:0"
[defaults]
poll_interval_s = 0.1
[pipelines.first]
table = "lake/orders"
sink = {kind = "files", path = "out/first"}
[pipelines.newest]
table = "lake/orders"
start = "snapshot"
sink = {kind = "files", path = "out/newest"}
[pipelines.lance]
table = "lake/items"
sink = {kind = "files", path = "out/lance"}
[pipelines.named]
table = "lake/named"
table_format = "lance"
sink = {kind = "files", path = "out/named"}
[pipelines.wrong]
table = "tailer.toml"
sink = {kind = "files", path = "out/wrong"}
"""


def delivered(folder: Path, name: str) -> list[tuple[int, int]]:
    """Return the versions and the ids in the target of a pipeline."""
    files = sorted((folder / "out" / name).rglob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [(row["_commit_version"], row["id"]) for row in rows if "id" in row]


COPIED: Final = """
metrics = "127.0.0.1:0"
[defaults]
poll_interval_s = 0.1
discover_interval_s = 0.1
[pipelines.changes]
table = "lake/shop/orders"
sink = {kind = "files", path = "out/changes"}
[pipelines.rows]
table = "lake/shop/orders"
start = "snapshot"
sink = {kind = "files", path = "out/rows"}
[pipelines.all]
table = "lake/shop/*"
sink = {kind = "files", path = "out/all/{table}"}
"""


def test_a_table_that_is_copied_into_place_loses_no_row(tmp_path: Path) -> None:
    """Its newest versions and a checkpoint come first, and its data files last."""
    config, source, target = tmp_path / "tailer.toml", tmp_path / "source", tmp_path / "lake" / "shop" / "orders"
    config.write_text(COPIED)
    for number in range(6):
        write_deltalake(source, pa.table({"id": pa.array([number], pa.int64())}), mode="append")
    DeltaTable(source).create_checkpoint()
    target.joinpath("_delta_log").mkdir(parents=True)
    with background("run", "--config", config, "--log-format", "text") as daemon:
        url = metrics_address(daemon)
        until(lambda: states(config) == {"changes": "waiting", "rows": "waiting"})
        for file in sorted(source.joinpath("_delta_log").iterdir(), reverse=True):
            shutil.copyfile(file, target / "_delta_log" / file.name)
        names = ("changes", "rows", "all/orders")

        def report() -> dict[str, dict[str, str]]:
            return {each["name"]: each for each in httpx2.get(f"{url}/status").json()["pipelines"]}

        until(lambda: all("is not whole yet: " in report().get(each, {}).get("why", "") for each in names), report)
        for file in source.glob("*.parquet"):
            shutil.copyfile(file, target / file.name)
        changes = [(number, number) for number in range(6)]
        rows = [(5, number) for number in range(6)]
        until(lambda: sorted(delivered(tmp_path, "rows")) == rows, report)
        until(lambda: [delivered(tmp_path, name) for name in ("changes", "all/orders")] == [changes, changes], report)
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 0, errors


def test_tables_that_come_are_followed_from_their_start(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text(CONFIG)
    with background("run", "--config", config, "--log-format", "text") as daemon:
        url = metrics_address(daemon)
        until(lambda: states(config) == dict.fromkeys(NAMES, "waiting") | {"wrong": "stopped"})
        report = {each["name"]: each for each in httpx2.get(f"{url}/status").json()["pipelines"]}
        assert report["first"]["why"] == f"there is no table at {tmp_path}/lake/orders yet"
        assert report["first"]["last_error"] is None
        assert report["wrong"]["why"] == f"NotATable: {config}: not a Delta table: it is a file, not a folder"
        assert httpx2.get(f"{url}/livez").status_code == 200
        refused = tailer("resnapshot", "first", "--config", config)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "first waits for its table, and begins with its start" in refused.stderr
        shown = tailer("progress", "show", "--config", config)
        assert f"first\t{tmp_path}/lake/orders\t-\twaits for its table\t-\t-\n" in shown.stdout
        assert (shown.returncode, "wrong" in shown.stdout) == (3, False)
        # An order that comes before it waits is forgotten, too.
        assert tailer("pause", "newest", "--config", config).returncode == 0
        until(lambda: states(config)["newest"] == "paused")
        assert tailer("resnapshot", "newest", "--config", config).returncode == 0
        until(lambda: states(config)["newest"] == "waiting")
        assert "first: waiting\n" in httpx2.get(f"{url}/readyz").text
        metrics = httpx2.get(f"{url}/metrics").text
        assert 'lake_tailer_pipeline_state{pipeline="first",state="waiting"} 1.0' in metrics
        assert 'lake_tailer_errors_total{pipeline="first"} 0.0' in metrics
        write_deltalake(tmp_path / "lake" / "orders", ROWS)
        for name in ("items", "named"):
            lance.write_dataset(ROWS, tmp_path / "lake" / name)
        until(lambda: delivered(tmp_path, "first") == [(0, each) for each in (1, 2, 3)])
        until(lambda: delivered(tmp_path, "newest") == [(0, each) for each in (1, 2, 3)])
        wanted = [(1, each) for each in (1, 2, 3)]
        until(lambda: [delivered(tmp_path, name) for name in ("lance", "named")] == [wanted, wanted])
        write_deltalake(tmp_path / "lake" / "orders", ROWS, mode="append")
        until(lambda: len(delivered(tmp_path, "newest")) == 6)
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert "first: there is no table at" in errors
    assert "newest: resnapshot is not done: there is no table yet" in errors
    assert "an operator asked" not in errors
    assert "no notification" not in errors


def test_progress_of_a_pipeline_that_waits(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text('[pipelines.first]\ntable = "lake/orders"\nsink = {kind = "files", path = "out"}')
    shown = tailer("progress", "show", "--config", config, "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    (found,) = json.loads(shown.stdout)["pipelines"]
    nothing = dict.fromkeys(("app_id", "position", "delivered", "latest", "lag"))
    assert found == {"name": "first", "table": f"{tmp_path}/lake/orders", **nothing}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tailer.toml"]

"""Pipelines whose tables come later: a running daemon waits for them, and says so."""

import json
from pathlib import Path

import httpx2
import lance
import pyarrow as pa
from deltalake import write_deltalake

from tests.support.daemon.commands import background, metrics_address, states
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


def test_tables_that_come_are_followed_from_their_start(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    config.write_text(CONFIG)
    with background("run", config, "--log-format", "text") as daemon:
        url = metrics_address(daemon)
        until(lambda: states(config) == dict.fromkeys(NAMES, "waiting") | {"wrong": "stopped"})
        report = {each["name"]: each for each in httpx2.get(f"{url}/status").json()["pipelines"]}
        assert report["first"]["why"] == f"there is no table at {tmp_path}/lake/orders yet"
        assert report["first"]["last_error"] is None
        assert report["wrong"]["why"] == f"NotATable: {config}: not a Delta table: it is a file, not a folder"
        assert httpx2.get(f"{url}/livez").status_code == 200
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
    assert "no notification" not in errors

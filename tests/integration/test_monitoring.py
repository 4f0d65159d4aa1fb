"""Monitoring of a running daemon when a pipeline dies or is stuck."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.daemon.commands import Orders, background
from tests.support.waiting import until

NAMES = ("a", "b", "c")


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Orders]:
    """Three tables, a pipeline for each, and the address of the metrics."""
    found = {name: Orders(tmp_path / name) for name in NAMES}
    text = ['metrics = "127.0.0.1:0"']
    for name, table in found.items():
        table.insert(1, 2, 3)
        text.append(f'[pipelines.{name}]\ntable = "{name}"\nsink = {{kind = "files", path = "out_{name}"}}')
    (tmp_path / "tailer.toml").write_text("\n".join(text))
    return found


def asked(address: str, path: str) -> tuple[int, str]:
    """Return status and body of a request."""
    try:
        with urlopen(address + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def address_of(daemon: subprocess.Popen[str]) -> str:
    """Return the address of the monitor from the log."""
    assert daemon.stderr is not None
    return next(found[1] for line in daemon.stderr if (found := re.search(r"(http://\S+)/metrics", line)))


def test_a_pipeline_that_lost_its_table_does_not_look_healthy(tmp_path: Path, tables: dict[str, Orders]) -> None:
    with background("run", "--config", tmp_path / "tailer.toml") as daemon:
        address = address_of(daemon)
        until(lambda: asked(address, "/readyz")[0] == 200)
        until(lambda: 'lake_tailer_lag_versions{pipeline="c"} 0.0' in asked(address, "/metrics")[1])
        shutil.rmtree(tables["c"].path)
        until(lambda: "c: stopped" in asked(address, "/readyz")[1])
        assert asked(address, "/readyz") == (503, "a: streaming\nb: streaming\nc: stopped\n")
        assert asked(address, "/livez") == (200, "live\n")
        assert asked(address, "/health")[0] == 404
        status, metrics = asked(address, "/metrics")
        assert status == 200
        for name, up in (("a", 1), ("b", 1), ("c", 0)):
            assert f'lake_tailer_pipeline_up{{pipeline="{name}"}} {up}.0' in metrics
            assert f'lake_tailer_rows_delivered_total{{kind="insert",pipeline="{name}"}} 3.0' in metrics
            assert f'lake_tailer_last_success_timestamp_seconds{{pipeline="{name}"}}' in metrics
        assert 'lake_tailer_errors_total{pipeline="a"} 0.0' in metrics
        assert 'lake_tailer_errors_total{pipeline="c"} 1.0' in metrics
        tables["a"].insert(4)
        until(lambda: 'rows_delivered_total{kind="insert",pipeline="a"} 4.0' in asked(address, "/metrics")[1])
        daemon.terminate()
        daemon.communicate(timeout=300)
    assert daemon.returncode == 3


@pytest.mark.usefixtures("tables")
def test_a_pipeline_that_tries_again_is_up_and_not_ready(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    nobody = 'catalog = {kind = "unity", uri = "http://127.0.0.1:1", table = "a.b.c"}'
    config.write_text(config.read_text().replace('table = "b"', f'table = "b"\n{nobody}'))
    with background("run", "--config", config) as daemon:
        address = address_of(daemon)
        until(lambda: asked(address, "/readyz") == (503, "a: streaming\nb: retrying\nc: streaming\n"))
        _, metrics = asked(address, "/metrics")
        assert 'lake_tailer_pipeline_up{pipeline="b"} 1.0' in metrics
        assert 'lake_tailer_rows_delivered_total{kind="insert",pipeline="b"} 0.0' in metrics
        assert 'lake_tailer_lag_versions{pipeline="b"}' not in metrics
        assert re.search(r'lake_tailer_retries_total\{pipeline="b"\} [1-9]', metrics)
        daemon.terminate()
        daemon.communicate(timeout=300)
    assert daemon.returncode in (0, 4)  # 4: the signal came while the pipeline was trying, in vain


def metric(text: str, name: str, **labels: str) -> float:
    """Return the value of a metric in the answer of `/metrics`."""
    families = text_string_to_metric_families(text)
    return next(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_status_and_metrics_of_a_running_daemon(tmp_path: Path, tables: dict[str, Orders]) -> None:
    tables["a"].delete(2)
    with background("run", "--config", tmp_path / "tailer.toml") as daemon:
        address = address_of(daemon)

        def report() -> dict[str, Any]:
            status, text = asked(address, "/status")
            assert status == 200
            found: dict[str, Any] = json.loads(text)
            return found

        until(lambda: report()["pipelines"][0]["delivered"] == 1)
        until(lambda: report()["pipelines"][0]["lag"] == {"versions": 0, "seconds": 0.0, "bytes": 0})
        one = report()["pipelines"][0]
        assert (report()["format"], one["name"], one["table"], one["sink"]) == (1, "a", str(tables["a"].path), "files")
        assert (one["state"], one["why"], one["hint"], one["latest"]) == ("streaming", "", "", 1)
        assert one["rows"] == {"insert": 3, "delete": 1, "update_preimage": 0, "update_postimage": 0}
        (tables["c"].path / "_delta_log" / f"{1:020d}.json").write_text("garbage\n")
        until(lambda: report()["pipelines"][2]["state"] == "stopped")
        stopped = report()["pipelines"][2]
        assert stopped["why"].startswith("LogCorrupt: ")
        assert stopped["hint"]
        assert (stopped["delivered"], stopped["last_error"]["name"]) == (0, "LogCorrupt")
        text = asked(address, "/metrics")[1]
        assert metric(text, "lake_tailer_pipeline_state", pipeline="a", state="streaming") == 1
        assert metric(text, "lake_tailer_pipeline_state", pipeline="c", state="stopped") == 1
        assert metric(text, "lake_tailer_pipeline_state", pipeline="c", state="streaming") == 0
        assert metric(text, "lake_tailer_rows_delivered_total", pipeline="a", kind="delete") == 1
        assert metric(text, "lake_tailer_transaction_rows_total", pipeline="a") == 4
        assert metric(text, "lake_tailer_transactions_total", pipeline="a") >= 1
        assert metric(text, "lake_tailer_transaction_seconds_count", pipeline="a") >= 1
        assert metric(text, "lake_tailer_retention_headroom_seconds", pipeline="a") == 7 * 24 * 3600
        assert metric(text, "lake_tailer_memory_in_flight_bytes") >= 0
        lag_s = metric(text, "lake_tailer_lag_seconds", pipeline="c")
        until(lambda: metric(asked(address, "/metrics")[1], "lake_tailer_lag_seconds", pipeline="c") > lag_s + 0.5)
        assert metric(asked(address, "/metrics")[1], "lake_tailer_lag_seconds", pipeline="a") == 0
        daemon.terminate()
        daemon.communicate(timeout=300)
    assert daemon.returncode == 3


def test_the_log_as_json(tmp_path: Path, tables: dict[str, Orders]) -> None:
    shutil.rmtree(tables["c"].path)
    tables["c"].path.touch()
    with background("run", "--config", tmp_path / "tailer.toml", "-v") as daemon:
        address = address_of(daemon)
        until(lambda: '"delivered":0' in asked(address, "/status")[1])
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    records = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
    assert {"error: c: /", "hint: Give "} == {line[:11] for line in errors.splitlines() if not line.startswith("{")}
    one = next(record for record in records if record["message"].startswith("a: delivered up to version 0"))
    assert (one["level"], one["logger"], one["pipeline"]) == ("debug", "tailer.pipeline.sink_writer", "a")
    assert (one["table"], one["version"], one["position"]) == (str(tables["a"].path), 0, "the end of version 0")
    (stop,) = (record for record in records if record["level"] == "error")
    assert (stop["pipeline"], stop["error"], stop["hint"]) == ("c", "NotATable", "Give the folder of a table.")
    ended = {record["message"] for record in records if record["message"].startswith("a: has ended")}
    assert ended == {"a: has ended: SIGTERM"}
    summary = re.compile("a: (streaming|stopped); rows 3, transactions 1, up to version 0; behind by 0 versions")
    assert any(summary.match(record["message"]) and record["pipeline"] == "a" for record in records)


@pytest.mark.usefixtures("tables")
def test_the_log_as_text_and_only_warnings(tmp_path: Path) -> None:
    with background("run", "--config", tmp_path / "tailer.toml", "--log-format", "text") as daemon:
        assert daemon.stderr is not None
        first = daemon.stderr.readline()
        until((tmp_path / "out_a").is_dir)
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO +\S.*\n)+", first + errors)
    with background("run", "--config", tmp_path / "tailer.toml", "-q") as daemon:
        until((tmp_path / "out_a").is_dir)
        daemon.terminate()
        assert daemon.communicate(timeout=300) == ("", "")

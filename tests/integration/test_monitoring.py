"""Monitoring of a running daemon when a pipeline dies or is stuck."""

import re
import shutil
import subprocess
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.daemon.commands import Orders, background
from tests.support.daemon.process import until

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
    with background("run", tmp_path / "tailer.toml") as daemon:
        address = address_of(daemon)
        until(lambda: asked(address, "/readyz")[0] == 200)
        until(lambda: 'lake_tailer_versions_behind{pipeline="c"} 0.0' in asked(address, "/metrics")[1])
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
            assert (f'lake_tailer_versions_behind{{pipeline="{name}"}}' in metrics) == bool(up)
            assert (f'lake_tailer_vacuum_hours_left{{pipeline="{name}"}}' in metrics) == bool(up)
        assert 'lake_tailer_errors_total{pipeline="a"} 0.0' in metrics
        assert 'lake_tailer_errors_total{pipeline="c"} 1.0' in metrics
        tables["a"].insert(4)
        until(lambda: 'rows_delivered_total{kind="insert",pipeline="a"} 4.0' in asked(address, "/metrics")[1])
        daemon.terminate()
        daemon.communicate(timeout=30)
    assert daemon.returncode == 3


@pytest.mark.usefixtures("tables")
def test_a_pipeline_that_tries_again_is_up_and_not_ready(tmp_path: Path) -> None:
    config = tmp_path / "tailer.toml"
    nobody = 'catalog = {kind = "unity", uri = "http://127.0.0.1:1", table = "a.b.c"}'
    config.write_text(config.read_text().replace('table = "b"', f'table = "b"\n{nobody}'))
    with background("run", config) as daemon:
        address = address_of(daemon)
        until(lambda: asked(address, "/readyz") == (503, "a: streaming\nb: retrying\nc: streaming\n"))
        _, metrics = asked(address, "/metrics")
        assert 'lake_tailer_pipeline_up{pipeline="b"} 1.0' in metrics
        assert 'lake_tailer_rows_delivered_total{kind="insert",pipeline="b"} 0.0' in metrics
        assert 'lake_tailer_versions_behind{pipeline="b"}' not in metrics
        assert re.search(r'lake_tailer_retries_total\{pipeline="b"\} [1-9]', metrics)
        daemon.terminate()
        daemon.communicate(timeout=30)
    assert daemon.returncode == 0

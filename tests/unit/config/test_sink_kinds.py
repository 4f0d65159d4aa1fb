"""Options of sinks are checked by name before any I/O."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tailer_sinks
from tailer.config.options import faults_by
from tailer.config.tables import configure_sink, sink_kinds
from tailer.errors import ConfigError
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.stdout import StdoutSink
from tests.support.cases import cases


@cases(
    ("kind", "options", "message"),
    [
        ("files", {}, "archive.path: is missing"),
        ("files", {"path": 7}, "archive.path: must be text"),
        ("files", {"path": ""}, "archive.path: is empty"),
        (
            "files",
            {"path": "hdfs://bucket/x"},
            "archive.path: hdfs:// is not a store that can be read",
        ),
        (
            "stdout",
            {"path": "s3://bucket/x"},
            "archive.path: s3:// is not a local path, and a stdout sink writes to no other",
        ),
        ("files", {"path": "out", "format": "csv"}, "archive.format: must be 'jsonl' or 'parquet'"),
        ("files", {"path": "out", "compress": True}, "archive.compress: no such option"),
        ("stdout", {"format": None}, "archive.format: must be 'auto', 'jsonl', 'csv' or 'table'"),
        ("stdout", {"path": "x"}, "archive.path: no such option"),
        ("memory", {}, "archive: no sink of kind 'memory'"),
    ],
)
def test_a_wrong_option_is_named(kind: str, options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configure_sink("archive", kind, options)
    assert str(raised.value) == message


@pytest.mark.parametrize(("kind", "remedy"), [("files", "or use kind"), ("delta", "Give partition_by")])
def test_a_path_by_the_value_of_a_column_is_refused(kind: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=r"archive.path: has \{country\}, and rows with their progress") as raised:
        configure_sink("archive", kind, {"path": "/data/{table}/{country}"})
    assert remedy in raised.value.hint
    configure_sink("archive", kind, {"path": "/data/{table}"})


@pytest.mark.parametrize(
    ("kind", "extra", "library", "faults"),
    [
        ("kafka", "kafka-fast", "tailer_sinks.kafka.sink", ["", ".topci", ".bootstrap_servers", ".replication_factor"]),
        ("delta", "delta", "deltalake", ["", ".topci", ".bootstrap_servers", ".replication_factor", ".path"]),
    ],
)
def test_options_are_checked_without_the_client(
    monkeypatch: pytest.MonkeyPatch, kind: str, extra: str, library: str, faults: list[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"tailer_sinks.{kind}")]:
        monkeypatch.delitem(sys.modules, name)
    # What is imported again takes the place of the package's attribute, too.
    monkeypatch.setattr(tailer_sinks, kind, getattr(tailer_sinks, kind, None), raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    options = {"topci": "t", "bootstrap_servers": "nowhere", "replication_factor": 0}
    found = faults_by(partial(configure_sink, "archive", kind, options))
    assert sorted(fault.where.removeprefix("archive") for fault in found) == sorted(faults)
    assert found[0].hint == f"Install it: pip install 'lake-tailer[{extra}]'."


def test_sinks_are_found_by_their_kind_and_do_nothing_yet(tmp_path: Path) -> None:
    assert {"files", "stdout"} <= set(sink_kinds())
    assert isinstance(configure_sink("a", "files", {"path": str(tmp_path / "out"), "format": "parquet"}), FilesSink)
    assert isinstance(configure_sink("a", "stdout", {"format": "jsonl"}), StdoutSink)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["gs://lake/copy", "abfss://lake@shop1.dfs.core.windows.net/copy"])
def test_sinks_write_to_clouds(path: str) -> None:
    configure_sink("archive", "delta", {"path": path})
    configure_sink("archive", "files", {"path": path})


def test_a_delta_sink_writes_to_no_cloud_that_delta_rs_does_not_know() -> None:
    path = "abfss://lake@shop1.dfs.core.chinacloudapi.cn/copy"
    with pytest.raises(ConfigError, match=r"cannot write to: dfs\.core\.chinacloudapi\.cn") as raised:
        configure_sink("archive", "delta", {"path": path})
    assert "dfs.core.windows.net" in raised.value.hint
    configure_sink("archive", "files", {"path": path})


@pytest.mark.parametrize("folder", ["a%20b", "a?b", "a#b", "a//b"])
def test_a_folder_that_delta_rs_would_read_as_another_one_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="would read as another one") as raised:
        configure_sink("archive", "delta", {"path": f"s3://lake/{folder}/copy"})
    assert "percent, question and number signs" in raised.value.hint
    configure_sink("archive", "files", {"path": f"s3://lake/{folder}/copy"})
    configure_sink("archive", "delta", {"path": "s3://lake/a b+c=d/copy"})

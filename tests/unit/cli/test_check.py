"""The lines of `tailer check` about pipelines: their targets, and tables that do not exist yet."""

from pathlib import Path

import pytest

from tailer.cli.check import command

CONFIG = """
[pipelines.first]
table = "lake/orders"
sink = {kind = "files", path = "out"}
[pipelines.wrong]
table = "tailer.toml"
sink = {kind = "files", path = "copy"}
"""
KAFKA = """
[pipelines.named]
table = "orders"
sink = {kind = "kafka", bootstrap_servers = "one:9092,two:9092", topic = "sales"}
[pipelines.unnamed]
table = "orders"
sink = {kind = "kafka", bootstrap_servers = ["one:9092", "two:9092"]}
"""


def checked(capsys: pytest.CaptureFixture[str], folder: Path, text: str, *, reach: bool) -> tuple[int, list[str]]:
    """Return the exit code, and the lines without colours."""
    config = folder / "tailer.toml"
    config.write_text(text)
    assert command.callback is not None
    code = command.callback(config, reach)
    return code, capsys.readouterr().out.replace("\x1b[32m", "").replace("\x1b[0m", "").splitlines()


def test_a_table_that_does_not_exist_yet_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = checked(capsys, tmp_path, CONFIG, reach=True)
    assert code == 3
    first, waits, wrong, reason, _, verdict = lines
    assert "wait  " in first
    assert first.endswith(f" pipeline first: {tmp_path}/lake/orders to files {tmp_path}/out, from earliest")
    assert waits.startswith("       no table yet: the pipeline waits for it")
    assert "failed" in wrong
    assert reason == f"       {tmp_path}/tailer.toml: not a Delta table: it is a file, not a folder"
    assert verdict.endswith("1 fault")
    code, lines = checked(capsys, tmp_path, CONFIG.partition("[pipelines.wrong]")[0], reach=True)
    assert (code, lines[-1].split()[-1]) == (0, f"{tmp_path}/tailer.toml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tailer.toml"]


def test_the_folder_of_a_log_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = checked(capsys, tmp_path, CONFIG.replace('"tailer.toml"', '"lake/_delta_log"'), reach=False)
    assert code == 2
    assert lines[2:4] == [
        f"       {tmp_path}/tailer.toml: pipelines.wrong.table: is the folder of a table's log",
        f"       hint: Give the folder around it, {tmp_path}/lake.",
    ]


def test_a_topic_and_its_brokers_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = checked(capsys, tmp_path, KAFKA, reach=False)
    place = f"{tmp_path}/orders to kafka topic"
    assert lines[0].endswith(f"pipeline named: {place} sales at one:9092,two:9092, from earliest")
    assert lines[1].endswith(f"pipeline unnamed: {place} unnamed at one:9092,two:9092, from earliest")

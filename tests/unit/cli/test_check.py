"""The lines of `tailer check` about pipelines: their targets, and tables that do not exist yet."""

from pathlib import Path

import pytest

from tailer.cli.check import command
from tailer.config.settings import load

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
    code = command.callback(reach, config)
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


@pytest.mark.parametrize(
    ("table", "reason", "hint"),
    [
        ("lake/_delta_log", "it is the log of a table", "Give the folder of the table: {}/lake"),
        ("lake/_versions/x", "it is part of the log of a table", "Give the folder of the table: {}/lake"),
        ("tailer.toml", "it is a file, not a folder", "Give the folder of a table."),
        ("lake/*/_delta_log", "is the folder of a table's log", "Give the folder around it, {}/lake/*."),
    ],
)
def test_a_place_of_no_table_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, reason: str, hint: str
) -> None:
    text = CONFIG.replace('"tailer.toml"', f'"{table}"').replace("copy", "copy/{table}" if "*" in table else "copy")
    code, lines = checked(capsys, tmp_path, text, reach=False)
    assert code == 2
    assert lines[2:4] == [
        f"       {tmp_path}/tailer.toml: pipelines.wrong.table: {reason}",
        f"       hint: {hint.format(tmp_path)}",
    ]
    assert lines[-1].endswith(": 1 fault")


def test_the_log_of_a_table_in_one_pipeline_leaves_the_others(tmp_path: Path) -> None:
    """Only that pipeline stops, as the documentation says."""
    (tmp_path / "tailer.toml").write_text(CONFIG.replace('"tailer.toml"', '"lake/_delta_log"'))
    assert [each.name for each in load(tmp_path / "tailer.toml").pipelines] == ["first", "wrong"]


def test_a_topic_and_its_brokers_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = checked(capsys, tmp_path, KAFKA, reach=False)
    place = f"{tmp_path}/orders to kafka topic"
    assert lines[0].endswith(f"pipeline named: {place} sales at one:9092,two:9092, from earliest")
    assert lines[1].endswith(f"pipeline unnamed: {place} unnamed at one:9092,two:9092, from earliest")


def test_a_table_of_a_database_is_shown_without_its_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = 'kind = "sql", url = "sqlite:///mirror.db", key = ["id"]'
    tables = 'table = "orders"\nsink = {' + sink
    text = f'[pipelines.copy]\n{tables}}}\n[pipelines.other]\n{tables}, table = "sales"}}\n'
    code, (copy, other, _) = checked(capsys, tmp_path, text, reach=False)
    assert code == 0
    assert copy.endswith("orders to sql table copy, from earliest")
    assert other.endswith("orders to sql table sales, from earliest")

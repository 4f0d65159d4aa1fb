"""Standard output and standard error that are closed, full or without a reader: no verb reports a bug."""

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon.commands import COMMAND, Orders, tailer

CONFIG: Final = """
state_table = "state"
[pipelines.copy]
table = "orders"
sink = {kind = "stdout", format = "jsonl"}
"""

PRINTING: Final = (
    "--help",
    "--version",
    "plan --help",
    "plan orders 0",
    "check",
    "check --config nowhere.toml",
    "progress show",
    "progress reset copy --to 0",
    "tail orders --from earliest --to latest",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table of two versions, and a configuration that prints it."""
    table = Orders(tmp_path / "orders")
    table.insert(1, 2)
    table.insert(3)
    (tmp_path / "tailer.toml").write_text(CONFIG)
    return tmp_path


def shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `tailer` is the command. Its streams are buffered, as they are for users."""
    line = ["bash", "-o", "pipefail", "-c", command.replace("tailer ", f"{' '.join(COMMAND)} ", 1)]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("ending", "reason"), [(">/dev/full", "No space left on device"), (">&-", "is closed")])
@pytest.mark.parametrize("arguments", PRINTING)
def test_output_that_is_full_or_closed_is_a_named_error(folder: Path, arguments: str, ending: str, reason: str) -> None:
    done = shell(folder, f"tailer {arguments} {ending}")
    assert done.returncode == 4, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert f"standard output: {reason}" in error
    assert hint.startswith("hint: Run it again")
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arguments", PRINTING)
def test_a_reader_that_is_gone_is_a_good_end(folder: Path, arguments: str) -> None:
    done = shell(folder, f"tailer {arguments} | true")
    assert done.returncode in ((0, 2) if "nowhere" in arguments else (0,)), done.stderr
    assert "error" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ending", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [("", 2), ("nonsense", 2), ("plan nowhere 0", 3), ("plan orders 0", 0)])
def test_errors_without_a_reader_keep_the_exit_code(folder: Path, arguments: str, code: int, ending: str) -> None:
    done = shell(folder, f"tailer {arguments} {ending}")
    assert done.returncode == code
    assert "Traceback" not in done.stdout


def test_nothing_counts_as_delivered_to_a_closed_output(folder: Path) -> None:
    config = folder / "tailer.toml"
    config.write_text(f'control = ""\n{config.read_text()}')  # or it stays, and waits for a command
    done = shell(folder, "tailer run >&-")
    assert done.returncode == 4
    assert "standard output: is closed" in done.stderr
    assert (
        tailer("progress", "show", "--config", folder / "tailer.toml").stdout.splitlines()[1].split("\t")[3]
        == "nothing"
    )


@pytest.mark.long
def test_a_daemon_that_prints_nothing_needs_no_output(folder: Path) -> None:
    config = folder / "tailer.toml"
    config.write_text(CONFIG.replace('kind = "stdout", format = "jsonl"', 'kind = "files", path = "out"'))
    done = shell(folder, "timeout --signal=TERM 10 tailer run >&-")
    assert "draining" in done.stderr
    lines = [line for path in (folder / "out").rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) == 3

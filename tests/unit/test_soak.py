"""The soak's command: epochs one after the other, the folder and command of one that found something, exit codes."""

import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tests.soak.__main__
from tests.soak.epoch import Plan
from tests.soak.report import Outcome


class FakeEpoch:
    """An epoch that finds a missing row if its seed is 8."""

    def __init__(self, plan: Plan, folder: Path, *_: Any) -> None:
        self._plan = plan
        (folder / "log").write_text("said")

    def run(self) -> Outcome:
        missing = int(self._plan.seed == 8)
        return Outcome(
            self._plan.seed,
            self._plan.kind,
            commits=2,
            events=Counter(files=10),
            figures={"files": Counter(missing=missing)},
            faults=Counter({"daemon killed": 1}),
            violations=["files: missing: [7]"] * missing,
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the folders of epochs, which are faked."""
    monkeypatch.setattr(tests.soak.__main__, "Epoch", FakeEpoch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *options: object) -> None:
    monkeypatch.setattr(sys, "argv", ["soak", *map(str, options)])
    tests.soak.__main__.main()


def test_nothing_is_left_if_all_is_well(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--epochs", 2, "--seed", 5)
    said = capsys.readouterr().out
    assert "| epochs | 2 (1 local, 1 standby) |" in said
    assert "| events | 20, over all destinations |" in said
    assert "| fault: daemon killed | 2 |" in said
    assert "| into `files` | 20 events; missing 0, doubled 0, disordered 0, changed 0, lost 0 |" in said
    assert "| violations | none |" in said
    assert not list(folder.iterdir())


def test_an_epoch_that_found_something_is_kept_with_the_command_that_repeats_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        run(monkeypatch, "--epochs", 3, "--seed", 7, "--out", folder / "table.md")
    said = capsys.readouterr().out
    (kept,) = (each for each in folder.iterdir() if each.is_dir())
    assert f"kept: {kept}; to repeat: python -m tests.soak --epochs 1 --seed 8\n" in said
    table = (folder / "table.md").read_text()
    assert "| into `files` | 30 events; missing 1, " in table
    assert "| violations | files: missing: [7] |" in table
    assert table in said


@pytest.mark.usefixtures("folder")
def test_a_soak_of_no_time_has_one_epoch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, "--hours", 0, "--seed", 6)
    assert "| epochs | 1 (1 local) |" in capsys.readouterr().out

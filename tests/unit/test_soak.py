"""The soak's command: epochs one after the other, the folder and command of one that found something, exit codes."""

import json
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tests.soak.__main__
from tests.soak.epoch import Plan
from tests.soak.journal import Journal, JournalError
from tests.soak.report import Outcome, Report


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


def test_a_soak_goes_on_where_it_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "table.md"
    run(monkeypatch, "--epochs", 1, "--seed", 5, "--out", out)
    run(monkeypatch, "--epochs", 3, "--out", out)
    lines = (folder / "table.md.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"]["seed"] for line in lines] == [5, 6, 7]
    whole = out.read_text()
    assert "| seeds | 5 to 7 |" in whole
    assert "| events | 30, over all destinations |" in whole
    run(monkeypatch, "--epochs", 3, "--out", out)
    assert out.read_text() == whole
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--epochs", 4, "--seed", 6, "--out", out)
    assert "--seed: the soak in" in capsys.readouterr().err


def test_what_an_epoch_found_is_kept_as_it_was(tmp_path: Path) -> None:
    """With literal values: a soak of days may go on with a later version of this code only if it means the same."""
    path = tmp_path / "j"
    line = (
        '{"version": 1, "commit": "c", "outcome": {"seed": 7, "kind": "s3", "began": "2026-11-27 13:00 UTC", '
        '"hours": 0.1, "peak_mb": 200, "commits": 9, "events": {"files": 3}, "figures": {"files": {"missing": 1}}, '
        '"verified": {"m": 1}, "faults": {"daemon killed": 2}, "takeovers": 0, "violations": ["files: x"]}}\n'
    )
    path.write_text(line)
    (outcome,) = Journal(path, "c").outcomes
    assert outcome.figures == {"files": Counter(missing=1)}
    assert outcome.events + outcome.faults == Counter(files=3) + Counter({"daemon killed": 2})
    other = tmp_path / "k"
    Journal(other, "c").append(outcome)
    assert other.read_text() == line


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"version": 1, "commit": "d", "outcome": {}}', "is of commit d and version 1, not of commit c and version 1"),
        ('{"version": 2, "commit": "c", "outcome": {}}', "is of commit c and version 2, not of commit c and version 1"),
        ('{"version": 1, "com', "line 1 is broken"),
    ],
)
def test_a_journal_of_something_else_is_refused(tmp_path: Path, line: str, error: str) -> None:
    path = tmp_path / "j"
    path.write_text(line)
    with pytest.raises(JournalError, match=error):
        Journal(path, "c")


def test_memory_by_hour() -> None:
    peaks = [(0.5, 100), (0.4, 180), (0.2, 120), (1.0, 90)]
    report = Report("c", [Outcome(n, "local", hours=hours, peak_mb=mb) for n, (hours, mb) in enumerate(peaks)])
    assert "| peak memory by hour | 180, 90 MB |" in str(report)
    assert "| peak memory of a daemon | 180 MB |" in str(report)
    assert "| hours | 2.10 |" in str(report)


def test_seeds_of_soaks_that_ran_beside_each_other() -> None:
    report = Report("c", [Outcome(seed, "local") for seed in (5, 20, 6, 7, 21, 9)])
    assert "| seeds | 5 to 7, 9 to 9, 20 to 21 |" in str(report)
    assert "| seeds | - |" in str(Report("c", []))

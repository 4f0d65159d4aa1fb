"""`tailer history --pipeline`: the column `delivery`, in lines and on terminals."""

import io
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from rich.console import Console

from tailer.cli.history import command, paper
from tailer.cli.history.paper import print_lines, print_paper
from tailer.cli.history.periods import By, periods_of
from tailer.cli.history.verb import delivery_seconds
from tailer.daemon.page.history import JourneyReport
from tailer.formats.inspection import CommitSummary, RowCounts
from tests.support.cases import cases

BEGIN_S = 1_764_000_000.25
COMMITS = [
    CommitSummary(
        version, round(BEGIN_S * 1000) + version * 1000, "CREATE TABLE", "delta-rs", RowCounts(10**9, 0, 0), 999_900_000
    )
    for version in range(5)
]
PERIODS = periods_of(COMMITS, By.COMMIT)
DELIVERIES = {1: 0.04, 3: 90.0}


def at(seconds: float) -> datetime:
    """Return a time after the first commit."""
    return datetime.fromtimestamp(BEGIN_S + seconds, UTC)


def journey(first: int, last: int, appeared_s: float | None, begun_s: float, read_s: float) -> JourneyReport:
    """Return the journey of versions, with 0.25 s to plan and 0.5 s to deliver."""
    return JourneyReport(first, last, None if appeared_s is None else at(appeared_s), at(begun_s), 0.25, read_s, 0.5)


@cases(
    ("found", "seconds"),
    [
        (journey(1, 1, 1, 2, 0.5), {1: 2.25}),
        (journey(1, 3, 1, 5, 0.25), {1: 5.0, 2: 4.0, 3: 3.0}),  # in one transaction
        (journey(1, 1, None, 2, 0), {1: 1.75}),
        (journey(4, 9, 4, 5, 0), {4: 1.75}),
        (journey(2, 2, 2, 0, 0), {2: 0.0}),  # the clock of the writer is ahead
        (journey(1, 1, 1.003, 2, 0.5), {1: 2.25}),  # the log was read from another version on
        (journey(1, 1, 3, 4, 0), {}),  # of another branch
        (journey(7, 8, 7, 9, 0), {}),
    ],
)
def test_seconds_from_the_commit_to_the_sink(found: JourneyReport, seconds: dict[int, float]) -> None:
    assert delivery_seconds(COMMITS, [found]) == seconds


def test_lines_have_the_column_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(PERIODS, DELIVERIES)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[-1] for row in rows] == ["delivery", "-", "40 ms", "-", "90 s", "-"]
    print_lines(PERIODS, None)
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [row[:-1] for row in rows]


@pytest.mark.parametrize(
    ("width", "hidden"), [(120, set()), (100, {"who"}), (99, {"who", "changed"}), (90, {"who", "changed"})]
)
def test_commits_stay_on_one_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int, hidden: set[str]) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    monkeypatch.setattr(paper, "Console", lambda **_: console)
    print_paper("t", PERIODS, DELIVERIES)
    assert isinstance(console.file, io.StringIO)
    _, heading, *lines = console.file.getvalue().splitlines()
    assert {"who", "delivery", "changed"} - set(heading.split()) == hidden
    assert len(lines) == len(COMMITS)
    assert "90 s" in lines[3]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--config", "t.toml"), "Name the pipeline of the daemon with --pipeline"),
        (("--url", "http://127.0.0.1:1"), "Name the pipeline of the daemon with --pipeline"),
        (("--pipeline", "copy", "-c", "t.toml", "--url", "http://127.0.0.1:1"), "Give either --config or --url"),
        (("--pipeline", "copy", "--by", "hour"), "leave out --by hour"),
        (("--html", "page.html"), "use --json"),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path: Path, options: tuple[str, ...], reason: str) -> None:
    with pytest.raises(click.UsageError, match=reason):
        command.main([str(tmp_path), *options], standalone_mode=False)

"""The examination on paper: findings for people, a table of many tables, and JSON."""

from collections.abc import Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailer.cli.display.display import size
from tailer.cli.display.tables import fitted
from tailer.cli.doctor.examination import Examination
from tailer.cli.doctor.findings import Finding, Level, best_key, findings_of
from tailer.errors import printable

__all__ = ["COLUMNS", "document", "print_findings", "print_tables", "verdict"]

COLUMNS: Final = ("table", "version", "feed", "commits", "to read", "compared", "key", "verdict")
_STYLES: Final = {Level.OK: "green", Level.NOTE: "cyan", Level.WARN: "yellow", Level.STOP: "bold red"}
_TOPIC: Final = 13  # of the longest topic, with a space


def print_findings(title: str, examination: Examination) -> None:
    """Print the findings about one table to standard output."""
    console = Console(highlight=False)
    table = printable(examination.table)
    console.print(Text(table if examination.profile is None else f"{table}: {title}", "bold"), soft_wrap=True)
    paper = Table.grid(padding=(0, 1))
    paper.add_column(no_wrap=True)
    paper.add_column(no_wrap=True)
    paper.add_column(overflow="fold")
    for finding in findings_of(examination):
        text = Text(printable(finding.text))
        if finding.hint:
            text.append(f"\nhint: {printable(finding.hint)}", "yellow")
        paper.add_row(Text(finding.level.value, _STYLES[finding.level]), finding.topic, text)
    if console.is_terminal:
        console.print(paper)
        return
    for finding in findings_of(examination):
        click.echo(f"{finding.level.value:<5}{finding.topic:<{_TOPIC}}{printable(finding.text)}")
        if finding.hint:
            click.echo(f"{'':<{5 + _TOPIC}}hint: {printable(finding.hint)}")


def print_tables(examinations: Sequence[Examination]) -> None:
    """Print a line for each table: columns on a terminal, otherwise with tabs between the columns."""
    console = Console(highlight=False)
    rows = [tuple(map(printable, _row(examination))) for examination in examinations]
    if not console.is_terminal:
        for row in (COLUMNS, *rows):
            click.echo("\t".join(row))
        return
    paper: list[list[str | Text]] = [
        [*row[:-1], Text(row[-1], _STYLES[_worst(examination).level])]
        for examination, row in zip(examinations, rows, strict=True)
    ]
    console.print(fitted(COLUMNS, paper, console.width, flexible=("table", "key", "verdict")))


def verdict(examination: Examination) -> str:
    """Return what matters most about a table, in a few words."""
    worst = _worst(examination)
    if worst.level is Level.STOP:
        return f"stops: {worst.text}"
    return "ready" if worst.level is not Level.WARN else f"ready; {worst.topic}: {worst.text}"


def document(examination: Examination) -> dict[str, Any]:
    """Return the examination as JSON-ready values."""
    profile, sample, measured = examination.profile, examination.sample, examination.measured
    return {
        "table": examination.table,
        "version": None if profile is None else profile.version,
        "features": None if profile is None else profile.features,
        "change_feed": None if profile is None else profile.feed,
        "row_ids": None if profile is None else profile.row_ids,
        "commits": len(examination.commits),
        "commits_per_hour": examination.commits_per_hour,
        "compared_commits": sum(commit.is_compared for commit in examination.commits),
        "typical_bytes": examination.typical_bytes if examination.changing else None,
        "typical_seconds": examination.seconds(examination.typical_bytes) if examination.changing else None,
        "measured_version": None if measured is None else measured.version,
        "files_kept_ms": None if profile is None else profile.files_kept_ms,
        "log_kept_ms": None if profile is None else profile.log_kept_ms,
        "sampled_rows": sample.rows,
        "unique_columns": sample.unique,
        "key": best_key(examination),
        "feed": None if examination.feed is None else examination.feed.document(),
        "findings": [
            {
                "level": finding.level.value,
                "topic": finding.topic,
                "text": finding.text,
                "hint": finding.hint,
                "error": type(examination.stop).__name__ if finding.level is Level.STOP else "",
            }
            for finding in findings_of(examination)
        ],
    }


def _worst(examination: Examination) -> Finding:
    levels = list(Level)
    return max(findings_of(examination), key=lambda finding: levels.index(finding.level))


def _row(examination: Examination) -> tuple[str, ...]:
    profile, rate = examination.profile, examination.commits_per_hour
    if profile is None:
        return (examination.table, *("-",) * (len(COLUMNS) - 2), verdict(examination))
    feed = "-" if profile.feed is None else "on" if profile.feed else "off"
    changing = examination.changing
    compared = f"{sum(commit.is_compared for commit in changing)} of {len(changing)}"
    key = ", ".join(best_key(examination)) or ("row ids" if profile.row_ids else "-")
    often = "-" if rate is None else f"{rate:.1f} an hour"
    return (
        examination.table,
        str(profile.version),
        feed,
        often,
        size(examination.typical_bytes),
        compared,
        key,
        verdict(examination),
    )

"""The examination on paper: findings for people, a table of many tables, and JSON."""

from collections.abc import Sequence
from typing import Any, Final

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailer.cli.display.amounts import size
from tailer.cli.doctor.examination import Examination
from tailer.cli.doctor.findings import Finding, Level, best_key, findings_of
from tailer.errors import printable

__all__ = ["COLUMNS", "document", "print_findings", "print_tables", "verdict"]

COLUMNS: Final = ("table", "version", "feed", "commits", "to read", "compared", "key", "verdict")
_STYLES: Final = {Level.OK: "green", Level.NOTE: "cyan", Level.WARN: "yellow", Level.STOP: "bold red"}
_TOPIC: Final = 13  # of the longest topic, with a space


def print_findings(title: str, found: Examination) -> None:
    """Print the findings about one table to standard output."""
    console = Console(highlight=False)
    table = printable(found.table)
    console.print(Text(table if found.profile is None else f"{table}: {title}", "bold"), soft_wrap=True)
    paper = Table.grid(padding=(0, 1))
    paper.add_column(no_wrap=True)
    paper.add_column(no_wrap=True)
    paper.add_column(overflow="fold")
    for each in findings_of(found):
        text = Text(printable(each.text))
        if each.hint:
            text.append(f"\nhint: {printable(each.hint)}", "yellow")
        paper.add_row(Text(each.level.value, _STYLES[each.level]), each.topic, text)
    if console.is_terminal:
        console.print(paper)
        return
    for each in findings_of(found):
        click.echo(f"{each.level.value:<5}{each.topic:<{_TOPIC}}{printable(each.text)}")
        if each.hint:
            click.echo(f"{'':<{5 + _TOPIC}}hint: {printable(each.hint)}")


def print_tables(found: Sequence[Examination]) -> None:
    """Print a line for each table: columns on a terminal, otherwise with tabs between the columns."""
    console = Console(highlight=False)
    rows = [tuple(map(printable, _row(each))) for each in found]
    if not console.is_terminal:
        for row in (COLUMNS, *rows):
            click.echo("\t".join(row))
        return
    paper = Table(box=box.SIMPLE)
    for column in COLUMNS:
        paper.add_column(column, overflow="fold")
    for each, row in zip(found, rows, strict=True):
        paper.add_row(*row[:-1], Text(row[-1], _STYLES[_worst(each).level]))
    console.print(paper)


def verdict(found: Examination) -> str:
    """Return what matters most about a table, in a few words."""
    worst = _worst(found)
    if worst.level is Level.STOP:
        return f"stops: {worst.text}"
    return "ready" if worst.level is not Level.WARN else f"ready; {worst.topic}: {worst.text}"


def document(found: Examination) -> dict[str, Any]:
    """Return the examination as JSON-ready values."""
    profile, sample, measured = found.profile, found.sample, found.measured
    return {
        "table": found.table,
        "version": None if profile is None else profile.version,
        "features": None if profile is None else profile.features,
        "change_feed": None if profile is None else profile.feed,
        "row_ids": None if profile is None else profile.row_ids,
        "commits": len(found.commits),
        "commits_per_hour": found.commits_per_hour,
        "compared_commits": sum(each.is_compared for each in found.commits),
        "typical_bytes": found.typical_bytes if found.changing else None,
        "typical_seconds": found.seconds(found.typical_bytes) if found.changing else None,
        "measured_version": None if measured is None else measured.version,
        "files_kept_ms": None if profile is None else profile.files_kept_ms,
        "log_kept_ms": None if profile is None else profile.log_kept_ms,
        "sampled_rows": sample.rows,
        "unique_columns": sample.unique,
        "key": best_key(found),
        "findings": [
            {"level": each.level.value, "topic": each.topic, "text": each.text, "hint": each.hint, "error": each.error}
            for each in findings_of(found)
        ],
    }


def _worst(found: Examination) -> Finding:
    levels = list(Level)
    return max(findings_of(found), key=lambda each: levels.index(each.level))


def _row(found: Examination) -> tuple[str, ...]:
    profile, rate = found.profile, found.commits_per_hour
    if profile is None:
        return (found.table, *("-",) * (len(COLUMNS) - 2), verdict(found))
    feed = "-" if profile.feed is None else "on" if profile.feed else "off"
    changing = found.changing
    compared = f"{sum(each.is_compared for each in changing)} of {len(changing)}"
    key = ", ".join(best_key(found)) or ("row ids" if profile.row_ids else "-")
    often = "-" if rate is None else f"{rate:.1f} an hour"
    return (
        found.table,
        str(profile.version),
        feed,
        often,
        size(found.typical_bytes),
        compared,
        key,
        verdict(found),
    )

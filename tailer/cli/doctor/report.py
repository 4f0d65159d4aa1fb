"""The examination on paper: findings for people, a table of many tables, JSON, and a configuration that fits.

The configuration is one that loads, on this machine, into a target that needs no server.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailer.cli.display.display import size
from tailer.cli.display.tables import fitted
from tailer.cli.doctor.examination import Examination
from tailer.cli.doctor.findings import Finding, Level, best_key, findings_of
from tailer.config.tables import TableRef
from tailer.errors import printable

__all__ = ["COLUMNS", "document", "print_findings", "print_tables", "suggest", "suggest_template", "verdict"]

COLUMNS: Final = ("table", "version", "feed", "commits", "to read", "compared", "key", "verdict")
_STYLES: Final = {Level.OK: "green", Level.NOTE: "cyan", Level.WARN: "yellow", Level.STOP: "bold red"}
_TOPIC: Final = 13  # of the longest topic, with a space
_HEAD = """\
# Save this as tailer.toml; then `tailer check --connect` and `tailer run`.
"""
_TARGET = "the target; others: kafka, delta, files, http (docs/configuration.md)"


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


def suggest(table: TableRef, examination: Examination) -> str:
    """Return the configuration of a pipeline for a table."""
    name = _name(table.location.rstrip("/").rpartition("/")[2])
    profile = examination.profile
    has_ids = profile is not None and profile.row_ids and not profile.feed
    return _configuration(name, name, table, best_key(examination), has_ids)


def suggest_template(tables: TableRef, examinations: Sequence[Examination]) -> str:
    """Return the configuration of a template for tables, of which at least one was found."""
    name = _name(next(part for part in tables.location.split("/") if "*" in part))
    keys = {best_key(examination) for examination in examinations if examination.stop is None}
    key = keys.pop() if len(keys) == 1 else ()
    return _configuration(name, "{table}", tables, key, has_ids=False)


def _configuration(name: str, target: str, table: TableRef, key: tuple[str, ...], has_ids: bool) -> str:
    lines = [_HEAD, f"[pipelines.{name}]", f"table = {_text(table.location)}"]
    if table.table_format is not None:
        lines.append(f"table_format = {_text(table.table_format)}")
    if table.branch is not None:
        lines.append(f"branch = {_text(table.branch)}")
    if table.allowed_roots:
        lines.append(f"allowed_roots = {_text(list(table.allowed_roots))}")
    lines.append('start = "snapshot"  # all rows first, then every change; "latest": only what is new')
    if not key and has_ids:
        lines.append("row_ids = true  # they identify the rows of the mirror")
    elif key:
        lines.append(
            "# compute_updates = true  # for targets that tell updates from deletes and inserts, such as Kafka"
        )
        lines.append(f"# key = {_text(list(key))}")
    lines += ['# on_data_loss = "resnapshot"  # go on by itself after files were deleted too early', ""]
    lines.append(f"[pipelines.{name}.sink]  # {_TARGET}")
    if key or has_ids:
        lines += ['kind = "sql"  # keeps a table of SQLite, DuckDB or PostgreSQL equal to the source (docs/sql.md)']
        lines += [f'url = "sqlite:///{name}.db"', f"table = {_text(target)}"]
        if key:
            lines.append(f"key = {_text(list(key))}  # the columns that identify a row: check that they do")
    else:
        lines.append('# With a key, kind = "sql" keeps a table of a database equal to the source (docs/sql.md).')
        lines.append('kind = "files"  # appends every change to files of JSON lines (docs/files.md)')
        lines.append(f"path = {_text(f'{name}-changes' + '/{table}' * (target != name))}")
    return "\n".join(lines) + "\n"


def _name(text: str) -> str:
    """Return a name for a pipeline: what of `text` may be in one."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_-") or "tables"


def _text(value: str | list[str]) -> str:
    """Return a value as TOML has it, which JSON's texts and lists are."""
    return msgspec.json.encode(value).decode()

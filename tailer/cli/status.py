"""`tailer status`: show what the running daemon is doing."""

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailer.cli.configuration import ConfiguredCommand
from tailer.cli.control import connection, daemon_options
from tailer.errors import one_line

if TYPE_CHECKING:
    from tailer.daemon.status_report import BackfillReport, PipelineReport, StatusReport

__all__ = ["command"]

COLUMNS: Final = ("pipeline", "state", "since", "delivered", "latest", "behind", "rows", "backfill", "why")
_COLORS: Final = {"retrying": "yellow", "paused": "yellow", "stopped": "red"}


@click.command("status", cls=ConfiguredCommand)
@click.option("--json", "as_json", is_flag=True, help="Print the daemon's answer as it is (monitoring.md).")
@daemon_options
def command(as_json: bool, config: Path, url: str | None, token_file: Path | None) -> None:
    """Show what the running daemon is doing.

    The configuration leads to the daemon's Unix socket; --url is the address of its `metrics`. On a
    terminal, the output is a table with reasons and next steps below it, otherwise lines with tabs between the columns.
    """
    report = connection(config, url, token_file).status()
    if as_json:
        click.echo(msgspec.json.encode(report))
    elif sys.stdout.isatty():
        _print_paper(report)
    else:
        for row in (COLUMNS, *(_row(each, report.at) for each in report.pipelines)):
            click.echo("\t".join(row))


def _print_paper(report: "StatusReport") -> None:
    """Print a table for people, then the reasons: as a column they would be a word wide."""
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE)
    for column in COLUMNS[:-1]:
        table.add_column(column, overflow="fold")
    reasons = []
    for each in report.pipelines:
        *columns, why = _row(each, report.at)
        color = _COLORS.get(each.state.value, "")
        table.add_row(*columns, style=color)
        if why:
            reasons.append(Text.assemble((f"{each.name}:", f"bold {color}"), f" {why}"))
        if each.hint:
            reasons.append(Text.assemble(("hint:", "bold yellow"), f" {each.hint}"))
    console.print(table)
    for reason in reasons:
        console.print(reason, soft_wrap=True)


def _row(pipeline: "PipelineReport", now: datetime) -> tuple[str, ...]:
    lag = pipeline.lag
    behind = "-" if lag.versions is None else f"{lag.versions} versions"
    if lag.versions and lag.seconds is not None:
        behind += f", {lag.seconds:.0f} s"
    return (
        pipeline.name,
        pipeline.state.value,
        _ago((now - pipeline.since).total_seconds()),
        _text(pipeline.delivered),
        _text(pipeline.latest),
        behind,
        str(sum(pipeline.rows.values())),
        _backfill(pipeline.backfill),
        one_line(pipeline.why).replace("\t", " "),
    )


def _backfill(found: "BackfillReport | None") -> str:
    if found is None:
        return "-"
    kind = "snapshot: " if found.kind == "snapshot" else ""
    if found.error is not None:
        return one_line(f"{kind}{found.phase.value}: {found.error.text}").replace("\t", " ")
    if found.phase.value != "running" or found.files is None:
        return f"{kind}{found.phase.value}"
    return f"{kind}{found.files_done} of {found.files} files"


def _text(version: int | None) -> str:
    return "-" if version is None else str(version)


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"

"""`tailer status`: show what the running daemon is doing."""

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tailer.cli.configuration import ConfiguredCommand
from tailer.cli.control import connection, daemon_options
from tailer.cli.display.tables import fitted
from tailer.cli.outcome import sentence
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

    The configuration leads to the daemon's Unix socket; --url is the address of its `metrics`. On a terminal, the
    output is a table with reasons and next steps below it, otherwise lines with tabs between the columns.
    """
    report = connection(config, url, token_file).status()
    if as_json:
        click.echo(msgspec.json.encode(report))
    elif sys.stdout.isatty():
        _print_paper(report)
    else:
        for row in (COLUMNS, *(_row(pipeline, report.at) for pipeline in report.pipelines)):
            click.echo("\t".join(row))


def _print_paper(report: "StatusReport") -> None:
    """Print a table for people, then the reasons: as a column they would be a word wide."""
    console = Console(highlight=False)
    rows: list[list[Text]] = []
    reasons: list[tuple[str, str, str]] = []
    for pipeline in report.pipelines:
        *columns, why = _row(pipeline, report.at)
        color = _COLORS.get(pipeline.state.value, "")
        if pipeline.backfill is not None and pipeline.backfill.error is not None:
            reasons.append((f"{pipeline.name}:", "yellow", columns[-1]))
            columns[-1] = pipeline.backfill.phase.value
        if why:
            reasons.append((f"{pipeline.name}:", color, why))
        if pipeline.bad_values:
            values = ", ".join(f"{column} ({count})" for column, count in pipeline.bad_values.items())
            reasons.append((f"{pipeline.name}:", "yellow", f"values that the database cannot hold: {values}"))
        if pipeline.hint:
            reasons.append(("hint:", "yellow", pipeline.hint))
        rows.append([Text(text, color) for text in columns])
    console.print(fitted(COLUMNS[:-1], rows, console.width, flexible=("pipeline", "behind", "backfill")))
    for label, color, text in reasons:
        click.echo(f"{click.style(label, fg=color or None, bold=True)} {sentence(text, len(label) + 1, 2)}")


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


def _backfill(backfill: "BackfillReport | None") -> str:
    if backfill is None:
        return "-"
    kind = "snapshot: " if backfill.kind == "snapshot" else ""
    if backfill.error is not None:
        return one_line(f"{kind}{backfill.phase.value}: {backfill.error.text}").replace("\t", " ")
    if backfill.phase.value != "running" or backfill.files is None:
        return f"{kind}{backfill.phase.value}"
    return f"{kind}{backfill.files_done} of {backfill.files} files"


def _text(version: int | None) -> str:
    return "-" if version is None else str(version)


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"

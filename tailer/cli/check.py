"""`tailer check`: report every fault of a configuration without touching a table."""

from datetime import UTC, datetime
from pathlib import Path

import click

from tailer.config.pipelines import PipelineSettings
from tailer.config.settings import Findings, examine
from tailer.start import Start, StartKind

__all__ = ["command"]


@click.command("check")
@click.argument("config", type=click.Path(path_type=Path, readable=False))
def command(config: Path) -> int:
    """Check a configuration without touching any table.

    Reads CONFIG and the TAILER_ variables of the environment, and follows links. Checks keys, values, sinks and their
    options, overlapping folders, and the state table if a sink needs one. Prints every fault; the last line is the
    verdict. The exit code is 2 if there is a fault.
    """
    findings = examine(config)
    for problem in findings.problems:
        if problem.pipeline not in findings.names:
            click.echo(f"{_mark(False)} {problem.error}")
            _hint(problem.error.hint)
    sound = {each.name: each for each in findings.sound}
    for name in findings.names:
        _pipeline(findings, name, sound.get(name))
    click.echo(f"{_mark(not findings.problems)} {config}{_count(len(findings.problems))}")
    return 2 if findings.problems else 0


def _pipeline(findings: Findings, name: str, settings: PipelineSettings | None) -> None:
    problems = [problem.error for problem in findings.problems if problem.pipeline == name]
    click.echo(f"{_mark(not problems)} pipeline {name}" + (f": {_summary(settings)}" if settings else ""))
    for error in problems:
        click.echo(f"       {error}")
        _hint(error.hint)


def _count(problems: int) -> str:
    return f": {problems} {'fault' if problems == 1 else 'faults'}" if problems else ""


def _summary(settings: PipelineSettings) -> str:
    target = f" {settings.target}" if settings.target else ""
    columns = f", columns {', '.join(settings.policy.columns)}" if settings.policy.columns else ""
    return f"{settings.table} to {settings.sink_kind}{target}, from {_place(settings.start)}{columns}"


def _place(start: Start) -> str:
    if start.kind is StartKind.TIMESTAMP:
        return datetime.fromtimestamp(start.value / 1000, UTC).isoformat()
    return f"version {start.value}" if start.kind is StartKind.VERSION else start.kind.value


def _mark(sound: bool) -> str:
    return click.style("ok    ", fg="green") if sound else click.style("failed", fg="red")


def _hint(hint: str) -> None:
    if hint:
        click.echo(f"       hint: {hint}")

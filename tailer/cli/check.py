"""`tailer check`: report every fault of a configuration, and try its tables and sinks if asked to."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import click

from tailer.cli.configuration import ConfiguredCommand, choose_config
from tailer.config.file import Problem
from tailer.config.pipelines import PipelineSettings, Settings, TablePattern
from tailer.config.settings import Findings, examine
from tailer.daemon.standing import Standing
from tailer.errors import ConfigError
from tailer.formats.locations import misplaced
from tailer.start import Start, StartKind

if TYPE_CHECKING:
    from tailer.daemon.checks import Connection

__all__ = ["command"]

_MOST_VERSIONS: Final = 10  # shown of each table


@click.command("check", cls=ConfiguredCommand)
@click.option("--connect", "reach", is_flag=True, help="Reach every table and every sink, too.")
@choose_config
def command(reach: bool, config: Path) -> int:
    """Check a configuration without touching any table.

    Reads the configuration and the TAILER_ variables of the environment, and follows links. Checks keys, values, sinks
    and their options, conditions as far as they need no table, overlapping folders, places where no table can be, and
    the state table if a sink needs one. Prints every fault; the last line is the verdict. The exit code is 2 if there
    is a fault. With --connect, if the configuration has no fault, each table is read, and each sink is asked for its
    progress and whether it would take the first rows: whatever `tailer run` would stop at before these is named. The
    exit code is then that of the worst error. A table that does not exist yet is no error: its pipeline waits for it.
    Versions after the newest checkpoint of a Delta table that contradict its state are noted. In a target or a state
    table in a store, an empty hidden object is created and deleted. Nothing else is written.
    """
    findings = examine(config)
    codes = _connect(findings.settings) if reach and findings.settings is not None else _report(findings)
    click.echo(f"{_mark(not codes)} {config}{_count(len(codes))}")
    return max(codes, default=0)


def _report(findings: Findings) -> list[int]:
    """Print every pipeline and every fault of the configuration; return an exit code for each fault."""
    problems = [*findings.problems, *_misplaced_tables(findings)]
    for problem in problems:
        if problem.pipeline not in findings.names:
            click.echo(f"{_mark(False)} {problem.error}")
            _hint(problem.error.hint_for(problem.pipeline or ""))
    sound = {each.name: each for each in findings.sound}
    for name in findings.names:
        _pipeline(name, sound.get(name), [problem.error for problem in problems if problem.pipeline == name])
    return [problem.error.exit_code for problem in problems]


def _misplaced_tables(findings: Findings) -> Iterator[Problem]:
    """Yield a fault for each pipeline that would stop, alone, because no table can come to be at its location."""
    for pipeline in findings.sound:
        found = misplaced(pipeline.table) if TablePattern.parse(pipeline.table) is None else None
        if found is not None:
            yield Problem.at(findings.path, ("pipelines", pipeline.name, "table"), found.reason, found.remedy)


def _connect(settings: Settings) -> list[int]:
    """Print every pipeline and what could be reached; return an exit code for each error."""
    from tailer.daemon.checks import connect  # noqa: PLC0415 - only with --connect
    from tailer.daemon.fleet import with_found_tables  # noqa: PLC0415

    settings = anyio.run(with_found_tables, settings)
    summaries = {each.name: _summary(each) for each in settings.pipelines}
    codes = []
    for name, found in anyio.run(connect, settings).items():
        is_awaited = found.standing is None and not found.errors
        mark = click.style("wait  ", fg="yellow") if is_awaited else _mark(not found.errors)
        click.echo(f"{mark} pipeline {name}: {summaries[name]}")
        if not found.errors:
            click.echo(f"       {_reached(found.standing, found.file)}")
        for error in found.errors:
            codes.append(error.exit_code)
            click.echo(f"       {error}")
            _hint(error.hint_for(name))
        _contradictions(found)
    return codes


def _reached(standing: Standing | None, opened: str | None) -> str:
    if standing is None:
        return "no table yet: the pipeline waits for it; check the path if the table exists; the sink was reached"
    file = "and one of its files" if opened else "whose newest version names no file that can be tried"
    delivered = "no progress" if standing.position is None else f"everything to {standing.position}"
    return f"reached version {standing.latest} of {standing.table}, {file}; the sink has {delivered}"


def _contradictions(found: "Connection") -> None:
    """Print the newest versions whose changes do not add up to the table."""
    for each in found.contradictions[-_MOST_VERSIONS:]:
        click.echo(f"       note: version {each.version}: {each.reason}: {each.path}")
    if found.contradictions:
        _hint(
            "The changes of such a version are delivered as the log says, but do not turn the table before it into the "
            'one after it. After it, start = "snapshot" in a new pipeline delivers the table as it is.'
        )


def _pipeline(name: str, settings: PipelineSettings | None, faults: Sequence[ConfigError]) -> None:
    click.echo(f"{_mark(not faults)} pipeline {name}" + (f": {_summary(settings)}" if settings else ""))
    for error in faults:
        click.echo(f"       {error}")
        _hint(error.hint_for(name))


def _count(problems: int) -> str:
    return f": {problems} {'fault' if problems == 1 else 'faults'}" if problems else ""


def _summary(settings: PipelineSettings) -> str:
    target = "" if (where := _target(settings)) is None else f" {where}"
    columns = f", columns {', '.join(settings.policy.columns)}" if settings.policy.columns else ""
    return f"{settings.table} to {settings.sink_kind}{target}, from {_place(settings.start)}{columns}"


def _target(settings: PipelineSettings) -> str | None:
    """Return where the sink writes: a folder, a topic and its brokers, or a table without its database's address."""
    if settings.sink_kind == "sql":
        return f"table {settings.sink_options.get('table') or settings.name}"
    brokers = settings.sink_options.get("bootstrap_servers")
    if settings.target is not None or brokers is None:
        return settings.target
    topic, servers = (
        settings.sink_options.get("topic") or settings.name,
        [brokers] if isinstance(brokers, str) else brokers,
    )
    return f"topic {topic} at {','.join(servers)}"


def _place(start: Start) -> str:
    if start.kind is StartKind.TIMESTAMP:
        return datetime.fromtimestamp(start.value / 1000, UTC).isoformat()
    if start.kind is StartKind.TAG:
        return f"tag {start.tag}"
    return f"version {start.value}" if start.kind is StartKind.VERSION else start.kind.value


def _mark(sound: bool) -> str:
    return click.style("ok    ", fg="green") if sound else click.style("failed", fg="red")


def _hint(hint: str) -> None:
    if hint:
        click.echo(f"       hint: {hint}")

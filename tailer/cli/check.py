"""`tailer check`: report every fault of a configuration, and try its tables and sinks if asked to."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import click

from tailer.cli.configuration import ConfiguredCommand, choose_config
from tailer.cli.outcome import sentence
from tailer.config.file import Problem
from tailer.config.pipelines import PipelineSettings, Settings, TablePattern
from tailer.config.settings import Findings, examine
from tailer.daemon.standing import Standing
from tailer.formats.registry import misplaced
from tailer.start import Start, StartKind

__all__ = ["command"]

_MOST_VERSIONS: Final = 10  # shown of each table, of those whose changes do not add up to it
_UNMARKED: Final = " " * len("failed")
_CONTRADICTED: Final = (
    "The changes of such a version are delivered as the log says, but do not turn the table before it into the one "
    'after it. After it, start = "snapshot" in a new pipeline delivers the table as it is.'
)


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
    faults = f": {len(codes)} {'fault' if len(codes) == 1 else 'faults'}" if codes else ""
    click.echo(f"{_mark(not codes)} {config}{faults}")
    return max(codes, default=0)


def _report(findings: Findings) -> list[int]:
    """Print every pipeline and every fault of the configuration; return an exit code for each fault."""
    problems = list(findings.problems)
    for pipeline in findings.sound:
        # Where no table can come to be, the pipeline would stop, alone.
        fault = misplaced(pipeline.table) if TablePattern.parse(pipeline.table) is None else None
        if fault is not None:
            key = ("pipelines", pipeline.name, "table")
            problems.append(Problem.at(findings.path, key, fault.reason, fault.remedy))
    for problem in problems:
        if problem.pipeline not in findings.names:
            _line(_mark(False), str(problem.error))
            _hint(problem.error.hint_for(problem.pipeline or ""))
    sound = {pipeline.name: pipeline for pipeline in findings.sound}
    for name in findings.names:
        faults = [problem.error for problem in problems if problem.pipeline == name]
        _line(_mark(not faults), f"pipeline {name}" + (f": {_summary(sound[name])}" if name in sound else ""))
        for error in faults:
            _line(_UNMARKED, str(error))
            _hint(error.hint_for(name))
    return [problem.error.exit_code for problem in problems]


def _connect(settings: Settings) -> list[int]:
    """Print every pipeline and what could be reached; return an exit code for each error."""
    from tailer.daemon.checks import connect  # noqa: PLC0415 - only with --connect
    from tailer.daemon.fleet.discovery import with_found_tables  # noqa: PLC0415

    settings = anyio.run(with_found_tables, settings)
    summaries = {pipeline.name: _summary(pipeline) for pipeline in settings.pipelines}
    codes = []
    for name, connection in anyio.run(connect, settings).items():
        is_awaited = connection.standing is None and not connection.errors
        mark = click.style("wait  ", fg="yellow") if is_awaited else _mark(not connection.errors)
        _line(mark, f"pipeline {name}: {summaries[name]}")
        if not connection.errors:
            _line(_UNMARKED, _reached(connection.standing, connection.file))
        for error in connection.errors:
            codes.append(error.exit_code)
            _line(_UNMARKED, str(error))
            _hint(error.hint_for(name))
        for contradiction in connection.contradictions[-_MOST_VERSIONS:]:
            _line(_UNMARKED, f"note: version {contradiction.version}: {contradiction.reason}: {contradiction.path}")
        _hint(_CONTRADICTED if connection.contradictions else "")
    return codes


def _reached(standing: Standing | None, opened: str | None) -> str:
    if standing is None:
        return "no table yet: the pipeline waits for it; check the path if the table exists; the sink was reached"
    file = "and one of its files" if opened else "whose newest version names no file that can be tried"
    delivered = "no progress" if standing.position is None else f"everything to {standing.position}"
    return f"reached version {standing.latest} of {standing.table}, {file}; the sink has {delivered}"


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
    topic = settings.sink_options.get("topic") or settings.name
    return f"topic {topic} at {brokers if isinstance(brokers, str) else ','.join(brokers)}"


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
        _line(_UNMARKED, f"hint: {hint}")


def _line(mark: str, text: str) -> None:
    indent = len(_UNMARKED) + 1
    click.echo(f"{mark} {sentence(text, indent, indent)}")

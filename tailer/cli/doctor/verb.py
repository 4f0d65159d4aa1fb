"""`tailer doctor`: what following a table, or many, will mean."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import click

from tailer.cli.display.steps import Steps
from tailer.cli.doctor.examination import Examination, examine
from tailer.cli.doctor.report import document, print_findings, print_tables
from tailer.cli.doctor.suggestion import suggest, suggest_template
from tailer.cli.table_options import allow_root, choose_branch, choose_format, folders, locations
from tailer.config.pipelines import TablePattern
from tailer.config.tables import format_in, locate, open_files, open_inspector, open_table
from tailer.daemon.fleet import find_tables
from tailer.errors import ConfigError, NotATable, TailerError
from tailer.formats.registry import format_of, named_format
from tailer.stores.glue import parse_table
from tailer.stores.stores import Stores

__all__ = ["command"]

FORMAT: Final = 1  # of the JSON; it grows when a field gets another meaning or goes away
_AT_ONCE: Final = 4
_GRAVITY: Final = (1, 3, 2, 4)  # of exit codes, the most severe first


@dataclass(frozen=True, slots=True)
class _Look:
    """The arguments of `doctor`, checked."""

    table: str
    allowed_roots: tuple[str, ...]
    table_format: str | None
    branch: str | None

    async def examine(self, table: str, steps: Steps) -> Examination:
        """Examine one table. `table`: its location, or its name in a catalog."""
        try:
            location = await locate(table)
            inspector = open_inspector(location, None, self.allowed_roots, self.table_format, self.branch)
            log = open_table(location, None, None, self.allowed_roots, self.table_format, self.branch)
        except NotATable as error:
            return Examination(table, stop=error)
        return await examine(inspector, log, open_files(), lambda step: steps.begin(f"{log.uri}: {step}"))


@click.command("doctor")
@click.argument("table", shell_complete=folders)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (doctor.md).")
@choose_format
@choose_branch
@allow_root
def command(
    table: str, as_json: bool, table_format: str | None, branch: str | None, allowed_roots: tuple[str, ...]
) -> int:
    """Say what following a table will mean.

    TABLE is the folder of a table, its URI, or its name in AWS Glue; with * in it, all tables that fit are looked at,
    with a line for each: put it in quotes. Reads the end of the log and a sample of its rows, however large the
    table is, and writes nothing. Each finding is ok, a note, a warn(ing), or a stop: an error with which a pipeline
    would stop. The last lines are a configuration. The exit code is 0 if nothing stops, otherwise that of the error.
    """
    named, roots = parse_table(table, Path.cwd(), "TABLE"), locations(allowed_roots)
    look = _Look(named, roots, format_in(named, table_format), branch)
    pattern = TablePattern.parse(named)
    found = anyio.run(_examine_all, look, pattern)
    if pattern is None:
        configuration = suggest(named, found[0], table_format, branch, roots)
    else:
        configuration = suggest_template(named, found, table_format, roots)
    codes = [each.stop.exit_code for each in found if each.stop is not None]
    all_stop = len(codes) == len(found)
    if as_json:
        tables = [document(each) for each in found]
        suggested = None if all_stop else configuration
        click.echo(json.dumps({"format": FORMAT, "tables": tables, "configuration": suggested}))
    else:
        if pattern is None:
            title = format_of(found[0].table) if table_format is None else named_format(table_format)
            print_findings(title.title, found[0])
        else:
            print_tables(found)
        if not all_stop:
            click.echo(f"\n{configuration}", nl=False)
    return min(codes, key=_GRAVITY.index, default=0)


async def _examine_all(look: _Look, pattern: TablePattern | None) -> Sequence[Examination]:
    """Examine the table, or those that fit the pattern. Raises `ConfigError` where none does."""
    steps = Steps()
    async with steps.shown():
        tables = [look.table] if pattern is None else await _find(look, pattern)
        found: dict[str, Examination] = {}
        turns = anyio.CapacityLimiter(_AT_ONCE)

        async def one(table: str) -> None:
            async with turns:
                found[table] = await look.examine(table, steps)

        async with anyio.create_task_group() as group:
            for table in tables:
                group.start_soon(one, table)
        return [found[table] for table in tables]


async def _find(look: _Look, pattern: TablePattern) -> list[str]:
    found = await find_tables(pattern, Stores(), table_format=look.table_format)
    faults: list[TailerError] = found.faults
    if faults:
        raise faults[0]
    if not found.tables:
        raise ConfigError("TABLE", f"no table fits {look.table}", "Check the pattern: * stands for part of one name.")
    return ["/".join((pattern.folder, *names)) for names in sorted(found.tables)]

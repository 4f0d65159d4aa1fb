"""`tailer doctor`: what following a table, or many, will mean."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import anyio
import click

from tailer.cli.display.steps import Steps
from tailer.cli.doctor.examination import Examination, examine
from tailer.cli.doctor.report import document, print_findings, print_tables
from tailer.cli.doctor.suggestion import suggest, suggest_template
from tailer.cli.table_options import allow_root, choose_branch, choose_format, folders, table_ref
from tailer.config.pipelines import TablePattern
from tailer.config.tables import TableRef, open_files
from tailer.daemon.fleet import find_tables
from tailer.errors import ConfigError, NotATable, TailerError
from tailer.formats.registry import format_of, named_format
from tailer.stores.stores import Stores

__all__ = ["command"]

FORMAT: Final = 1  # of the JSON; it grows when a field gets another meaning or goes away
_AT_ONCE: Final = 4
_GRAVITY: Final = (1, 3, 2, 4)  # of exit codes, the most severe first


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
    ref = table_ref(table, table_format, branch, allowed_roots)
    pattern, given = TablePattern.parse(ref.location), replace(ref, table_format=table_format)
    found = anyio.run(_examine_all, ref, pattern)
    configuration = suggest(given, found[0]) if pattern is None else suggest_template(given, found)
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


async def _examine(table: TableRef, steps: Steps) -> Examination:
    try:
        located = await table.located()
        inspector, log = located.inspect(), located.open()
    except NotATable as error:
        return Examination(table.location, stop=error)
    return await examine(inspector, log, open_files(), lambda step: steps.begin(f"{log.uri}: {step}"))


async def _examine_all(ref: TableRef, pattern: TablePattern | None) -> Sequence[Examination]:
    """Examine the table, or those that fit the pattern. Raises `ConfigError` where none does."""
    steps = Steps()
    async with steps.shown():
        tables = [ref.location] if pattern is None else await _find(ref, pattern)
        found: dict[str, Examination] = {}
        turns = anyio.CapacityLimiter(_AT_ONCE)

        async def one(table: str) -> None:
            async with turns:
                found[table] = await _examine(replace(ref, location=table), steps)

        async with anyio.create_task_group() as group:
            for table in tables:
                group.start_soon(one, table)
        return [found[table] for table in tables]


async def _find(ref: TableRef, pattern: TablePattern) -> list[str]:
    found = await find_tables(pattern, Stores(), table_format=ref.table_format)
    faults: list[TailerError] = found.faults
    if faults:
        raise faults[0]
    if not found.tables:
        raise ConfigError("TABLE", f"no table fits {ref.location}", "Check the pattern: * stands for part of one name.")
    return ["/".join((pattern.folder, *names)) for names in sorted(found.tables)]

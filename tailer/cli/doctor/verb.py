"""`tailer doctor`: what following a table, or many, will mean."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import anyio
import click

from tailer.cli.display.display import Steps
from tailer.cli.doctor.examination import Examination, examine
from tailer.cli.doctor.feed import check_feed
from tailer.cli.doctor.findings import best_key
from tailer.cli.doctor.report import document, print_findings, print_tables, suggest, suggest_template
from tailer.cli.outcome import GRAVITY
from tailer.cli.table_options import allow_root, choose_branch, choose_format, folders, table_ref
from tailer.config.pipelines import TablePattern
from tailer.config.tables import TableRef, open_files
from tailer.daemon.fleet.discovery import find_tables
from tailer.errors import ConfigError, NotATable, TailerError
from tailer.formats.registry import format_of, named_format
from tailer.stores.stores import Stores

__all__ = ["command"]

FORMAT: Final = 1  # of the JSON; it grows when a field gets another meaning or goes away
_AT_ONCE: Final = 4
_LAST: Final = 100
DIFFERS: Final = 5  # the exit code, as of `tailer verify`


@click.command("doctor")
@click.argument("table", shell_complete=folders)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (doctor.md).")
@click.option("--feed", "checks_feed", is_flag=True, help="Compare recorded changes with the data files, too.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Of --feed: how many versions. Default: 100.")
@click.option("--values", is_flag=True, help="Of --feed: show all values of a row, not only those of the key.")
@choose_format
@choose_branch
@allow_root
def command(
    table: str,
    as_json: bool,
    checks_feed: bool,
    last: int | None,
    values: bool,
    table_format: str | None,
    branch: str | None,
    allowed_roots: tuple[str, ...],
) -> int:
    """Say what following a table will mean.

    TABLE is the folder of a table, its URI, or its name in a catalog; with * in it, all tables that fit are looked at,
    with a line for each: put it in quotes. Reads the end of the log and a sample of its rows, however large the
    table is, and writes nothing. Each finding is ok, a note, a warn(ing), or a stop: an error with which a pipeline
    would stop. The last lines are a configuration. The exit code is 0 if nothing stops, otherwise that of the error; 5
    if --feed finds a version whose recorded changes differ from its data files.
    """
    for option, is_given in (("--last", last is not None), ("--values", values)):
        if is_given and not checks_feed:
            raise ConfigError(option, "has no effect without --feed", "Add --feed, or leave it out.")
    ref = table_ref(table, table_format, branch, allowed_roots)
    pattern, given = TablePattern.parse(ref.location), replace(ref, table_format=table_format)
    examinations = anyio.run(_examine_all, ref, pattern, (last or _LAST) if checks_feed else None, values)
    configuration = suggest(given, examinations[0]) if pattern is None else suggest_template(given, examinations)
    codes = [examination.stop.exit_code for examination in examinations if examination.stop is not None]
    all_stop = len(codes) == len(examinations)
    if as_json:
        tables = [document(examination) for examination in examinations]
        suggested = None if all_stop else configuration
        click.echo(json.dumps({"format": FORMAT, "tables": tables, "configuration": suggested}))
    else:
        if pattern is None:
            title = format_of(examinations[0].table) if table_format is None else named_format(table_format)
            print_findings(title.title, examinations[0])
        else:
            print_tables(examinations)
        if not all_stop:
            click.echo(f"\n{configuration}", nl=False)
    differs = any(examination.feed is not None and examination.feed.faults for examination in examinations)
    return min(codes, key=GRAVITY.index, default=DIFFERS if differs else 0)


async def _examine(table: TableRef, last: int | None, values: bool, steps: Steps) -> Examination:
    """Examine a table. `last`: how many versions of its feed to check; None: none. `values`: all may be shown."""
    try:
        located = await table.located()
        inspector, log = located.inspect(), located.open()
    except NotATable as error:
        return Examination(table=table.location, stop=error)
    files = open_files()

    def say(step: str) -> None:
        steps.begin(f"{log.uri}: {step}")

    examination = await examine(inspector, log, files, say)
    if last is not None and examination.stop is None:
        try:
            shown = None if values else best_key(examination)
            examination.feed = await check_feed(located, last, shown, files, say)
        except TailerError as error:
            examination.stop = error
    return examination


async def _examine_all(
    ref: TableRef, pattern: TablePattern | None, last: int | None, values: bool
) -> Sequence[Examination]:
    """Examine the table, or those that fit the pattern. Raises `ConfigError` where none does."""
    steps = Steps()
    async with steps.shown():
        tables = [ref.location]
        if pattern is not None:
            listing = await find_tables(pattern, Stores(), table_format=ref.table_format)
            for fault in listing.faults:
                raise fault
            if not listing.tables:
                remedy = "Check the pattern: * stands for part of one name."
                raise ConfigError("TABLE", f"no table fits {ref.location}", remedy)
            tables = ["/".join((pattern.folder, *names)) for names in sorted(listing.tables)]
        examinations: dict[str, Examination] = {}
        turns = anyio.CapacityLimiter(_AT_ONCE)

        async def one(table: str) -> None:
            async with turns:
                examinations[table] = await _examine(replace(ref, location=table), last, values, steps)

        async with anyio.create_task_group() as group:
            for table in tables:
                group.start_soon(one, table)
        return [examinations[table] for table in tables]

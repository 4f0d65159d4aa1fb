"""`tailer plan`: print the plan of one version without reading rows."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import click
from rich.console import Console
from rich.text import Text

from tailer.changelog.rules import PairingRules, concerns
from tailer.cli.display.display import count, size
from tailer.cli.display.tables import fitted
from tailer.cli.table_options import allow_root, choose_branch, choose_format, folders, table_ref
from tailer.config.tables import TableRef
from tailer.errors import VersionAhead, VersionGone
from tailer.events import type_text
from tailer.pipeline.policy import Policy
from tailer.plan import TASKS, ChangePlan, ChangeTask, Regime, TaskKind
from tailer.read.shaping import with_condition
from tailer.schema.columns import physical_name

__all__ = ["command"]

_COLUMNS: Final = ("task", "rows", "of the file", "size", "partition")


@click.command("plan")
@click.argument("table", shell_complete=folders)
@click.argument("version", type=click.IntRange(min=0))
@click.option("--where", metavar="SQL", help="Plan only the rows that fulfil a condition, such as \"country = 'DE'\".")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@choose_format
@choose_branch
@allow_root
def command(
    table: str,
    version: int,
    where: str | None,
    as_json: bool,
    table_format: str | None,
    branch: str | None,
    allowed_roots: tuple[str, ...],
) -> None:
    """Print what one version changed, file by file.

    TABLE is the folder of a table, its URI, or its name in a catalog. No row is read: the plan says which rows of which
    files are deleted and inserted, and which files a condition skips. The output is a table on a terminal, otherwise
    lines with tabs between the columns. With --json it is what `ChangePlan.from_json` reads, with schemas in Arrow's
    serialized form.
    """
    if where is not None:
        from tailer.shape.parse.texts import condition_faults  # noqa: PLC0415 - most plans are of all rows

        for fault in condition_faults(where, option="--where"):
            raise fault
    ref = table_ref(table, table_format, branch, allowed_roots)
    whole = anyio.run(_plan, ref, Policy(where=where), version)
    plan = whole if where is None else with_condition(whole, where)
    if as_json:
        click.echo(json.dumps(json.loads(plan.to_json()), indent=2 if sys.stdout.isatty() else None))
        return
    read = {task.index % TASKS for task in plan.tasks}
    _print(plan, [task for task in whole.tasks if task.index not in read])


async def _plan(table: TableRef, policy: Policy, version: int) -> ChangePlan:
    log = (await table.located()).open(policy=policy)
    latest = await log.latest()
    if version > latest:
        raise VersionAhead(log.uri, version, latest)
    await log.seek(version)
    plan = await log.next_plan()
    if plan is None or plan.version != version:
        raise VersionGone(log.uri, version, None, latest)
    return plan


def _print(plan: ChangePlan, skipped: Sequence[ChangeTask]) -> None:
    is_paper = sys.stdout.isatty()
    console = Console(highlight=False)
    moment = datetime.fromtimestamp(plan.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    title = f"{plan.table}: version {plan.version}, {plan.operation or 'unnamed operation'}, {moment}"
    columns = ", ".join(f"{field.name} {type_text(field.type)}" for field in plan.schema)
    if is_paper:
        console.print(Text(title, "bold"), soft_wrap=True)
        console.print(Text(_meaning(plan)))
        console.print(Text(f"columns: {columns}", "dim"))
    else:  # a reader that is gone is a good end, which Rich takes for an error
        click.echo(f"{title}\n{_meaning(plan)}\ncolumns: {columns}")
    if not plan.tasks and not skipped:
        return
    paper = []
    if not is_paper:
        click.echo("\t".join(_COLUMNS))
    for task in sorted([*plan.tasks, *skipped], key=lambda task: task.index % TASKS):
        rows = Text("skipped: none can fulfil the condition", "dim") if task in skipped else _rows(task)
        names = {physical_name(field): field.name for field in task.schema}
        partition = ", ".join(f"{names.get(name, name)}={value}" for name, value in task.partition_values)
        row = (str(task.index % TASKS), rows, _file(task), size(task.size_bytes), partition)
        if is_paper:
            paper.append(row)
        else:
            click.echo("\t".join(map(str, row)))
    if is_paper:
        flexible = ("rows", "of the file", "partition")
        console.print(fitted(_COLUMNS, paper, console.width, flexible=flexible, right=("task", "size")))


def _meaning(plan: ChangePlan) -> str:
    """Return what reading the plan means."""
    if not plan.tasks:
        return "nothing changed that a condition leaves" if plan.skipped is not None else "no row changed"
    noun = "file" if plan.tasks[0].fragment is None else "fragment"
    amount = f"{count(len({_file(task) for task in plan.tasks}), noun)}, {size(plan.size_bytes)} to read"
    if plan.regime is Regime.CDC:
        return f"{amount}: change files, which say what changed"
    if concerns(plan, PairingRules()):
        return f"{amount}: deleted rows are compared with inserted ones, and those that are the same are left out"
    return f"{amount}: the rows below, as they are"


def _file(task: ChangeTask) -> str:
    return Path(task.uri).name if task.fragment is None else f"fragment {task.fragment.number}"


def _rows(task: ChangeTask) -> Text:
    """Say which rows of its file a task has, and what happened to them."""
    if task.kind is TaskKind.CDC_DELETES:
        return Text("its deletes", "red")
    if task.kind is TaskKind.CDC_OTHERS:
        return Text("its inserts and updates", "green")
    is_delete = task.kind is TaskKind.DELETE
    done, style = ("deleted", "red") if is_delete else ("inserted", "green")
    if task.include is not None:
        number = f"{task.include.cardinality:,}"
        if task.exclude is None:
            return Text(f"{number} are deleted" if is_delete else f"{number} are inserted again", style)
        both = (
            "are marked as deleted, those that were not before"
            if is_delete
            else "were marked as deleted, those that no longer are"
        )
        return Text(f"of {number} that {both}", style)
    if task.fragment is not None and task.fragment.chosen is not None:
        return Text(f"some are {done}", style)
    but = "" if task.exclude is None else f" but {task.exclude.cardinality:,}, which were deleted before,"
    return Text(f"all{but} are {done}", style)

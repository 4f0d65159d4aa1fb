"""`tailer plan`: print the plan of one version without reading rows."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import click
from rich import box
from rich.console import Console
from rich.table import Table

from tailer.cli.completion import folders
from tailer.cli.roots import allow_root, choose_branch, choose_format, locations
from tailer.config.tables import format_in, locate, open_table
from tailer.errors import VersionAhead, VersionGone
from tailer.plan import TASKS, ChangePlan, ChangeTask
from tailer.read.shaping import with_condition
from tailer.shape.condition import check_condition
from tailer.stores.glue import parse_table

__all__ = ["command"]


@click.command("plan")
@click.argument("table", shell_complete=folders)
@click.argument("version", type=click.IntRange(min=0))
@click.option("--where", metavar="SQL", help="Plan only the rows that fulfil a condition, such as \"country = 'DE'\".")
@choose_format
@choose_branch
@allow_root
def command(
    table: str,
    version: int,
    where: str | None,
    table_format: str | None,
    branch: str | None,
    allowed_roots: tuple[str, ...],
) -> None:
    """Print what one version changed, as a plan in JSON.

    TABLE is the folder of a table, its URI, or its name in AWS Glue. `ChangePlan.from_json` reads the
    JSON; its schemas are in Arrow's serialized form. On a terminal a readable summary follows,
    which also names the files that a condition skips.
    """
    check_condition(where, "--where")
    named, roots = parse_table(table, Path.cwd(), "TABLE"), locations(allowed_roots)
    choices = roots, format_in(named, table_format), branch
    whole = anyio.run(_plan, named, choices, where is not None, version)
    plan = whole if where is None else with_condition(whole, where)
    terminal = sys.stdout.isatty()
    click.echo(json.dumps(json.loads(plan.to_json()), indent=2 if terminal else None))
    if terminal:
        read = {task.index % TASKS for task in plan.tasks}
        _summarise(plan, [task for task in whole.tasks if task.index not in read])


async def _plan(
    table: str, choices: tuple[tuple[str, ...], str | None, str | None], statistics: bool, version: int
) -> ChangePlan:
    log = open_table(await locate(table), None, None, *choices, statistics=statistics)
    latest = await log.latest()
    if version > latest:
        raise VersionAhead(log.uri, version, latest)
    await log.seek(version)
    plan = await log.next_plan()
    if plan is None:
        raise VersionGone(log.uri, version, None, latest)
    return plan


def _summarise(plan: ChangePlan, skipped: Sequence[ChangeTask]) -> None:
    operation = plan.operation or "unnamed operation"
    feed = "on" if plan.feed else "off"
    source = f"{plan.regime.value} (change feed {feed})"
    title = f"version {plan.version}, {operation}: {source}, {plan.size_bytes:,} bytes to read"
    caption = "columns: " + ", ".join(f"{field.name} {field.type}" for field in plan.schema)
    tasks = Table(title=title, caption=caption, box=box.SIMPLE)
    for column in ("task", "kind", "rows", "bytes", "partition", "file"):
        tasks.add_column(column, overflow="fold")
    for task in sorted([*plan.tasks, *skipped], key=lambda task: task.index % TASKS):
        partition = ", ".join(f"{name}={value}" for name, value in task.partition_values)
        rows = "skipped" if task in skipped else _rows(task)
        number, size = str(task.index % TASKS), f"{task.size_bytes:,}"
        tasks.add_row(number, task.kind.value, rows, size, partition, Path(task.uri).name)
    Console(stderr=True).print(tasks)


def _rows(task: ChangeTask) -> str:
    chosen = "all" if task.include is None else f"{task.include.cardinality:,}"
    return chosen if task.exclude is None else f"{chosen} but {task.exclude.cardinality:,}"

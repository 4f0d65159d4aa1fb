"""`tailer progress`: show the progress that sinks have recorded, or set it."""

import json
import sys
from pathlib import Path
from typing import Final

import anyio
import click
from rich.console import Console

from tailer.cli.configuration import ConfiguredCommand, choose_config, choose_pipeline
from tailer.cli.display.display import versions
from tailer.cli.display.tables import fitted
from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.settings import load
from tailer.config.shapes import Writers
from tailer.daemon.fleet.discovery import with_found_tables
from tailer.daemon.sinks import close_sinks, open_layout
from tailer.daemon.standing import standing_of, survey
from tailer.plan import Position
from tailer.progress.lookup import set_position

__all__ = ["command"]

FORMAT: Final = 1  # of the JSON; it grows when a field gets another meaning or goes away
COLUMNS: Final = ("pipeline", "table", "app_id", "delivered", "latest", "lag")


@click.group("progress")
def command() -> None:
    """Show or set the progress of pipelines."""


@command.command("show", cls=ConfiguredCommand)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (operations.md).")
@choose_config
def show(as_json: bool, config: Path) -> None:
    """Show the progress of each pipeline, as its sink reports it.

    Delivered is the last version the sink has, latest the newest version of the table, lag the number of versions
    between. A pipeline without a table yet waits for it. The output is a table on a terminal, otherwise lines with tabs
    between the columns.
    """
    standings, errors = anyio.run(survey, load(config))
    rows = []
    for standing in standings:
        values = ("-", "waits for its table", "-", "-")
        if standing.latest is not None:
            lag = "-" if standing.lag is None else str(standing.lag)
            values = (str(standing.app_id), _delivered(standing.position), str(standing.latest), lag)
        rows.append((standing.pipeline, standing.table, *values))
    if as_json:
        documents = [
            {
                "name": standing.pipeline,
                "table": standing.table,
                "app_id": standing.app_id,
                "position": None if standing.position is None else str(standing.position),
                "delivered": standing.delivered,
                "latest": standing.latest,
                "lag": standing.lag,
            }
            for standing in standings
        ]
        click.echo(json.dumps({"format": FORMAT, "pipelines": documents}))
    elif sys.stdout.isatty():
        console = Console(highlight=False)
        console.print(fitted(COLUMNS, rows, console.width, flexible=("pipeline", "table", "app_id")))
    else:
        for row in (COLUMNS, *rows):
            click.echo("\t".join(row))
    if errors:
        raise ExceptionGroup("some pipelines could not be queried", errors)


@command.command("reset", cls=ConfiguredCommand)
@click.argument("pipeline")
@click.option(
    "--to",
    "version",
    type=click.IntRange(min=-1),
    required=True,
    help="The version that counts as delivered; delivery goes on after it. -1: deliver from version 0.",
)
@click.option("--dry-run", is_flag=True, help="Print what would happen and change nothing.")
@choose_config
def reset(pipeline: str, version: int, dry_run: bool, config: Path) -> None:
    """Make PIPELINE go on after another version.

    Sets the progress in the sink; rows stay as they are. Going back delivers versions again, going forward skips
    versions. A sink that still has rows of versions to be delivered again refuses, and names how to remove them.
    A daemon that runs the pipeline at the same time is stopped by its sink.
    """
    settings = anyio.run(with_found_tables, load(config))
    anyio.run(_reset, settings, choose_pipeline(settings, pipeline), version, dry_run)


async def _reset(settings: Settings, pipeline: PipelineSettings, version: int, dry_run: bool) -> None:
    pipeline = await pipeline.located()
    before = await standing_of(settings, pipeline)
    # What cannot be followed from there is refused here, not by the daemon at its next start.
    log = pipeline.open_table()
    await log.seek(version + 1)
    await log.check_delivered(version)
    click.echo(f"{pipeline.name}: delivered until now: {_delivered(before.position)}")
    if not dry_run:
        sink = settings.open_sink(pipeline)
        try:
            if sink.distributes:
                shards = pipeline.shards if pipeline.write is Writers.EXECUTORS else 0
                await open_layout(pipeline, sink).force(shards, version)
            else:
                await set_position(pipeline.name, log, sink, Position.end(version))
        finally:
            await close_sinks([sink])
    consequence = _consequence(before.position, version)
    click.echo(f"{pipeline.name}: next version to be delivered: {version + 1}{consequence}")
    if dry_run:
        click.echo("dry run: nothing was changed, and the sink was not asked whether it accepts the change")


def _consequence(before: Position | None, version: int) -> str:
    if before is None:
        return "; the configured start no longer applies"
    if version > before.whole_version:
        return f"; left out: {versions(before.whole_version + 1, version)}"
    return f"; delivered again: {versions(version + 1, before.version)}" if Position.end(version) < before else ""


def _delivered(position: Position | None) -> str:
    if position is None:
        return "nothing"
    if position.closes_version:
        return str(position.version)
    if position.opens_version:
        return f"nothing of {'the snapshot of ' * position.in_snapshot}{position.version}"
    if position.in_snapshot:
        return f"part of the snapshot of {position.version}"
    return f"part of {position.version}"

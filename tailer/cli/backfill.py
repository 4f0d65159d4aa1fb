"""`tailer backfill`: let a pipeline of the running daemon deliver rows of a version again."""

from pathlib import Path
from typing import Final

import click

from tailer.cli import VERBS
from tailer.cli.configuration import ConfiguredCommand
from tailer.cli.control import WHERE, connection, daemon_options

__all__ = ["command"]

_HELP: Final = f"""{VERBS["backfill"]}

PIPELINE delivers all rows of the version where it is as reads, without waiting for a commit. Later changes wait until
the backfill ends. `tailer status` shows how far it is. A daemon that is started again goes on with it. A stopped or
paused pipeline begins again.
{WHERE}"""


@click.command("backfill", cls=ConfiguredCommand, help=_HELP)
@click.argument("pipeline")
@click.option("--where", metavar="SQL", help="The condition that rows must fulfil, as the option of pipelines.")
@click.option(
    "--version",
    type=click.IntRange(min=0),
    metavar="V",
    help="An earlier version. Its rows come after later changes, so a reader by key must compare _commit_version.",
)
@click.option("--cancel", is_flag=True, help="End the backfill. Rows that were delivered stay.")
@daemon_options
def command(
    pipeline: str,
    where: str | None,
    version: int | None,
    cancel: bool,
    config: Path,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Send a backfill, or its end."""
    if cancel and (where is not None or version is not None):
        raise click.UsageError("--cancel goes without --where and --version.")
    daemon = connection(config, url, token_file)
    if cancel:
        click.echo(daemon.send(pipeline, "cancel-backfill"))
        return
    asked = {key: value for key, value in (("where", where), ("version", version)) if value is not None}
    click.echo(daemon.send(pipeline, "backfill", **asked))

"""`tailer run`: the daemon."""

from pathlib import Path

import anyio
import click

from tailer.config.settings import load
from tailer.daemon.serve import log_to_stderr, serve

__all__ = ["command"]


@click.command("run")
@click.argument("config", type=click.Path(path_type=Path))
def command(config: Path) -> None:
    """Run the pipelines of a configuration.

    Each pipeline of CONFIG goes on from where its sink says it is, until SIGTERM or Ctrl-C: then the
    transactions in flight finish or abort within `drain_s` seconds; a second signal aborts them at once.

    A pipeline that cannot go on stops alone. When none is left the exit code is that of the gravest error:
    1 a bug of ours, 3 a table that cannot be followed, 2 the configuration, 4 source or sink unavailable.
    """
    settings = load(config)
    log_to_stderr()
    anyio.run(serve, settings)

"""`tailer run`: the daemon."""

from pathlib import Path

import anyio
import click

from tailer.config.settings import load
from tailer.daemon.serve import log_to_stderr, serve

__all__ = ["command"]


@click.command("run")
@click.argument("config", type=click.Path(path_type=Path, readable=False))
def command(config: Path) -> None:
    """Run the pipelines of a configuration.

    Each pipeline of CONFIG goes on after the progress that its sink reports, until SIGTERM or Ctrl-C. Then the
    open transactions have `drain_s` seconds to finish; a second signal aborts them at once.

    A pipeline that cannot go on stops; the others go on. After the last one the exit code is that of the most
    severe error: 1 a bug in lake-tailer, 3 a table that cannot be followed, 2 the configuration, 4 a source or sink
    that is unavailable.
    """
    settings = load(config)
    log_to_stderr()
    anyio.run(serve, settings)

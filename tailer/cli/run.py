"""`tailer run`: the daemon."""

import logging
import signal
from functools import partial
from pathlib import Path

import anyio
import click

from tailer.cli.configuration import ConfiguredCommand, choose_config
from tailer.cli.display.bars import bars_on_terminal
from tailer.config.settings import load
from tailer.daemon.logs import LogFormat, logging_beside
from tailer.daemon.serve import serve

__all__ = ["command"]


@click.command("run", cls=ConfiguredCommand)
@click.option(
    "--log-format",
    "form",
    type=click.Choice([form.value for form in LogFormat]),
    help="Form of the log on standard error. Default: text on a terminal, otherwise JSON.",
)
@click.option("--standby", is_flag=True, help="Deliver only while no other instance of the configuration does.")
@click.option("-v", "--verbose", is_flag=True, help="Log every transaction, too.")
@click.option("-q", "--quiet", is_flag=True, help="Log warnings and errors only.")
@choose_config
def command(form: str | None, standby: bool, verbose: bool, quiet: bool, config: Path) -> None:
    """Run the pipelines of a configuration.

    Each pipeline goes on after the progress that its sink reports, until SIGTERM or Ctrl-C. Then the open transactions
    have `drain_s` seconds to finish; a second signal aborts them at once. The configuration is loaded again when it
    changes, and at SIGHUP.

    A pipeline that cannot go on stops; the others go on. If the error may pass, it begins again by itself, otherwise
    after a command such as `tailer resume`. When none is left that could run, or at the end by a signal, the exit code
    is that of the most severe error: 1 a bug in lake-tailer, 3 a table that cannot be followed, 2 the configuration,
    4 a source or sink that is unavailable.

    With --standby, start the same command several times, on any machines: of each pipeline one instance is active, and
    another one takes over within seconds when it dies, freezes or is cut off.
    """
    if verbose and quiet:
        raise click.UsageError("-v and -q contradict each other.")
    # Until the pipelines run, there is nothing to load again, and the signal must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = load(config)
    level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
    log_form = LogFormat(form) if form is not None else LogFormat.for_stderr()
    with logging_beside(level, log_form), bars_on_terminal() as show:
        anyio.run(partial(serve, settings, None if quiet else show, standby=standby))

"""`tailer pause`, `resume`, `resnapshot` and `skip`: commands to the running daemon."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tailer.cli import CONTROL, VERBS
from tailer.cli.configuration import ConfiguredCommand, choose_config, is_given
from tailer.config.settings import load
from tailer.errors import ConfigError, how_to_install

if TYPE_CHECKING:
    from tailer.daemon.client import DaemonClient

__all__ = ["WHERE", "commands", "connection", "daemon_options"]

_URL: Final = click.option("--url", help="Address of the daemon's `metrics`, in place of --config.")
_TOKEN: Final = click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The file of the token, with --url.",
)


def daemon_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where the daemon is."""
    return choose_config(_URL(_TOKEN(command)))


def connection(config: Path, url: str | None, token_file: Path | None) -> "DaemonClient":
    """Return the client of the daemon. Raises `ConfigError`, and an `ExceptionGroup` of faults of the configuration."""
    try:
        from tailer.daemon.client import DaemonClient  # noqa: PLC0415 - its library is an extra
    except ImportError as error:
        raise ConfigError("the daemon", f"cannot be asked: {error}", how_to_install("daemon")) from error
    if url is not None:
        if is_given(click.get_current_context()):
            raise click.UsageError("Give either --config or --url.")
        return DaemonClient(url=url, token=None if token_file is None else token_file.read_text().strip())
    socket = load(config).control.socket
    if socket is None:
        raise ConfigError(f"{config}: control", "is off", "Give --url and --token-file.")
    return DaemonClient(socket=socket)


WHERE: Final = """
The configuration leads to the daemon's Unix socket. With --url the command goes over TCP, and needs
the token of `control_token`."""
_HELP: Final = {
    "pause": "PIPELINE ends after the transaction it is at. It stays paused until `tailer resume PIPELINE`, or until "
    "the daemon is started again.",
    "resume": "PIPELINE goes on after the progress of its sink.",
    "resnapshot": "PIPELINE reports a gap and delivers all rows of the newest version, at once. Where versions are "
    "due, the snapshot takes their place. A stopped or paused pipeline begins again. One that waits for its table "
    "refuses.",
    "skip": "PIPELINE, which lost changes have stopped, reports the gap and goes on after it, once.",
}


def _command(verb: str) -> click.Command:
    @click.command(verb, cls=ConfiguredCommand, help=f"{VERBS[verb]}\n\n{_HELP[verb]}\n{WHERE}")
    @click.argument("pipeline")
    @daemon_options
    def command(pipeline: str, config: Path, url: str | None, token_file: Path | None) -> None:
        click.echo(connection(config, url, token_file).send(pipeline, verb))

    return command


commands: Final = {verb: _command(verb) for verb in CONTROL}

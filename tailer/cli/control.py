"""`tailer pause`, `resume`, `resnapshot` and `skip`: orders to the running daemon."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tailer.config.settings import load
from tailer.errors import ConfigError, how_to_install

if TYPE_CHECKING:
    from tailer.daemon.client import DaemonClient

__all__ = ["commands", "connection", "daemon_options"]

_CONFIG: Final = click.argument("config", type=click.Path(path_type=Path, readable=False), required=False)
_URL: Final = click.option("--url", help="Address of the daemon's `metrics`, in place of CONFIG.")
_TOKEN: Final = click.option("--token-file", type=click.Path(path_type=Path), help="The file of the token, with --url.")


def daemon_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments that say where the daemon is."""
    return _CONFIG(_URL(_TOKEN(command)))


def connection(config: Path | None, url: str | None, token_file: Path | None) -> "DaemonClient":
    """Return the client of the daemon. Raises `ConfigError`, and an `ExceptionGroup` of faults of CONFIG."""
    try:
        from tailer.daemon.client import DaemonClient  # noqa: PLC0415 - its library is an extra
    except ImportError as error:
        raise ConfigError("the daemon", f"cannot be asked: {error}", how_to_install("daemon")) from error
    if (config is None) == (url is None):
        raise click.UsageError("Give either CONFIG or --url.")
    if url is not None:
        return DaemonClient(url=url, token=None if token_file is None else token_file.read_text().strip())
    assert config is not None, "checked above"
    socket = load(config).control
    if socket is None:
        raise ConfigError(f"{config}: control", "is off", "Give --url and --token-file.")
    return DaemonClient(socket=socket)


def _order(verb: str, help_text: str) -> click.Command:
    @click.command(verb, help=help_text)
    @click.argument("pipeline")
    @daemon_options
    def command(pipeline: str, config: Path | None, url: str | None, token_file: Path | None) -> None:
        click.echo(connection(config, url, token_file).order(pipeline, verb))

    return command


_WHERE: Final = """

CONFIG is the daemon's configuration, and leads to its Unix socket. With --url the order goes over TCP, and needs the
token of `control_token_file`."""

commands: Final = {
    "pause": _order(
        "pause",
        "Pause PIPELINE after the transaction it is at.\n\nIt stays paused until `tailer resume`, or until the daemon "
        "is started again." + _WHERE,
    ),
    "resume": _order(
        "resume",
        "Let PIPELINE run, after a pause or after the error that stopped it.\n\nIt goes on after the progress of its "
        "sink." + _WHERE,
    ),
    "resnapshot": _order(
        "resnapshot",
        "Let PIPELINE announce a gap and deliver all rows of the newest version, once.\n\nThe snapshot takes the place "
        "of the next version that is due: where everything is delivered, it waits for the next commit. A stopped or "
        "paused pipeline begins again." + _WHERE,
    ),
    "skip": _order(
        "skip",
        "Let PIPELINE, which lost changes have stopped, announce the gap and go on after it, once." + _WHERE,
    ),
}

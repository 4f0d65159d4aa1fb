"""`tailer pause`, `resume`, `resnapshot` and `skip`: orders to the running daemon."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tailer.cli import CONTROL, VERBS
from tailer.config.settings import load
from tailer.errors import ConfigError, how_to_install

if TYPE_CHECKING:
    from tailer.daemon.client import DaemonClient

__all__ = ["WHERE", "commands", "connection", "daemon_of", "daemon_options"]

_CONFIG: Final = click.argument("config", type=click.Path(path_type=Path, readable=False), required=False)
_SUFFIX: Final = ".toml"
_URL: Final = click.option("--url", help="Address of the daemon's `metrics`, in place of CONFIG.")
_TOKEN: Final = click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The file of the token, with --url.",
)


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
    socket = load(config).control.socket
    if socket is None:
        raise ConfigError(f"{config}: control", "is off", "Give --url and --token-file.")
    return DaemonClient(socket=socket)


WHERE: Final = """
CONFIG is the daemon's configuration, and leads to its Unix socket; it may also come before PIPELINE. With --url the
order goes over TCP, and needs the token of `control_token_file`."""
_HELP: Final = {
    "pause": "PIPELINE ends after the transaction it is at. It stays paused until `tailer resume`, or until the daemon "
    "is started again.",
    "resume": "PIPELINE goes on after the progress of its sink.",
    "resnapshot": "PIPELINE reports a gap and delivers all rows of the newest version, at once. Where versions are "
    "due, the snapshot takes their place. A stopped or paused pipeline begins again. One that waits for its table "
    "refuses.",
    "skip": "PIPELINE, which lost changes have stopped, reports the gap and goes on after it, once.",
}


def _is_config(pipeline: str, config: Path) -> bool:
    """Return whether `pipeline` is the configuration, and not `config`. Where neither exists, its suffix decides."""
    if os.path.exists(config):  # noqa: PTH110 - Path.exists raises where a folder above cannot be entered
        return False
    is_named = Path(pipeline).suffix == _SUFFIX and config.suffix != _SUFFIX
    return is_named or os.path.isfile(pipeline)  # noqa: PTH113 - as above


def daemon_of(
    pipeline: str, config: Path | None, url: str | None, token_file: Path | None
) -> tuple[str, "DaemonClient"]:
    """Return the pipeline and the client of its daemon; the configuration may come first, as in other commands.

    Raises as `connection` does.
    """
    if config is not None and _is_config(pipeline, config):
        pipeline, config = str(config), Path(pipeline)
    return pipeline, connection(config, url, token_file)


def _order(verb: str) -> click.Command:
    @click.command(verb, help=f"{VERBS[verb]}\n\n{_HELP[verb]}\n{WHERE}")
    @click.argument("pipeline")
    @daemon_options
    def command(pipeline: str, config: Path | None, url: str | None, token_file: Path | None) -> None:
        name, daemon = daemon_of(pipeline, config, url, token_file)
        click.echo(daemon.order(name, verb))

    return command


commands: Final = {verb: _order(verb) for verb in CONTROL}

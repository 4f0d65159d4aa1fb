"""The settings of the daemon's servers: where it answers and takes commands, and who may ask and give them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tailer.config.shapes import FileShape
from tailer.errors import ConfigError, how_to_install
from tailer.stores.folders import local_folder
from tailer.stores.secrets import Secret

__all__ = ["ControlSettings", "MetricsSettings", "control_settings", "metrics_settings", "missing_library"]

Attempt = Callable[[tuple[str, ...], Callable[[], Any]], Any]

_NEEDED: Final = ("prometheus_client", "starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The address that metrics, health and status are served at.

    `token`: what readers need; without one anybody may read.
    """

    host: str
    port: int
    token: Secret = field(default_factory=Secret)


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The Unix socket for commands (None: none), the token for commands over TCP, and the file of kept backfills.

    `is_required`: whether the daemon does not begin without the socket, because the file names it.
    """

    socket: Path | None = None
    is_required: bool = False
    token: Secret = field(default_factory=Secret)
    backfills_file: Path = Path("tailer.backfills.json")


def metrics_settings(path: Path, file: FileShape, attempt: Attempt) -> MetricsSettings | None:
    """Return the settings of `metrics` in `file`, which is at `path`. `attempt` reports what is wrong with a key."""
    if file.metrics is None:
        return None
    token = _token(path, "metrics_token", file.metrics_token, attempt)
    address: tuple[str, int] | None = attempt(("metrics",), partial(_address, file.metrics))
    return None if address is None else MetricsSettings(address[0], address[1], token)


def control_settings(path: Path, file: FileShape, attempt: Attempt) -> ControlSettings:
    """Return the settings of `file`, which is at `path`. `attempt` reports what is wrong with a key."""
    token = _token(path, "control_token", file.control_token, attempt)
    socket = path.absolute().with_suffix(".sock") if file.control is None else None
    if file.control:
        socket = attempt(("control",), partial(local_folder, file.control, path.parent, ""))
    backfills_file = (socket or path.absolute()).with_suffix(".backfills.json")
    if file.backfills_file is not None:
        given = attempt(("backfills_file",), partial(local_folder, file.backfills_file, path.parent, ""))
        backfills_file = given or backfills_file
    return ControlSettings(socket, socket is not None and file.control is not None, token, backfills_file)


def missing_library(file: FileShape) -> tuple[str, str, str] | None:
    """Return the key, the reason and the next step where a library to serve what `file` asks for is not installed."""
    key = "metrics" if file.metrics is not None else "control"
    missing = next((library for library in _NEEDED if find_spec(library) is None), None)
    if missing is None or not getattr(file, key):
        return None
    return key, f"cannot be served: No module named {missing!r}", how_to_install("daemon")


def _token(path: Path, key: str, token: Secret, attempt: Attempt) -> Secret:
    """Return the token with the absolute path of its file, if it has one. `attempt` reports what is wrong with it."""
    if token.file is None:
        return token
    place = attempt((key, "file"), partial(local_folder, token.file, path.parent, ""))
    return Secret(file=None if place is None else str(place))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError("", "is not an address", 'Give a host and a port, such as metrics = "127.0.0.1:9464".')
    return host.strip("[]"), int(port)

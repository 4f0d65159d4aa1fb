"""The settings of the daemon's servers: where it answers and takes commands, and who may ask and give them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tailer.config.shapes import FileShape
from tailer.errors import ConfigError, how_to_install
from tailer.stores.folders import local_folder
from tailer.stores.secrets import Secret, secret_faults

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
    token = _token(path, file, "metrics_token", attempt)
    if file.metrics is None:
        tokens = [f"metrics_token{suffix}" for suffix in ("", "_file", "_command")]
        for key in filter(partial(getattr, file), tokens):
            attempt((key,), partial(_refuse, "has no effect without metrics", "Set metrics, or leave it out."))
        return None
    address: tuple[str, int] | None = attempt(("metrics",), partial(_address, file.metrics))
    return None if address is None else MetricsSettings(address[0], address[1], token)


def control_settings(path: Path, file: FileShape, attempt: Attempt) -> ControlSettings:
    """Return the settings of `file`, which is at `path`. `attempt` reports what is wrong with a key."""
    token = _token(path, file, "control_token", attempt)
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
    missing = next((each for each in _NEEDED if find_spec(each) is None), None)
    if missing is None or not getattr(file, key):
        return None
    return key, f"cannot be served: No module named {missing!r}", how_to_install("daemon")


def _token(path: Path, file: FileShape, key: str, attempt: Attempt) -> Secret:
    """Return the place of a token. `attempt` reports what is wrong with it."""
    given = Secret.of(file, key, getattr(file, key))
    for fault in secret_faults("", file, {key: given.value}):
        attempt((fault.where.removeprefix("."),), partial(_refuse, fault.reason, fault.remedy))
    if given.file is None:
        return given
    place = attempt((f"{key}_file",), partial(local_folder, given.file, path.parent, ""))
    return replace(given, file=None if place is None else str(place))


def _refuse(reason: str, remedy: str) -> None:
    raise ConfigError("", reason, remedy)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError("", "is not an address", 'Give a host and a port, such as metrics = "127.0.0.1:9464".')
    return host.strip("[]"), int(port)

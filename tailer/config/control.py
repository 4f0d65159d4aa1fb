"""The settings of control: where the daemon takes orders, and who may give them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tailer.config.shapes import FileShape
from tailer.errors import ConfigError, how_to_install
from tailer.stores.folders import local_folder

__all__ = ["ControlSettings", "control_settings", "missing_library", "parse_address"]

_NEEDED: Final = ("prometheus_client", "starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The Unix socket for orders (None: none), the file of the token for orders over TCP, and that of kept orders.

    `is_required`: whether the daemon does not begin without the socket, because the file names it.
    """

    socket: Path | None = None
    is_required: bool = False
    token_file: Path | None = None
    orders_file: Path = Path("tailer.backfills.json")


def control_settings(
    path: Path, file: FileShape, attempt: Callable[[tuple[str, ...], Callable[[], Path]], Path | None]
) -> ControlSettings:
    """Return the settings of `file`, which is at `path`. `attempt` reports what is wrong with a key."""
    token_file = None
    if file.control_token_file is not None:
        token_file = attempt(("control_token_file",), partial(local_folder, file.control_token_file, path.parent, ""))
    socket = path.absolute().with_suffix(".sock") if file.control is None else None
    if file.control:
        socket = attempt(("control",), partial(local_folder, file.control, path.parent, ""))
    orders_file = (socket or path.absolute()).with_suffix(".backfills.json")
    if file.orders_file is not None:
        given = attempt(("orders_file",), partial(local_folder, file.orders_file, path.parent, ""))
        orders_file = given or orders_file
    return ControlSettings(socket, socket is not None and file.control is not None, token_file, orders_file)


def missing_library(file: FileShape) -> tuple[str, str, str] | None:
    """Return the key, the reason and the next step where a library to serve what `file` asks for is not installed."""
    key = "metrics" if file.metrics is not None else "control"
    missing = next((each for each in _NEEDED if find_spec(each) is None), None)
    if missing is None or not getattr(file, key):
        return None
    return key, f"cannot be served: No module named {missing!r}", how_to_install("daemon")


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port that `text` names. Raises `ConfigError`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError("", "is not an address", 'Give a host and a port, such as metrics = "127.0.0.1:9464".')
    return host.strip("[]"), int(port)

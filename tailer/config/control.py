"""The settings of control: where the daemon takes orders, and who may give them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tailer.config.shapes import FileShape
from tailer.stores.folders import local_folder

__all__ = ["ControlSettings", "control_settings"]


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The Unix socket for orders (None: none), and the file of the token for orders over TCP.

    `is_required`: whether the daemon does not begin without the socket, because the file names it.
    """

    socket: Path | None = None
    is_required: bool = False
    token_file: Path | None = None


def control_settings(
    path: Path, file: FileShape, attempt: Callable[[tuple[str, ...], Callable[[], Path]], Path | None]
) -> ControlSettings:
    """Return the settings of `file`, which is at `path`. `attempt` reports what is wrong with a key."""
    token_file = None
    if file.control_token_file is not None:
        token_file = attempt(("control_token_file",), partial(local_folder, file.control_token_file, path.parent, ""))
    if file.control is None:
        return ControlSettings(path.absolute().with_suffix(".sock"), False, token_file)
    socket = None
    if file.control:
        socket = attempt(("control",), partial(local_folder, file.control, path.parent, ""))
    return ControlSettings(socket, socket is not None, token_file)

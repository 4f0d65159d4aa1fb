"""Servers that do not outlive the tests, however these end.

A small parent process stops each of them when our end of a pipe closes, also if the tests were killed.
"""

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

__all__ = ["ServerDownError", "ServerProcess", "serving", "unprivileged"]

PATIENCE_S: Final = 300

_KEEPER: Final = """
import os, subprocess, sys, threading
user, number, *command = sys.argv[1:]
options = {} if user == "-" else {"user": int(user), "group": int(user), "extra_groups": []}
server = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
threading.Thread(target=lambda: os._exit(server.wait() and 1), daemon=True).start()
sys.stdin.read()
server.send_signal(int(number))
server.wait()
"""


class ServerDownError(RuntimeError):
    """A server failed; the end of its log is in the message."""


def unprivileged() -> int | None:
    """Return the user for a server that refuses to run as root; None if we are not root."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


class ServerProcess:
    """A running server. `stop`: the signal that ends it best; `user`: the user that runs it, if another.

    Started when made, in `directory`, which also holds its log.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, stop: signal.Signals = signal.SIGKILL, user: int | None = None
    ) -> None:
        self._log = directory / f"{Path(command[0]).name}.log"
        arguments = ["-" if user is None else str(user), str(int(stop)), *command]
        with self._log.open("wb") as log:
            # A session of its own: an interrupt from the keyboard goes to the tests only, which then stop the servers
            # in order.
            self._keeper = subprocess.Popen(
                [sys.executable, "-c", _KEEPER, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=directory,
                start_new_session=True,
            )

    def await_(self, reached: Callable[[], bool], otherwise: str) -> None:
        """Wait until `reached`; it may raise `OSError` before. Raises `ServerDownError` that begins with `otherwise`.

        `reached` is called repeatedly, as long as the server runs.
        """
        deadline = time.monotonic() + PATIENCE_S
        while self._keeper.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                if reached():
                    return
            time.sleep(0.05)
        raise self.down(otherwise)

    def down(self, what: str) -> ServerDownError:
        """Make an error with this text and the end of the log."""
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])
        return ServerDownError(f"{what}; the end of {self._log.name}:\n{tail}")

    def close(self) -> None:
        """Stop it, and wait until it is gone."""
        self._keeper.communicate()


@contextmanager
def serving(command: Sequence[str], directory: Path, endpoint: str) -> Iterator[None]:
    """Run a server that answers requests at `endpoint`; stopped when left. Raises `ServerDownError`."""
    process = ServerProcess(command, directory)
    try:
        process.await_(lambda: _answers(endpoint), "the server does not answer")
        yield
    finally:
        process.close()


def _answers(endpoint: str) -> bool:
    connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except HTTPException as error:
        raise ConnectionError(repr(error)) from error
    finally:
        connection.close()
    return True

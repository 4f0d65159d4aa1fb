"""The daemon of the demonstration: `tailer run` in its own process, which is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Any, Final, Self

__all__ = ["DaemonDied", "Event", "Follower"]

END_S: Final = 40.0

Event = dict[str, Any]


class DaemonDied(Exception):
    """The daemon ended unexpectedly."""


class Follower:
    """Runs the daemon for the configuration at `config`; calls `show` for every event it prints.

    Its standard error goes to `log`. Leaving the block ends it.
    """

    def __init__(self, config: Path, log: Path, show: Callable[[Event], None]) -> None:
        self._config = config
        self._log = log
        self._show = show
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGKILL)

    def start(self) -> int:
        """Start the daemon; return its process id."""
        with self._log.open("ab") as log:
            # Its own session: Ctrl-C reaches only us, and we signal the daemon.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailer", "run", "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._reader = Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        return self._process.pid

    def kill(self) -> None:
        """Kill the daemon with SIGKILL."""
        self._end(signal.SIGKILL)

    def finish(self) -> None:
        """End the daemon with SIGTERM. Raises `DaemonDied` unless its exit code is 0."""
        code = self._end(signal.SIGTERM)
        if code != 0:
            raise DaemonDied(self._report(code))

    def check(self) -> None:
        """Raise `DaemonDied` if it is not running."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise DaemonDied(self._report(code))

    def _end(self, how: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(how)
        try:
            code = process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if self._reader is not None:
            self._reader.join(END_S)
        return code

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                if line.endswith(b"\n"):  # the last line of a killed process may be cut
                    self._show(json.loads(line))

    def _report(self, code: int | None) -> str:
        last = self._log.read_text(errors="replace").splitlines()[-12:]
        return os.linesep.join([f"the daemon ended with {code}; the end of its log:", *last])

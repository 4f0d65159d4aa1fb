"""Test servers that end with the tests, however those end."""

import subprocess
import sys
from typing import Final

__all__ = ["Guard"]

# Kills the watched processes when the tests' end of the pipe closes, also if the tests were killed. PR_SET_PDEATHSIG
# would also kill them when only the thread that started a server ends.
_GUARD: Final = """
import os, signal, sys
pids = set()
for line in sys.stdin:
    order, pid = line.split()
    (pids.add if order == "guard" else pids.discard)(int(pid))
for pid in pids:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class Guard:
    """A process that outlives ours just long enough to kill the remaining servers."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _GUARD]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True)

    def watch(self, pid: int) -> None:
        """Kill this process if we end before `forget`."""
        self._tell("guard", pid)

    def forget(self, pid: int) -> None:
        """Stop watching this process, which is gone."""
        self._tell("forget", pid)

    def close(self) -> None:
        """Kill all watched processes, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, order: str, pid: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order} {pid}\n")
        self._process.stdin.flush()

"""The peak of the resident memory of daemons."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Memory"]


class Memory:
    """Looks at the processes that `pids` names, every `every_s` seconds while it is entered.

    `peak_mb`: the most that one of them had.
    """

    def __init__(self, every_s: float = 5.0) -> None:
        self.pids: Callable[[], Iterable[int]] = lambda: ()
        self.peak_mb = 0
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._ended.wait(self._every_s):
            self.peak_mb = max(self.peak_mb, *map(resident_mb, self.pids()), 0)


def resident_mb(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) // 1024
    return 0

"""The resident memory of the daemons of a soak, over time."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["Memory"]

HOUR_S: Final = 3600.0


class Memory:
    """Looks at the processes that `pids` names, every `every_s` seconds while it is entered."""

    def __init__(self, every_s: float = 5.0) -> None:
        self.pids: Callable[[], Iterable[int]] = lambda: ()
        self.samples: list[tuple[float, int]] = []
        self._every_s = every_s
        self._began_s = time.monotonic()
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
            found = [resident_mb(pid) for pid in self.pids()]
            if any(found):
                self.samples.append((time.monotonic() - self._began_s, max(found)))

    def by_hour_mb(self) -> list[int]:
        """Return the peak of one process in each hour."""
        peaks: dict[int, int] = {}
        for at_s, mb in self.samples:
            peaks[int(at_s / HOUR_S)] = max(peaks.get(int(at_s / HOUR_S), 0), mb)
        return [peaks[hour] for hour in sorted(peaks)]

    def peaks_mb(self) -> tuple[int, int, int]:
        """Return the peak of one process in all, in the first hour and in the last; before two hours, of each half.

        0 before the first sample.
        """
        whole_s = self.samples[-1][0] if self.samples else 0.0
        part_s = min(HOUR_S, whole_s / 2)
        first = max((mb for at_s, mb in self.samples if at_s <= part_s), default=0)
        last = max((mb for at_s, mb in self.samples if at_s >= whole_s - part_s), default=0)
        return max(first, last, *(mb for _, mb in self.samples), 0), first, last


def resident_mb(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) // 1024
    return 0

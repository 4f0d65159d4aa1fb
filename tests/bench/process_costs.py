"""The cost of a Spark in processes: processor time by kind, and the peak resident memory of each process."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import psutil  # type: ignore[import-untyped]

__all__ = ["Peaks", "cpu_s"]

_POLL_S: Final = 0.2


def cpu_s() -> dict[str, float]:
    """Return the processor time so far, with that of ended processes."""
    found = {"java_s": 0.0, "python_s": 0.0, "driver_s": time.process_time()}
    for child in psutil.Process().children(recursive=True):
        try:
            times, name = child.cpu_times(), child.name()
        except psutil.NoSuchProcess:
            continue
        found["java_s" if name == "java" else "python_s"] += times.user + times.system
        # Java's children are Python workers.
        found["python_s"] += times.children_user + times.children_system
    return found


class Peaks:
    """Follows the peak memory of this process, of Java and of each Python worker; a context.

    It also follows the processor time of workers, of which some end without adding theirs to their parent's.
    """

    def __init__(self) -> None:
        self._peaks: dict[tuple[str, int], int] = {}
        self._worker_s: dict[int, list[float]] = {}  # the first and the last time seen
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peaks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def mb(self) -> dict[str, float]:
        """Return the largest peak of each kind of process, by kind, and the number of workers."""
        kinds = {kind for kind, _ in self._peaks}
        found = {
            f"{kind}_mb": max(kb for (each, _), kb in self._peaks.items() if each == kind) / 1024 for kind in kinds
        }
        return {**found, "workers": sum(kind == "worker" for kind, _ in self._peaks)}

    def workers_s(self) -> float:
        """Return the processor time of all workers since the beginning."""
        return sum(last - first for first, last in self._worker_s.values())

    def _watch(self) -> None:
        started = {pid for _, pid in _processes()}
        while True:
            for kind, pid in _processes():
                if kind == "worker":
                    self._note_time(pid, new=pid not in started)
                # Workers come and go.
                with suppress(OSError, IndexError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    self._peaks[kind, pid] = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
            if self._over.wait(_POLL_S):
                return

    def _note_time(self, pid: int, *, new: bool) -> None:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            now_s = float(times.user + times.system)
            self._worker_s.setdefault(pid, [0.0 if new else now_s, now_s])[1] = now_s


def _processes() -> Iterator[tuple[str, int]]:
    own = psutil.Process()
    yield "driver", own.pid
    for child in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield "java" if child.name() == "java" else "worker", child.pid

"""Progress bars of `tailer run` on a terminal: one for each pipeline that delivers a snapshot or a long backlog.

A bar appears when that has lasted `AFTER_S`, and goes when the pipeline is level. Lines of the log appear above.
"""

import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
from anyio import to_thread
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tailer.cli.display.display import terminal
from tailer.pipeline.status import PipelineState, PipelineStatus

__all__ = ["bars_on_terminal"]

AFTER_S: Final = 1.0
MOST: Final = 10
_LOOK_S: Final = 0.2
_LONG: Final = (PipelineState.SNAPSHOT, PipelineState.CATCHING_UP)


@dataclass(slots=True, kw_only=True)
class _Work:
    """A piece of long work of a pipeline: its state, when it was first seen, and where it began."""

    state: PipelineState
    since_s: float
    version: int
    rows: int
    bar: TaskID | None = None


class Bars:
    """The bars of pipelines on `console`. `update` shows them as they are now."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[done]}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, redirect_stdout=False)
        self._work: dict[str, _Work] = {}
        self._live = False
        self._turns = threading.Lock()

    def update(self, statuses: Iterable[PipelineStatus]) -> None:
        """Add, move and remove bars."""
        now_s, long = time.monotonic(), {status.name: status for status in statuses if status.state in _LONG}
        with self._turns:
            for name in set(self._work).difference(long):
                self._remove(name)
            for name, status in long.items():
                work = self._work.get(name)
                if work is None or work.state is not status.state:
                    self._remove(name)
                    version, rows = _delivered(status), status.rows.total()
                    work = self._work[name] = _Work(state=status.state, since_s=now_s, version=version, rows=rows)
                if work.bar is None and now_s - work.since_s >= AFTER_S and len(self._progress.task_ids) < MOST:
                    what = "snapshot" if status.state is PipelineState.SNAPSHOT else "catching up, versions"
                    work.bar = self._progress.add_task(f"{status.name}: {what}", total=None, done="")
                if work.bar is not None:
                    self._show(work, work.bar, status)
            self._turn(bool(self._progress.task_ids))

    def _show(self, work: _Work, bar: TaskID, status: PipelineStatus) -> None:
        rows = f"{status.rows.total() - work.rows:,} rows"
        if work.state is PipelineState.SNAPSHOT:
            self._progress.update(bar, done=rows)
            return
        total, completed = (status.backlog.latest or 0) - work.version, _delivered(status) - work.version
        self._progress.update(bar, total=max(total, 1), completed=completed, done=f"{completed:,}/{total:,}, {rows}")

    def _remove(self, name: str) -> None:
        work = self._work.pop(name, None)
        if work is not None and work.bar is not None:
            self._progress.remove_task(work.bar)

    def _turn(self, live: bool) -> None:
        """Start or stop the display; while it is there, the log is printed above it."""
        if live == self._live:
            return
        self._live = live
        if live:
            self._progress.start()
        else:
            self._progress.stop()

    def close(self) -> None:
        """Remove the display."""
        with self._turns:
            self._turn(live=False)


async def _keep_up(bars: Bars, statuses: Sequence[PipelineStatus]) -> None:
    """Keep `bars` up to date; there are none while rows are printed beside them. A task of the daemon."""
    while True:
        hidden = sys.stdout.isatty() and any(status.sink_kind == "stdout" for status in statuses)
        # In a thread, because a terminal that is halted (Ctrl-S) blocks who writes to it.
        await to_thread.run_sync(bars.update, () if hidden else statuses, abandon_on_cancel=True)
        await anyio.sleep(_LOOK_S)


@contextmanager
def bars_on_terminal() -> Iterator[Callable[[Sequence[PipelineStatus]], Coroutine[Any, Any, None]] | None]:
    """Yield what shows the bars; None where standard error is no terminal."""
    if (console := terminal()) is None:
        yield None
        return
    bars = Bars(console)
    try:
        yield partial(_keep_up, bars)
    finally:
        bars.close()


def _delivered(status: PipelineStatus) -> int:
    return -1 if status.backlog.position is None else status.backlog.position.whole_version

"""Wake-ups: the end of a pipeline's wait for the next version.

A wake-up carries no data. The timer is authoritative, and a notification from the file system only shortens the wait. A
lost, late or spurious notification costs time and never a row.
"""

import logging
import os
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import anyio
from anyio import CapacityLimiter, from_thread, to_thread

if TYPE_CHECKING:
    from watchfiles import Change

__all__ = ["LocalWake", "TimerWake", "Wake"]

_log = logging.getLogger(__name__)


class Wake(Protocol):
    """A wait for new versions of one table. The pipeline enters it for as long as it runs."""

    @property
    def notifies(self) -> bool:
        """Return whether something else than the timer and `ring` can end a wait."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def ring(self) -> None:
        """End the current wait, or the next one."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return after at most `timeout_s` seconds, sooner if there may be a new version."""
        ...


class TimerWake:
    """The timer alone, and `ring`."""

    notifies = False

    def __init__(self) -> None:
        self._rung = anyio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return None

    def ring(self) -> None:
        """See `Wake.ring`."""
        self._rung.set()

    async def wait(self, timeout_s: float) -> None:
        """See `Wake.wait`."""
        with anyio.move_on_after(timeout_s):
            await self._rung.wait()
        if self._rung.is_set():
            self._rung = anyio.Event()


class LocalWake(TimerWake):
    """The timer, shortened by the operating system's notification of a new file in `folder`.

    `names`: matches the names of the files that count.
    """

    notifies = True

    def __init__(self, folder: Path, names: re.Pattern[str]) -> None:
        super().__init__()
        self._folder = folder
        self._names = names
        self._left = threading.Event()

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._left.set()
        self._group.cancel_scope.cancel()
        # Without the error of the block, which would come out as an `ExceptionGroup`.
        await self._group.__aexit__(None, None, None)
        return None

    async def _watch(self) -> None:
        # The thread runs for as long as we watch, so it is not taken from the shared pool.
        await to_thread.run_sync(self._listen, limiter=CapacityLimiter(1))

    def _listen(self) -> None:
        from watchfiles import watch  # noqa: PLC0415 - executors read stores without it

        try:
            # A step is the wait for the rest of a burst, and the interval of checks whether we have left. A new file is
            # a burst by itself, so it is short.
            news = watch(
                self._folder,
                watch_filter=self._counts,
                recursive=False,
                step=10,
                debounce=20,
                rust_timeout=0,
                stop_event=self._left,
            )
            for _ in news:
                from_thread.run_sync(self.ring)
        except (OSError, RuntimeError) as error:  # the library raises RuntimeError where inotify refuses
            # The library's words about a missing folder are not for users.
            is_there = os.path.isdir(self._folder)  # noqa: PTH112 - Path.is_dir raises where it cannot look
            reason = error if is_there else "there is no such folder"
            _log.warning("%s: no notification of new commits (%s); polling with the timer only", self._folder, reason)

    def _counts(self, change: "Change", path: str) -> bool:
        # A file that was removed is no news.
        return change.name != "deleted" and self._names.fullmatch(Path(path).name) is not None

"""Wake-ups: what ends a pipeline's wait for the next version.

A wake-up carries no data. The timer is the truth; a notification from the file system only shortens the wait, so a
lost, late or spurious one costs time and never a row.
"""

import logging
import re
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import anyio
from watchfiles import Change, awatch

from tailer.background import background

__all__ = ["LocalWake", "TimerWake", "Wake"]

_log = logging.getLogger(__name__)
_COMMIT: Final = re.compile(r"\d{20}\.json")


class Wake(Protocol):
    """Waits for news of one table. Entered by the pipeline for as long as it runs."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def ring(self) -> None:
        """End the current wait, or the next one."""
        ...

    async def wait(self, timeout_s: float) -> None:
        """Return after `timeout_s` seconds at the latest, sooner if there may be news."""
        ...


class TimerWake:
    """Nothing but the timer, and `ring`."""

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
    """The timer, shortened by the operating system's notice of a new commit file in `log_dir`."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._behind = AsyncExitStack()

    async def __aenter__(self) -> Self:
        group = await self._behind.enter_async_context(background())
        group.start_soon(self._watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._behind.__aexit__(kind, error, trace)

    async def _watch(self) -> None:
        try:
            # A step is how long to wait for the rest of a burst; commits are single files, so hardly at all. The
            # watching thread looks up every `rust_timeout` to see whether it should end.
            news = awatch(
                self._log_dir, watch_filter=_is_commit, recursive=False, step=5, debounce=20, rust_timeout=200
            )
            async for _ in news:
                self.ring()
        except OSError as error:
            _log.warning("%s: no notification of new commits (%s); the timer serves alone", self._log_dir, error)


def _is_commit(change: Change, path: str) -> bool:
    return change is not Change.deleted and _COMMIT.fullmatch(Path(path).name) is not None

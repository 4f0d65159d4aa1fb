"""Wake-ups: the end of a pipeline's wait for the next version.

A wake-up carries no data. The timer is authoritative, and a notification from the file system only shortens the wait. A
lost, late or spurious notification costs time and never a row.

All folders of this machine that an event loop waits for share one watch: one thread for the notifications of the
operating system and one that looks at the folders every second, however many folders there are. The look notices what
is not notified: changes by other machines on a network file system, and folders beyond the system's limit of watches.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

import anyio
from anyio import CapacityLimiter, from_thread, to_thread
from anyio.lowlevel import RunVar, current_token
from typing_extensions import override

if TYPE_CHECKING:
    from watchfiles import Change

__all__ = ["ACTIVE_S", "LOOK_S", "LocalWake", "Pace", "TimerWake", "Wake"]

LOOK_S: Final = 1.0
STEP_MS: Final = 1
QUIET_STEP_S: Final = 0.008
ACTIVE_S: Final = 30.0
_END_S: Final = 2.0

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


class TimerWake(Wake):
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

    @override
    def ring(self) -> None:
        self._rung.set()

    @override
    async def wait(self, timeout_s: float) -> None:
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
        self.folder: Final = str(folder)
        self._names = names

    async def __aenter__(self) -> Self:
        watch = _shared.get(None)
        if watch is None:
            watch = _FolderWatch()
            _shared.set(watch)
            watch.start()
        watch.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        watch = _shared.get()
        assert watch is not None, "entered before"
        if not watch.remove(self):
            _shared.set(None)
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(watch.end, limiter=CapacityLimiter(1))
        return None

    def counts(self, change: "Change", path: str) -> bool:
        """Return whether a change of the file at `path` may be a new version. A removed file is no news."""
        return change.name != "deleted" and self._names.fullmatch(Path(path).name) is not None


@dataclass(slots=True)
class _Watched:
    """A folder with the wakes that wait for it.

    `seen`: its file number and time of change at the last look; None: not there, or not looked at yet. `notified`:
    whether the operating system has notified of a change since that look.
    """

    wakes: set[LocalWake] = field(default_factory=set)
    seen: tuple[int, int] | None = None
    is_new: bool = True
    notified: bool = False


class Pace:
    """The `event` that ends a watch, which asks for it in each step. In a quiet time, the answer takes a while.

    Steps are so short that nobody waits for them, and cost two hundredths of a processor. After `ACTIVE_S` without
    a change, the event is waited for in each step: that costs little, and notices come some milliseconds later.
    """

    def __init__(self, event: threading.Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._clock = clock
        self._changed_s = clock()

    def note_change(self) -> None:
        """Begin an active time."""
        self._changed_s = self._clock()

    def is_set(self) -> bool:
        if self._clock() - self._changed_s < ACTIVE_S:
            return self._event.is_set()
        return self._event.wait(QUIET_STEP_S)


class _FolderWatch:
    """The watch of all folders that the wakes of one event loop wait for. Made in that loop."""

    def __init__(self) -> None:
        self._loop = current_token()
        self._lock = threading.Lock()
        self._folders: dict[str, _Watched] = {}
        self._real: dict[str, list[str]] = {}  # the folders as given, by their real path
        self._refused: frozenset[str] = frozenset()
        self._changed = threading.Event()
        self._over = threading.Event()
        self._pace = Pace(self._changed)
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._listen, "notifications"), (self._look, "folders"))
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Return when the threads have ended. A thread blocked in a dead network mount is abandoned."""
        self._over.set()
        self._changed.set()
        for thread in self._threads:
            thread.join(_END_S)

    def add(self, wake: LocalWake) -> None:
        """Watch the folder of `wake`, too."""
        with self._lock:
            is_new = wake.folder not in self._folders
            self._folders.setdefault(wake.folder, _Watched()).wakes.add(wake)
        if is_new:
            self._changed.set()

    def remove(self, wake: LocalWake) -> bool:
        """Ring `wake` no more. Return whether any other is left."""
        with self._lock:
            watched = self._folders[wake.folder]
            watched.wakes.discard(wake)
            if not watched.wakes:
                del self._folders[wake.folder]
                self._changed.set()
            return bool(self._folders)

    def _listen(self) -> None:
        while True:
            self._changed.clear()
            if self._over.is_set():  # looked at after `clear`, which may have taken the notice of `end`
                return
            self._follow(self._watchable())

    def _watchable(self) -> list[str]:
        """Return the real paths of the folders that are there; warn of others, once."""
        with self._lock:
            folders = list(self._folders)
        there = [folder for folder in folders if os.path.isdir(folder)]  # noqa: PTH112 - Path.is_dir may raise
        self._warn(set(folders).difference(there), "there is no such folder")
        real: dict[str, list[str]] = {}
        for folder in there:
            real.setdefault(os.path.realpath(folder), []).append(folder)
        self._real = real
        return list(real)

    def _follow(self, paths: Sequence[str]) -> None:
        """Ring for the changes that are notified in `paths`, or in as many as the system allows, until others count."""
        from watchfiles import watch  # noqa: PLC0415 - executors read stores without it

        while paths:
            with self._lock:
                for watched in self._folders.values():
                    watched.notified = False  # what changes before the watch begins is left to the look
            try:
                # A step is the wait for the rest of a burst, and the interval of checks of the event. A new file is a
                # burst by itself, so both are short.
                for changes in watch(
                    *paths,
                    watch_filter=None,
                    recursive=False,
                    step=STEP_MS,
                    debounce=2 * STEP_MS,
                    rust_timeout=0,
                    stop_event=self._pace,
                    raise_interrupt=False,
                ):
                    self._notify(changes)
            except (OSError, RuntimeError) as error:  # the library raises RuntimeError where inotify refuses
                refused = paths[len(paths) // 2 :]
                paths = paths[: len(paths) // 2]
                self._warn({folder for path in refused for folder in self._real[path]}, error)
            if self._changed.is_set():
                return
        self._changed.wait()

    def _warn(self, folders: set[str], reason: object) -> None:
        """Say that there are no notifications of `folders`, unless that was said before."""
        news = sorted(folders - self._refused)
        self._refused |= folders
        if news:
            more = f" and {len(news) - 1} more folders" if len(news) > 1 else ""
            text = "%s%s: no notification of new commits (%s); looking for them every %g s"
            _log.warning(text, news[0], more, reason, LOOK_S)

    def _notify(self, changes: Iterable[tuple["Change", str]]) -> None:
        self._pace.note_change()
        news: set[LocalWake] = set()
        with self._lock:
            for change, path in changes:
                if change.name == "deleted" and path in self._real:
                    self._forget(path)
                for folder in self._real.get(os.path.dirname(path), ()):  # noqa: PTH120 - as fast as can be
                    if (watched := self._folders.get(folder)) is not None:
                        watched.notified = True
                        news.update(wake for wake in watched.wakes if wake.counts(change, path))
        self._ring(news)

    def _forget(self, path: str) -> None:
        """Watch the folder `path`, which was removed, anew as soon as it is there again. Called with the lock."""
        for folder in self._real[path]:
            if (watched := self._folders.get(folder)) is not None:
                watched.seen = None
        self._changed.set()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            with self._lock:
                folders = list(self._folders.items())
            news: set[LocalWake] = set()
            for folder, watched in folders:
                if self._look_at(folder, watched):
                    news |= watched.wakes
            self._ring(news)

    def _look_at(self, folder: str, watched: _Watched) -> bool:
        """Return whether `folder` has changed and nobody has notified of it."""
        before, seen = watched.seen, _look_at(folder)
        with self._lock:
            notified, watched.notified = watched.notified, False
            is_new, watched.is_new = watched.is_new, False
            watched.seen = seen
        if not is_new and seen is not None and (before is None or before[0] != seen[0]):
            self._refused -= {folder}
            self._changed.set()  # another folder has its name: it must be watched anew
        return is_new or (seen != before and not notified)

    def _ring(self, wakes: set[LocalWake]) -> None:
        if wakes and not self._over.is_set():
            try:
                from_thread.run_sync(_ring_all, wakes, token=self._loop)
            except RuntimeError:  # the event loop has ended
                self._over.set()
                self._changed.set()


# The watch of each event loop; None where nothing is watched.
_shared: Final[RunVar[_FolderWatch | None]] = RunVar("folder_watch", None)


def _look_at(folder: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(folder)  # noqa: PTH116 - as fast as can be
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _ring_all(wakes: Iterable[LocalWake]) -> None:
    for wake in wakes:
        wake.ring()

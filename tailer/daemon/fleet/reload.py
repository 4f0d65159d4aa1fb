"""Load the configuration again: at SIGHUP, and when its file changes.

The operating system notifies of changes, also of those of a mounted ConfigMap, and a timer finds those it does not. A
file is read when it has stayed the same for `_SETTLE_S` seconds, because editors write in pieces. One with a fault is
reported and changes nothing.
"""

import logging
import re
from typing import Final

import anyio
from anyio import to_thread

from tailer.config.file import digest_of
from tailer.config.pipelines import Settings
from tailer.config.settings import load
from tailer.errors import TailerError
from tailer.stores.wakeup import LocalWake, TimerWake

__all__ = ["ReloadWatch"]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 10.0
_SETTLE_S: Final = 0.5
# Where a ConfigMap is mounted, the file is a link into the folder that this link names, and only the link changes.
_MOUNTED: Final = "..data"


class ReloadWatch:
    """Waits for a new configuration, while `wake` is open. `settings`: the first one."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.path
        self._digest = settings.digest
        self._is_asked = False
        names = re.compile("|".join(map(re.escape, (self._path.name, _MOUNTED))))
        self.wake: Final = LocalWake(self._path.absolute().parent, names) if settings.reload_on_change else TimerWake()

    def ask(self) -> None:
        """Load the configuration, changed or not."""
        self._is_asked = True
        self.wake.ring()

    async def wait(self, timeout_s: float, now: Settings) -> Settings | None:
        """Wait for a new configuration in place of `now`. Return None on timeout or on a spurious wake-up."""
        if not self._is_asked:
            await self.wake.wait(max(min(timeout_s, _LOOK_S), 0.0))
        is_asked, self._is_asked = self._is_asked, False
        if is_asked:
            _log.info("SIGHUP: loading %s", self._path)
            self._digest = await to_thread.run_sync(digest_of, self._path)
        elif not now.reload_on_change or not await self._has_changed():
            return None
        else:
            _log.info("%s has changed: loading it", self._path)
        return await self._load()

    async def _has_changed(self) -> bool:
        """Return whether the file changed and has settled. A missing file is no change."""
        digest = await to_thread.run_sync(digest_of, self._path)
        if digest in (b"", self._digest):
            return False
        while True:
            await anyio.sleep(_SETTLE_S)
            again = await to_thread.run_sync(digest_of, self._path)
            if again == digest:
                break
            digest = again
        self._digest, before = digest, self._digest
        return digest not in (b"", before)

    async def _load(self) -> Settings | None:
        """Return the settings of the file; None, after a report, if it has a fault."""
        try:
            return await to_thread.run_sync(load, self._path)
        except ExceptionGroup as group:
            for error in group.exceptions:
                _log.error("%s", error, exc_info=None if isinstance(error, TailerError) else error)
        except Exception:  # noqa: BLE001 - whatever it is, the pipelines go on
            _log.exception("%s cannot be loaded", self._path)
        _log.error("%s was not loaded: the pipelines go on as before", self._path)
        return None

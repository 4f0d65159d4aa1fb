"""Run the pipeline of a table that a catalog names: it is asked for the location, and the pipeline follows that.

A name that the catalog does not have yet is waited for, as a missing table is. Later the catalog is asked from time to
time. If it has another location for the name, the run finishes its transaction, and the next one follows the table
there: its own log says whether it is the same table, because progress belongs to the id in the log.
"""

import logging
from collections.abc import Callable
from typing import Final

import anyio

from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import find_location
from tailer.daemon.fleet.awaited import drop_command
from tailer.daemon.runs import Drainable
from tailer.engine.background import background
from tailer.errors import TailerError
from tailer.pipeline.polling import Polling
from tailer.pipeline.status import PipelineStatus
from tailer.stores.wakeup import TimerWake

__all__ = ["NamedRun"]

_log = logging.getLogger(__name__)

_ASK_AGAIN_S: Final = 60.0


class NamedRun:
    """A run of a pipeline whose table is a name. `status` is told while the name is waited for.

    `make`: makes the run at the location of the table; the last: whether the table has come just now.
    """

    def __init__(
        self,
        pipeline: PipelineSettings,
        status: PipelineStatus,
        make: Callable[[PipelineSettings, bool], Drainable],
        *,
        ask_again_s: float = _ASK_AGAIN_S,
    ) -> None:
        self._pipeline = pipeline
        self._status = status
        self._make = make
        self._ask_again_s = ask_again_s
        self._wake = TimerWake()
        self._made: Drainable | None = None
        self._stops = self._has_moved = False

    async def run(self) -> None:
        """See `Drainable.run`. Raises what the catalog raises, before the first row is read."""
        is_new = False
        while not self._stops:
            location, has_come = await self._find()
            if location is None or self._stops:  # it may be stopped while the catalog is asked
                return
            self._has_moved = False
            self._made = self._make(self._pipeline.at(location), is_new or has_come)
            async with background() as group:
                group.start_soon(self._watch, location)
                await self._made.run()
            if not self._has_moved:
                return
            is_new = True

    def stop(self) -> None:
        """See `Drainable.stop`."""
        self._stops = True
        self._wake.ring()
        if self._made is not None:
            self._made.stop()

    async def _find(self) -> tuple[str | None, bool]:
        """Return the location of the table, and whether it was waited for; None: the wait was stopped."""
        name, table = self._pipeline.name, self._pipeline.table
        location = await find_location(table, self._pipeline.stores)
        if location is not None:
            return location, False
        polling = Polling.of(self._pipeline.limits, self._wake)
        text = "%s: the catalog has no table %s yet; looking for it every %g to %g s"
        _log.info(text, name, table, polling.shortest_s, polling.longest_s)
        drop_command(self._status)
        while location is None and not self._stops:
            self._status.note_missing_table()
            await self._wake.wait(polling.next_wait_s())
            location = await find_location(table, self._pipeline.stores)
        if self._stops:
            return None, True
        self._status.note_start()
        return location, True

    async def _watch(self, location: str) -> None:
        """End the run when the catalog has another location. What it cannot tell changes nothing."""
        name, table, fault = self._pipeline.name, self._pipeline.table, ""
        while True:
            await anyio.sleep(self._ask_again_s)
            try:
                found = await find_location(table, self._pipeline.stores)
            except TailerError as error:
                if str(error) != fault:
                    _log.warning("%s: %s; the pipeline goes on at %s", name, error, location)
                fault = str(error)
                continue
            fault = ""
            if found not in (None, location):
                _log.warning("%s: %s has moved from %s to %s", name, table, location, found)
                self._has_moved = True
                assert self._made is not None, "made before"
                self._made.stop()
                return

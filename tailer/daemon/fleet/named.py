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
from tailer.daemon.runs import Stop, Work
from tailer.engine.background import background
from tailer.errors import TailerError
from tailer.pipeline.polling import Polling
from tailer.pipeline.status import PipelineStatus
from tailer.stores.wakeup import TimerWake

__all__ = ["follow_name"]

_log = logging.getLogger(__name__)

_ASK_AGAIN_S: Final = 60.0


async def follow_name(
    pipeline: PipelineSettings,
    status: PipelineStatus,
    make: Callable[[PipelineSettings, bool], Work],
    stop: Stop,
    *,
    ask_again_s: float = _ASK_AGAIN_S,
) -> None:
    """Do the work of a pipeline whose table is a name. `status` is told while the name is waited for.

    `make`: makes the work at the location of the table; the last: whether the table has come just now.

    Raises what the catalog raises, before the first row is read.
    """
    is_new = False
    while not stop.is_set:
        location, has_come = await _find(pipeline, status, stop)
        if location is None or stop.is_set:  # it may be set while the catalog is asked
            return
        work, leave = make(pipeline.at(location), is_new or has_come), Stop()
        with stop.calling(leave.set):
            async with background() as group:
                group.start_soon(_watch, pipeline, location, leave, ask_again_s)
                await work(leave)
        if not leave.is_set:
            return
        is_new = True


async def _find(pipeline: PipelineSettings, status: PipelineStatus, stop: Stop) -> tuple[str | None, bool]:
    """Return the location of the table, and whether it was waited for; None: the wait was stopped."""
    table = pipeline.table
    location = await find_location(table, pipeline.stores)
    if location is not None:
        return location, False
    polling = Polling.of(pipeline.limits, TimerWake())
    text = "%s: the catalog has no table %s yet; looking for it every %g to %g s"
    _log.info(text, pipeline.name, table, polling.shortest_s, polling.longest_s)
    drop_command(status)
    while location is None and not stop.is_set:
        status.note_missing_table()
        await stop.wait(polling.next_wait_s())
        location = await find_location(table, pipeline.stores)
    if stop.is_set:
        return None, True
    status.note_start()
    return location, True


async def _watch(pipeline: PipelineSettings, location: str, leave: Stop, ask_again_s: float) -> None:
    """Set `leave` when the catalog has another location. What it cannot tell changes nothing."""
    fault = ""
    while True:
        await anyio.sleep(ask_again_s)
        try:
            latest = await find_location(pipeline.table, pipeline.stores)
        except TailerError as error:
            if str(error) != fault:
                _log.warning("%s: %s; the pipeline goes on at %s", pipeline.name, error, location)
            fault = str(error)
            continue
        fault = ""
        if latest not in (None, location):
            _log.warning("%s: %s has moved from %s to %s", pipeline.name, pipeline.table, location, latest)
            leave.set()
            return

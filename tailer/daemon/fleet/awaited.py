"""Wait for the table of a pipeline that does not exist yet, as a template waits for its tables.

A look is one or two listings, as seldom as looks for a new version at a quiet table. Where no table can come to be, the
pipeline stops with an error that names the reason. A table that is missing after it was followed in the same run is
lost, and is not waited for.

A table that comes may be copied into place, file by file. Its log with only some of its files looks like one that was
cleaned up, from which a pipeline would begin too late. So a pipeline begins when two looks, one poll apart, list the
same log. Data files may come even later: while nothing was delivered, a table that is not whole is waited for again.

The pipeline of a table that a catalog names asks it for the location, and follows that. A name that the catalog does
not have yet is waited for in the same way. Later the catalog is asked from time to time. If it has another location for
the name, the run finishes its transaction, and the next one follows the table there: its own log says whether it is the
same table, because progress belongs to the id in the log.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio

from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import find_location
from tailer.daemon.runs import Stop, Work
from tailer.engine import background
from tailer.errors import (
    ChangesUnavailable,
    DataCorrupt,
    FileVacuumed,
    LogCorrupt,
    NotATable,
    StorageError,
    TailerError,
    VersionGone,
)
from tailer.formats.port import TableFormat
from tailer.formats.registry import check_choices, default_format, find_format, misplaced, named_format
from tailer.pipeline.polling import Polling
from tailer.pipeline.status import PipelineStatus
from tailer.stores.port import in_thread
from tailer.stores.wakeup import TimerWake

__all__ = ["AwaitedTable", "drop_command", "find_existing", "follow_name", "is_missing"]

_log = logging.getLogger(__name__)

_LOOKS_AT_GROWING: Final = 10
_ASK_AGAIN_S: Final = 60.0
_INCOMPLETE: Final = (NotATable, VersionGone, LogCorrupt, FileVacuumed, ChangesUnavailable, DataCorrupt)


async def is_missing(pipeline: PipelineSettings, *, is_first: bool = True) -> bool:
    """Return whether there is no table at the location of a pipeline yet. A catalog knows its own tables.

    `is_first`: look also for a table of another format. Raises `StorageError`, and `NotATable` where no table can come.
    """
    if pipeline.has_catalog or await _format_there(pipeline) is not None:
        return False
    wanted = check_choices(pipeline.source.table_format, pipeline.source.branch)
    expected = default_format() if wanted is None else named_format(wanted)
    if (fault := await in_thread(misplaced, pipeline.table)) is not None:
        raise NotATable(pipeline.table, fault.reason, expected.title, fault.remedy)
    if not is_first:
        return True
    other = await find_format(pipeline.stores.open(pipeline.table), whatever_the_name=True)
    if other is not None and other.name != expected.name:  # else it has come between the two looks
        remedy = f"Set table_format = {other.name!r} (--table-format), or check the path."
        raise NotATable(pipeline.table, f"it is {other.title}", expected.title, remedy)
    return True


async def find_existing(pipeline: PipelineSettings) -> PipelineSettings | None:
    """Return the settings of a pipeline with the location of its table; None: there is no table yet.

    Raises as `is_missing` and `tailer.config.tables.find_location`.
    """
    location = await find_location(pipeline.table, pipeline.stores)
    located = None if location is None else pipeline.at(location)
    return None if located is None or await is_missing(located) else located


def drop_command(status: PipelineStatus) -> None:
    """Drop an operator's command, if there is one: without a table nothing is lost, and it begins with its start."""
    if status.command is not None:
        text = "%s: %s is not done: there is no table yet; give the command again after that"
        _log.warning(text, status.name, status.command)
        status.command = None


async def _format_there(pipeline: PipelineSettings) -> TableFormat | None:
    """Return the format of the table at the location of a pipeline; None: there is no table that it would follow."""
    wanted = check_choices(pipeline.source.table_format, pipeline.source.branch)
    return await find_format(pipeline.stores.open(pipeline.table), wanted=wanted)


@dataclass(frozen=True, slots=True)
class _Log:
    """A log as it was listed: names and sizes of its files, and its first version, if none is missing."""

    files: Mapping[str, int] = field(default_factory=dict)
    first: int | None = None


class AwaitedTable:
    """The table of a pipeline, which may not exist yet. `status` is told while it is waited for, until `stop`.

    `is_new`: whether the table has come just now, and may not be whole yet.
    """

    def __init__(
        self,
        pipeline: PipelineSettings,
        status: PipelineStatus,
        stop: Stop,
        *,
        is_new: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._status = status
        self._is_new = is_new and not pipeline.has_catalog
        self._stop = stop
        self._polling = Polling.of(pipeline.limits, TimerWake())
        self._log = _Log()  # as it was listed last
        self._clock = clock
        self._changed_s = clock()
        self._transactions = status.transactions
        self._fault: TailerError | None = None

    async def wait(self) -> bool:
        """Return when the table is there, or when a store does not answer: whether it was waited for.

        Raises `NotATable` where no table can come.
        """
        name, polling = self._pipeline.name, self._polling
        if not self._is_new:
            if not await self.is_missing():
                return False
            self._is_new = True
            text = "%s: there is no table at %s yet; looking for it every %g to %g s"
            _log.info(text, name, self._pipeline.table, polling.shortest_s, polling.longest_s)
        drop_command(self._status)
        before = _Log()
        grown = 0  # looks in a row at a log that has grown at its end, as one does that is written all the time
        while not self._stop.is_set:
            self._status.note_missing_table("" if self._fault is None else f"the table is not whole yet: {self._fault}")
            await self._stop.wait(polling.next_wait_s())
            try:
                log = await self._list_log()
            except StorageError:
                break  # the pipeline meets the same error, names it, and retries
            grown = grown + 1 if log.first is not None and log.first == before.first else 0
            if log.files and (log == before or grown == _LOOKS_AT_GROWING):
                _log.info("%s: the table at %s is there", name, self._pipeline.table)
                break
            if log != self._log:
                self._log, self._changed_s = log, self._clock()
                polling.found()
            before = log
        if not self._stop.is_set:
            self._status.note_start()
        return True

    async def is_missing(self, *, is_first: bool = True) -> bool:
        """Return whether the table is known to be missing; `is_first`: see `is_missing`. Raises `NotATable`."""
        try:
            return await is_missing(self._pipeline, is_first=is_first)
        except StorageError:
            return False  # the pipeline meets the same error, names it, and retries

    def may_grow(self, error: TailerError) -> bool:
        """Return whether to wait again after `error` of the pipeline, because a table that has come may not be whole.

        Nothing was delivered then. A table that stays as it is for as long as errors are retried is broken.
        """
        if not (self._is_new and isinstance(error, _INCOMPLETE) and self._status.transactions == self._transactions):
            return False
        if self._stop.is_set or self._clock() - self._changed_s >= self._pipeline.limits.retry_for_s:
            return False
        if str(error) != str(self._fault):
            _log.warning("%s: %s; waiting, because the table has just come", self._pipeline.name, error)
        self._fault = error
        return True

    async def _list_log(self) -> _Log:
        """Return the log as it is now; an empty one where there is no table. Raises as `is_missing`."""
        there = await _format_there(self._pipeline)
        if there is None:
            await is_missing(self._pipeline, is_first=False)
            return _Log()
        listed = await self._pipeline.stores.open(self._pipeline.table).list(there.log_folder)
        files = {file.name: file.size_bytes for file in listed}
        # Where a version between others is missing, the first one is not known.
        versions = set(there.versions(files))
        is_whole = versions and max(versions) - min(versions) + 1 == len(versions)
        return _Log(files, min(versions) if is_whole else None)


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

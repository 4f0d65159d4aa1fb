"""Wait for the table of a pipeline that does not exist yet, as a template waits for its tables.

A look is one or two listings, as seldom as looks for a new version at a quiet table. Where no table can come to be, the
pipeline stops with an error that names the reason. A table that is missing after it was followed in the same run is
lost, and is not waited for.
"""

import logging

from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import TableFormat, find_format
from tailer.errors import NotATable, StorageError
from tailer.lance.history import SUFFIX
from tailer.pipeline.polling import Polling
from tailer.pipeline.status import PipelineStatus
from tailer.stores.folders import misplaced
from tailer.stores.port import in_thread
from tailer.stores.wakeup import TimerWake

__all__ = ["AwaitedTable", "is_missing"]

_log = logging.getLogger(__name__)

_NAMES = {TableFormat.DELTA: "a Delta table", TableFormat.LANCE: "a Lance dataset"}


async def is_missing(pipeline: PipelineSettings, *, is_first: bool = True) -> bool:
    """Return whether there is no table at the location of a pipeline yet. A catalog knows its own tables.

    `is_first`: look also for a table of another format. Raises `StorageError`, and `NotATable` where no table can come.
    """
    if pipeline.catalog_options is not None:
        return False
    store, wanted = pipeline.stores.open(pipeline.table), pipeline.table_format
    if pipeline.branch is not None:
        wanted = TableFormat.LANCE
    is_named = pipeline.table.endswith(SUFFIX)
    if await find_format(store, "", wanted, is_named=is_named) is not None:
        return False
    expected = _NAMES[wanted or TableFormat.DELTA]
    if (found := await in_thread(misplaced, pipeline.table)) is not None:
        raise NotATable(pipeline.table, found.reason, expected, found.remedy)
    other = await find_format(store, "", is_named=True) if is_first else None
    if other is not None:
        raise NotATable(pipeline.table, f"it is {_NAMES[other]}", expected)
    return True


class AwaitedTable:
    """The table of a pipeline, which may not exist yet. `status` is told while it is waited for."""

    def __init__(self, pipeline: PipelineSettings, status: PipelineStatus) -> None:
        self._pipeline = pipeline
        self._status = status
        self._wake = TimerWake()
        self._stops = False

    def stop(self) -> None:
        """End the wait."""
        self._stops = True
        self._wake.ring()

    async def wait(self) -> bool:
        """Return when the table is there, or when a store does not answer: whether it was missing before.

        Raises `NotATable` where no table can come.
        """
        if not await self.is_missing():
            return False
        name, polling = self._pipeline.name, Polling.of(self._pipeline.limits, self._wake)
        text = "%s: there is no table at %s yet; looking for it every %g to %g s"
        _log.info(text, name, self._pipeline.table, polling.shortest_s, polling.longest_s)
        while not self._stops:
            self._status.note_missing_table()
            await self._wake.wait(polling.next_wait_s())
            if not await self.is_missing(is_first=False):
                _log.info("%s: the table at %s is there", name, self._pipeline.table)
                break
        self._status.note_start()
        return True

    async def is_missing(self, *, is_first: bool = True) -> bool:
        """Return whether the table is known to be missing; `is_first`: see `is_missing`. Raises `NotATable`."""
        try:
            return await is_missing(self._pipeline, is_first=is_first)
        except StorageError:
            return False  # the pipeline meets the same error, names it, and retries

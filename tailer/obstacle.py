"""What stopped a pipeline's session at a version, and whether the next session may get past it."""

import logging
import time
from dataclasses import dataclass
from typing import Final

from tailer.errors import (
    ChangeError,
    LogCorrupt,
    LogError,
    StateUnknown,
    TableReplaced,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.table_log import TableLog

__all__ = ["LOST_LOG", "Awaited", "Obstacle"]

_log = logging.getLogger(__name__)

LOST_LOG: Final = (VersionGone, LogCorrupt)
_REMIND_S: Final = 600.0


@dataclass(slots=True)
class Obstacle:
    """What stopped a session at `version` of the table `table_id`.

    `lost`: whether to go on behind it. `met`: whether that was tried.
    """

    error: LogError | ChangeError
    version: int
    table_id: str
    lost: bool
    met: bool = False

    def stands_in(self, table_id: str) -> bool:
        """Whether it still is in the way when the table is `table_id`."""
        return isinstance(self.error, TableReplaced) or self.table_id == table_id

    async def is_restored(self, table: TableLog, version: int) -> bool:
        """Whether a log that was lost can be read again at `version`, whose changes are then not lost.

        Leaves `table` anywhere. Raises `StorageError`, `VersionAhead`.
        """
        if not isinstance(self.error, LOST_LOG):
            return False
        try:
            await table.seek(version)
            await table.next_plan()
        except LOST_LOG:
            return False
        except VersionAhead:
            raise
        except (LogError, ChangeError) as error:
            _log.info("%s: %s", table.uri, error)  # for whoever reads on
        return True


class Awaited:
    """The loss that the pipeline `name` waits to get past: said once, and again every ten minutes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loss: tuple[type[TailerError], int | None] | None = None
        self._said = 0.0

    def is_about(self, error: TailerError) -> bool:
        """Whether `error` is that loss."""
        return self._loss == _loss(error)

    @staticmethod
    def missing(table: str, error: TailerError) -> StateUnknown:
        """The loss as an error: the log of `table` tells no way past `error`."""
        version: int | None = getattr(error, "version", None)
        return StateUnknown(table, 0 if version is None else version, str(error))

    def say(self, error: TailerError, missing: StateUnknown) -> None:
        """Log that a way past `error` is waited for, as `missing` says, unless that was said lately."""
        if not self.is_about(error) or time.monotonic() - self._said >= _REMIND_S:
            _log.warning("%s: %s; waiting. %s", self._name, missing, missing.hint)
            self._loss, self._said = _loss(error), time.monotonic()


def _loss(error: TailerError) -> tuple[type[TailerError], int | None]:
    return type(error), getattr(error, "version", None)

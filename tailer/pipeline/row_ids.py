"""Warnings about versions without row ids, in a pipeline that delivers row ids: nulls must be announced."""

import logging
from typing import Final

from tailer.events import ROW_COMMIT_VERSION, ROW_ID
from tailer.plan import ChangePlan, Regime

__all__ = ["RowIdReport"]

_UNTRACKED: Final = "the table does not track rows there (it does with delta.enableRowTracking = true)"

_log = logging.getLogger(__name__)


class RowIdReport:
    """Warnings of the pipeline `name`, one for each reason."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._given: set[str] = set()

    def note(self, plan: ChangePlan) -> None:
        """Check `plan`, which is about to be delivered with row ids."""
        if all(task.tracking is not None for task in plan.tasks):
            return
        reason = "the rows of change files have none" if plan.regime is Regime.CDC else _UNTRACKED
        if reason not in self._given:
            self._given.add(reason)
            message = "%s: from version %d on rows may have null as %s and %s: %s"
            _log.warning(message, self._name, plan.version, ROW_ID, ROW_COMMIT_VERSION, reason)

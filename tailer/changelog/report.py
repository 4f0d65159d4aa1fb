"""Metrics and log messages about the comparison of a pipeline's versions: every dropped row is counted."""

import logging
from typing import Final

from tailer.changelog.carryovers import ChangelogCounts
from tailer.metrics import Counter
from tailer.plan import ChangePlan

__all__ = ["ChangelogReport"]

_log = logging.getLogger(__name__)

METRICS: Final = (
    Counter("lake_tailer_carryovers_dropped", "Rows dropped because rewritten files held them unchanged."),
    Counter("lake_tailer_updates_paired", "Deletes and inserts that were made an update."),
    Counter("lake_tailer_ambiguous_rows", "Rows with a choice of partners for an update."),
    Counter("lake_tailer_unchanged_images_dropped", "Images dropped of updates that change nothing."),
)


class ChangelogReport:
    """Reports on the comparisons of the pipeline `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        for counter in METRICS:
            counter.add(name, 0)

    def note(self, plan: ChangePlan, counts: ChangelogCounts) -> None:
        """Count the results for the version of `plan`, and warn about ambiguous rows."""
        numbers = (counts.carryovers, counts.updates, counts.ambiguous, counts.unchanged)
        for counter, count in zip(METRICS, numbers, strict=True):
            counter.add(self._name, count)
        if counts.ambiguous:
            _log.warning(
                "%s: version %d: %d rows share their key with other rows; they are paired in the order of delivery",
                self._name,
                plan.version,
                counts.ambiguous,
            )

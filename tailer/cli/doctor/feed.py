"""Recorded changes against data files: the versions whose change files say something else than the files do.

Both say which rows a version adds to the table and takes from it, as a multiset. Their difference is the net changes of
two plans: that of the data files with deletes for inserts and inserts for deletes, and that of the feed. What both say
cancels out. So do rows that a rewritten file holds unchanged, and the images of an update that changes nothing.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from tailer.changelog.carryovers import refine_range
from tailer.changelog.equal_rows.row_index import RowIndex, compare
from tailer.changelog.rules import PairingRules
from tailer.changelog.spill import SpilledBitmaps
from tailer.config.tables import TableRef
from tailer.errors import ChangeError, ConfigError, TailerError, UnsupportedFeature, VersionGone
from tailer.events import CHANGE_TYPE, ChangeType
from tailer.formats.rows import execute
from tailer.pipeline.policy import ChangeSource, Policy
from tailer.plan import ChangePlan, TaskKind
from tailer.read.data_files import DataFiles
from tailer.read.decoded_files import DecodedFiles
from tailer.schema.columns import METADATA_NAMES
from tailer.table_log import TableLog

__all__ = ["FEED", "FILES", "FeedCheck", "FeedFault", "after_lost", "begins_later", "check_feed"]

FEED: Final = "feed"
FILES: Final = "files"
_TURNED: Final = {TaskKind.INSERT: TaskKind.DELETE, TaskKind.DELETE: TaskKind.INSERT}
_OTHER: Final = {ChangeType.INSERT.value: ChangeType.DELETE.value, ChangeType.DELETE.value: ChangeType.INSERT.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedFault:
    """A version of which the feed and the data files say different things.

    `counts`: rows that one of them has and the other has not, by who has them (`FEED`, `FILES`) and by change type.
    `first`: one of these rows, by who has it and by change type, and those of its values that may be shown.
    """

    version: int
    operation: str | None
    counts: Counter[tuple[str, str]]
    first: tuple[str, str]
    values: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """Return the fault as JSON-ready values."""
        # JSON has no NaN and no infinity: they are texts, as in all JSON.
        values = json.loads(json.dumps(self.values, default=str), parse_constant=str)
        return {
            "version": self.version,
            "operation": self.operation,
            "rows": [
                {"in": where, "change_type": kind, "rows": rows} for (where, kind), rows in sorted(self.counts.items())
            ],
            "first": {"in": self.first[0], "change_type": self.first[1], "values": values},
        }


@dataclass(slots=True)
class FeedCheck:
    """Results for `versions`, which the log has. `compared`: how many have change files, and were compared.

    `unread`: those that could not be.
    """

    versions: range
    compared: int = 0
    faults: list[FeedFault] = field(default_factory=list)
    unread: dict[int, TailerError] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the results as JSON-ready values."""
        return {
            "first_version": self.versions.start,
            "last_version": self.versions.stop - 1,
            "compared": self.compared,
            "differences": [fault.document() for fault in self.faults],
            "unread": [{"version": version, "error": str(error)} for version, error in self.unread.items()],
        }


async def check_feed(
    table: TableRef, last: int, shown: Sequence[str] | None, files: DataFiles, say: Callable[[str], None]
) -> FeedCheck:
    """Compare the feed of the `last` versions of a table with its data files, version by version.

    `shown`: the columns whose values may be shown; None: all. `say` is told each step. Raises `TailerError` for a log
    that cannot be read.
    """
    logs = [table.open(policy=Policy(changes=source)) for source in ChangeSource]
    latest = await logs[0].latest()
    check = FeedCheck(range(max(latest - last + 1, 0), latest + 1))
    version = check.versions.start
    while version <= latest:
        try:
            for log in logs:
                await log.seek(version)
            while version <= latest:
                feed, compared = [await log.next_plan() for log in logs]
                if feed is None or compared is None:
                    return check
                version = feed.version + 1
                if feed.regime is not compared.regime:
                    say(f"comparing the change files of version {feed.version} with its data files")
                    await _compare(check, feed, compared, shown, files)
        except TailerError as error:
            after = await after_lost(logs[0], error, version)
            if version == check.versions.start and begins_later(error):
                check.versions = range(after, latest + 1)
            else:
                check.unread |= dict.fromkeys(range(version, after), error)
            version = after
    return check


async def after_lost(log: TableLog, error: TailerError, version: int) -> int:
    """Return the version to go on with, where `error` keeps `version` from being read. Raises it if there is none."""
    first = error.earliest if isinstance(error, VersionGone) else None
    return first if first is not None and first > version else await log.after_loss(error, version)


def begins_later(error: TailerError) -> bool:
    """Return whether `error` says that the log begins later, or with a version that needs the one before."""
    return isinstance(error, VersionGone) and (error.earliest is None or error.earliest >= error.version)


async def _compare(
    check: FeedCheck, feed: ChangePlan, files: ChangePlan, shown: Sequence[str] | None, source: DataFiles
) -> None:
    try:
        feed.check_change_files()
        fault = await compare(partial(_difference, feed, files, shown, source))
    except (ChangeError, ConfigError, UnsupportedFeature) as error:
        check.unread[feed.version] = error
        return
    check.compared += 1
    check.faults += [] if fault is None else [fault]


def _difference(
    feed: ChangePlan, files: ChangePlan, shown: Sequence[str] | None, source: DataFiles, row_index: RowIndex
) -> FeedFault | None:
    """Return how the two plans of a version differ; None if they do not. For a worker thread."""
    turned = replace(files, tasks=tuple(replace(task, kind=_TURNED[task.kind]) for task in files.tasks))
    rows = DecodedFiles(execute, files=source)
    counts: Counter[tuple[str, str]] = Counter()
    first: tuple[tuple[str, str], dict[str, Any]] | None = None
    with SpilledBitmaps() as bitmaps:
        # The files come first: theirs are the columns from before the version.
        plans, _ = refine_range([turned, feed], PairingRules(), row_index, bitmaps, rows)
        for where, plan in zip((FILES, FEED), plans, strict=True):
            for batch in (batch for task in plan.tasks for batch in rows.read(task) if len(batch)):
                types = batch.rows.column(CHANGE_TYPE).to_pylist()
                of_rows = [(where, _OTHER[name] if where == FILES else name) for name in types]
                counts.update(of_rows)
                if first is None:
                    row = batch.rows.slice(0, 1).drop_columns(list(METADATA_NAMES)).to_pylist()[0]
                    first = of_rows[0], {name: row[name] for name in (row if shown is None else shown) if name in row}
    if first is None:
        return None
    return FeedFault(version=feed.version, operation=feed.operation, counts=counts, first=first[0], values=first[1])

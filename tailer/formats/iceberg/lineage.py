"""The snapshots of a branch in order, and their numbers.

A snapshot's number is its sequence number. Numbers grow along each branch and are never used again, but have gaps:
snapshots of other branches, and those that were rolled back, have numbers, too. So what comes before a snapshot is
decided by parents alone.

Snapshots of the first format version have no numbers. A table of that version can be read, but not followed: a snapshot
is known by its time there. In a table that was upgraded, the last of these snapshots is version 0.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from tailer.errors import ChangesUnavailable, UnsupportedFeature, VersionGone
from tailer.formats.iceberg.metadata.document import Document, Snapshot

__all__ = ["Lineage", "Step", "refuse_first_format"]

_FIRST_FORMAT: Final = 1
_UPGRADE: Final = (
    "Set the table's property format-version to 2, which changes its metadata only, and start after that. Until then, "
    "the rows of a snapshot can be read: give `snapshot` as the start."
)


@dataclass(frozen=True, slots=True)
class Step:
    """A snapshot of a branch. `is_first`: whether there is none before it: all its rows are its changes."""

    number: int
    snapshot: Snapshot
    is_first: bool


def number_of(document: Document, snapshot: Snapshot) -> int:
    """Return the number of a snapshot."""
    return snapshot.timestamp_ms if document.format_version == _FIRST_FORMAT else snapshot.sequence_number


def refuse_first_format(document: Document, table: str, version: int) -> None:
    """Raise `UnsupportedFeature` for a table whose snapshots have no numbers."""
    if document.format_version == _FIRST_FORMAT:
        reason = "its snapshots have no numbers, so they cannot be followed"
        raise UnsupportedFeature(table, f"format version {document.format_version}", version, reason, _UPGRADE)


class Lineage:
    """The kept snapshots of a branch, oldest first. `before`: those of the same branch in older metadata."""

    def __init__(self, document: Document, branch: str, table: str, before: "Lineage | None" = None) -> None:
        self._table = table
        self.document = document
        older: Sequence[Step] = ()
        # Where the history goes on, the snapshots of before are all kept, with the same numbers.
        if before is not None and before.document.history.line is document.history.line:
            older = before.steps if before.document.format_version == document.format_version else ()
        self.steps: Sequence[Step] = _steps(document, branch, older)

    def at_or_before(self, number: int) -> Step | None:
        """Return the last snapshot up to a number; None: there is none."""
        place = bisect_right(self.steps, number, key=attrgetter("number"))
        return self.steps[place - 1] if place else None

    def at_or_after(self, number: int) -> Step | None:
        """Return the first snapshot from a number on; None: there is none."""
        place = bisect_left(self.steps, number, key=attrgetter("number"))
        return self.steps[place] if place < len(self.steps) else None

    def following(self, number: int) -> Step | None:
        """Return the same to whoever has read the version before. Raises `VersionGone` where more was expired."""
        step = self.at_or_after(number)
        if step is not None and step is self.steps[0] and not step.is_first:
            raise self.gone(number)
        return step

    def existing(self, number: int) -> Step:
        """Return the snapshot with a number. Raises `VersionGone`."""
        step = self.at_or_before(number)
        if step is None or step.number != number:
            raise self.gone(number)
        return step

    @property
    def latest(self) -> int:
        """The number of the newest snapshot; 0 for a table without any, which has no rows."""
        return self.steps[-1].number if self.steps else 0

    def start_at(self, number: int) -> int:
        """Return the version after the last one before `number`; before a table's first one, it is at version 0.

        What comes before a start is then a version of the branch, in spite of gaps: see `check_delivered`.
        """
        before = self.at_or_before(number - 1)
        if before is not None:
            return before.number + 1
        return 1 if self.steps and self.steps[0].is_first else number

    @property
    def first_readable(self) -> int:
        """The first version whose changes can be read: those of the oldest snapshot need the one before it."""
        if not self.steps:
            return 0
        return self.steps[0].number + (not self.steps[0].is_first)

    def gone(self, number: int) -> VersionGone:
        """Build the error for a snapshot that is no longer kept, or never was one of the branch."""
        earliest = self.steps[0].number if self.steps else None
        return VersionGone(self._table, number, earliest, self.latest, self.first_readable, ("latest", "snapshot"))

    def has_number(self, number: int) -> bool:
        """Return whether some snapshot that is kept has a number, on whatever branch."""
        return any(snapshot.sequence_number == number for snapshot in self.document.history.by_id.values())

    def check_delivered(self, number: int, snapshot_id: int | None = None) -> None:
        """Raise `ChangesUnavailable` where the last delivered snapshot is not one of the branch any more.

        `snapshot_id`: None where its number alone is known. One that is older than all that are kept is left to `gone`;
        where the oldest is the first that there ever was, the table was made again under its name.
        """
        first = self.steps[0] if self.steps else None
        if number < (first.number if first is not None else 1) and (number < 1 or first is None or not first.is_first):
            return
        step = self.at_or_before(number)
        if step is None or step.number != number or snapshot_id not in (None, step.snapshot.snapshot_id):
            reason = f"version {number}, which was delivered, is no part of the branch: it was rolled back or replaced"
            raise ChangesUnavailable(self._table, number, reason)


def _steps(document: Document, branch: str, older: Sequence[Step]) -> Sequence[Step]:
    by_id, steps = document.history.by_id, list[Step]()
    head = document.head(branch)
    while head is not None and (snapshot := by_id.get(head)) is not None:
        number = number_of(document, snapshot)
        if steps and steps[-1].number <= number:
            # Of the snapshots without numbers, the last one is the first state that can be followed.
            steps[-1] = Step(steps[-1].number, steps[-1].snapshot, is_first=False)
            break
        place = bisect_left(older, number, key=attrgetter("number"))
        if place < len(older) and older[place].snapshot is snapshot:
            return [*older[: place + 1], *reversed(steps)]
        head = snapshot.parent_snapshot_id
        steps.append(Step(number, snapshot, is_first=snapshot.is_first))
    return steps[::-1]

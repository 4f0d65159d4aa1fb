"""Positions in the stream of a table's changes.

`Position` orders all delivered rows. Tasks of a snapshot are numbered from `SNAPSHOT_TASKS` on, so that a position
distinguishes a snapshot of version v from the changes of version v. A position also identifies the rules by which a
version was compared, and the condition that chose its rows (`tailer.changelog.task_ids`): each set of rules has its own
range of `TASKS` task numbers, and the range need not begin at 0.
"""

from dataclasses import dataclass
from typing import Final, Self

__all__ = ["BACKFILLS", "END", "SNAPSHOT_TASKS", "TASKS", "Position"]

END: Final = 2**63 - 1
SNAPSHOT_TASKS: Final = 2**62
TASKS: Final = 2**32
BACKFILLS: Final = 2**28  # ranges of `TASKS` for backfills, after the first one of snapshots


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A position in a table's stream of changes: all rows up to and including it.

    `task` is the index in the version's plan, `row` the physical row number in the task's file. A position does not
    depend on batch sizes or parallelism, and computing it needs no counting of delivered rows.
    """

    version: int
    task: int = END
    row: int = END

    def __str__(self) -> str:
        """Name the position in texts for people."""
        if self.closes_version:
            return f"the end of version {self.version}"
        version = f"the snapshot of version {self.version}" if self.in_snapshot else f"version {self.version}"
        if self.opens_version:
            return f"the beginning of {version}"
        return f"row {self.row} of task {self.task % TASKS} of {version}"

    @classmethod
    def end(cls, version: int) -> Self:
        """Return the position that closes `version`."""
        return cls(version)

    @classmethod
    def opening(cls, version: int, snapshot: bool = False) -> Self:
        """Return the position before the first row of `version`, or of its `snapshot`."""
        return cls(version, SNAPSHOT_TASKS if snapshot else -1, -1)

    @property
    def opens_version(self) -> bool:
        """Return whether the position is before the first row, as `opening` returns it."""
        return self.row < 0 and self.task in (-1, SNAPSHOT_TASKS)

    @property
    def closes_version(self) -> bool:
        """Return whether the version has no rows after this position."""
        return self.task == END

    @property
    def whole_version(self) -> int:
        """Return the last version without rows after this position; -1: there is none."""
        return self.version if self.closes_version else self.version - 1

    @property
    def is_inside(self) -> bool:
        """Return whether some rows of the version, or of its snapshot, come before this position and some after it."""
        return not self.opens_version and not self.closes_version

    @property
    def in_snapshot(self) -> bool:
        """Return whether the position is inside a snapshot."""
        return SNAPSHOT_TASKS <= self.task < END

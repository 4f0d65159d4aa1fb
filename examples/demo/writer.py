"""The port of the writers of the demonstration, and what a comparison finds."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

__all__ = ["CHANGE", "EFFECTS", "METADATA", "Commit", "Verdict", "Writer"]

CHANGE: Final = "_change_type"
METADATA: Final = (CHANGE, "_commit_version", "_commit_timestamp")
EFFECTS: Final = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its version, its operation, and the number of rows it touched; None: not known."""

    version: int
    operation: str
    rows: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Row counts: `missing`, `unexpected` against the reference; `lacking`, `left_over` against the table."""

    events: Mapping[str, int]
    missing: int
    unexpected: int
    rows: int
    lacking: int
    left_over: int

    @property
    def proved(self) -> bool:
        """Return whether every event was delivered once, and their fold is the table."""
        wrong = self.missing or self.unexpected or self.lacking or self.left_over
        return not wrong and self.events.keys() <= EFFECTS.keys()


class Writer(Protocol):
    """A writer of a table: a shop whose orders are placed, paid, corrected and cancelled.

    `name`: of the writing program. `scene`: the table it creates. `reference`: its own account of the changes.
    """

    name: str
    scene: str
    reference: str
    operations: Counter[str]

    @property
    def commits(self) -> int:
        """The number of commits that `trade` makes."""
        ...

    def open(self) -> Commit:
        """Create the empty table."""
        ...

    def trade(self) -> Iterator[Commit]:
        """Make all other commits, and yield each."""
        ...

    def judge(self, copy: Path) -> Verdict:
        """Compare the change rows in the Delta table `copy` with the writer's own account."""
        ...

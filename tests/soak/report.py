"""The findings of a soak: the sums of its epochs, as one table in Markdown."""

import subprocess
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.soak.memory import Memory

__all__ = ["FIGURES", "Outcome", "Report"]

FIGURES: Final = ("missing", "doubled", "disordered", "changed", "lost")


@dataclass
class Outcome:
    """The findings of one epoch.

    `events`: by pipeline, the changes that its destination was judged by. `figures`: by pipeline. `verified`: the
    mirrors that `tailer verify` found equal to their source. `takeovers`: those by a standby. `violations`: in words.
    """

    seed: int
    kind: str
    commits: int = 0
    events: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Counter[str]] = field(default_factory=dict)
    verified: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    takeovers: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return a line for people."""
        found = "; ".join(self.violations) or f"five figures 0, {self.verified.total()} mirrors verified"
        return (
            f"epoch {self.seed} ({self.kind}): {self.commits} commits, {self.events.total()} events, "
            f"{self.faults.total()} faults; {found}"
        )


class Report:
    """The sums of all epochs. `began`: the time of the start."""

    def __init__(self, seed: int, memory: Memory) -> None:
        self.began: Final = datetime.now(UTC)
        self.outcomes: Final[list[Outcome]] = []
        self._seed = seed
        self._memory = memory
        self._commit = _commit()

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was violated."""
        return not any(each.violations for each in self.outcomes)

    def __str__(self) -> str:
        """Return the table."""
        hours = (datetime.now(UTC) - self.began).total_seconds() / 3600
        kinds = Counter(each.kind for each in self.outcomes)
        events, verified, faults = Counter[str](), Counter[str](), Counter[str]()
        figures: dict[str, Counter[str]] = {}
        for each in self.outcomes:
            events, verified, faults = events + each.events, verified + each.verified, faults + each.faults
            for name, found in each.figures.items():
                figures.setdefault(name, Counter()).update(found)
        peak, first, last = self._memory.peaks_mb()
        part = "hour" if hours >= 2 else "half"
        by_hour = ", ".join(map(str, self._memory.by_hour_mb()))
        rows = [
            ("date", f"{self.began:%Y-%m-%d %H:%M} UTC"),
            ("commit", f"`{self._commit}`"),
            ("seed", str(self._seed)),
            ("hours", f"{hours:.2f}"),
            ("epochs", f"{len(self.outcomes)} ({_counts(kinds)})"),
            ("commits", str(sum(each.commits for each in self.outcomes))),
            ("events", f"{events.total()}, over all destinations"),
            ("faults", str(faults.total())),
            *((f"fault: {name}", str(number)) for name, number in sorted(faults.items())),
            ("takeovers by a standby", str(sum(each.takeovers for each in self.outcomes))),
            ("peak memory of a daemon", f"{peak} MB; first {part} {first} MB, last {part} {last} MB"),
            ("peak memory by hour", f"{by_hour} MB"),
            *(
                (f"into `{name}`", f"{events[name]} events; {_figures(figures[name])}{_verified(verified[name])}")
                for name in sorted(figures)
            ),
            ("violations", "; ".join(text for each in self.outcomes for text in each.violations) or "none"),
        ]
        return "\n".join(["| soak | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _figures(found: Counter[str]) -> str:
    return ", ".join(f"{name} {found[name]}" for name in FIGURES)


def _verified(times: int) -> str:
    return f"; `verify` {times} times equal" if times else ""


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(found.items()))


def _commit() -> str:
    """Return the commit of the tree, with a mark if files differ from it."""
    root = Path(__file__).parents[2]
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not in a repository"

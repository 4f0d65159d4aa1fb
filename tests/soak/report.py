"""The findings of a soak: the sums of its epochs, as one table in Markdown."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

__all__ = ["FIGURES", "Outcome", "Report"]

FIGURES: Final = ("missing", "doubled", "disordered", "changed", "lost")


@dataclass
class Outcome:
    """The findings of one epoch.

    `began`: its date and time. `hours`: how long it took. `peak_mb`: the most resident memory of a daemon. `events`: by
    pipeline, the changes that its destination was judged by. `figures`: by pipeline. `verified`: the mirrors that
    `tailer verify` found equal to their source. `takeovers`: those by a standby. `violations`: in words.
    """

    seed: int
    kind: str
    began: str = ""
    hours: float = 0.0
    peak_mb: int = 0
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
    """The sums of all epochs of the tree's `commit`. `outcomes`: those of a soak that goes on."""

    def __init__(self, commit: str, outcomes: list[Outcome]) -> None:
        self.outcomes: Final = outcomes
        self._commit = commit

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was violated."""
        return not any(each.violations for each in self.outcomes)

    def has_reached(self, hours: float | None, epochs: int | None) -> bool:
        """Return whether all epochs, at least one, took `hours`, or are `epochs`."""
        is_long = hours is not None and bool(self.outcomes) and self._hours() >= hours
        return is_long or len(self.outcomes) == epochs

    def __str__(self) -> str:
        """Return the table."""
        kinds = Counter(each.kind for each in self.outcomes)
        events, verified, faults = Counter[str](), Counter[str](), Counter[str]()
        figures: dict[str, Counter[str]] = {}
        for each in self.outcomes:
            events, verified, faults = events + each.events, verified + each.verified, faults + each.faults
            for name, found in each.figures.items():
                figures.setdefault(name, Counter()).update(found)
        rows = [
            ("date", self.outcomes[0].began if self.outcomes else "-"),
            ("commit", f"`{self._commit}`"),
            ("seeds", _ranges(sorted(each.seed for each in self.outcomes)) or "-"),
            ("hours", f"{self._hours():.2f}"),
            ("epochs", f"{len(self.outcomes)} ({_counts(kinds)})"),
            ("commits", str(sum(each.commits for each in self.outcomes))),
            ("events", f"{events.total()}, over all destinations"),
            ("faults", str(faults.total())),
            *((f"fault: {name}", str(number)) for name, number in sorted(faults.items())),
            ("takeovers by a standby", str(sum(each.takeovers for each in self.outcomes))),
            ("peak memory of a daemon", f"{max((each.peak_mb for each in self.outcomes), default=0)} MB"),
            ("peak memory by hour", f"{', '.join(map(str, self._peaks_by_hour_mb()))} MB"),
            *(
                (f"into `{name}`", f"{events[name]} events; {_figures(figures[name])}{_verified(verified[name])}")
                for name in sorted(figures)
            ),
            ("violations", "; ".join(text for each in self.outcomes for text in each.violations) or "none"),
        ]
        return "\n".join(["| soak | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])

    def _hours(self) -> float:
        return sum(each.hours for each in self.outcomes)

    def _peaks_by_hour_mb(self) -> list[int]:
        """Return the peak of the epochs that began in each hour."""
        peaks: dict[int, int] = {}
        passed = 0.0
        for each in self.outcomes:
            peaks[int(passed)] = max(peaks.get(int(passed), 0), each.peak_mb)
            passed += each.hours
        return [peaks[hour] for hour in sorted(peaks)]


def _ranges(seeds: list[int]) -> str:
    """Write ascending seeds as ranges; soaks that ran beside each other have one each."""
    begins = [n for n, seed in enumerate(seeds) if n == 0 or seed != seeds[n - 1] + 1]
    return ", ".join(f"{seeds[begin]} to {seeds[end - 1]}" for begin, end in pairwise([*begins, len(seeds)]))


def _figures(found: Counter[str]) -> str:
    return ", ".join(f"{name} {found[name]}" for name in FIGURES)


def _verified(times: int) -> str:
    return f"; `verify` {times} times equal" if times else ""


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(found.items()))

"""The events of a run: drawn from a seed, as elements that can be left out one by one.

Everything that the world does to the pipeline is an element with a name: `c4` is a commit, `x1` the death of a process,
`o2` an operator's order, `lose` a kind of fault of requests. `Scenario.without` leaves elements out, and the others
stay as they are, so a failing run can be made smaller (`tests.simulation.shrink`).
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.simulation.network import Fault
from tests.simulation.table import COMMITS

__all__ = ["SINKS", "Element", "Scenario"]

SINKS: Final = ("files", "kafka", "lines")  # a seed draws one; a mirror only comes where it is asked for
_REQUEST_FAULTS: Final = (*(Fault.REFUSE, Fault.LOSE, Fault.SLOW, Fault.HOLD, Fault.TEAR, Fault.STALE, Fault.MISS),)
_ORDERS: Final = ("pause", "reload", "stop", "resnapshot", "backfill", "skip")


@dataclass(frozen=True)
class Element:
    """Something that happens at `at_s`. `what`: the kind of a commit, an order or a fault.

    `stall`: no request arrives for a while, from the next rows on that are sent to Kafka.
    `swap`: the active instance is frozen at one of its next requests, and meanwhile another table takes the place.
    """

    name: str
    at_s: float
    what: str


@dataclass(frozen=True)
class Scenario:
    """A run. `settings`: options of the pipeline. `rates`: of faults of requests, until `calm_s`.

    `standby`: every process stands by while another one delivers, and there are two from the beginning.
    """

    seed: int
    sink: str
    start: str
    settings: dict[str, Any]
    feed: bool
    page: int
    elements: tuple[Element, ...]
    rates: dict[Fault, float]
    calm_s: float
    standby: bool = False
    left_out: tuple[str, ...] = field(default=())

    @property
    def names(self) -> list[str]:
        """The names of everything that can be left out."""
        return [each.name for each in self.elements] + [str(each) for each in self.rates]

    def without(self, *names: str) -> "Scenario":
        """Return the run without some elements."""
        elements = tuple(each for each in self.elements if each.name not in names)
        rates = {kind: rate for kind, rate in self.rates.items() if str(kind) not in names}
        return replace(self, elements=elements, rates=rates, left_out=(*self.left_out, *names))

    @classmethod
    def of(cls, seed: int, *, sink: str | None = None) -> "Scenario":
        """Draw the run of a seed."""
        chance = random.Random(f"scenario {seed}")
        chosen = sink or chance.choice(SINKS)
        calm = chance.choice((30.0, 120.0, 600.0, 1800.0))
        # Each run has its own weather: few kinds of faults, often, find more than all of them, seldom.
        is_fair = chance.random() < 0.1
        rates = {
            kind: chance.choice((0.01, 0.05, 0.2))
            for kind in _REQUEST_FAULTS
            if not is_fair and chance.random() < (0.15 if kind is Fault.STALE else 0.4)
        }
        commits = _commits(chance, calm)
        elements = [*commits, *([] if is_fair else _misfortunes(chance, calm, commits))]
        settings = {
            "max_rows": chance.choice((1, 5, 20, 1000)),
            "max_versions": chance.choice((1, 3, 1000)),
            "poll_interval_s": chance.choice((0.2, 1.0, 10.0)),
            "commit_deadline_s": chance.choice((20.0, 120.0)),
            "on_data_loss": chance.choice(("fail", "fail", "resnapshot", "skip-with-gap-event")),
            "boundary": chance.choice(("chunk", "version")),
        }
        start = chance.choice(("earliest", "earliest", "snapshot", "latest"))
        feed = chance.random() < 0.5
        page = chance.choice((1000, 1000, 3))
        # Drawn apart, so that the rest of a seed's run is the same without it.
        second = random.Random(f"standby {seed}")
        standby = chosen != "lines" and second.random() < 0.4
        if standby and not is_fair:
            elements += _silences(second, calm, commits)
            third = random.Random(f"swap {seed}")
            if third.random() < 0.4:
                elements.append(Element("w0", third.choice(commits).at_s + third.random(), "swap"))
                settings["on_data_loss"] = "resnapshot"  # the next instance goes on with the other table by itself
        if chosen == "mirror":
            elements += _contradiction(random.Random(f"mirror {seed}"), commits)
            if settings["on_data_loss"] == "skip-with-gap-event":  # a mirror leaves nothing out
                settings["on_data_loss"] = "resnapshot"
        return cls(seed, chosen, start, settings, feed, page, tuple(elements), rates, calm, standby)


def _commits(chance: random.Random, calm: float) -> list[Element]:
    found, at_s = [], 0.0
    for number in range(chance.randint(4, 14)):
        at_s += chance.choice((0.0, 0.5, calm / 10)) * chance.random()
        found.append(Element(f"c{number}", at_s, chance.choice(COMMITS)))
    return found


def _contradiction(chance: random.Random, commits: list[Element]) -> list[Element]:
    """Draw two commits, for half of the seeds: one adds a key that is there, and a later one takes it back."""
    if chance.random() < 0.5:
        return []
    at_s = chance.choice(commits).at_s + chance.random()
    return [Element("b0", at_s, "twice"), Element("b1", at_s + chance.choice((0.001, 0.01, 5.0)), "once")]


def _silences(chance: random.Random, calm: float, commits: list[Element]) -> list[Element]:
    """Draw what makes the active instance of two silent: it is killed, frozen for a while, or slow."""
    found = []
    for number in range(chance.randint(1, 5)):
        soon = chance.choice(commits).at_s + chance.choice((0.1, 1.0, 10.0)) * chance.random()
        at_s = soon if chance.random() < 0.7 else chance.uniform(0, calm)
        found.append(Element(f"f{number}", at_s, chance.choice(("freeze", "freeze", "crash", "skew"))))
    return found


def _misfortunes(chance: random.Random, calm: float, commits: list[Element]) -> list[Element]:
    """Draw deaths, second processes, orders of operators, and what happens to the table beside commits.

    Most of them come soon after a commit, when there is something to deliver.
    """
    found: list[Element] = []

    def moment() -> float:
        soon = chance.choice(commits).at_s + chance.choice((0.1, 1.0, 10.0)) * chance.random()
        return soon if chance.random() < 0.7 else chance.uniform(0, calm)

    def add(letter: str, odds: float, most: int, *what: str) -> None:
        if chance.random() < odds:
            found.extend(
                Element(f"{letter}{number}", moment(), chance.choice(what)) for number in range(chance.randint(1, most))
            )

    add("x", 0.6, 4, "crash")
    add("r", 0.4, 2, "rival")
    add("k", 0.2, 2, "skew")
    add("s", 0.3, 2, "schema")
    add("l", 0.15, 1, "clean")
    add("v", 0.1, 1, "vacuum")
    add("p", 0.1, 1, "replace", "recreate")
    add("d", 0.1, 1, "feature", "garbage")
    add("o", 0.3, 3, *_ORDERS)
    return found

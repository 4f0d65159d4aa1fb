"""Failing runs made smaller, and the command that repeats one."""

from collections.abc import Sequence

from tests.simulation.scenario import Scenario
from tests.simulation.world import Outcome, run

__all__ = ["command", "shrink"]


def command(scenario: Scenario) -> str:
    """Return the command that repeats a run, with its trace."""
    left_out = f" --without {','.join(scenario.left_out)}" if scenario.left_out else ""
    sink = "" if Scenario.of(scenario.seed).sink == scenario.sink else f" --sink {scenario.sink}"
    return f"python -m tests.simulation {scenario.seed}{sink}{left_out}"


def shrink(failed: Outcome) -> Outcome:
    """Leave out of a failing run all that it does not need to violate the same invariant: halves first, then each."""
    size = max(len(failed.scenario.names) // 2, 1)
    while True:
        names = failed.scenario.names
        parts = [names[begin : begin + size] for begin in range(0, len(names), size)]
        for part in reversed(parts):
            failed = _without(failed, part)
        if size == 1 and len(failed.scenario.names) == len(names):
            return failed
        size = max(size // 2, 1)


def _without(failed: Outcome, names: Sequence[str]) -> Outcome:
    smaller = run(failed.scenario.without(*names))
    assert failed.violation is not None
    same = smaller.violation is not None and smaller.violation.number == failed.violation.number
    return smaller if same else failed

"""Run the simulation: one seed with its trace, or many.

    python -m tests.simulation SEED [--sink KIND] [--without NAME,...]
    python -m tests.simulation FIRST-LAST [--sink KIND] [--brief] [--first]

A seed is one run, which is the same every time. Of each run that violates an invariant, the violation is printed, and
the command that repeats it, made as small as possible.
"""

import argparse
import logging
import time
from collections import Counter

from tests.simulation.scenario import SINKS, Scenario
from tests.simulation.shrink import command, shrink
from tests.simulation.world import run


def main() -> None:
    """Exit with 1 if an invariant does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seeds", metavar="SEED", help="a seed, or the first and the last of many: 0-299")
    parser.add_argument("--sink", choices=(*SINKS, "mirror"), help="the destination; by default the seed decides")
    parser.add_argument("--without", default="", metavar="NAMES", help="commits, orders, faults to leave out")
    parser.add_argument("--brief", action="store_true", help="neither shrink nor repeat failing runs")
    parser.add_argument("--first", action="store_true", help="end with the first failing run")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first, _, last = given.seeds.partition("-")
    began_s, invariants, versions, runs = time.process_time(), Counter[int](), 0, 0
    for seed in range(int(first), int(last or first) + 1):
        if given.first and invariants:
            break
        runs += 1
        scenario = Scenario.of(seed, sink=given.sink).without(*filter(None, given.without.split(",")))
        outcome = run(scenario)
        versions += outcome.versions
        if not last:
            print("\n".join(outcome.trace))
        if outcome.violation is not None:
            invariants[outcome.violation.number] += 1
            if given.brief:
                print(f"{seed}: {outcome.violation}", flush=True)
                continue
            small = shrink(outcome)
            print(f"{seed}: {small.violation}\n    {command(small.scenario)}", flush=True)
    failed = sum(invariants.values())
    found = ", ".join(f"{number}: {times}" for number, times in sorted(invariants.items()))
    print(
        f"{failed} of {runs} runs violate an invariant ({found or 'none'}); "
        f"{versions} versions were judged, {time.process_time() - began_s:.1f} s of CPU"
    )
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

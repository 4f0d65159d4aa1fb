"""Faults planted in the product, one at a time, and how many seeds of the simulation find each.

    python -m tests.simulation.planted [NAME ...] [--seeds N] [--first]

`planted.toml` lists the faults, each with the invariant that it breaks. Like those of `tests.mutants`, one is planted
in a copy of the tree, in which the seeds run that would run without it. A run finds a fault if any invariant does not
hold there. Prints the table of `tests/simulation/README.md`.
"""

import argparse
import re
import tomllib
from pathlib import Path
from typing import Final

from tests.mutants.run import Mutant, copied

__all__ = ["PLANTED"]

_FOUND: Final = re.compile(r"^(\d+) of (\d+) runs violate an invariant \((.*?)\)", re.MULTILINE)


def _read() -> dict[str, tuple[int, Mutant]]:
    listed = tomllib.loads((Path(__file__).parent / "planted.toml").read_text())["mutant"]
    return {
        each["name"]: (each["invariant"], Mutant(each["name"], "", each["file"], each["old"], each["new"], ()))
        for each in listed
    }


PLANTED: Final = _read()


def main() -> None:
    """Try the faults with these names, or all. Exit with 1 if one is not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="words of a fault's name; by default all are tried")
    parser.add_argument("--seeds", type=int, default=250, help="how many seeds to run with each; by default 250")
    parser.add_argument("--first", action="store_true", help="end with the first seed that finds a fault")
    given = parser.parse_args()
    more = ["--first"] if given.first else []
    missed = 0
    print("| invariant | fault | found by | as a violation of |\n|---|---|---|---|", flush=True)
    with copied(None) as copy:
        for name, (invariant, mutant) in PLANTED.items():
            if given.names and not any(word in name for word in given.names):
                continue
            with copy.planted(mutant) as is_planted:
                done = copy.run("-m", "tests.simulation", f"0-{given.seeds - 1}", "--brief", *more)
            found = _FOUND.search(done.stdout)
            times, where = "every seed, by an error", ""
            if found is not None:
                times, where = f"{found[1]} of {found[2]}", ", ".join(re.findall(r"(\d+):", found[3]))
            if not is_planted:
                times = "NOT TRIED"
            missed += not is_planted or times.startswith("0 ")
            print(f"| {invariant or 'liveness'} | {name} | {times} | {where} |", flush=True)
    if missed:
        raise SystemExit(f"{missed} are not found")


if __name__ == "__main__":
    main()

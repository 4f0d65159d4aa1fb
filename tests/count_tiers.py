"""Collect each tier by itself and all tests at once: `python -m tests.count_tiers`, which `make test-tiers` runs.

Prints the number of tests in each. Fails if a test is in no tier, or in two.
"""

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.tiers import BY_HAND, TIERS

__all__ = ["collect", "main"]

SIDE_BY_SIDE: Final = 2


def collect(*arguments: str) -> list[str]:
    """Return the ids of the tests that pytest collects with these arguments."""
    command = [sys.executable, "-m", "pytest", "tests", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout)
    return [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]


def main() -> None:
    """Print the size of each tier, and report tests outside or in several tiers."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        every = pool.submit(collect)
        tiers = dict(zip(TIERS + BY_HAND, pool.map(lambda tier: collect("--tier", tier), TIERS + BY_HAND), strict=True))
    for tier, tests in tiers.items():
        print(f"{tier:8} {len(tests):6}")
    print(f"{'all':8} {len(every.result()):6}")
    times = Counter(test for tests in tiers.values() for test in tests)
    wrong = {test: times[test] for test in {*every.result(), *times} if times[test] != 1}
    if wrong or len(every.result()) != times.total():
        sys.exit(f"these tests are not in one tier each: {wrong}")


if __name__ == "__main__":
    main()

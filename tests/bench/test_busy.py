"""500 tables that get 50 commits a second together: `tests.bench.busy_daemon` says how they are measured.

Locally, and in S3: looked at each second, with the looks of the defaults, and with notifications of SQS. Nothing is
asserted about time. `make bench` prints the table.
"""

import statistics
from typing import Final

import pytest

from tests.bench.busy_daemon import Following, local, measure, stored
from tests.bench.conftest import PutLine

RUNS: Final = 5
TABLES: Final = 500
RATE: Final = 50  # commits a second
PLACES: Final[dict[str, tuple[Following, str]]] = {
    "on a local disk": (local, "p99 60 ms"),
    "in S3, a look a second": (stored(1), "p99 1,500 ms, 50 % of a core"),
    "in S3, default looks": (stored(10), "p99 11,000 ms"),
    "in S3, default looks and notifications": (stored(10, announced=True), "-"),
}


@pytest.mark.parametrize("place", PLACES)
def test_busy(put_line: PutLine, place: str) -> None:
    following, goal = PLACES[place]
    runs = measure(TABLES, RATE, RUNS, following)

    def median(name: str) -> float:
        return float(statistics.median(getattr(run, name) for run in runs))

    busy = f"p50 {1000 * median('p50_s'):,.0f} ms, p99 {1000 * median('p99_s'):,.0f} ms, {median('busy_share'):.0%}"
    put_line(f"{TABLES} tables {place}, {median('rate'):.0f} commits/s", f"{busy} of a core", "-", goal)
    quiet = f"{median('idle_share'):.1%} of a core"
    if median("requests"):
        quiet += f", {median('requests'):,.0f} requests an hour for each, {median('request_ms'):.2f} ms of CPU each"
    put_line(f"{TABLES} quiet tables {place}", quiet, "-", "-")

"""Durations of tests and fixtures, which every run with LAKE_TAILER_DURATIONS=FOLDER records.

`python -m tests.durations FOLDER` prints the total of each tier, then the slowest modules, fixtures and tests: seconds
that passed, and seconds of processor time of the process and all its descendants (servers, Spark, daemons). At the end,
when each tier ran.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.tiers import tier_of

__all__ = ["FOLDER", "Recorder", "main"]

FOLDER: Final = "LAKE_TAILER_DURATIONS"
SLOWEST: Final = 50
# Below this a fixture or test does not start a process, and looking for one costs more than what is measured.
_SMALL_S: Final = 0.03
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_s() -> float:
    """Return the processor time of this process and its descendants, those that have ended included."""
    parents: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[int(fields[1])].append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, queue = 0, [os.getpid()]
    while queue:
        pid = queue.pop()
        total += ticks.get(pid, 0)
        queue += parents[pid]
    return total / _TICKS


class Recorder:
    """A plugin of pytest that writes a line of JSON for each test and fixture of this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        # What was measured last, and at the end of the last test: a test's time includes that of its fixtures.
        self._now = self._test_began = cpu_s()

    def _write(self, began: float, since: float, **line: Any) -> None:
        line["began"] = began
        line["seconds"] = time.monotonic() - began
        line["cpu_s"] = 0.0
        if line["seconds"] >= _SMALL_S:
            self._now = cpu_s()
            line["cpu_s"] = max(0.0, self._now - since)
        self._file.write(json.dumps(line) + "\n")

    def pytest_unconfigure(self) -> None:
        """Close the file."""
        self._file.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record a test with its fixtures."""
        began = time.monotonic()
        try:
            return (yield)
        finally:
            tier = tier_of({marker.name for marker in item.iter_markers()})
            self._write(began, self._test_began, test=item.nodeid, tier=tier)
            self._test_began = self._now

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Record a fixture that outlives a test."""
        began = time.monotonic()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._write(began, self._now, fixture=fixturedef.argname, scope=fixturedef.scope)


def total(lines: list[dict[str, Any]], key: str) -> list[tuple[float, float, int, str]]:
    """Return seconds, seconds of processor time, number and name of what has the same `key`, the slowest first."""
    sums: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        sums[line[key]].append(line)
    found = [
        (sum(each["seconds"] for each in group), sum(each["cpu_s"] for each in group), len(group), name)
        for name, group in sums.items()
    ]
    return sorted(found, reverse=True)


def spans(tests: list[dict[str, Any]]) -> list[tuple[float, float, str]]:
    """Return when the first test of each tier began and its last one ended, in seconds of the run, and its name."""
    start = min((test["began"] for test in tests), default=0.0)
    tiers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for test in tests:
        tiers[test["tier"]].append(test)
    return sorted(
        (
            min(each["began"] for each in group) - start,
            max(each["began"] + each["seconds"] for each in group) - start,
            name,
        )
        for name, group in tiers.items()
    )


def main() -> None:
    """Print the tables of a folder of records."""
    lines = [json.loads(line) for path in Path(sys.argv[1]).glob("*.jsonl") for line in path.read_text().splitlines()]
    tests = [line | {"module": line["test"].partition("::")[0]} for line in lines if "test" in line]
    fixtures = [line for line in lines if "fixture" in line]
    for name, rows in (
        ("tiers", total(tests, "tier")),
        (f"slowest {SLOWEST} modules", total(tests, "module")[:SLOWEST]),
        (f"slowest {SLOWEST} fixtures", total(fixtures, "fixture")[:SLOWEST]),
        (f"slowest {SLOWEST} tests", total(tests, "test")[:SLOWEST]),
    ):
        print(f"\n{name}\n   seconds      of CPU  number")
        print("\n".join(f"{seconds:10.1f}  {cpu:10.1f}  {number:6}  {what}" for seconds, cpu, number, what in rows))
    print("\nwhen tiers ran\n     began       ended")
    print("\n".join(f"{began:10.1f}  {ended:10.1f}  {tier}" for began, ended, tier in spans(tests)))


if __name__ == "__main__":
    main()

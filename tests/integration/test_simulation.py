"""Seeds of the simulation on every landing, and what makes them worth anything: a run is the same every time.

On every landing: 300 seeds, and 50 with a mirror: more than the first ones that find the planted faults.
"""

import gc
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from tests.simulation.network import Fault
from tests.simulation.planted import PLANTED
from tests.simulation.scenario import SINKS, Element, Scenario
from tests.simulation.shrink import command
from tests.simulation.world import Outcome, run

ROOT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = 300
MIRRORS: Final = 50
NIGHTLY_MIRRORS: Final = 1000
AT_ONCE: Final = 25
NIGHTLY: Final = 10_000
# They found a fault of the code, a planted one, or one of the judge.
FOUND: Final = (209, 381, 442, 749, 1202, 1329, 1403, 1648, 1948, 4620, 4777, 4938, 4948, 5667, 6050, 6282, 6489)
FOUND_WITH_KAFKA: Final = (845,)


# A process that dies closes none of its files.
pytestmark = [pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"), pytest.mark.long]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Drop what is left of processes that died."""
    yield
    gc.collect()


def check(outcome: Outcome) -> None:
    """Fail with the command that repeats the run, and the end of its trace."""
    if outcome.violation is not None:
        trace = "\n".join(outcome.trace[-40:])
        pytest.fail(f"{outcome.violation}\nRepeat it: {command(outcome.scenario)}\n{trace}", pytrace=False)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_seeds(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        check(run(Scenario.of(seed)))


def test_seeds_that_found_a_fault() -> None:
    for seed in FOUND:
        check(run(Scenario.of(seed)))
    for seed in FOUND_WITH_KAFKA:
        check(run(Scenario.of(seed, sink="kafka")))


@pytest.mark.parametrize(
    "first",
    [
        *range(0, MIRRORS, AT_ONCE),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in range(MIRRORS, NIGHTLY_MIRRORS, AT_ONCE)),
    ],
)
def test_mirrors(first: int) -> None:
    """Half of the tables get a key twice and lose one of its rows: the mirror stops, or never was at that version."""
    for seed in range(first, first + AT_ONCE):
        check(run(Scenario.of(seed, sink="mirror")))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(SEEDS, NIGHTLY, 50))
def test_many_seeds(first: int) -> None:
    for seed in range(first, first + 50):
        check(run(Scenario.of(seed)))


@pytest.mark.parametrize("seed", [1, 5, 7, 10])
def test_stalls_of_the_network_are_no_refusal(seed: int) -> None:
    """The same version is in an open transaction twice when no request arrives for a minute."""
    commits = tuple(Element(f"c{number}", 5.0 * number, "append") for number in range(8))
    stalls = tuple(Element(f"n{number}", 6.0 + number, "stall") for number in range(4))
    drawn = Scenario.of(seed, sink="kafka")
    settings = {**drawn.settings, "boundary": "version", "commit_deadline_s": 120.0}
    quiet = replace(drawn, standby=False, start="earliest", rates={}, calm_s=900.0)
    outcome = run(replace(quiet, elements=(*commits, *stalls), settings=settings))
    check(outcome)
    assert sum("ERROR SinkUnavailable: sink p: the transaction was open for" in line for line in outcome.trace) >= 2


@pytest.mark.parametrize("sink", ["files", "lines"])
def test_old_and_torn_listings_stop_nothing(sink: str) -> None:
    """Listings of the log and of the destination lack new objects, or some of them, and processes die meanwhile."""
    commits = tuple(Element(f"c{number}", 2.0 * number, "append") for number in range(15))
    for seed in range(6):
        drawn = Scenario.of(seed, sink=sink)
        crashes = tuple(Element(f"x{number}", 4.0 + 6.0 * number, "crash") for number in range(6))
        settings = {**drawn.settings, "max_rows": 3, "max_versions": 1, "poll_interval_s": 0.2}
        quiet = replace(drawn, standby=sink == "files", start="earliest", rates={Fault.STALE: 0.3}, calm_s=45.0)
        check(run(replace(quiet, elements=(*commits, *crashes), settings=settings)))


@pytest.mark.parametrize("sink", ["files", "kafka"])
@pytest.mark.parametrize("what", ["crash", "freeze"])
def test_a_standby_takes_over_in_time(sink: str, what: str) -> None:
    """With a commit every second, the longest time between two deliveries is that of a takeover.

    How long a takeover takes depends on requests that the simulation slows down, loses or repeats.
    """
    commits = tuple(Element(f"c{number}", 10.0 + number, "append") for number in range(60))
    longest: list[float] = []
    for seed in range(4):
        scenario = replace(
            Scenario.of(seed, sink=sink),
            standby=True,
            start="earliest",
            rates={},
            calm_s=80.0,
            elements=(*commits, Element("f0", 30.0 + seed / 8, what)),
        )
        scenario.settings["poll_interval_s"] = 0.2
        outcome = run(scenario)
        check(outcome)
        lines = [(float(line.split()[0]), line) for line in outcome.trace]
        seen = [at_s for at_s, line in lines if " VISIBLE " in line and 15 < at_s < 70]
        longest.append(max(after - before for before, after in pairwise(seen)))
    assert max(longest) > 5, "a standby has taken over"
    assert statistics.median(longest) < 9.5
    assert max(longest) < 12


def test_an_order_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill is checked by requests that are slow when everything else is delivered."""
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    commits = [Element("c0", 0.0, "append"), Element("c1", 0.1, "append")]
    orders = [Element(f"o{number}", 299.0 + number / 10, "backfill") for number in range(10)]
    drawn = Scenario.of(2, sink="files")
    settings = {**drawn.settings, "poll_interval_s": 1.0}
    quiet = replace(drawn, standby=False, start="earliest", feed=False, rates={Fault.SLOW: 0.3}, calm_s=300.0)
    outcome = run(replace(quiet, elements=(*commits, *orders), settings=settings))
    gc.collect()
    assert [each.exc_value for each in complaints if not isinstance(each.exc_value, ResourceWarning)] == []
    assert "ORDER backfill" in "\n".join(outcome.trace)


@pytest.mark.parametrize("sink", [*SINKS, "mirror"])
def test_a_run_is_the_same_every_time(sink: str) -> None:
    for seed in range(5):
        scenario = Scenario.of(seed, sink=sink)
        assert run(scenario).trace == run(scenario).trace


def test_a_run_is_the_same_in_any_process() -> None:
    """Hashes of texts differ from process to process, and what was run before must not matter."""
    traces = set()
    for number in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": number}
        arguments = [sys.executable, "-m", "tests.simulation", "11"]
        done = subprocess.run(arguments, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        traces.add(done.stdout.rpartition("\n0 of")[0])
    traces.add("\n".join(run(Scenario.of(11)).trace))
    assert len(traces) == 1


def test_a_run_without_an_element_keeps_the_others() -> None:
    scenario = Scenario.of(3)
    name = scenario.elements[0].name
    assert scenario.without(name).elements == scenario.elements[1:]


def test_planted_faults_fit_the_code() -> None:
    others = [name for name, (_, each) in PLANTED.items() if (ROOT / each.file).read_text().count(each.old) != 1]
    assert not others, "plant these in the code as it is now"

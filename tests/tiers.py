"""Tiers: every test belongs to exactly one, decided by its markers, and a `make` target runs each.

Markers name the resources of a test: golden tables, Spark, Kafka, servers of objects, killed processes. `set_markers`
derives them from the test's fixtures and folder; otherwise the test has a `@pytest.mark`. `smoke` puts a test with one
of these resources into the tier `test` nevertheless, and `long` keeps a test without them out of it. `nightly` is for
repetition: more seeds, kills and combinations of what other tiers show already. `sampled(n)` leaves one case in n of a
test where it is, and the others run in `make nightly`. A parameter with no more values than cases are left keeps all of
them, each in one case at least.

A test is watched while it runs, so that markers stay correct. Helpers that use such a resource report it (`using`), and
a test without a marker for Java gets a `java` that refuses to start, in its own process and in every child.
"""

import os
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import pytest

__all__ = [
    "BY_HAND",
    "TIERS",
    "UnmarkedError",
    "Watch",
    "may_hold",
    "names_of",
    "sample",
    "select",
    "set_markers",
    "tier_of",
    "using",
    "watching",
]

# The tiers of `make test-all`, and those that have only a target of their own.
TIERS: Final = ("test", "long", "golden", "stores", "spark", "kafka", "faults")
BY_HAND: Final = ("nightly", "connect", "bench", "page")

# The first marker that a test has decides.
_TIER_BY_MARKER: Final = {
    "bench": "bench",
    "spark_connect": "connect",
    "nightly": "nightly",
    "page": "page",
    "smoke": "test",
    "golden": "golden",
    "faults": "faults",
    "kafka": "kafka",
    "spark": "spark",
    "stores": "stores",
    "long": "long",
}

_MARKER_BY_FIXTURE: Final = {
    "spark": "spark",
    "kafka": "kafka",
    "secure_kafka": "kafka",
    "s3proxy": "stores",
    "versitygw": "stores",
    "fake_gcs": "stores",
    "azurite": "stores",
    "cloud": "stores",
    "postgres": "stores",
    "browser": "page",
}
# A server that takes longer to build than its tests to run. It is a fixture, or the parameter of one.
_NIGHTLY_SERVER: Final = "fake_gcs"
# Fixtures with cases in that tier, which have the marker themselves.
_SOME_OF_FIXTURE: Final = {"database": "stores"}
# Tests without a marker are in the first; `sample` puts any test in the second.
_UNNAMED: Final = frozenset({"test", "nightly"})
# In `tests/faults`: the list of processes that a test starts and kills.
_PROCESSES: Final = "started"

_JAVA: Final = frozenset({"spark", "spark_connect", "kafka", "stores", "bench"})

# A replacement of Java that leaves a trace, and fails.
_NO_JAVA: Final = """\
#!/bin/sh
echo "java $*" | cut -c1-200 >>"{calls}"
echo "this test starts Java: mark it with @pytest.mark.spark or @pytest.mark.kafka (tests/tiers.py)" >&2
exit 97
"""


class UnmarkedError(Exception):
    """A test uses a resource without the marker for it."""


def tier_of(markers: Set[str]) -> str:
    """Return the tier of a test with these markers: one of `TIERS` or `BY_HAND`."""
    return next((tier for marker, tier in _TIER_BY_MARKER.items() if marker in markers), "test")


def names_of(item: pytest.Item) -> set[str]:
    """Return the names of a test's markers."""
    return {marker.name for marker in item.iter_markers()}


def set_markers(item: pytest.Item) -> None:
    """Set the markers that follow from a test's fixtures and folder."""
    fixtures = set(getattr(item, "fixturenames", ()))
    for marker in {_MARKER_BY_FIXTURE[fixture] for fixture in fixtures & _MARKER_BY_FIXTURE.keys()}:
        item.add_marker(marker)
    call = getattr(item, "callspec", None)
    values = () if call is None else call.params.values()
    if _NIGHTLY_SERVER in fixtures | {value for value in values if isinstance(value, str)}:
        item.add_marker("nightly")
    folder = item.path.parent.name
    if folder == "bench" or (folder == "golden" and _reads_tables(item)):
        item.add_marker(folder)
    if folder == "faults" and (_PROCESSES in fixtures or names_of(item) & {"spark", "kafka"}):
        item.add_marker(folder)


@cache
def may_hold(module: Path, tier: str) -> bool:
    """Return whether a module, by its folder and its text, may have tests of a tier."""
    if module.parent.name in (tier, "bench"):
        return module.parent.name == tier
    if tier in _UNNAMED:
        return True
    markers = {marker for marker, each in _TIER_BY_MARKER.items() if each == tier}
    named = (*_MARKER_BY_FIXTURE.items(), *_SOME_OF_FIXTURE.items())
    fixtures = {fixture for fixture, marker in named if marker in markers}
    words = [rf"\bmark\.{marker}\b" for marker in markers] + [rf"\b{fixture}\b" for fixture in fixtures]
    return re.search("|".join(words), module.read_text()) is not None


def sample(items: Iterable[pytest.Item]) -> None:
    """Move all but some cases of the tests with the marker `sampled(n)` to `make nightly`."""
    tests: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if markers := list(item.iter_markers_with_node("sampled")):
            # A class has the markers of those that it inherits from before its own.
            (every,) = [marker for node, marker in markers if node is markers[0][0]][-1].args
            tests[item.nodeid.partition("[")[0], every].append(item)
    for (_, every), cases in tests.items():
        for place in sorted({*range(len(cases))} - _kept([_values(case) for case in cases], every)):
            cases[place].add_marker("nightly")


def _values(item: pytest.Item) -> frozenset[tuple[str, str]]:
    """Return the names and values of a case's parameters."""
    call = getattr(item, "callspec", None)
    return frozenset() if call is None else frozenset((name, repr(value)) for name, value in call.params.items())


def _kept(cases: Sequence[frozenset[tuple[str, str]]], every: int) -> set[int]:
    """Return the places of one case in `every`, with each value of each parameter that has no more values than that."""
    number = -(-len(cases) // every)
    values = Counter(name for name, _ in frozenset().union(*cases))
    missing = {value for value in frozenset().union(*cases) if values[value[0]] <= number}
    kept: set[int] = set()
    while missing:
        place = max(range(len(cases)), key=lambda place: len(cases[place] & missing))
        kept.add(place)
        missing -= cases[place]
    others = [place for place in range(len(cases)) if place not in kept]
    more = max(0, number - len(kept))
    return kept | {others[at * len(others) // more] for at in range(more)}


def _reads_tables(item: pytest.Item) -> bool:
    module = getattr(item, "module", None)
    return hasattr(module, "golden") or hasattr(module, "golden_delta")


class Watch:
    """The watch of one run of pytest; `using` and the refusing Java report to it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tiers-"))
        self._calls = self._folder / "calls"
        java = self._folder / "bin" / "java"
        java.parent.mkdir()
        java.write_text(_NO_JAVA.format(calls=self._calls))
        java.chmod(0o755)
        self._item: pytest.Item | None = None
        self._used: list[str] = []

    def close(self) -> None:
        """Remove its files."""
        shutil.rmtree(self._folder)

    def use(self, marker: str) -> None:
        """Record that the running test uses the resource of `marker`. Raises `UnmarkedError`."""
        if self._item is None:
            raise UnmarkedError(f"{marker}: used while tests are collected; use it in a test or fixture")
        markers = names_of(self._item)
        if not markers & {marker, "bench"} and not (marker == "spark" and "spark_connect" in markers):
            said = f"this test uses {marker}: mark it with @pytest.mark.{marker} (tests/tiers.py)"
            self._used.append(said)
            raise UnmarkedError(said)

    @contextmanager
    def over(self, item: pytest.Item) -> Iterator[None]:
        """Watch a test with its fixtures."""
        before = {name: os.environ.get(name) for name in ("PATH", "JAVA_HOME")}
        self._item = item
        if not names_of(item) & _JAVA:
            os.environ["PATH"] = f"{self._folder / 'bin'}{os.pathsep}{before['PATH']}"
            os.environ["JAVA_HOME"] = str(self._folder)
        try:
            yield
        finally:
            self._item = None
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def complaints(self) -> list[str]:
        """Return the resources used without a marker since the last call."""
        said, self._used = self._used, []
        if self._calls.exists():
            started = self._calls.read_text().splitlines()
            self._calls.unlink()
            said += [f"this test needs the marker spark or kafka, it starts: {line}" for line in started]
        return list(dict.fromkeys(said))


_WATCHES: Final[list[Watch]] = []


def watching(watch: Watch | None) -> None:
    """Make `watch` the one that `using` reports to (None: no watch)."""
    _WATCHES[:] = [] if watch is None else [watch]


def using(marker: str) -> None:
    """Report that the running test uses the resource of `marker`. Raises `UnmarkedError` if the test lacks it.

    Outside a run of pytest, as in a test's own child processes, it does nothing.
    """
    for watch in _WATCHES:
        watch.use(marker)


def select(items: list[pytest.Item], tiers: Iterable[str]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into those of some tiers, the slow ones with servers or processes first, and all others."""
    wanted = set(tiers)
    chosen = [item for item in items if tier_of(names_of(item)) in wanted]
    left = [item for item in items if tier_of(names_of(item)) not in wanted]
    chosen.sort(key=lambda item: not names_of(item) & {*_JAVA, "faults"})
    return chosen, left
